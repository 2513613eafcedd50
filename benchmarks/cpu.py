"""Times attention on the CPU side by side with its peers, and writes records as those of `forward.py`.

    python benchmarks/cpu.py --cases causal:1024,window256:4096,clear:8192 --threads 1,2 --passes fwd,bwd

Float32 inputs. In each case all implementations are prepared and checked against each other, then called in turn in
shuffled rounds, so that other work on the machine hits all of them; the least time is the fairest of a busy machine.
Pass `bwd` is the gradient of q, k and v alone. A case with a third part, `causal:4096:16`, is that of decoding: the
last 16 queries of 4096 positions, and the forward pass alone.
`overheads` are those of a new kernel and of a small call: B = H = 1, 128 queries and keys, D = 64, of a causal mask and
of its descriptor. From the time of each call the time inside the compiled function is taken away.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from cases import MASKS, Case, Predicate, case
from torch.nn.functional import scaled_dot_product_attention

import compilemask as cm

HERE = Path(__file__).parent
TOLERANCE = 1e-4
CASES = (
    "causal:1024,causal:4096,window256:4096,rm:4096,hstu:4096,clear:4096,clear:8192,"
    "causal:4096:1,causal:4096:16,window256:4096:1,window256:4096:16"
)
Call = Callable[[], object]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Key = tuple[str, str]
"""Implementation and pass."""


def _window256(length: int, device: str) -> tuple[cm.Mask, Predicate]:
    return cm.window(255, 0), lambda b, h, q, kv: (kv <= q) & (q - kv < 256)


def _case(given: str) -> tuple[Case, int]:
    """A case as `--cases` names it, and its number of queries."""
    name, length, queries = (*given.split(":"), "")[:3]
    found = case(name, int(length), "cpu")
    return (_last(found, int(queries)), int(queries)) if queries else (found, found.length)


def _last(found: Case, queries: int) -> Case:
    """A case with only its last queries."""
    skipped = found.length - queries
    mask = found.mask.shift(rows=-skipped)
    pairs = int(mask.dense(queries, found.length).sum())
    return replace(
        found, mask=mask, predicate=lambda b, h, q, kv: found.predicate(b, h, q + skipped, kv), visible_pairs=pairs
    )


def _compilemask(found: Case, queries: int) -> Attend:
    descriptor = cm.compile(found.mask).descriptor(queries, found.length, gradient=True)
    return lambda q, k, v: cm.attention(q, k, v, descriptor)


def _sdpa_causal(found: Case, queries: int) -> Attend:
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)


def _sdpa_mask(found: Case, queries: int) -> Attend:
    visible = found.mask.dense(queries, found.length)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=visible)


def _flex_cpu(found: Case, queries: int) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    block_mask = create_block_mask(found.predicate, None, None, queries, found.length, device="cpu")
    return lambda q, k, v: attend(q, k, v, block_mask=block_mask)


IMPLEMENTATIONS: dict[str, Callable[[Case, int], Attend]] = {
    "compilemask": _compilemask,
    "sdpa-causal": _sdpa_causal,
    "sdpa-mask": _sdpa_mask,
    "flex-cpu": _flex_cpu,
}


def _differ(results: Iterable[torch.Tensor], references: Iterable[torch.Tensor]) -> float:
    """The largest relative error."""
    pairs = zip(results, references, strict=True)
    return max(((result - reference).norm() / reference.norm()).item() for result, reference in pairs)


def _call(
    attend: Attend, inputs: list[torch.Tensor], grad: torch.Tensor, what: str
) -> Callable[[], list[torch.Tensor]]:
    """One pass of an implementation, and what it computes."""
    if what == "fwd":
        return lambda: [attend(*inputs)]
    wanted = [x.detach().requires_grad_() for x in inputs]
    out = attend(*wanted)
    return lambda: list(torch.autograd.grad(out, wanted, grad, retain_graph=True))


def _prepare(
    found: Case, inputs: list[torch.Tensor], options: argparse.Namespace
) -> tuple[dict[Key, Call], dict[Key, str]]:
    """Calls that give the same results, and what went wrong with the others."""
    calls: dict[Key, Call] = {}
    failed: dict[Key, str] = {}
    references: dict[str, list[torch.Tensor]] = {}
    is_decoding = inputs[0].shape[2] < found.length
    grad = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    for name in options.implementations.split(","):
        if name == "sdpa-causal" and (found.name != "causal" or is_decoding):
            continue
        for what in ["fwd"] if is_decoding else options.passes.split(","):
            try:
                call = _call(IMPLEMENTATIONS[name](found, inputs[0].shape[2]), inputs, grad, what)
                results = call()
                error = _differ(results, references.setdefault(what, results))
                if not error < TOLERANCE:
                    raise ArithmeticError(f"differs from the first by {error:.1e}")
                calls[name, what] = call
            except Exception as fault:
                lines = str(fault).splitlines() or [""]
                failed[name, what] = f"{type(fault).__name__}: {lines[0]}"[:200]
    return calls, failed


def _milliseconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def run_case(found: Case, queries: int, threads: int, options: argparse.Namespace) -> list[dict[str, object]]:
    """The records of one case with so many threads."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(found.length)
    keys = (options.batch, options.heads, found.length, options.head_dim)
    shapes = [(*keys[:2], queries, keys[3]), keys, keys]
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    calls, failed = _prepare(found, inputs, options)
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for _ in range(options.rounds):
        for key in random.sample(list(calls), len(calls)):
            times[key].append(_milliseconds(calls[key]))
    common = {"mask": found.name, "B": keys[0], "H": keys[1], "Sq": queries, "S": keys[2], "D": keys[3]}
    common |= {"dtype": "float32", "threads": threads}
    teraflop = 1e-12 * found.flops(keys[0], keys[1], keys[3])
    records: list[dict[str, object]] = [
        {
            **common,
            "pass": what,
            "impl": name,
            "ms_median": statistics.median(values),
            "ms_min": min(values),
            "ms_max": max(values),
            "tflops_visible": teraflop * (1 if what == "fwd" else 2.5) / min(values) * 1e3,
        }
        for (name, what), values in times.items()
    ]
    return records + [{**common, "pass": what, "impl": name, "error": text} for (name, what), text in failed.items()]


