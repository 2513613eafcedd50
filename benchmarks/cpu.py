"""Times the forward pass on the CPU side by side with its peers, and writes records as those of `forward.py`.

    python benchmarks/cpu.py --masks causal,window256,hstu,rm,clear --lengths 1024,4096 --threads 1,2

Float32 inputs. In each case all implementations are prepared and checked against each other, then called in turn in
shuffled rounds, so that other work on the machine hits all of them; the least time is the fairest of a busy machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from cases import MASKS, Case, Predicate, case
from torch.nn.functional import scaled_dot_product_attention

import compilemask as cm

HERE = Path(__file__).parent
TOLERANCE = 1e-4
Call = Callable[[], torch.Tensor]
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _window256(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    return cm.window(255, 0), lambda b, h, q, kv: (kv <= q) & (q - kv < 256)


def _compilemask(found: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    descriptor = cm.compile(found.mask).descriptor(q.shape[2], k.shape[2], q.device)
    return lambda: cm.attention(q, k, v, descriptor)


def _sdpa_causal(found: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=True)


def _sdpa_mask(found: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    visible = found.mask.dense(q.shape[2], k.shape[2])
    return lambda: scaled_dot_product_attention(q, k, v, attn_mask=visible)


def _flex_cpu(found: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    block_mask = create_block_mask(found.predicate, None, None, q.shape[2], k.shape[2], device="cpu")
    return lambda: attend(q, k, v, block_mask=block_mask)


IMPLEMENTATIONS: dict[str, Callable[[Case, torch.Tensor, torch.Tensor, torch.Tensor], Call]] = {
    "compilemask": _compilemask,
    "sdpa-causal": _sdpa_causal,
    "sdpa-mask": _sdpa_mask,
    "flex-cpu": _flex_cpu,
}


def _prepare(found: Case, tensors: Tensors, names: list[str]) -> tuple[dict[str, Call], dict[str, str]]:
    """Calls that give the same results, and what went wrong with the others."""
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    reference = None
    for name in names:
        if name == "sdpa-causal" and found.name != "causal":
            continue
        try:
            call = IMPLEMENTATIONS[name](found, *tensors)
            out = call()
            reference = out if reference is None else reference
            error = ((out - reference).norm() / reference.norm()).item()
            if not error < TOLERANCE:
                raise ArithmeticError(f"differs from {names[0]} by {error:.1e}")
            calls[name] = call
        except Exception as fault:
            failed[name] = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
    return calls, failed


def _milliseconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def run_case(found: Case, threads: int, options: argparse.Namespace) -> list[dict[str, object]]:
    """The records of one case with so many threads."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(found.length)
    shape = (options.batch, options.heads, found.length, options.head_dim)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    calls, failed = _prepare(found, (q, k, v), options.implementations.split(","))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name in random.sample(list(calls), len(calls)):
            times[name].append(_milliseconds(calls[name]))
    common = {"mask": found.name, "B": shape[0], "H": shape[1], "S": shape[2], "D": shape[3], "dtype": "float32"}
    common |= {"threads": threads, "pass": "fwd"}
    teraflop = found.flops(*shape[:2], shape[3]) * 1e-12
    records = [
        {
            **common,
            "impl": name,
            "ms_median": statistics.median(values),
            "ms_min": min(values),
            "ms_max": max(values),
            "tflops_visible": teraflop / min(values) * 1e3,
        }
        for name, values in times.items()
    ]
    return records + [{**common, "impl": name, "error": text} for name, text in failed.items()]


def header() -> dict[str, object]:
    """The machine and the versions of what is compared."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(names) or None,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "date": date.today().isoformat(),
    }


def _line(record: dict[str, object]) -> str:
    name = f"{record['mask']} S={record['S']} threads={record['threads']} {record['impl']}"
    return f"{name:48} {record.get('error') or '{:.2f} ms'.format(record['ms_min'])}"


def main() -> None:
    """Run the cases, print a line per record and write the JSON file."""
    parser = argparse.ArgumentParser(description="Times the forward pass on the CPU side by side with its peers.")
    parser.add_argument("--masks", default="causal,window256,hstu,rm,clear")
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS))
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    MASKS["window256"] = _window256
    records: list[dict[str, object]] = []
    result = {"header": header(), "records": records}
    file = f"cpu-{str(result['header']['cpu']).replace(' ', '-')}-{result['header']['date']}.json"
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.masks.split(","):
        for length in map(int, options.lengths.split(",")):
            found = case(name, length, "cpu")
            for threads in map(int, options.threads.split(",")):
                new = run_case(found, threads, options)
                records += new
                (options.output / file).write_text(json.dumps(result, indent=1))
                print("\n".join(map(_line, new)), flush=True)


if __name__ == "__main__":
    main()
