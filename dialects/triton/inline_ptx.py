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


def _keep_where_set(packed: int, hidden: float) -> InlinePtx:
    lines: list[str] = []
    # Two tests and then two choices: of a test beside its choice ptxas makes moves of seven bits to predicates. Those
    # are fewer instructions, but leave no predicate to others for so long that barriers are told late.
    for row, octet in product(range(2), range(packed // 4)):
        pair = (4 * octet + 2 * row, 4 * octet + 2 * row + 1)
        word = 2 * packed + 2 * row
        tests = (f"and.b32 t, ${word}, {1 << (2 * octet + i)};\nsetp.ne.b32 q{i}, t, 0;\n" for i in range(2))
        choices = (f"selp.f32 ${place}, ${place}, {_FLOATS[hidden]}, q{i};\n" for i, place in enumerate(pair))
        lines += [*tests, *choices]
    constraints = ["=f"] * packed + [str(i) for i in range(packed)] + ["r"] * packed
    text = f"{{\n.reg .pred q<2>;\n.reg .b32 t;\n{''.join(lines)}}}"
    return InlinePtx(text, ",".join(constraints), packed)


MULTIPLY_UNLESS_ONE = _multiply_unless_one(32)
"""Floats times factors, but nothing at all if all factors of a warp are 1. Registers come in pairs that share a factor,
of two factors in turn, as the rows of an accumulator do."""

KEEP_WHERE_SET = {hidden: _keep_where_set(32, hidden) for hidden in _FLOATS}
"""Floats of an accumulator where bits are set, else -inf or 0, by which: column 8 i + 2 lane + c of eight octets has
bit 2 i + c of its row's word in that lane. The same written as comparisons takes twice the instructions: LLVM makes a
vector of them, which is packed before the product has come and unpacked behind."""

__all__ = ["KEEP_WHERE_SET", "MULTIPLY_UNLESS_ONE", "InlinePtx"]