def overheads(calls: int = 10_000) -> dict[str, float]:
    """What attention costs beside its arithmetic, in one thread: the first call in ms, compiled and from disk; a small
    call in us, outside the compiled function; and what memory grows by in MiB over many of them."""
    from compilemask.runtime.cpu import attention_cpu_jit, upstream_mlir

    upstream_mlir.find()  # imports the bindings
    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, 1, 128, 64) for _ in range(3))
    mask = cm.causal()
    descriptor = cm.compile(mask).descriptor(128)

    def attend(mask: cm.Mask | cm.Descriptor = descriptor) -> torch.Tensor:
        return cm.attention(q, k, v, mask)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        compiled = _milliseconds(attend)
        attention_cpu_jit.forget()
        loaded = _milliseconds(attend)
        del os.environ["TRITON_CACHE_DIR"]
    for _ in range(500):
        attend()
    before = _resident()
    for _ in range(calls):
        attend()
    growth = _resident() - before
    of_mask, function = _outside_and_inside(lambda: attend(mask))
    of_descriptor, _ = _outside_and_inside(attend)
    return {
        "first_call_compiled_ms": compiled,
        "first_call_from_disk_ms": loaded,
        "small_call_of_mask_us": of_mask,
        "small_call_of_descriptor_us": of_descriptor,
        "small_call_function_us": function,
        "growth_mib": growth,
    }


def _resident() -> float:
    """This process' memory in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _outside_and_inside(call: Call, calls: int = 5000) -> tuple[float, float]:
    """Medians in us of a call's time outside the compiled function, which is its overhead, and inside."""
    from compilemask.runtime.cpu.host_code import Arguments, HostFunction

    outside: list[float] = []
    inside: list[float] = []
    run = HostFunction.__call__

    def timed(function: HostFunction, arguments: Arguments) -> None:
        start = time.perf_counter()
        run(function, arguments)
        inside.append((time.perf_counter() - start) * 1e6)

    HostFunction.__call__ = timed
    try:
        for _ in range(calls):
            whole = _milliseconds(call) * 1e3
            outside.append(whole - inside[-1])
    finally:
        HostFunction.__call__ = run
    return statistics.median(outside), statistics.median(inside)


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
    name = (
        f"{record['mask']} {record['Sq']}x{record['S']} threads={record['threads']} {record['pass']} {record['impl']}"
    )
    return f"{name:48} {record.get('error') or '{:.2f} ms'.format(record['ms_min'])}"


def main() -> None:
    """Run the cases, print a line per record and write the JSON file."""
    parser = argparse.ArgumentParser(description="Times attention on the CPU side by side with its peers.")
    parser.add_argument("--cases", default=CASES, help="masks and lengths")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--passes", default="fwd,bwd")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS))
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    MASKS["window256"] = _window256
    records: list[dict[str, object]] = []
    result = {"header": header(), "overheads": overheads(), "records": records}
    print(json.dumps(result["overheads"]), flush=True)
    file = f"cpu-{str(result['header']['cpu']).replace(' ', '-')}-{result['header']['date']}.json"
    options.output.mkdir(parents=True, exist_ok=True)
    for found, queries in map(_case, options.cases.split(",")):
        for threads in map(int, options.threads.split(",")):
            new = run_case(found, queries, threads, options)
            records += new
            (options.output / file).write_text(json.dumps(result, indent=1))
            print("\n".join(map(_line, new)), flush=True)


if __name__ == "__main__":
    main()
