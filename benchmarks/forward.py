"""Times the forward pass side by side with its peers, and writes records as JSON.

    python benchmarks/forward.py --masks causal,hstu,rm,clear --lengths 8192,32768 --head-dims 128 \
        --implementations compilemask,flex-triton --output benchmarks/results/

Each case runs in a process of its own with a time limit. Inside it, all implementations are compiled and checked
against each other, then timed in rounds whose order is shuffled: a card that a light kernel left cool flatters the next
one. A time is one replay of a CUDA graph (a plain call where a graph cannot be captured), with the L2 cache overwritten
before it. With `--together`, several cases are prepared at a time; they are timed one after the other, when no other
process works.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
FLUSH_BYTES = 256 << 20
READY = "ready"
WORK = {"fwd": 1.0, "fwd+mask": 1.0, "bwd": 2.5, "step": 3.5}
"""Work of each pass in units of the forward pass: the backward pass has five products for its two."""
Calls = dict[tuple[str, str], Callable[[], object]]
"""What is timed, by implementation and pass."""


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


def _graph(call: Callable[[], object], pool: tuple[int, int] | None = None) -> Callable[[], object]:
    """The call as a graph replay, or as it is if it cannot be captured; `pool` is that of the memory it allocates."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
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


def _prepare(job: Job) -> tuple[Calls, dict[str, str], float]:
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
    calls: Calls = {}
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
                calls[name, "fwd+mask"] = _graph(prepared.both) if prepared.capturable else prepared.both
        except Exception as fault:
            failed[name] = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
    return calls, failed, found.flops(job.batch, job.heads, job.head_dim) * 1e-12


def run_case(job: Job, prepare: Callable[[Job], tuple[Calls, dict[str, str], float]]) -> list[dict[str, object]]:
    """The records of one case. Says when it is ready to be timed, and waits for a line."""
    import torch

    calls, failed, teraflop = prepare(job)
    torch.cuda.synchronize()
    print(READY, flush=True)
    sys.stdin.readline()
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
        record["tflops_visible"] = WORK[kind] * teraflop / median * 1e3 if kind in WORK else None
        records.append(record)
    return records + [{**common, "impl": name, "error": text} for name, text in failed.items()]


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


class Child:
    """The process of one case."""

    def __init__(self, job: Job, limit: float, script: Path) -> None:
        self.job, self.end = job, time.monotonic() + limit
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, str(script), "--case", json.dumps(asdict(job))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_ready(self) -> str | None:
        """What went wrong, if anything did."""
        return self._line_that_begins(READY)[1]

    def time(self) -> list[dict[str, object]]:
        """The records, once it is ready."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line, fault = self._line_that_begins("[")
        self.close()
        return json.loads(line) if fault is None else self.failed(fault)

    def failed(self, fault: str) -> list[dict[str, object]]:
        """A record of a fault."""
        return [{"mask": self.job.mask, "S": self.job.length, "D": self.job.head_dim, "error": fault}]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _line_that_begins(self, start: str) -> tuple[str, str | None]:
        """A line that the process prints, and what went wrong."""
        while True:
            try:
                line = self._lines.get(timeout=max(self.end - time.monotonic(), 0))
            except queue.Empty:
                self.close()
                return "", "out of time"
            if line is None:
                return "", self._last_error()
            if line.startswith(start):
                return line, None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _last_error(self) -> str:
        self._errors.seek(0)
        text = self._errors.read()
        print(text[-4000:], file=sys.stderr)
        lines = [line for line in text.splitlines() if "Error" in line]
        return lines[-1][:300] if lines else f"exit {self._process.wait()}"


def run_jobs(jobs: list[Job], together: int, limit: float, script: Path) -> Iterator[list[dict[str, object]]]:
    """The records of each case; `together` cases are prepared at a time."""
    for start in range(0, len(jobs), together):
        children = [Child(job, limit, script) for job in jobs[start : start + together]]
        faults = [child.wait_until_ready() for child in children]
        for child, fault in zip(children, faults, strict=True):
            child.end = time.monotonic() + limit
            yield child.time() if fault is None else child.failed(fault)


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
    cases = [tuple(case.split(":")) for case in options.cases.split(",")] if options.cases else grid
    return [
        Job(mask, int(length), int(dim), options.dtype, options.batch, options.heads, names, options.rounds)
        for mask, length, dim in cases
    ]


def main(
    name: str = "forward",
    script: Path = Path(__file__),
    prepare: Callable[[Job], tuple[Calls, dict[str, str], float]] = _prepare,
    cases: str = "",
) -> None:
    """Run the cases of a benchmark, print a line per record and write the JSON file; `cases` are those by default."""
    parser = argparse.ArgumentParser(description=f"Times the {name} pass side by side with its peers.")
    parser.add_argument("--masks", default="causal,hstu,rm,clear")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--head-dims", default="128")
    parser.add_argument("--cases", default=cases, help="in place of the three above: MASK:LENGTH:HEAD_DIM,...")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--implementations", default="compilemask,flex-triton")
    parser.add_argument("--limit", type=float, default=180, help="seconds to prepare a case, and to time it")
    parser.add_argument("--together", type=int, default=1, help="cases that are prepared at a time")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        job = json.loads(options.case)
        print(json.dumps(run_case(Job(**{**job, "implementations": tuple(job["implementations"])}), prepare)))
        return
    result = {"header": header(), "records": []}
    file = f"{name}-{str(result['header']['gpu']).replace(' ', '-')}-{result['header']['date']}.json"
    options.output.mkdir(parents=True, exist_ok=True)
    jobs, started = _jobs(options), time.monotonic()
    for number, records in enumerate(run_jobs(jobs, options.together, options.limit, script), start=1):
        result["records"] += records
        (options.output / file).write_text(json.dumps(result, indent=1))
        print(f"[{number}/{len(jobs)}] {time.monotonic() - started:.0f} s", flush=True)
        print("\n".join(map(_line, records)), flush=True)


if __name__ == "__main__":
    main()
