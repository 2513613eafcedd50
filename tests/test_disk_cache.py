"""Binaries on disk: found again by a new process, never where anything differs, and remade if they are damaged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import compilemask
from compilemask.runtime import compile
from compilemask.runtime.gpu import compile_kernel, disk_cache
from compilemask.runtime.gpu.binary import Binary
from compilemask.runtime.gpu.compile_kernel import Source
from compilemask.runtime.gpu.target import Target

pytest.importorskip("triton")
HOPPER, AMPERE = Target("cuda", 90), Target("cuda", 80)
BINARY = Binary(b"\x00code\nwith lines\n", "kernel", 128, 1000, "=QiQ", (0, 8, 12), (0,))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_what_was_kept_is_found() -> None:
    assert disk_cache.find("a", HOPPER) is None
    disk_cache.keep("a", HOPPER, BINARY)
    assert disk_cache.find("a", HOPPER) == BINARY
    assert disk_cache.find("b", HOPPER) is None
    assert disk_cache.find("a", AMPERE) is None


def test_other_sources_and_settings_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk_cache.keep("a", HOPPER, BINARY)
    with monkeypatch.context() as context:
        context.setenv("DISABLE_LLVM_OPT", "1")
        assert disk_cache.find("a", HOPPER) is None
    with monkeypatch.context() as context:
        context.setenv("TRITON_ALWAYS_COMPILE", "1")
        assert disk_cache.find("a", HOPPER) is None
    with compilemask.debug(timing=True):
        assert disk_cache.find("a", HOPPER) is None
    assert disk_cache.find("a", HOPPER) == BINARY
    monkeypatch.setattr(disk_cache, "_versions", lambda _: "others")
    assert disk_cache.find("a", HOPPER) is None


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[:-1],
    "a bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "no JSON": lambda data: b"{" + data,
    "no numbers": lambda data: data.replace(b'"threads"', b'"others"'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_not_used(name: str, folder: Path) -> None:
    disk_cache.keep("a", HOPPER, BINARY)
    (path,) = folder.rglob("compilemask.bin")
    path.write_bytes(DAMAGES[name](path.read_bytes()))
    assert disk_cache.find("a", HOPPER) is None
    disk_cache.keep("a", HOPPER, BINARY)
    assert disk_cache.find("a", HOPPER) == BINARY


def test_a_new_process_needs_no_text() -> None:
    program = compile(compilemask.causal()).program
    sources = [Source(name, lambda name=name: program.kernel_text(name)) for name in ("fill", "count")]
    fill, count = compile_kernel._binaries(sources, HOPPER)
    assert (fill.name, count.name) == ("causal_fill", "causal_count")
    assert fill.format == "=Q" + "i" * 12 + "Q" * len(fill.scratch)

    def emit() -> str:
        raise AssertionError("IR was emitted")

    again = compile_kernel._binaries([Source("count", emit), Source("fill", emit)], HOPPER)
    assert again == [count, fill]


def test_kernels_compile_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the others, so that they would never end one after the other."""
    together = threading.Barrier(3, timeout=60)

    def compiled(text: str, *_: object) -> Binary:
        together.wait()
        return BINARY._replace(name=text)

    monkeypatch.setattr(compile_kernel, "_compiled_binary", compiled)
    found = compile_kernel._binaries([Source(name, lambda name=name: name) for name in "abc"], HOPPER)
    assert [binary.name for binary in found] == ["a", "b", "c"]
