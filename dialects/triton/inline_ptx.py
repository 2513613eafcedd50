"""Inline PTX of more than an instruction: the text for so many elements at a time, and its constraints.

`dialects/semantics/triton_ptx.py` says what each computes.
"""

from __future__ import annotations

from typing import NamedTuple

ONE = "0f3F800000"


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


MULTIPLY_UNLESS_ONE = _multiply_unless_one(32)
"""Floats times factors, but nothing at all if all factors of a warp are 1. Registers come in pairs that share a factor,
of two factors in turn, as the rows of an accumulator do."""


__all__ = ["MULTIPLY_UNLESS_ONE", "InlinePtx"]
