"""Times decoding, a few query rows over a cache of keys, as forward.py times the forward pass.

    python benchmarks/decode.py --implementations compilemask,compilemask-unsplit,flex-triton,sdpa \
        --output benchmarks/results/

A case is named for its mask, its rows and how many query heads share a key head: `causal-q1-g8`. Masks are `causal`,
the last rows of a full cache; `cached`, the same of a cache that is three quarters full, as the device knows; and
`window`, the last 1024 keys of a full one. `S` is the capacity of the cache, `H` counts query heads.
`compilemask-unsplit` has one program per query tile, `compilemask-split16` sixteen, and `compilemask-32x4x3` visits 32
keys at a time with 4 warps and 3 stages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from forward import Calls, Job, _graph, main

if TYPE_CHECKING:
    import torch
    from cases import Case
    from implementations import Prepared

ROWS, GROUPS, LENGTHS, HEAD_DIM = (1, 16), (1, 8), (4096, 32768, 131072, 1048576), 128
MASKS = {"causal": LENGTHS, "cached": (131072,), "window": (131072,)}
CASES = ",".join(
    f"{mask}-q{rows}-g{group}:{length}:{HEAD_DIM}"
    for mask, lengths in MASKS.items()
    for rows, group, length in product(ROWS, GROUPS, lengths)
)
WINDOW = 1024
LARGEST_ERROR = 1e-2
"""Of results in 16 bits, between two implementations."""
OURS = "compilemask"


class Shape(NamedTuple):
    """What the name of a case says."""

    mask: str
    rows: int
    group: int

    @classmethod
    def of(cls, name: str) -> Shape:
        """The shape that a name says."""
        mask, rows, group = name.split("-")
        return cls(mask, int(rows.removeprefix("q")), int(group.removeprefix("g")))


def decoding_case(name: str, keys: int, device: str) -> Case:
    """A mask of the last rows of a sequence, for a cache of so many keys."""
    import torch
    from cases import Case, Predicate

    import compilemask as cm

    shape = Shape.of(name)
    length = 3 * keys // 4 if shape.mask == "cached" else keys
    first = length - shape.rows
    table = torch.tensor([length], dtype=torch.int32, device=device)

    def window(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv <= q + first) & (q + first - kv < WINDOW)

    causal: Predicate = lambda b, h, q, kv: kv <= q + table[0] - shape.rows  # noqa: E731
    grown = cm.where(lambda q, kv, length: kv <= q + length[0] - shape.rows, length=table)
    whole = cm.causal(align="bottom_right")
    masks: dict[str, tuple[cm.Mask, Predicate]] = {
        "causal": (whole, causal),
        "cached": (grown, causal),
        "window": (whole & cm.window(WINDOW - 1, 0).shift(rows=-first), window),
    }
    mask, predicate = masks[shape.mask]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    rows, keys_of_rows = torch.arange(shape.rows, device=device)[:, None], torch.arange(keys, device=device)[None]
    return Case(name, keys, mask, predicate, int(predicate(zero, zero, rows, keys_of_rows).sum()))


def sdpa(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """scaled_dot_product_attention with what PyTorch chooses behind it; a dense mask where it has no other."""
    import torch
    from implementations import Prepared
    from torch.nn.attention.bias import causal_lower_right

    rows, keys = q.shape[2], k.shape[2]
    if Shape.of(case.name).mask == "causal":
        bias = None if rows == 1 else causal_lower_right(rows, keys)
    else:
        bias = case.mask.dense(rows, keys).to(q.device)
    attend = torch.nn.functional.scaled_dot_product_attention
    return Prepared(lambda: attend(q, k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1]))


@contextmanager
def _split(name: str) -> Generator[None, None, None]:
    """How this project splits keys in an implementation of this name."""
    from compilemask.runtime.gpu import split_keys

    with ExitStack() as stack:
        for part in name.split("-")[1:] if name.startswith(OURS) else ():
            if part == "unsplit":
                stack.enter_context(split_keys.forced(0))
            elif part.startswith("split"):
                stack.enter_context(split_keys.forced(int(part.removeprefix("split"))))
            else:
                stack.enter_context(_scheduled(*map(int, part.split("x"))))
        yield


@contextmanager
def _scheduled(block_kv: int, num_warps: int, num_stages: int) -> Generator[None, None, None]:
    """The split kernel cut and scheduled like this."""
    from compilemask.runtime.gpu import attention_split_cuda as module

    chosen = module.split_config

    def config(*arguments: Any, **options: Any) -> Any:
        return replace(chosen(*arguments, **options), block_kv=block_kv, num_warps=num_warps, num_stages=num_stages)

    uncached = module.split_kernel.__wrapped__
    with patch.object(module, "split_config", config), patch.object(module, "split_kernel", uncached):
        yield


def _within(name: str, call: Callable[[], object]) -> Callable[[], object]:
    def split() -> object:
        with _split(name):
            return call()

    return split


def _prepared(name: str, case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    from implementations import IMPLEMENTATIONS

    with _split(name):
        return (IMPLEMENTATIONS | {"sdpa": sdpa})[OURS if name.startswith(OURS) else name](case, q, k, v)


def prepare(job: Job) -> tuple[Calls, dict[str, str], float]:
    """Calls by (implementation, pass), what failed by implementation, and the visible TFLOP."""
    import torch

    shape, found = Shape.of(job.mask), decoding_case(job.mask, job.length, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(job.length)
    key_heads = job.heads // shape.group
    shapes = [(job.heads, shape.rows), (key_heads, job.length), (key_heads, job.length)]
    q, k, v = (
        torch.randn(
            (job.batch, heads, rows, job.head_dim),
            device="cuda",
            dtype=getattr(torch, job.dtype),
            generator=generator,
        )
        for heads, rows in shapes
    )
    calls: Calls = {}
    failed: dict[str, str] = {}
    reference = None
    for name in job.implementations:
        try:
            prepared = _prepared(name, found, q, k, v)
            with _split(name):
                out = prepared.forward().float()
            reference = out if reference is None else reference
            error = ((out - reference).norm() / reference.norm()).item()
            if not error < LARGEST_ERROR:
                raise ArithmeticError(f"differs from {job.implementations[0]} by {error:.1e}")
            calls[name, "fwd"] = _graph(_within(name, prepared.forward))
            if prepared.both is not None:
                both = _within(name, prepared.both)
                calls[name, "fwd+mask"] = _graph(both) if prepared.capturable else both
        except Exception as fault:
            failed[name] = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
    return calls, failed, found.flops(job.batch, job.heads, job.head_dim) * 1e-12


if __name__ == "__main__":
    main("decode", Path(__file__), prepare, CASES)
