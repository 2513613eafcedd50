"""Triton's enum attributes: in the IR they are i32 numbers, in custom syntax keywords."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

CACHE_MODIFIERS = {"none": 1, "ca": 2, "cg": 3, "wb": 4, "cs": 5, "wt": 6, "cv": 7}
EVICTION_POLICIES = {"evict_normal": 1, "evict_first": 2, "evict_last": 3}
INPUT_PRECISIONS = {"tf32": 0, "tf32x3": 1, "ieee": 2}
RMW_OPS = {"and": 1, "or": 2, "xor": 3, "add": 4, "fadd": 5, "max": 6, "min": 7, "umax": 8, "umin": 9, "exch": 10}
MEM_SEMANTICS = {"relaxed": 1, "acquire": 2, "release": 3, "acq_rel": 4}
MEM_SCOPES = {"gpu": 1, "cta": 2, "sys": 3}


def enum_attr(names: Mapping[str, int], name: str) -> IntegerAttr:
    """The attribute for a keyword; raises VerifyException if there is none."""
    if name not in names:
        raise VerifyException(f"'{name}' is not one of {', '.join(names)}")
    return IntegerAttr(names[name], i32)


def enum_name(names: Mapping[str, int], attr: IntegerAttr) -> str:
    """The keyword of an enum attribute, such as `acq_rel` for 4; raises VerifyException if there is none."""
    for name, number in names.items():
        if number == attr.value.data and attr.type == i32:
            return name
    raise VerifyException(f"{attr} is not an i32 among {', '.join(f'{n} = {v}' for n, v in names.items())}")


def parse_enum(parser: Parser, names: Mapping[str, int]) -> IntegerAttr:
    """Parse one of the keywords."""
    position = parser.pos
    name = parser.parse_identifier()
    if name not in names:
        parser.raise_error(f"expected one of {', '.join(names)}", position, parser.pos)
    return IntegerAttr(names[name], i32)
