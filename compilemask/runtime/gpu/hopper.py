"""Attention on a GPU: split where rows are few, else by the Hopper kernel where it can be had, or the portable one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, cast

import torch

from compilemask.dialects.tiling import Weights
from compilemask.dialects.tiling_score import ScoreOp
from compilemask.errors import DescriptorError, LoweringError, TargetError
from compilemask.lowering.descriptor_layout import Layout, ceil_div
from compilemask.lowering.patch_grid import Patches
from compilemask.lowering.tiling_to_tt.attention import attention_module, attention_op
from compilemask.lowering.tiling_to_ttg.attention import HopperConfig, Schedule, emit
from compilemask.lowering.tiling_to_ttg.attention_config import ROWS, TILE, Patch, kernel_head_dim, programs_at_once
from compilemask.runtime.descriptor import Descriptor
from compilemask.runtime.gpu.attention_cuda import ELEMENTS, WORD, attention_cuda
from compilemask.runtime.gpu.attention_split_cuda import attention_split, split_along
from compilemask.runtime.gpu.binary import Binary
from compilemask.runtime.gpu.compile_kernel import target_of
from compilemask.runtime.gpu.driver import Argument, Kernel
from compilemask.runtime.gpu.hopper_compile import HOPPER, gpu_text, kept_binary
from compilemask.runtime.gpu.launch import current_stream, empty_here, is_capturing, is_current, launch, launch_here
from compilemask.runtime.gpu.patch_maps import PatchMaps, geometry_of, has_patch_maps, patch_shapes_of
from compilemask.runtime.gpu.split_keys import split_of
from compilemask.runtime.gpu.tensor_map import TensorMaps, is_aligned, is_readable
from compilemask.runtime.patched import attend_in_patched_order
from compilemask.runtime.scoring import UNMODIFIED, Scoring, score_op

LOW_ROWS, HIGH_ROWS = 64, 192
"""R of the kernels with one consumer and with three."""
LARGEST_HIGH_DIM = 64
"""Largest D for which there is one with three."""
LONG_KEYS = 4096
"""Keys from which on rows keep their first peaks: visits are shorter then, and a program's end is longer."""
CACHED_BYTES = 36 << 20
"""Keys and values of heads that are computed together, so that they stay in the L2 cache of 50 MB."""
DTYPES = (torch.float16, torch.bfloat16)
Addresses = tuple[int, int, int]
"""Of query, key and value."""


def attention_gpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    scoring: Scoring = UNMODIFIED,
    kind: Kind | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, D] in the input type and lse [B, Hq, Sq] in float32. Does not wait. Takes checked arguments.

    `kind` is that of the inputs, if it is known already.
    """
    if scale < 0:
        # The kernels take the largest product of a row for its largest score.
        query, scale, kind = -query, -scale, None
    split = split_along(query.shape, key.shape, descriptor.layout, scoring, _processors(query.device))
    if split is not None:
        return attention_split(query, key, value, descriptor, scale, scoring, split)
    if is_aligned(query, key, value):
        plan = _chosen_plan(*(kind or kind_of(query, key, value)), descriptor.layout, scoring.text)
        if plan is not None:
            return attend(plan, _addresses(query, key, value), descriptor, scale, scoring)
    if descriptor.layout.patches is not None:
        return attend_in_patched_order(attention_gpu, query, key, value, descriptor, scale)
    return attention_cuda(query, key, value, descriptor, scale, scoring)


def best_rows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kind: Kind | None = None) -> int | None:
    """R of the descriptor that attention of these, on a GPU, asks for; None for that of every kernel."""
    batch, heads, queries, head_dim = query.shape
    if split_of(batch, heads, key.shape[1], queries, key.shape[2], _processors(query.device)) is not None:
        return None
    if head_dim > LARGEST_HIGH_DIM and not _has_few_tiles(batch * heads, queries, query.device):
        return None
    return _best_rows(kind or kind_of(query, key, value)) if is_aligned(query, key, value) else None


def takes_patches(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, patches: Patches) -> bool:
    """Whether attention of these, on a GPU, loads patches from where they lie: others are copied in patched order."""
    if not has_hopper_kernel(query, key, value, patches=patches):
        return False
    shapes, rows = (patches.query_patch, patches.key_patch), patches.queries.tile
    is_long = key.shape[2] >= LONG_KEYS
    return _chosen(query.shape[-1], query.dtype, Schedule.GRID, "", rows, is_long, *shapes) is not None


def has_hopper_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, patches: Patches | None = None
) -> bool:
    """Whether these are inputs that the Hopper kernel takes, on a GPU that runs it.

    It takes float16 and bfloat16, D up to 128 in multiples of 8, and tensors that TMA can read: starts and strides are
    multiples of 16 bytes, and the last dimension is contiguous. In tiles that are patches of a video, batches and heads
    must be one dimension for TMA: batch 1, or strides as if they were.
    """
    return is_aligned(query, key, value) and is_supported(kind_of(query, key, value), patches)


def attention_hopper(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    config: HopperConfig,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a variant of the Hopper kernel, for inputs of which `has_hopper_kernel` holds."""
    plan = _plan(kind_of(query, key, value), descriptor.layout, config)
    return attend(plan, _addresses(query, key, value), descriptor, scale)


