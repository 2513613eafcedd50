"""Inline PTX of more than an instruction: the text for so many elements at a time, and its constraints.

`dialects/semantics/triton_ptx.py` says what each computes.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

ONE = "0f3F800000"
_FLOATS = {-math.inf: "0fFF800000", 0.0: "0f00000000"}


class InlinePtx(NamedTuple):
    """PTX on `packed` elements."""

    text: str
    constraints: str
    packed: int


def _multiply_unless_one(packed: int) -> InlinePtx:
    last = 2 * packed
    products = "".join(f"mul.f32 ${i}, ${i}, ${last + i};\n" for i in range(packed))
    text = (
        "{\n.reg .pred p;\n"
        f"setp.neu.f32 p, ${last}, {ONE};\n"
        f"setp.neu.or.f32 p, ${last + 2}, {ONE}, p;\n"
        "vote.sync.any.pred p, p, 0xffffffff;\n"
        f"@!p bra DONE;\n{products}DONE:\n}}"
    )
    constraints = ["=f"] * packed + [str(i) for i in range(packed)] + ["f"] * packed
    return InlinePtx(text, ",".join(constraints), packed)


def _keep_where_set(packed: int, hidden: float, together: int) -> InlinePtx:
    lines: list[str] = []
    pairs = list(product(range(2), range(packed // 4), range(2)))
    for some in (pairs[start : start + together] for start in range(0, len(pairs), together)):
        for number, (row, octet, i) in enumerate(some):
            bit = 1 << (2 * octet + i)
            lines.append(f"and.b32 t, ${2 * packed + 2 * row}, {bit};\nsetp.ne.b32 q{number}, t, 0;\n")
        for number, (row, octet, i) in enumerate(some):
            place = 4 * octet + 2 * row + i
            lines.append(f"selp.f32 ${place}, ${place}, {_FLOATS[hidden]}, q{number};\n")
    constraints = ["=f"] * packed + [str(i) for i in range(packed)] + ["r"] * packed
    text = f"{{\n.reg .pred q<{together}>;\n.reg .b32 t;\n{''.join(lines)}}}"
    return InlinePtx(text, ",".join(constraints), packed)


MULTIPLY_UNLESS_ONE = _multiply_unless_one(32)
"""Floats times factors, but nothing at all if all factors of a warp are 1. Registers come in pairs that share a factor,
of two factors in turn, as the rows of an accumulator do."""

KEEP_WHERE_SET: dict[tuple[float, int], InlinePtx] = {
    key: _keep_where_set(32, *key) for key in product(_FLOATS, (1, 2))
}
"""Floats of an accumulator where bits are set, else -inf or 0: column 8 i + 2 lane + c of eight octets has bit 2 i + c
of its row's word in that lane. The same written as comparisons takes twice the instructions: LLVM makes a vector of
them, which is packed before the product has come and unpacked behind.

By what is hidden, and how many tests stand together before their choices. Of single tests ptxas makes moves of seven
bits to predicates: fewer instructions, but no predicate is left to others for so long that barriers are told late."""


def _add_in_memory() -> InlinePtx:
    results = "".join(f"mov.b32 ${i}, 0;\n" for i in range(4))
    text = (
        f"{{\n.reg .pred p;\nsetp.ge.s32 p, $12, 0;\n@p red.global.add.v4.f32 [$4], {{$8, $9, $10, $11}};\n{results}}}"
    )
    return InlinePtx(text, ",".join(["=r"] * 4 + ["l"] * 4 + ["r"] * 8), 4)


ADD_IN_MEMORY = _add_in_memory()
"""Adds floats of an accumulator to memory, where a third operand is not negative: four to neighbours in memory, from
the address of the first one, of rows r and r + 8 and columns c and c + 1. The results, 0, mean nothing."""

PREFETCH_TENSOR_MAP = "prefetch.tensormap [$1]; mov.b32 $0, 0;"
"""Nothing but a fetch of a tensor map, which may be a kernel's argument; an operation needs a result, 0."""

LOGARITHM, RECIPROCAL = "lg2.approx.ftz.f32 $0, $1;", "rcp.approx.ftz.f32 $0, $1;"

OF_FIRST_LANE = "shfl.sync.idx.b32 $0, $1, 0, 31, -1;"
"""An integer that all lanes of a warp hold alike, which ptxas knows then."""

__all__ = [
    "ADD_IN_MEMORY",
    "KEEP_WHERE_SET",
    "LOGARITHM",
    "MULTIPLY_UNLESS_ONE",
    "OF_FIRST_LANE",
    "PREFETCH_TENSOR_MAP",
    "RECIPROCAL",
    "InlinePtx",
]
