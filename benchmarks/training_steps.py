"""Times training steps whose lengths change every time: a mask for new answers to a prompt, the forward pass and the
backward pass, beside FlexAttention. Counts what is compiled after the first step.

    python benchmarks/training_steps.py --lengths 8192,32768 --steps 100 \
        --implementations compilemask,compilemask-deterministic,flex-triton,flex-fa4 --output benchmarks/results/

A time is that of one step on the host's clock, from its offsets in host memory to the last gradient on the device.
Steps of all implementations take turns, in shuffled order, on the same lengths.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cases import _ids, answer_offsets
from deterministic import SUFFIX, switched
from forward import HERE, header

if TYPE_CHECKING:
    import torch

Offsets = list[int]
Step = Callable[[Offsets], object]
"""One training step on new offsets of a prompt and its answers."""


def compilemask(inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Step:
    """This project."""
    import torch

    import compilemask as cm

    def step(offsets: Offsets) -> object:
        table = torch.tensor(offsets, dtype=torch.int32).to(grad.device)
        return torch.autograd.grad(cm.attention(*inputs, mask=cm.shared_prompt(table)), inputs, grad)

    return step


def _flex(inputs: Sequence[torch.Tensor], grad: torch.Tensor, options: dict[str, Any]) -> Step:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    build = torch.compile(create_block_mask, dynamic=False)
    length, device = grad.shape[2], str(grad.device)
    ids = torch.zeros(length, dtype=torch.int32, device=device)

    def visible(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv <= q) & ((ids[kv] == 0) | (ids[kv] == ids[q]))

    def step(offsets: Offsets) -> object:
        ids.copy_(_ids(offsets, "cpu"))
        mask = build(visible, None, None, length, length, device=device)
        return torch.autograd.grad(attend(*inputs, block_mask=mask, kernel_options=options or None), inputs, grad)

    return step


IMPLEMENTATIONS: dict[str, Callable[[Sequence[Any], Any], Step]] = {
    "compilemask": compilemask,
    "flex-triton": lambda inputs, grad: _flex(inputs, grad, {}),
    "flex-fa4": lambda inputs, grad: _flex(inputs, grad, {"BACKEND": "FLASH"}),
}


def implementation(name: str, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Step:
    """An implementation by name."""
    return switched(name, IMPLEMENTATIONS[name.removesuffix(SUFFIX)](inputs, grad))


@contextmanager
def counted() -> Generator[Callable[[], int]]:
    """How many kernels Triton has compiled, and graphs TorchDynamo, since this began."""
    import triton
    from torch._dynamo.utils import counters

    compile_, found = triton.compile, [0]

    def counting(*arguments: Any, **named: Any) -> Any:
        found[0] += 1
        return compile_(*arguments, **named)

    graphs = counters["stats"]["unique_graphs"]
    triton.compile = counting
    try:
        yield lambda: found[0] + counters["stats"]["unique_graphs"] - graphs
    finally:
        triton.compile = compile_


def measure(
    steps: dict[str, Step], lengths: Sequence[Offsets], synchronize: Callable[[], object]
) -> dict[str, tuple[list[float], int]]:
    """Milliseconds of each step by implementation, and what was compiled after its first one, which is not timed."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    compiled = dict.fromkeys(steps, 0)
    for number, offsets in enumerate(lengths):
        for name in random.sample(list(steps), len(steps)):
            synchronize()
            with counted() as count:
                start = time.perf_counter()
                steps[name](offsets)
                synchronize()
                passed = 1e3 * (time.perf_counter() - start)
                compiled[name] += count() if number else 0
            if number:
                times[name].append(passed)
    return {name: (times[name], compiled[name]) for name in steps}


def records(measured: dict[str, tuple[list[float], int]], shape: Sequence[int], dtype: str) -> list[dict[str, object]]:
    """In the format of the other benchmarks, with the number of steps and of recompilations."""
    batch, heads, length, head_dim = shape
    common = {"mask": "rm", "B": batch, "H": heads, "S": length, "D": head_dim, "dtype": dtype, "pass": "training"}
    return [
        {
            **common,
            "impl": name,
            "ms_median": statistics.median(times),
            "ms_min": min(times),
            "ms_max": max(times),
            "steps": len(times),
            "recompiles": compiled,
        }
        for name, (times, compiled) in measured.items()
    ]


def run(length: int, options: argparse.Namespace) -> list[dict[str, object]]:
    """The records of one length on this GPU; those of implementations that fail say why."""
    import torch

    shape, dtype = (1, options.heads, length, options.head_dim), getattr(torch, options.dtype)
    *inputs, grad = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4))
    inputs = [x.requires_grad_() for x in inputs]
    lengths = [answer_offsets(length, seed) for seed in range(options.steps + 1)]
    steps: dict[str, Step] = {}
    failed: list[dict[str, object]] = []
    for name in options.implementations.split(","):
        try:
            steps[name] = implementation(name, inputs, grad)
            steps[name](lengths[0])
        except Exception as fault:
            steps.pop(name, None)
            failed.append({"mask": "rm", "S": length, "D": options.head_dim, "impl": name, "error": str(fault)[:200]})
    return records(measure(steps, lengths, torch.cuda.synchronize), shape, options.dtype) + failed


def main() -> None:
    """Run all lengths, print a line per record and write the JSON file."""
    parser = argparse.ArgumentParser(description="Times training steps of new lengths side by side.")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--implementations", default="compilemask,compilemask-deterministic,flex-triton,flex-fa4")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    result: dict[str, Any] = {"header": header(), "records": []}
    options.output.mkdir(parents=True, exist_ok=True)
    file = f"training-{str(result['header']['gpu']).replace(' ', '-')}-{result['header']['date']}.json"
    for length in map(int, options.lengths.split(",")):
        for record in run(length, options):
            result["records"].append(record)
            print(record, flush=True)
        (options.output / file).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
