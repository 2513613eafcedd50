"""Calls of attention functions on the CPU: what is kept between them, in how many threads, and what they cost."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from compare import assert_close, dense_attention, random_inputs

import compilemask as cm
from compilemask.runtime.cpu import attention_cpu_jit, upstream_mlir
from compilemask.runtime.cpu.host_code import Arguments, HostFunction

pytestmark = pytest.mark.skipif(upstream_mlir.find() is None, reason="upstream MLIR's bindings are not installed")


def test_calls_that_are_alike_in_part() -> None:
    """Plans are kept by all that decides them: other strides, scales, masks and heads of the same sizes are others."""
    attention_cpu_jit.forget()
    for _ in range(2):
        for mask in (cm.causal(), cm.window(20, 3), cm.hstu(torch.tensor([30, 90]), 5)):
            for heads, key_heads in ((4, 4), (4, 2), (4, 1)):
                q, k, v = random_inputs(2, heads, key_heads, 140, 140, 24)
                for scale in (None, 0.7, -0.2):
                    for turned in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
                        expected, _ = dense_attention(q, k, v, mask.dense(140, 140), scale)
                        assert_close(cm.attention(turned, k, v, mask, scale), expected, 2e-5)


def test_tensors_of_a_call_are_not_kept() -> None:
    q, k, v = random_inputs(1, 2, 2, 300, 300, 64)
    out = cm.attention(q, k, v, cm.causal())
    alive = [weakref.ref(x) for x in (q, k, v, out)]
    del q, k, v, out
    assert [found() for found in alive] == [None] * 4


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_calls_at_the_same_time(threads: int) -> None:
    """Of one plan, with other tensors and scales."""
    given = [(random_inputs(1, 2, 2, 200, 200, 32), 0.1 * number) for number in range(1, 9)]
    visible = cm.causal().dense(200, 200)
    expected = [dense_attention(*inputs, visible, scale)[0] for inputs, scale in given]

    def attend(number: int) -> torch.Tensor:
        inputs, scale = given[number % 8]
        return cm.attention(*inputs, cm.causal(), scale)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with ThreadPoolExecutor(4) as pool:
            for number, out in enumerate(pool.map(attend, range(80))):
                assert_close(out, expected[number % 8], 2e-5)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_attends() -> None:
    """After attention in several threads, none of which the child has; new functions are compiled there too."""
    program = (
        "import os, torch, compilemask as cm\n"
        "torch.set_num_threads(2)\n"
        "inputs = [torch.randn(1, 4, 600, 64) for _ in range(3)]\n"
        "expected = cm.attention(*inputs, cm.causal()).tolist()\n"
        "others = [torch.randn(1, 1, 40, 33) for _ in range(3)]\n"
        "if (child := os.fork()) == 0:\n"
        "    equal = cm.attention(*inputs, cm.causal()).tolist() == expected\n"
        "    finite = all(abs(x) < 9 for x in cm.attention(*others, cm.window(7, 0)).flatten().tolist())\n"
        "    os._exit(0 if equal and finite else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.stdout == "0\n", run.stderr


@pytest.mark.parametrize("given", ["mask", "descriptor"])
def test_a_call_takes_less_than_60_microseconds_outside_the_function(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that may be busy: in some round of ten seconds."""
    q, k, v = random_inputs(1, 1, 1, 128, 128, 64)
    mask = cm.causal() if given == "mask" else cm.compile(cm.causal()).descriptor(128)
    inside: list[float] = []
    run = HostFunction.__call__

    def timed(function: HostFunction, arguments: Arguments) -> None:
        start = time.perf_counter()
        run(function, arguments)
        inside.append(time.perf_counter() - start)

    monkeypatch.setattr(HostFunction, "__call__", timed)

    def outside() -> float:
        start = time.perf_counter()
        cm.attention(q, k, v, mask)
        return time.perf_counter() - start - inside[-1]

    end = time.monotonic() + 10
    while (found := statistics.median(outside() for _ in range(50))) >= 60e-6:
        assert time.monotonic() < end, f"{found * 1e6:.0f} us"
