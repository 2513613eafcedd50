"""From Triton IR as text to a kernel: compiled once per content and device, and kept on disk (`disk_cache`)."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import torch

from compilemask.errors import DeviceError, TargetError
from compilemask.passes.instrument import current_observers
from compilemask.runtime.gpu import disk_cache
from compilemask.runtime.gpu.assign_layouts import assign_layouts
from compilemask.runtime.gpu.binary import Binary, binary_of
from compilemask.runtime.gpu.driver import Kernel
from compilemask.runtime.gpu.target import Target, parse_target

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

_ENTRY = re.compile(r'tt\.func.*?(?:sym_name\s*=\s*"(\w+)"|@(\w+))', re.DOTALL)


Passes: TypeAlias = Literal["all", "few", "few and coalesce"]


class Options(NamedTuple):
    """How Triton schedules a kernel."""

    num_warps: int = 4
    num_stages: int = 3
    passes: Passes = "all"
    """Triton's passes that make Triton-GPU IR, on cuda: all, or the few of `assign_layouts`, with or without the one
    that looks for wide accesses to memory.
    """


DEFAULT = Options()


class Source(NamedTuple):
    """A kernel by what decides its text: equal identities have equal text, which is only made if it is needed."""

    identity: str
    text: Callable[[], str]
    """Gives a module in Triton IR."""
    options: Options = DEFAULT


class _Key(NamedTuple):
    identity: str
    options: Options
    device: int


_kernels: dict[_Key, Kernel] = {}
_lock = threading.Lock()


def compiled_kernels() -> int:
    """How many kernels this process has compiled, or loaded from disk."""
    return len(_kernels)


def forget() -> None:
    """Drop all kernels: those that are asked for from now on are compiled, or loaded from disk, anew."""
    with _lock:
        _kernels.clear()


def kernel_for(text: str, device: torch.device, options: Options = DEFAULT) -> Kernel:
    """The kernel of a module in Triton IR, loaded for a CUDA device. Equal text gives the same kernel.

    Raises DeviceError if there is no such device, MissingDependencyError without Triton.
    """
    return kernels_for([Source(text, lambda: text, options)], device)[0]


def kernels_for(sources: Sequence[Source], device: torch.device) -> list[Kernel]:
    """As `kernel_for`, of several modules: what must be compiled is compiled at the same time, the first one first."""
    if device.type != "cuda" or cast("int | None", device.index) is None:
        raise DeviceError(f"kernels run on a CUDA device with an index, got {device}")
    # Python keeps the hash of a string: finding a kernel again costs no pass over its text.
    keys = [_Key(source.identity, source.options, device.index) for source in sources]
    with _lock:
        missing = [(key, source) for key, source in zip(keys, sources, strict=True) if key not in _kernels]
        if missing:
            binaries = _binaries([source for _, source in missing], target_of(device))
            # The current device decides where the driver loads a binary.
            with torch.cuda.device(device):
                for (key, source), binary in zip(missing, binaries, strict=True):
                    _kernels[key] = Kernel(binary, source.text, device.index)
        return [_kernels[key] for key in keys]


def _binaries(sources: Sequence[Source], target: Target) -> list[Binary]:
    """Triton and the assembler release Python's lock: while one text is compiled, the next one is made.

    Observers see one kernel after the other.
    """
    names = [f"{source.options} {source.identity}" for source in sources]
    found = [disk_cache.find(name, target) for name in names]
    with ThreadPoolExecutor(1 if current_observers() else len(sources)) as pool:
        pending = {
            index: pool.submit(copy_context().run, _compiled_binary, source.text(), target, source.options)
            for index, source in enumerate(sources)
            if found[index] is None
        }
    for index, future in pending.items():
        disk_cache.keep(names[index], target, future.result())
    return [pending[index].result() if binary is None else binary for index, binary in enumerate(found)]


def _compiled_binary(text: str, target: Target, options: Options) -> Binary:
    return binary_of(compile_text(text, target, options._asdict()))


@cache
def target_of(device: torch.device) -> Target:
    """The target of a CUDA device."""
    major, minor = torch.cuda.get_device_capability(device)
    return Target("cuda", major * 10 + minor)


def compile_for(text: str, target: str, options: Options = DEFAULT) -> dict[str, Any]:
    """All forms that Triton gives a module for a target: `ttgir`, `llir`, `ptx`, `cubin` (bytes), ... Needs no GPU.

    Triton ends the process on some invalid IR: text that a user wrote must go through `compile_in_child`.
    Raises TargetError if the target is unknown or Triton cannot compile the module for it.
    """
    return dict(compile_kernel(text, target, options).asm)


def compile_kernel(text: str, target: str, options: Options = DEFAULT) -> CompiledKernel:
    """As `compile_for`: Triton's kernel, with its `metadata`."""
    return compile_text(text, parse_target(target), options._asdict())


def compile_in_child(text: str, target: str, options: Options = DEFAULT) -> dict[str, Any]:
    """`compile_for` in a child process, so that IR which makes Triton end its process raises TargetError instead."""
    parse_target(target)
    return _in_child(compile_for, text, target, options)


def compile_text(text: str, target: Target, options: Mapping[str, object], form: str = "ttir") -> CompiledKernel:
    """Triton's kernel of a module in Triton IR, or with `form` ttgir in Triton-GPU IR. Observers see it.

    Raises TargetError if Triton cannot compile the module.
    """
    version = disk_cache.triton_version()
    import triton

    given = dict(options)
    passes = given.pop("passes", "all") if form == "ttir" and target.backend == "cuda" else "all"
    with tempfile.TemporaryDirectory(prefix="compilemask-") as folder:
        path = Path(folder) / f"{_entry_name(text)}.{form}"
        path.write_text(text)
        try:
            if passes != "all":
                num_warps, coalesce = cast("int", given["num_warps"]), passes == "few and coalesce"
                laid_out = assign_layouts(path, target, num_warps, coalesce=coalesce)
                path = path.with_suffix(".ttgir")
                path.write_text(laid_out)
            kernel = cast("CompiledKernel", triton.compile(str(path), target=target.for_triton(), options=given))
        except Exception as error:
            raise TargetError(f"Triton {version} cannot compile this module for {target}: {error}") from error
    forms = cast("dict[str, Any]", kernel.asm)
    forms.setdefault(form, text)
    for observer in current_observers():
        observer.compiled(path.stem, str(target), {"mlir": text, **forms})
    return kernel


def _entry_name(text: str) -> str:
    found = _ENTRY.search(text)
    return (found[1] or found[2]) if found else "kernel"


def _in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(send, function, arguments))
    child.start()
    send.close()
    try:
        answer = receive.recv()
    except EOFError:
        child.join()
        raise TargetError(
            f"Triton ended its process with exit code {child.exitcode} while compiling this module"
        ) from None
    child.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(send: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        send.send(function(*arguments))
    except Exception as error:
        send.send(error)
