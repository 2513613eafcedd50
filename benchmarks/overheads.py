"""Times what surrounds the attention kernel: building masks on the GPU, the host's work per call, and first uses.

    python benchmarks/overheads.py --output benchmarks/results/

`mask` is the GPU time of building a descriptor from new lengths, replayed as a CUDA graph (median over random sets of
lengths); `host` the time a call takes the host; `cold` and `warm` the time until the first result in a new process that
has imported everything: with empty caches on disk, and with full ones; `new mask` the same for a mask of a structure
not seen before, when the attention kernel is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LENGTHS = (8192, 32768, 131072)
IMAGES = {8192: (80, 96), 32768: (168, 192), 131072: (340, 384)}
SETS = 20
CALLS, BATCHES = 200, 10
"""Calls in a row, and how often. The driver holds a thousand launches: with more calls the host would wait for the GPU,
which is slow while it has so little to do.
"""
Record = dict[str, object]


def random_offsets(length: int, rng: random.Random, parts: int = 8) -> list[int]:
    """A prompt of an eighth and `parts` answers of random lengths."""
    weights = [0.5 + rng.random() for _ in range(parts)]
    prompt = length // 8
    lengths = [int((length - prompt) * weight / sum(weights)) for weight in weights]
    lengths[-1] += length - prompt - sum(lengths)
    return list(accumulate([0, prompt, *lengths]))


def _builds(name: str, length: int) -> list[Callable[[], object]]:
    """Builds of one mask for random sets of lengths."""
    import torch

    import compilemask as cm

    rng = random.Random(length)
    device = torch.device("cuda", 0)

    def mask() -> cm.Mask:
        if name == "causal":
            return cm.causal()
        if name == "hstu":
            return cm.hstu(length - rng.randrange(1, length // 4), rng.randrange(1, 500))
        if name == "rm":
            return cm.shared_prompt(torch.tensor(random_offsets(length, rng), dtype=torch.int32, device=device))
        height, width = IMAGES[length]
        return cm.clear(height, width, 16, length - height * width)

    masks = [cm.compile(mask()) for _ in range(1 if name in ("causal", "clear") else SETS)]
    return [lambda m=m: m.program.build(m.parameters, length, length, device) for m in masks]


def time_masks() -> list[Record]:
    """GPU time of builds, and the memory of a descriptor."""
    import torch
    from forward import FLUSH_BYTES, _graph, _milliseconds

    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    records: list[Record] = []
    for name in ("causal", "hstu", "rm", "clear"):
        for length in LENGTHS:
            builds = _builds(name, length)
            mebibytes = builds[0]().buffer.nbytes / 2**20  # type: ignore[attr-defined]
            times = [_milliseconds(_graph(build), flush, 15) for build in builds]
            record: Record = {"mask": name, "S": length, "pass": "mask", "impl": "compilemask", "MiB": mebibytes}
            records.append(record | {"ms_median": statistics.median(times), "ms_min": min(times), "ms_max": max(times)})
    return records


def _host_milliseconds(call: Callable[[], object]) -> float:
    import torch

    for _ in range(100):
        call()
    times: list[float] = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e3)
    torch.cuda.synchronize()
    return statistics.median(times)


def time_host() -> list[Record]:
    """Host time per call: a mask without parameters, a descriptor, and a mask whose descriptor each call builds."""
    import torch

    import compilemask as cm

    q, k, v = (torch.randn(1, 4, 128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    offsets = torch.tensor([0, 16, 50, 128], dtype=torch.int32, device="cuda")
    causal, descriptor = cm.causal(), cm.compile(cm.causal()).descriptor(128, 128, "cuda")
    compiled = cm.compile(causal)
    answers = cm.compile(cm.shared_prompt(offsets))
    torch_call = torch.nn.functional.scaled_dot_product_attention
    calls: dict[tuple[str, str], Callable[[], object]] = {
        ("causal", "compilemask"): lambda: cm.attention(q, k, v, causal),
        ("causal, compiled", "compilemask"): lambda: cm.attention(q, k, v, compiled),
        ("causal, descriptor", "compilemask"): lambda: cm.attention(q, k, v, descriptor),
        ("rm, built in each call", "compilemask"): lambda: cm.attention(q, k, v, answers),
        ("causal", "sdpa"): lambda: torch_call(q, k, v, is_causal=True),
    }
    with torch.no_grad():
        for call in calls.values():
            call()
        rounds = [{key: _host_milliseconds(call) for key, call in calls.items()} for _ in range(5)]
    records: list[Record] = []
    for mask, impl in calls:
        times = [times[mask, impl] for times in rounds]
        record: Record = {"mask": mask, "pass": "host", "impl": impl, "ms_median": statistics.median(times)}
        records.append(record | {"ms_min": min(times), "ms_max": max(times)})
    return records


def first_uses() -> list[Record]:
    """What this process waits for its first result, and for that of another mask."""
    import torch

    import compilemask as cm

    q, k, v = (torch.randn(1, 16, 1024, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    offsets = torch.tensor([0, 128, 500, 1024], dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    records: list[Record] = []
    masks = {"first": cm.hstu(896, 100), "new mask": (cm.document(offsets) & cm.causal()) - cm.window(3, 0)}
    for name, mask in masks.items():
        start = time.perf_counter()
        cm.attention(q, k, v, mask)
        torch.cuda.synchronize()
        records.append({"pass": name, "impl": "compilemask", "ms_median": (time.perf_counter() - start) * 1e3})
    return records


TASKS: dict[str, Callable[[], list[Record]]] = {"mask": time_masks, "host": time_host, "first": first_uses}


def _in_child(task: str, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    command = [sys.executable, str(HERE / "overheads.py"), "--task", task]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env=os.environ | (environment or {})
    )
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        return [{"pass": task, "error": f"exit {done.returncode}"}]
    return json.loads(done.stdout.strip().splitlines()[-1])


def _first_uses_in_children() -> list[dict[str, Any]]:
    records = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "XDG_CACHE_HOME": folder, "CUDA_CACHE_PATH": f"{folder}/cuda"}
        for kind in ("cold", "warm"):
            for record in _in_child("first", caches):
                records.append(record | {"pass": f"{record['pass']}, {kind}"})
    return records


def main() -> None:
    """Run the tasks, each in a process of its own, print a line per record and write the JSON file."""
    from forward import header

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(TASKS[options.task]()))
        return
    records: list[dict[str, Any]] = []
    for task in (lambda: _in_child("mask"), lambda: _in_child("host"), _first_uses_in_children):
        found = task()
        records += found
        for r in found:
            where = f"{r.get('mask', '')!s:24} {r.get('S', '')!s:7} {r['pass']:16} {r.get('impl', '')!s:12}"
            print(where, r["error"] if "error" in r else f"{r['ms_median'] * 1e3:12.1f} us", flush=True)
    found_header = header()
    options.output.mkdir(parents=True, exist_ok=True)
    name = f"overheads-{str(found_header['gpu']).replace(' ', '-')}-{found_header['date']}.json"
    (options.output / name).write_text(json.dumps({"header": found_header, "records": records}, indent=1))


if __name__ == "__main__":
    main()
