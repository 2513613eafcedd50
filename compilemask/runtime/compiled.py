"""A compiled mask: its IR at every level, its descriptors and its attention."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, cast, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from compilemask.errors import DeviceError, MaskError, ShapeError, TargetError
from compilemask.language.extent import Limit, check_limits, image_of
from compilemask.language.mask import Mask
from compilemask.lowering.patch_choice import PatchChoice, choose_patches, end_with_image, lie_on_raster
from compilemask.lowering.patch_grid import Patches
from compilemask.passes.observers import printed
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.launch import current_stream, is_capturing
from compilemask.runtime.gpu.target import parse_target
from compilemask.runtime.kept_descriptors import Kept, KeptDescriptors
from compilemask.runtime.kernel_text import (
    attention_kernel_text,
    check_kernel_request,
    descriptor_kernels,
    host_functions,
)
from compilemask.runtime.modes import has_content, outside_transformations
from compilemask.runtime.parameters import Parameter, batch_shape, checked_parameter, image_parameters
from compilemask.runtime.program import Program, forget_programs, load_kernels, program_for
from compilemask.runtime.requirements import check_values
from compilemask.runtime.validate import check_lengths, check_patches, check_rows

LEVELS = ("mask", "interval", "tiling", "scf", "ttir", "ttgir", "llir", "ptx")


class Compiled:
    """A mask's compiled program with values for its parameters. Immutable: it keeps nothing between calls but caches.

    Masks of one structure share a program, so compiling the same mask with other values costs nothing.
    """

    def __init__(self, program: Program, parameters: tuple[Parameter, ...], limits: Sequence[Limit] = ()) -> None:
        self.program = program
        self.parameters = parameters
        self.limits = tuple(limits)
        """What the parameters say about the lengths that the mask fits."""
        self.batch_shape = batch_shape(parameters)
        """(B, H) of the masks; 1 where all batches or heads share one."""
        self.tables = [parameter.value for parameter in parameters if isinstance(parameter.value, torch.Tensor)]
        self.handle = _random.getrandbits(HANDLE_BITS)
        """Names this object where no Python object can stand (`compiled_of`)."""
        _by_handle[self.handle] = self
        self._is_constant = not any(parameter.is_table for parameter in parameters)
        """Whether a descriptor depends on host integers alone."""

    def __reduce__(self) -> tuple[type[Compiled], tuple[object, ...]]:
        """A copy has a handle of its own: in another process that of this object names another one."""
        return Compiled, (self.program, self.parameters, self.limits)

    # ---- values ----

    def bind(self, mask: Mask | None = None, /, **values: object) -> Compiled:
        """The same program with other parameter values: those of a mask of the same structure, or by name.

        Values are ints, or for tables integer tensors or lists of shape [L], [B, L] or [B, H, L].
        Raises MaskError for an unknown name or another structure, DTypeError or ShapeError for an unusable value.
        """
        given, limits = self.parameters, self.limits
        if mask is not None:
            if mask.key != self.program.key:
                raise MaskError(f"bind takes a mask of the same structure as @{self.name}; compile this one instead")
            given, limits = parameters_of(mask), mask.limits
        known = {parameter.name: parameter for parameter in given}
        for name, value in values.items():
            if name not in known:
                raise MaskError(f"@{self.name} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
            known[name] = checked_parameter(name, value, known[name].is_table)
        check_values(self.name, self.program.requirements, tuple(known.values()))
        return Compiled(self.program, tuple(known.values()), limits)

    def with_tables(self, tables: Sequence[torch.Tensor]) -> Compiled:
        """The same with other tables, in the order of `tables`."""
        if not tables:
            return self
        given = iter(tables)
        parameters = (Parameter(p.name, next(given)) if p.is_table else p for p in self.parameters)
        return Compiled(self.program, tuple(parameters), self.limits)

    @property
    def name(self) -> str:
        """The name of the mask's functions in IR."""
        return self.program.name

    @cached_property
    def transposed(self) -> Compiled:
        """The transposed mask: its rows are keys, and it says by which queries they are seen."""
        limits = [replace(limit, transposed=not limit.transposed) for limit in self.limits]
        return Compiled(self.program.transposed, self.parameters, limits)

    # ---- IR ----

    def ir(
        self,
        level: str,
        target: str | None = None,
        *,
        head_dim: int = 128,
        dtype: torch.dtype = torch.bfloat16,
    ) -> str:
        """The mask's IR at a level, the same text in every run. Needs no GPU.

        Args:
            level: mask, interval or tiling; or ttir, ttgir, llir or ptx for the kernels that build the mask's
                descriptor (count, fill, patterns) and the one that follows it (attention), each under a heading; or scf
                for the functions that do so on the CPU, in float32 and for vectors of 512 bits.
            target: such as 'cuda:90', for ttgir, llir and ptx. For ttir it is optional: it decides the block sizes of
                the attention kernel, those of cuda:90 if not given.
            head_dim: D of the attention kernel, 1 to 256.
            dtype: float16, bfloat16 or float32, of the attention kernel.

        Raises:
            TargetError: the level or the target is unknown, or the level does not exist for the target.
            ShapeError, DTypeError: there is no attention kernel for this head_dim or dtype.
            LoweringError: the mask's arithmetic has no form on the CPU.
        """
        if level not in LEVELS:
            raise TargetError(f"unknown level {level!r}, expected one of {', '.join(LEVELS)}")
        if target is not None:
            parse_target(target)
        if level in ("mask", "interval", "tiling"):
            return printed(getattr(self.program, f"{level}_module"))
        check_kernel_request(level, target, head_dim, dtype)
        if level == "scf":
            texts = host_functions(self.program, head_dim)
        else:
            texts = descriptor_kernels(self.program, level, target)
            texts["attention"] = attention_kernel_text(level, target, head_dim, dtype)
        return "\n".join(f"// {name}\n{text}" for name, text in texts.items())

    # ---- descriptors and attention ----

    def descriptor(
        self,
        queries: int,
        keys: int | None = None,
        device: torch.device | str = "cpu",
        *,
        gradient: bool = False,
        rows: int | None = None,
        patches: Patches | None = None,
    ) -> Descriptor:
        """The descriptor for `queries` x `keys` positions (as many keys as queries if not given), built on `device`.

        `gradient` also builds the descriptor of the transposed mask, which the gradient of attention follows. `rows`
        is the height of a query tile, 128 if not given. On a GPU attention takes tiles of 128 rows; the Hopper kernel
        also takes 64, and 192 with D up to 64; the CPU takes any. `patches` says an image in the sequence whose patches
        are to be the tiles (`compilemask.Patches`); there are as many queries as keys then, its `length`. `patches_for`
        says which are worth it; they are not taken unless they are given.

        Does not wait. Tables that are int32 on the device are read when the build runs: inside a CUDA graph each replay
        builds from what they then hold. Raises ShapeError for impossible lengths, and MaskError for lengths that the
        mask does not fit (`Mask.check_lengths`).
        """
        keys = queries if keys is None else keys
        if rows is not None:
            check_rows(rows)
        if patches is not None:
            check_patches(patches, queries, keys, rows)
            if gradient and patches.query_patch != patches.key_patch:
                raise ShapeError(f"gradients need patches of one shape, not {patches}")
        where = indexed(device)
        self._check_lengths(queries, keys)
        if not gradient:
            return self._built_on(where, queries, keys, rows, patches)
        if where.type == "cuda" and queries and keys:
            load_kernels([self._program_for(rows, patches), self.transposed._program_for(None, patches)], where)
        transposed = self.transposed._built_on(where, keys, queries, None, patches)
        return _constant_descriptors.with_transpose(self._built_on(where, queries, keys, rows, patches), transposed)

    def descriptor_before_transpose(
        self, device: torch.device, queries: int, keys: int
    ) -> tuple[Descriptor, Callable[[], Descriptor]]:
        """As `descriptor` with a gradient, in two parts: that without its transpose, and what adds it.

        In between a caller starts what follows the first part only: on a GPU that would wait for the host otherwise.
        For masks with tables on a CPU or a CUDA device with an index; others have descriptors that are kept.
        """
        self._check_lengths(queries, keys)
        if device.type == "cuda" and queries and keys:
            load_kernels([self.program, self.program.transposed], device)
        descriptor = self.program.build(self.parameters, queries, keys, device)

        def complete() -> Descriptor:
            transposed = self.program.transposed.build(self.parameters, keys, queries, device)
            return Descriptor(descriptor.buffer, descriptor.layout, transposed, descriptor.numbers)

        return descriptor, complete

    def descriptor_on(
        self,
        device: torch.device,
        queries: int,
        keys: int,
        rows: int | None = None,
        patches: Patches | None = None,
    ) -> Descriptor:
        """As `descriptor`, on a CPU or a CUDA device with an index."""
        self._check_lengths(queries, keys)
        return self._built_on(device, queries, keys, rows, patches)

    def _built_on(
        self, device: torch.device, queries: int, keys: int, rows: int | None, patches: Patches | None
    ) -> Descriptor:
        program, parameters = self._program_for(rows, patches), self.parameters
        if patches is not None:
            parameters = (*parameters, *image_parameters(patches))
            queries, keys = patches.queries.total, patches.keys.total
        key = None
        if self._is_constant and has_content() and (device.type == "cpu" or not is_capturing()):
            stream = current_stream(device.index) if device.type == "cuda" else 0
            key = (program, self._numbers, queries, keys, patches, device, stream)
            if (found := _constant_descriptors.find(key)) is not None:
                return found
        with outside_transformations():
            descriptor = program.build(parameters, queries, keys, device)
        if key is not None:
            _constant_descriptors.keep(key, descriptor)
        return descriptor

    def _check_lengths(self, queries: int, keys: int) -> None:
        check_lengths(queries, keys)
        if self.limits and (has_content() or not self.tables):
            with outside_transformations():
                check_limits(self.limits, self._values, queries, keys)

    def _program_for(self, rows: int | None, patches: Patches | None) -> Program:
        """The program whose tiles are patches, or have so many rows."""
        if patches is not None:
            return self._program_in(patches)
        return self.program if rows is None else self.program.in_tiles_of(rows)

    def patches_for(self, queries: int, keys: int) -> PatchChoice | None:
        """Whether the tiles of the mask's image should be patches of it, and which; None if a row sees no lines of one.

        There is a choice if the mask speaks of one image in raster order, whose sizes are integers as all its
        parameters are, among as many queries as keys. Counted once for each length, on the host.

        Raises DTypeError or ShapeError for impossible lengths.
        """
        check_lengths(queries, keys)
        if queries != keys:
            return self._no_choice(f"there are {queries} queries, but {keys} keys")
        if queries not in self._choices:
            self._choices[queries] = self._choose_patches(queries)
        return self._choices[queries]

    def _choose_patches(self, length: int) -> PatchChoice | None:
        image = image_of(self.limits, self._values)
        if isinstance(image, str):
            return self._no_choice(image)
        origin, sizes = image
        if origin + math.prod(sizes) > length:
            return self._no_choice(f"the image ends behind the last of {length} positions")
        known = [value for value in self._known if value is not None]
        return choose_patches(self.program.intervals, known, image, length)

    def _no_choice(self, why: str) -> PatchChoice | None:
        return PatchChoice(None, no_choice=why) if self.program.sees_lines else None

    @cached_property
    def _choices(self) -> dict[int, PatchChoice | None]:
        return {}

    def _program_in(self, patches: Patches) -> Program:
        """The program for patches of an image. Raises ShapeError unless the mask's lines are those of the image."""
        if patches not in self._programs_in:
            func, shapes = self.program.intervals, (patches.query_patch, patches.key_patch)
            if not lie_on_raster(func, self._known, patches):
                raise ShapeError(f"the lines of @{self.name} are not those of a raster of {patches.sizes}")
            inside = end_with_image(func, self._known, patches)
            self._programs_in[patches] = self.program.in_patches(shapes, inside)
        return self._programs_in[patches]

    @cached_property
    def _programs_in(self) -> dict[Patches, Program]:
        return {}

    @property
    def _known(self) -> list[int | None]:
        """The parameters as far as the host knows them without looking into tables."""
        return [parameter.value if isinstance(parameter.value, int) else None for parameter in self.parameters]

    @cached_property
    def _values(self) -> dict[str, int | torch.Tensor]:
        return {parameter.name: parameter.of_all_masks for parameter in self.parameters}

    @cached_property
    def _numbers(self) -> tuple[object, ...]:
        return tuple(parameter.value for parameter in self.parameters)

    @overload
    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float | None = None,
        return_lse: Literal[False] = False,
    ) -> torch.Tensor: ...

    @overload
    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float | None = None,
        *,
        return_lse: Literal[True],
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None, return_lse: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """`compilemask.attention` with this mask."""
        from compilemask.runtime.calls.operator import attention

        return attention(q, k, v, self, scale=scale, return_lse=return_lse)

    def __repr__(self) -> str:
        values = ", ".join(
            f"{p.name}={p.value if isinstance(p.value, int) else list(p.value.shape)}" for p in self.parameters
        )
        return f"Compiled(@{self.name}, {values})"


