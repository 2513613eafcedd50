"""Writes docs/benchmarks.md from the JSON files under benchmarks/results/.

python benchmarks/table.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
OURS = "compilemask"
PEERS = ("fa4", "cudnn", "raster", "flex-fa4", "flex-fa4-patches", "flex-triton", "compilemask-deterministic")
DECODING_PEERS = ("compilemask-unsplit", "flex-triton", "sdpa")
MASKS = {
    "causal": "causal",
    "hstu": "HSTU",
    "rm": "shared prompt",
    "clear": "CLEAR, r = 16",
    "clear8": "CLEAR, r = 8",
    "clear32": "CLEAR, r = 32",
    "natten2d": "NATTEN 2-D, 13 x 13",
    "natten3d": "NATTEN 3-D, 5 x 9 x 9",
    "window": "window 1024",
    "documents": "8 causal documents",
}
INTRODUCTION = """# Benchmarks

Written by `python benchmarks/table.py` from [benchmarks/results](../benchmarks/results). Times are medians in
milliseconds over rounds in which all implementations take turns in shuffled order, each time one replay of a CUDA
graph (a plain call where a graph cannot be captured) behind an overwritten L2 cache. A factor says how many times as
long the peer takes: above 1, this project is faster. TFLOP/s count visible pairs only. `fa4` is FlashAttention 4
alone and `cudnn` is cuDNN's attention, both for causal masks only; `flex-fa4` and `flex-triton` are FlexAttention's
backends. What is compared was measured in one run.
"""
BACKWARD = """\
All gradients, from the saved output on; plain calls, as peers cannot be captured. CLEAR lies in raster order and its
tiles are rows of tokens; tiles that are patches of the image are below.
"""
DETERMINISTIC = """\
The same under `torch.use_deterministic_algorithms(True)`: the factor is what runs cost that are equal bit by bit.
"""
TRAINING = """\
A step of training on the host's clock: offsets of a prompt and answers that are new in each step, the mask for them,
the forward and the backward pass. Nothing is compiled after the first step.
"""
PATCHES = """\
Images in raster order, those of CLEAR behind 512 tokens of text, in tiles that are patches of them; but of the small
video of NATTEN 3-D, 16 x 32 x 32, rows of tokens are visited less (`compilemask explain` counts both). `raster` is
this project with tiles that are rows of tokens, `flex-fa4` FlexAttention on the same tokens, `flex-fa4-patches` on
tokens that were put in the order of patches before.
"""
DECODING = """\
`causal` are the last rows of a full cache of keys, `cached` those of a cache that is three quarters full, as only the
device knows, and `window` sees the last 1024 keys. `compilemask-unsplit` has one program for each head and tile of
rows.
"""
Record = dict[str, Any]


def newest(kind: str) -> Path | None:
    """The newest file of results of a kind."""
    return max(HERE.glob(f"results/{kind}-*.json"), key=lambda path: path.stem[-10:], default=None)


def _key(record: Record) -> tuple[Any, ...]:
    return record["D"], list(MASKS).index(record["mask"]), -record["S"]


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [columns, ["---" for _ in columns], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _milliseconds(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def _compared(records: list[Record], kind: str) -> str:
    """Our times of a pass beside those of the peers."""
    times = {(*_key(r), r["impl"]): r for r in records if r.get("pass") == kind and "error" not in r}
    ours = sorted((r for key, r in times.items() if key[-1] == OURS), key=_key)
    peers = [name for name in PEERS if any(key[-1] == name for key in times)]
    rows = []
    for mine in ours:
        cells = [str(mine["D"]), MASKS[mine["mask"]], str(mine["S"]), _milliseconds(mine["ms_median"])]
        if kind == "fwd":
            cells.append(f"{mine['tflops_visible']:.0f}")
        for name in peers:
            peer = times.get((*_key(mine), name))
            factor = "" if peer is None else f"{peer['ms_median'] / mine['ms_median']:.2f}"
            cells += ["", ""] if peer is None else [_milliseconds(peer["ms_median"]), factor]
        rows.append(cells)
    rate = ["TFLOP/s"] if kind == "fwd" else []
    return _table(["D", "mask", "length", OURS, *rate, *[x for name in peers for x in (name, "factor")]], rows)


def _decoding(records: list[Record]) -> str:
    """Our times of a few rows over many keys beside those of the peers."""
    times = {(r["mask"], r["S"], r["impl"]): r["ms_median"] for r in records if r.get("pass") == "fwd"}
    peers = [name for name in DECODING_PEERS if any(key[-1] == name for key in times)]
    rows = []
    for (case, keys, name), mine in times.items():
        if name == OURS:
            mask, queries, group = case.split("-")
            found = [times.get((case, keys, peer)) for peer in peers]
            cells = [["", ""] if x is None else [_milliseconds(x), f"{x / mine:.2f}"] for x in found]
            rows.append(
                [mask, queries[1:], group[1:], str(keys), _milliseconds(mine), *(x for pair in cells for x in pair)]
            )
    heading = ["mask", "rows", "heads per key head", "keys", OURS, *[x for name in peers for x in (name, "factor")]]
    return _table(heading, rows)


def _builds(records: list[Record]) -> str:
    builds = [r for r in records if r.get("pass") == "mask"]
    lengths = sorted({r["S"] for r in builds})
    rows = []
    for mask in dict.fromkeys(r["mask"] for r in builds):
        by_length = {r["S"]: r for r in builds if r["mask"] == mask}
        found = [by_length[length] for length in lengths]
        rows.append([MASKS[mask], *(f"{r['ms_median'] * 1e3:.1f} us, {r['MiB']:.2f} MiB" for r in found)])
    return _table(["mask", *map(str, lengths)], rows)


def _overheads(records: list[Record]) -> str:
    rows = []
    for r in records:
        if r.get("pass") != "mask" and "error" not in r:
            time = r["ms_median"]
            # As "rm, built in each call".
            mask, *how = r.get("mask", "").split(", ")
            name = ", ".join([MASKS.get(mask, mask), *how])
            rows.append([r["pass"], name, r["impl"], f"{time * 1e3:.1f} us" if time < 1 else f"{time / 1e3:.2f} s"])
    return _table(["what", "mask", "", "time"], rows)


def _header(results: dict[str, Any]) -> str:
    head = results["header"]
    return f"{head['gpu']}, {head['date']}: torch {head['torch']}, Triton {head['triton']}.\n"


def _section(title: str, kind: str, body: Callable[[list[Record]], list[str]]) -> list[str]:
    """A section of the page on a kind of results, if there are any."""
    path = newest(kind)
    if path is None:
        return []
    results = json.loads(path.read_text())
    return [f"## {title}\n", _header(results), *body(results["records"])]


def _forward(records: list[Record]) -> list[str]:
    rebuilt = "### With the mask built anew in each step\n"
    return [_compared(records, "fwd"), rebuilt, _compared(records, "fwd+mask")]


def _patches(records: list[Record]) -> list[str]:
    tables = ["### Forward\n", _compared(records, "fwd"), "### Backward\n", _compared(records, "bwd")]
    return [PATCHES, *tables]


def _around(records: list[Record]) -> list[str]:
    return [
        "Building a mask on the GPU for new lengths, and its memory:\n",
        _builds(records),
        "Host time of a call, and what passes until a new process has a first result, with cold or warm caches:\n",
        _overheads(records),
    ]


def page() -> str:
    """The page's text."""
    parts = [
        INTRODUCTION,
        *_section("Forward, bf16, 16 heads", "forward", _forward),
        *_section("Backward, bf16, 16 heads", "backward", lambda found: [BACKWARD, _compared(found, "bwd")]),
        *_section("Deterministic gradients", "deterministic", lambda found: [DETERMINISTIC, _compared(found, "bwd")]),
        *_section(
            "Training steps with new lengths", "training", lambda found: [TRAINING, _compared(found, "training")]
        ),
        *_section("Patches of an image", "patches", _patches),
        *_section("Decoding", "decode", lambda found: [DECODING, _decoding(found)]),
        *_section("Around the kernel", "overheads", _around),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
