"""Times the forward pass side by side with its peers, and writes records as JSON.

    python benchmarks/forward.py --masks causal,hstu,rm,clear --lengths 8192,32768 --head-dims 128 \
        --implementations compilemask,flex-triton --output benchmarks/results/

Each case runs in a process of its own with a time limit. Inside it, all implementations are checked against each
other, then timed in rounds whose order is shuffled: a card that a light kernel left cool flatters the next one. A
time is one replay of a CUDA graph (a plain call where a graph cannot be captured), with the L2 cache overwritten
before it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Job:
    """One case: a mask at one length, head dimension and dtype, for several implementations."""

    mask: str
    length: int
    head_dim: int
    dtype: str
    batch: int
    heads: int
    implementations: tuple[str, ...]
    rounds: int


# ---- inside a case's process ----


def _graph(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a graph replay, or as it is if it cannot be captured."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call
    # A graph holds addresses, not tensors: what the call uses must live as long as the replays.
    return lambda _kept=call: graph.replay()


def _milliseconds(call: Callable[[], object], flush: object, repeats: int) -> float:
    """Median time of one call."""
    import torch

    times = []
    for _ in range(repeats):
        flush.zero_()  # type: ignore[attr-defined]
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def _prepare(job: Job) -> tuple[dict[tuple[str, str], Callable[[], object]], dict[str, str], float]:
    """Calls by (implementation, pass), what failed by implementation, and the forward pass's visible TFLOP."""
    import torch
    from cases import case
    from implementations import IMPLEMENTATIONS

    found = case(job.mask, job.length, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(job.length)
    shape = (job.batch, job.heads, job.length, job.head_dim)
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=getattr(torch, job.dtype), generator=generator) for _ in range(3)
    )
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    failed: dict[str, str] = {}
    reference = None
    for name in job.implementations:
        try:
            prepared = IMPLEMENTATIONS[name](found, q, k, v)
            out = prepared.forward().float()
            reference = out if reference is None else reference
            error = ((out - reference).norm() / reference.norm()).item()
            if not error < 1e-2:
                raise ArithmeticError(f"differs from {job.implementations[0]} by {error:.1e}")
            calls[name, "fwd"] = _graph(prepared.forward)
            if prepared.build is not None:
                calls[name, "mask"] = _graph(prepared.build) if prepared.capturable else prepared.build
            if prepared.both is not None:
                calls[name, "fwd+mask"] = _graph(prepared.both)
        except Exception as fault:
            failed[name] = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
    return calls, failed, found.flops(job.batch, job.heads, job.head_dim) * 1e-12


def run_case(job: Job) -> list[dict[str, object]]:
    """The records of one case."""
    import torch

    calls, failed, teraflop = _prepare(job)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    repeats = {key: 1 if _milliseconds(call, flush, 2) > 1 else 5 for key, call in calls.items()}
    for _ in range(job.rounds):
        for key in random.sample(list(calls), len(calls)):
            times[key].append(_milliseconds(calls[key], flush, repeats[key]))
    common = {"mask": job.mask, "B": job.batch, "H": job.heads, "S": job.length, "D": job.head_dim, "dtype": job.dtype}
    records: list[dict[str, object]] = []
    for (name, kind), values in times.items():
        median = statistics.median(values)
        record = {**common, "pass": kind, "impl": name}
        record |= {"ms_median": median, "ms_min": min(values), "ms_max": max(values)}
        record["tflops_visible"] = None if kind == "mask" else teraflop / median * 1e3
        records.append(record)
    return records + [{**common, "pass": "fwd", "impl": name, "error": text} for name, text in failed.items()]


# ---- the run ----


def header() -> dict[str, object]:
    """The GPU, its clocks and the versions of what is compared."""
    import torch
    import triton

    query = "name,clocks.max.sm,clocks.max.mem,power.limit,driver_version"
    smi = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return {
        "gpu": torch.cuda.get_device_name(),
        "nvidia_smi": dict(zip(query.split(","), smi.stdout.strip().split("\n")[0].split(", "), strict=False)),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "python": sys.version.split()[0],
        "date": date.today().isoformat(),
    }


def _run_in_child(job: Job, limit: float) -> list[dict[str, object]]:
    command = [sys.executable, str(HERE / "forward.py"), "--case", json.dumps(asdict(job))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return [{"mask": job.mask, "S": job.length, "D": job.head_dim, "error": f"over {limit:.0f} s"}]
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or [f"exit {done.returncode}"]
        print(done.stderr[-4000:], file=sys.stderr)
        return [{"mask": job.mask, "S": job.length, "D": job.head_dim, "error": lines[-1][:300]}]
    return json.loads(done.stdout.strip().splitlines()[-1])


def _line(record: dict[str, object]) -> str:
    where = f"{record['mask']!s:10} S={record['S']!s:6} D={record['D']!s:4}"
    if "error" in record:
        return f"{where} {record.get('impl', '')!s:12} FAILED {record['error']}"
    rate = record["tflops_visible"]
    speed = "" if rate is None else f"{rate:8.1f} TFLOP/s"
    return f"{where} {record['impl']!s:12} {record['pass']!s:9} {record['ms_median']:9.4f} ms {speed}"


def _jobs(options: argparse.Namespace) -> list[Job]:
    names = tuple(options.implementations.split(","))
    grid = product(options.masks.split(","), options.lengths.split(","), options.head_dims.split(","))
    return [
        Job(mask, int(length), int(dim), options.dtype, options.batch, options.heads, names, options.rounds)
        for mask, length, dim in grid
    ]


def main() -> None:
    """Run the cases, print a line per record and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--masks", default="causal,hstu,rm,clear")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--head-dims", default="128")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--implementations", default="compilemask,flex-triton")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one case")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        job = json.loads(options.case)
        print(json.dumps(run_case(Job(**{**job, "implementations": tuple(job["implementations"])}))))
        return
    result = {"header": header(), "records": []}
    name = f"forward-{str(result['header']['gpu']).replace(' ', '-')}-{result['header']['date']}.json"
    options.output.mkdir(parents=True, exist_ok=True)
    jobs = _jobs(options)
    for number, job in enumerate(jobs, start=1):
        started = time.monotonic()
        records = _run_in_child(job, options.limit)
        result["records"] += records
        (options.output / name).write_text(json.dumps(result, indent=1))
        print(f"[{number}/{len(jobs)}] {time.monotonic() - started:.0f} s", flush=True)
        print("\n".join(map(_line, records)), flush=True)


if __name__ == "__main__":
    main()