def attend(
    plan: Plan, addresses: Addresses, descriptor: Descriptor, scale: float, scoring: Scoring = UNMODIFIED
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, by a plan for inputs at these addresses. Does not wait."""
    if not is_current(plan.device):
        with torch.cuda.device(plan.device):
            return attend(plan, addresses, descriptor, scale, scoring)
    out = empty_here(*plan.out, plan.dtype)
    lse = empty_here(*plan.lse, torch.float32)
    scoring = scoring.for_kernels() if scoring.text else scoring
    counter = _counter(plan.device) if plan.has_counter else None
    arguments = plan.arguments(addresses, out, lse, descriptor, counter, scale, scoring)
    launch_here(plan.kernel, (plan.programs, 1, 1), plan.device.index, arguments)
    return out, lse


def _addresses(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Addresses:
    return query.data_ptr(), key.data_ptr(), value.data_ptr()


# ---------------------------------------------------------------- plans


_Mapped: TypeAlias = tuple[Sequence[int], Sequence[int], torch.dtype, int]
"""Shape and strides of a tensor, its type, and the rows of a box."""


class Kind(NamedTuple):
    """What inputs have in common with others that a launch treats alike: all but their addresses."""

    query_shape: Sequence[int]
    query_stride: Sequence[int]
    key_shape: Sequence[int]
    key_stride: Sequence[int]
    value_stride: Sequence[int]
    dtype: torch.dtype
    device: torch.device


def kind_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kind:
    """Their kind."""
    return Kind(query.shape, query.stride(), key.shape, key.stride(), value.stride(), query.dtype, query.device)


def is_supported(kind: Kind, patches: Patches | None = None) -> bool:
    """`has_hopper_kernel`, of aligned inputs."""
    if kind.dtype not in DTYPES or kernel_head_dim(kind.query_shape[-1]) is None or target_of(kind.device) != HOPPER:
        return False
    keys = kind.key_shape
    inputs = ((kind.query_shape, kind.query_stride), (keys, kind.key_stride), (keys, kind.value_stride))
    size = kind.dtype.itemsize
    return all(is_readable(shape, stride, size) for shape, stride in inputs) and (
        patches is None or all(has_patch_maps(shape, stride, size, patches.sizes) for shape, stride in inputs)
    )


@lru_cache(maxsize=256)
def _best_rows(kind: Kind) -> int | None:
    if not is_supported(kind):
        return None
    batch, heads, queries, head_dim = kind.query_shape
    # Low tiles fill more processors; a high one takes longer, and pays where there are more than processors.
    if _has_few_tiles(batch * heads, queries, kind.device):
        rows = LOW_ROWS
    elif head_dim <= LARGEST_HIGH_DIM:
        rows = HIGH_ROWS
    else:
        return None
    tiles = batch * heads * ceil_div(queries, rows)
    schedule = _schedule(tiles, rows, _processors(kind.device))
    is_long = kind.key_shape[2] >= LONG_KEYS
    return None if _chosen(head_dim, kind.dtype, schedule, "", rows, is_long) is None else rows


def _has_few_tiles(all_heads: int, queries: int, device: torch.device) -> bool:
    """Whether there are no more tiles of 128 rows than processors."""
    return all_heads * ceil_div(queries, TILE) <= _processors(device)


def _schedule(tiles: int, rows: int, processors: int) -> Schedule:
    return Schedule.choose(tiles, processors * programs_at_once(rows))


class Launch(NamedTuple):
    """A kernel with its arguments; calling it starts it on the current stream."""

    kernel: Kernel
    programs: int
    arguments: list[Argument]
    device: torch.device
    counter: torch.Tensor | None
    """Kept alive with the launch."""

    def __call__(self) -> None:
        launch(self.kernel, (self.programs, 1, 1), self.device, self.arguments)


class Plan(NamedTuple):
    """All of a launch that its inputs' addresses do not decide."""

    kernel: Kernel
    programs: int
    maps: tuple[TensorMaps, TensorMaps, TensorMaps, TensorMaps]
    """Of query, key, value and out."""
    out: tuple[tuple[int, ...], tuple[int, ...]]
    """Shape and strides."""
    lse: tuple[tuple[int, ...], tuple[int, ...]]
    sections: tuple[int, int, int, int]
    """Where in a descriptor the sections start that the kernel reads, in bytes."""
    numbers: tuple[int, ...]
    dtype: torch.dtype
    """Of out."""
    device: torch.device
    has_counter: bool
    patch_maps: tuple[PatchMaps, ...] = ()
    """In place of `maps`, where tiles are patches of an image."""

    def arguments(
        self,
        addresses: Addresses,
        out: torch.Tensor,
        lse: torch.Tensor,
        descriptor: Descriptor,
        counter: torch.Tensor | None,
        scale: float,
        scoring: Scoring = UNMODIFIED,
    ) -> list[Argument]:
        """The kernel's arguments for inputs at these addresses; out and lse are contiguous."""
        if self.patch_maps:
            maps = self._maps_of_patches(*addresses, out.data_ptr())
        else:
            (query_map, key_map, value_map, out_map), (query, key, value) = self.maps, addresses
            maps = (query_map[query], key_map[key], value_map[value], out_map[out.data_ptr()])
        base = descriptor.buffer.data_ptr()
        order, visits, patterns, columns = self.sections
        return [
            *maps,
            lse.data_ptr(),
            *(base + order, base + visits, base + patterns, base + columns),
            *(() if counter is None else (counter.data_ptr(),)),
            *self.numbers,
            scale,
            *(scoring.kernel_arguments() if scoring.text else ()),
        ]

    def _maps_of_patches(self, *addresses: int) -> Sequence[bytes]:
        return [part for maps, address in zip(self.patch_maps, addresses, strict=True) for part in maps.at(address)]


def plan_along(kind: Kind, layout: Layout) -> Plan | None:
    """The plan that `attention_gpu` follows for aligned inputs along such descriptors; None if by another kernel."""
    if split_along(kind.query_shape, kind.key_shape, layout, UNMODIFIED, _processors(kind.device)) is not None:
        return None
    return _chosen_plan(*kind, layout, "")


@lru_cache(maxsize=256)
def _chosen_plan(
    query_shape: Sequence[int],
    query_stride: Sequence[int],
    key_shape: Sequence[int],
    key_stride: Sequence[int],
    value_stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    layout: Layout,
    score: str,
) -> Plan | None:
    """The plan for these inputs; None if the Hopper kernel does not take them."""
    kind = Kind(query_shape, query_stride, key_shape, key_stride, value_stride, dtype, device)
    if not is_supported(kind, layout.patches):
        return None
    batch, heads, _, head_dim = query_shape
    schedule = _schedule(batch * heads * layout.query_tiles, layout.rows, _processors(device))
    is_long = key_shape[2] >= LONG_KEYS
    config = _chosen(head_dim, dtype, schedule, score, layout.rows, is_long, *patch_shapes_of(layout))
    return None if config is None else _plan(kind, layout, config, score)


@lru_cache(maxsize=256)
def _plan(kind: Kind, layout: Layout, config: HopperConfig, score: str = "") -> Plan:
    """The plan of a variant, for a structure of scores."""
    if layout.rows != config.rows:
        raise DescriptorError(f"the descriptor has tiles of {layout.rows} query rows, the kernel takes {config.rows}")
    if patch_shapes_of(layout) != (config.query_patch, config.key_patch):
        raise DescriptorError(f"the descriptor has {layout.patches or 'no patches'}, the kernel is {config}")
    batch, heads, queries, head_dim = kind.query_shape
    key_heads, device = kind.key_shape[1], kind.device
    all_heads = batch * heads
    tiles = layout.query_tiles * all_heads
    out_shape, out_stride = tuple(kind.query_shape), (heads * queries * head_dim, queries * head_dim, head_dim, 1)
    tensors = (
        (kind.query_shape, kind.query_stride, kind.dtype, ROWS),
        (kind.key_shape, kind.key_stride, kind.dtype, TILE),
        (kind.key_shape, kind.value_stride, kind.dtype, TILE),
        (out_shape, out_stride, kind.dtype, ROWS),
    )
    query_maps, key_maps, value_maps, out_maps = (TensorMaps(*tensor) for tensor in tensors)
    numbers = (
        *(heads, heads // key_heads, layout.queries, layout.keys, layout.query_tiles),
        *(layout.heads if layout.batch > 1 else 0, 1 if layout.heads > 1 else 0),
        *(all_heads, *heads_together(kind.key_shape, kind.dtype.itemsize, queries, heads, all_heads)),
        *geometry_of(layout),
    )
    return Plan(
        kernel=_kernel(kernel_head_dim(head_dim) or head_dim, kind.dtype, config, score, device.index),
        programs=min(tiles, config.programs * _processors(device)) if config.is_persistent else tiles,
        maps=(query_maps, key_maps, value_maps, out_maps),
        out=(out_shape, out_stride),
        lse=(out_shape[:3], (heads * queries, queries, 1)),
        sections=(WORD * layout.order, WORD * layout.visits, WORD * layout.patterns, WORD * layout.columns),
        numbers=numbers,
        dtype=kind.dtype,
        device=device,
        has_counter=config.schedule is Schedule.ATOMIC,
        patch_maps=_patch_maps(layout.patches, tensors),
    )


def _patch_maps(patches: Patches | None, tensors: Sequence[_Mapped]) -> tuple[PatchMaps, ...]:
    """Those of query, key, value and out."""
    if patches is None:
        return ()
    grids = (patches.queries, patches.keys, patches.keys, patches.queries)
    return tuple(PatchMaps.of(*tensor, grid) for tensor, grid in zip(tensors, grids, strict=True))


def prepare_launch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    descriptor: Descriptor,
    scale: float,
    config: HopperConfig,
) -> Launch:
    """The launch of a variant for these tensors; out and lse are contiguous."""
    plan = _plan(kind_of(query, key, value), descriptor.layout, config)
    counter = _counter(plan.device) if plan.has_counter else None
    arguments = plan.arguments(_addresses(query, key, value), out, lse, descriptor, counter, scale)
    return Launch(plan.kernel, plan.programs, arguments, plan.device, counter)


def heads_together(key_shape: Sequence[int], size: int, queries: int, heads: int, all_heads: int) -> tuple[int, int]:
    """Query heads whose keys and values, elements of so many bytes, fit the L2 cache, and, for sparse masks, those
    whose queries and outputs fit it too, or of two key heads. Of key heads both are powers of two.
    """
    group, row = heads // key_shape[1], key_shape[3] * size
    keys = 2 * key_shape[2] * row
    fitting, sparse = (
        1 << (max(CACHED_BYTES // needed, 1).bit_length() - 1) for needed in (keys, keys + 2 * queries * group * row)
    )
    sparse = min(max(sparse, 2), fitting)
    return min(all_heads, fitting * group), min(all_heads, sparse * group)


# ---------------------------------------------------------------- kernels


def hopper_text(head_dim: int, dtype: torch.dtype, config: HopperConfig, score: str = "") -> str:
    """A variant of the kernel, for a structure of scores, in Triton-GPU IR. Raises LoweringError if there is none."""
    module = attention_module(head_dim, ELEMENTS[dtype], score=score_op(score))
    return gpu_text(emit(attention_op(module), config))


@lru_cache(maxsize=64)
def hopper_binary(head_dim: int, dtype: torch.dtype, config: HopperConfig, score: str = "") -> Binary:
    """A compiled variant of the kernel. Needs no GPU. Raises LoweringError or TargetError if there is none."""
    name = f"attention {head_dim} {dtype} {config} {score}"
    return kept_binary(name, partial(hopper_text, head_dim, dtype, config, score))


def forget() -> None:
    """Drop all kernels: those that are asked for from now on are compiled, or loaded from disk, anew."""
    for kept in (hopper_binary, _kernel, _plan, _chosen_plan):
        kept.cache_clear()


@lru_cache(maxsize=64)
def _kernel(head_dim: int, dtype: torch.dtype, config: HopperConfig, score: str, device: int) -> Kernel:
    binary = hopper_binary(head_dim, dtype, config, score)
    with torch.cuda.device(device):
        return Kernel(binary, cache(partial(hopper_text, head_dim, dtype, config, score)), device)


@cache
def _chosen(
    head_dim: int,
    dtype: torch.dtype,
    schedule: Schedule,
    score: str,
    rows: int,
    is_long: bool,
    query_patch: Patch | None = None,
    key_patch: Patch | None = None,
) -> HopperConfig | None:
    """The variant for these inputs, which have many keys if it `is_long`; None if there is none for tiles of so many
    rows or such patches, and, with a warning, if the installed Triton does not compile it.
    """
    dim = kernel_head_dim(head_dim) or head_dim
    if score and query_patch is not None:
        return None
    try:
        keeps_peaks = is_long and _is_plain(score_op(score))
        config = HopperConfig.choose(dim, ELEMENTS[dtype], rows, schedule, keeps_peaks=keeps_peaks)
        config = replace(config, query_patch=query_patch, key_patch=key_patch)
    except LoweringError:
        return None
    try:
        hopper_binary(dim, dtype, config, score)
    except TargetError as error:
        warnings.warn(f"attention uses the portable kernel: {error}", RuntimeWarning, stacklevel=2)
        return None
    return config


def _is_plain(score: ScoreOp | None) -> bool:
    """Whether scores are used as they are, in a softmax, which may have a sink."""
    return score is None or (score.is_identity and score.weights is Weights.SOFTMAX)


@cache
def _processors(device: torch.device) -> int:
    return cast("Any", torch.cuda.get_device_properties(device)).multi_processor_count


# ---------------------------------------------------------------- counters of the atomic schedule

COUNTERS = 1 << 16
"""Pairs of a device. One serves all launches of a stream, and each launch in a graph keeps one for itself."""

_of_stream: dict[tuple[int, int], torch.Tensor] = {}
_unused: dict[int, Iterator[torch.Tensor]] = {}


def _counter(device: torch.device) -> torch.Tensor:
    """Two zeros that no other launch uses at the same time. Each launch leaves zeros."""
    if is_capturing():
        return _unused_counter(device)
    key = (device.index, current_stream(device.index))
    if key not in _of_stream:
        if device.index not in _unused:
            zeros = torch.zeros((COUNTERS, 2), dtype=torch.int32, device=device)
            _unused[device.index] = map(zeros.__getitem__, range(COUNTERS))  # iter(zeros) makes all tensors at once
            torch.cuda.current_stream(device).synchronize()
        _of_stream[key] = _unused_counter(device)
    return _of_stream[key]


def _unused_counter(device: torch.device) -> torch.Tensor:
    """From memory that was zeroed long ago, which spares a graph the node that zeroes it; new if all that is taken."""
    found = next(_unused.get(device.index, iter(())), None)
    return torch.zeros(2, dtype=torch.int32, device=device) if found is None else found
