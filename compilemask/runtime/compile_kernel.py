"""From Triton IR as text to a kernel: compiled once per content and device, with Triton's own cache on disk behind."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from compilemask.errors import DeviceError, MissingDependencyError, TargetError
from compilemask.passes.instrument import current_observers
from compilemask.runtime.target import Target, parse_target

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

_ENTRY = re.compile(r'tt\.func.*?(?:sym_name\s*=\s*"(\w+)"|@(\w+))', re.DOTALL)


class Options(NamedTuple):
    """How Triton schedules a kernel."""

    num_warps: int = 4
    num_stages: int = 3


DEFAULT = Options()


class _Key(NamedTuple):
    text: str
    options: Options
    device: int


_kernels: dict[_Key, CompiledKernel] = {}
_lock = threading.Lock()


def compiled_kernels() -> int:
    """How many kernels this process has compiled, or loaded from Triton's cache on disk."""
    return len(_kernels)


def ir_of(kernel: CompiledKernel) -> str:
    """The text that a kernel which `kernel_for` gave was compiled from. Raises TargetError for any other kernel."""
    for key, known in _kernels.items():
        if known is kernel:
            return key.text
    raise TargetError("this kernel was not compiled here: its IR is not known")


def kernel_for(text: str, device: torch.device, options: Options = DEFAULT) -> CompiledKernel:
    """The kernel of a module in Triton IR, loaded for a CUDA device. Equal text gives the same kernel.

    Raises DeviceError if there is no such device, MissingDependencyError without Triton.
    """
    if device.type != "cuda" or device.index is None:
        raise DeviceError(f"kernels run on a CUDA device with an index, got {device}")
    # Python keeps the hash of a string: finding a kernel again costs no pass over its text.
    key = _Key(text, options, device.index)
    if (kernel := _kernels.get(key)) is not None:
        return kernel
    with _lock:
        if key not in _kernels:
            # The current device decides where Triton loads the binary.
            with torch.cuda.device(device):
                _kernels[key] = _compile(text, target_of(device), options)
    return _kernels[key]


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
    return _compile(text, parse_target(target), options)


def compile_in_child(text: str, target: str, options: Options = DEFAULT) -> dict[str, Any]:
    """`compile_for` in a child process, so that IR which makes Triton end its process raises TargetError instead."""
    parse_target(target)
    return _in_child(compile_for, text, target, options)


def _compile(text: str, target: Target, options: Options) -> CompiledKernel:
    try:
        import triton
    except ImportError as error:
        raise MissingDependencyError("compiling kernels needs the package triton") from error
    with tempfile.TemporaryDirectory(prefix="compilemask-") as folder:
        path = Path(folder) / f"{_entry_name(text)}.ttir"
        path.write_text(text)
        try:
            kernel = triton.compile(str(path), target=target.for_triton(), options=options._asdict())
        except Exception as error:
            raise TargetError(
                f"Triton {triton.__version__} cannot compile this module for {target}: {error}"
            ) from error
    for observer in current_observers():
        observer.compiled(path.stem, str(target), {"mlir": text, **kernel.asm})
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