HANDLE_BITS = 56
"""Of handles, which are random: graphs are saved and sent to other processes, where a number of theirs must not be that
of another mask."""
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
_by_handle: WeakValueDictionary[int, Compiled] = WeakValueDictionary()


def compiled_of(handle: int) -> Compiled | None:
    """The object of a handle, if it still exists."""
    return _by_handle.get(handle)


KEPT_DESCRIPTORS = 16
"""Descriptors of masks without tables that are kept for the next call with the same lengths."""
_constant_descriptors = KeptDescriptors(KEPT_DESCRIPTORS)
_compiled: WeakKeyDictionary[Mask, Compiled] = WeakKeyDictionary()


def kept_by(descriptor: Descriptor) -> Kept | None:
    """What keeps a descriptor that a mask has given for the next call; None if each call builds one of its own."""
    return _constant_descriptors.entry_of(descriptor)


def forget() -> None:
    """Drop all programs: masks that are compiled from now on are compiled anew."""
    _compiled.clear()
    forget_programs()


def compile(mask: Mask | Compiled, *, pipeline: str | None = None) -> Compiled:
    """Compile a mask; a compiled one is returned as it is. Work is done on first use, once per structure of masks.

    `pipeline` names the passes that lead from the mask to the tiling level, in place of the usual ones (`compilemask
    lower NAME --print-pipeline` prints those).

    Raises MaskError if `mask` is no mask or its parameters disagree, PipelineError if the pipeline cannot be read.
    """
    if isinstance(mask, Compiled):
        return mask
    if pipeline is None and isinstance(mask, Mask):
        if (known := _compiled.get(mask)) is None:
            known = _compiled[mask] = Compiled(program_for(mask.key, mask.module), parameters_of(mask), mask.limits)
        return known
    if not hasattr(mask, "key") or not hasattr(mask, "module"):
        raise MaskError(f"compile takes a mask, got a {type(mask).__name__}")
    return Compiled(program_for(mask.key, mask.module, pipeline), parameters_of(mask), mask.limits)


def parameters_of(mask: Mask) -> tuple[Parameter, ...]:
    """The mask's parameters, checked."""
    return tuple(checked_parameter(p.name, p.value, p.is_table) for p in mask.parameters)


def indexed(device: torch.device | str) -> torch.device:
    """The device, a CUDA device with its index. Raises DeviceError if there is no backend for it, or no such device."""
    if not isinstance(device, torch.device):
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError):
            raise DeviceError(f"{device!r} is no device; there is a backend for cpu and cuda") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise DeviceError(f"there is a backend for cpu and cuda, not for {device}")
    if not torch.cuda.is_available():
        raise DeviceError(f"{device} was asked for, and PyTorch sees no CUDA device")
    index = torch.cuda.current_device() if cast("int | None", device.index) is None else device.index
    if index >= torch.cuda.device_count():
        raise DeviceError(f"{device} was asked for, and there are {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", index)
