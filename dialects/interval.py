"""Level 2, `interval`: which keys a query row sees, as half-open intervals with closed-form bounds.

An `interval.func` takes (q, queries, keys, mask parameters...) and returns a `!interval.set<K>`: at most K intervals
[lo, hi), empty when hi <= lo. A set is always read inside [0, keys): bounds may lie outside and are clipped by
whoever uses them, so that a bound stays as simple as the mask that it came from.

`union`, `intersect` and `complement` say a set by others; in *normal form* (after `interval-normalize`) a function
holds only `range`, `family`, `concat` and at most one `between`: it returns a `concat` of ranges, then families, that
are sorted and disjoint, or a `between` of two such concats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntAttr, MemRefType, StringAttr, i1, i32
from xdsl.ir import Attribute, Block, Dialect, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.function import FunctionLike, verify_ascending, verify_table

UNBOUNDED = -1
"""Arity of a set whose number of intervals is known at run time only; printed as `?`."""


PATCHES = "patches"
"""The attribute that says the shapes of patches: of an interval function, and of the tiling function made of it."""


@irdl_attr_definition
class SetType(ParametrizedAttribute, TypeAttribute):
    """The visible keys of one row: at most `arity` half-open intervals (`?`: any number)."""

    name = "interval.set"
    arity: IntAttr

    def __init__(self, arity: int | IntAttr) -> None:
        super().__init__(IntAttr(arity) if isinstance(arity, int) else arity)

    @property
    def count(self) -> int:
        """The arity, or `UNBOUNDED`."""
        return self.arity.data

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            if parser.parse_optional_punctuation("?") is not None:
                return (IntAttr(UNBOUNDED),)
            return (IntAttr(parser.parse_integer(allow_boolean=False, allow_negative=False)),)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string("?" if self.count == UNBOUNDED else str(self.count))

    def verify(self) -> None:
        if self.count < UNBOUNDED:
            raise VerifyException(f"an interval.set cannot have arity {self.count}")


@irdl_attr_definition
class PatchesAttr(ParametrizedAttribute):
    """Shapes of patches, where rows and keys are places of patched order: `#interval.patches<8 x 16 by 8 x 16>`.

    Two or three axes each, first those of a tile of queries, then those of a tile of keys.
    """

    name = "interval.patches"
    queries: ArrayAttr[IntAttr]
    keys: ArrayAttr[IntAttr]

    def __init__(self, queries: Sequence[int] | ArrayAttr[IntAttr], keys: Sequence[int] | ArrayAttr[IntAttr]) -> None:
        shapes = (x if isinstance(x, ArrayAttr) else ArrayAttr([IntAttr(size) for size in x]) for x in (queries, keys))
        super().__init__(*shapes)

    @property
    def query_shape(self) -> tuple[int, ...]:
        """Positions of a tile of queries along each axis."""
        return tuple(size.data for size in self.queries)

    @property
    def key_shape(self) -> tuple[int, ...]:
        """Positions of a tile of keys along each axis."""
        return tuple(size.data for size in self.keys)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        def shape() -> ArrayAttr[IntAttr]:
            sizes = [parser.parse_integer(allow_boolean=False, allow_negative=False)]
            while parser.parse_optional_keyword("x") is not None:
                sizes.append(parser.parse_integer(allow_boolean=False, allow_negative=False))
            return ArrayAttr([IntAttr(size) for size in sizes])

        with parser.in_angle_brackets():
            queries = shape()
            parser.parse_keyword("by")
            return (queries, shape())

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            shapes = (" x ".join(map(str, shape)) for shape in (self.query_shape, self.key_shape))
            printer.print_string(" by ".join(shapes))

    def verify(self) -> None:
        queries, keys = self.query_shape, self.key_shape
        if len(queries) not in (2, 3) or len(keys) != len(queries) or min(*queries, *keys) < 1:
            raise VerifyException(f"patches of {queries} by {keys}: expected two or three axes, of at least 1 each")


def arity_sum(parts: Sequence[int], extra: int = 0) -> int:
    """Arity of sets put together; `UNBOUNDED` absorbs."""
    return UNBOUNDED if UNBOUNDED in parts else sum(parts) + extra


def arity_product(lhs: int, rhs: int) -> int:
    """Arity of all pairwise intersections."""
    return UNBOUNDED if UNBOUNDED in (lhs, rhs) else lhs * rhs


def set_of(value: SSAValue) -> SetType:
    """The type of a value that is known to be a set."""
    if not isinstance(value.type, SetType):
        raise VerifyException(f"expected an !interval.set, got {value.type}")
    return value.type


@irdl_op_definition
class FuncOp(FunctionLike):
    """(q, queries, keys, parameters...) -> the set of keys that row q sees. Pure and total on 0 <= q < queries."""

    name = "interval.func"

    def verify_(self) -> None:
        self.verify_signature(("q", "queries", "keys"), SetType)
        verify_ascending(self)
        last = self.body.block.last_op
        if not isinstance(last, ReturnOp):
            raise VerifyException(f"interval.func @{self.sym_name.data} must end in interval.return")
        if last.value.type != self.function_type.outputs.data[0]:
            raise VerifyException(
                f"interval.func @{self.sym_name.data} returns {last.value.type}, "
                f"its type says {self.function_type.outputs.data[0]}"
            )


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends an `interval.func` with the visible set."""

    name = "interval.return"
    value = operand_def(SetType)
    assembly_format = "$value attr-dict `:` type($value)"
    traits = traits_def(IsTerminator(), HasParent(FuncOp))

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value])


# ---- bounds: integers that arith has no operation for ----


@irdl_op_definition
class ReadOp(IRDLOperation):
    """The entry of a table at an index; an index outside the table reads the nearest entry."""

    name = "interval.read"
    table = operand_def(MemRefType)
    index = operand_def(i32)
    result = result_def(i32)
    assembly_format = "$table `[` $index `]` attr-dict `:` type($table)"
    traits = traits_def(Pure())

    def __init__(self, table: SSAValue, index: SSAValue) -> None:
        super().__init__(operands=[table, index], result_types=[i32])

    def verify_(self) -> None:
        verify_table(self.name, self.table)


@irdl_op_definition
class SegmentOfOp(IRDLOperation):
    """Begin and end of the segment that holds a position: offsets[s] <= position < offsets[s + 1].

    If no segment holds it, both are position + 1. Offsets ascend; equal neighbours are empty segments, which hold
    nothing. So always 0 <= begin <= position + 1 <= end, and neither result falls as the position rises (a negative
    offset counts as 0).
    """

    name = "interval.segment_of"
    offsets = operand_def(MemRefType)
    position = operand_def(i32)
    begin = result_def(i32)
    end = result_def(i32)
    assembly_format = "$offsets `at` $position attr-dict `:` type($offsets)"
    traits = traits_def(Pure())

    def __init__(self, offsets: SSAValue, position: SSAValue) -> None:
        super().__init__(operands=[offsets, position], result_types=[i32, i32])

    def verify_(self) -> None:
        verify_table(self.name, self.offsets)


@irdl_op_definition
class SearchOp(IRDLOperation):
    """The first position at which an ascending table holds at least a value: a read there or behind gives `value` or
    more, a read before it less.

    As a read outside the table gives the nearest entry, the result is -2^30 if already the first entry is large enough,
    and 2^30 if no entry is. It never falls as the value rises.
    """

    name = "interval.search"
    table = operand_def(MemRefType)
    value = operand_def(i32)
    result = result_def(i32)
    assembly_format = "$table `for` $value attr-dict `:` type($table)"
    traits = traits_def(Pure())

    def __init__(self, table: SSAValue, value: SSAValue) -> None:
        super().__init__(operands=[table, value], result_types=[i32])

    def verify_(self) -> None:
        verify_table(self.name, self.table)


@irdl_op_definition
class IsqrtOp(IRDLOperation):
    """The largest integer whose square is at most the operand; -1 for a negative operand. Exact for operands below
    2^30.
    """

    name = "interval.isqrt"
    operand = operand_def(i32)
    result = result_def(i32)
    assembly_format = "$operand attr-dict"
    traits = traits_def(Pure())

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operands=[operand], result_types=[i32])


# ---- sets ----


@irdl_op_definition
class RangeOp(IRDLOperation):
    """[lo, hi), empty when hi <= lo."""

    name = "interval.range"
    lo = operand_def(i32)
    hi = operand_def(i32)
    result = result_def(SetType(1))
    assembly_format = "$lo `to` $hi attr-dict"
    traits = traits_def(Pure())

    def __init__(self, lo: SSAValue, hi: SSAValue) -> None:
        super().__init__(operands=[lo, hi], result_types=[SetType(1)])


@irdl_op_definition
class FamilyOp(IRDLOperation):
    """One interval per line of a raster: for first <= line < last, the body's member clipped to the line's cell.

    The cell of a line is [base + line * pitch, base + (line + 1) * pitch), so members are sorted and disjoint by
    construction, and a tile of keys meets only the few lines whose cells touch it. `pitch` is at least 1; the
    result's arity bounds last - first.
    """

    name = "interval.family"
    first = operand_def(i32)
    last = operand_def(i32)
    base = operand_def(i32)
    pitch = operand_def(i32)
    body = region_def("single_block")
    result = result_def(SetType)
    assembly_format = "$first `to` $last `at` $base `pitch` $pitch $body attr-dict `:` type($result)"
    traits = traits_def(Pure())

    def __init__(
        self, first: SSAValue, last: SSAValue, base: SSAValue, pitch: SSAValue, body: Region, arity: int
    ) -> None:
        super().__init__(operands=[first, last, base, pitch], regions=[body], result_types=[SetType(arity)])

    def verify_(self) -> None:
        if [arg.type for arg in self.body.block.args] != [i32]:
            raise VerifyException("the body of interval.family takes (line: i32)")
        if not isinstance(self.body.block.last_op, MemberOp):
            raise VerifyException("the body of interval.family must end in interval.member")


@irdl_op_definition
class MemberOp(IRDLOperation):
    """Ends the body of a family with the line's interval [lo, hi)."""

    name = "interval.member"
    lo = operand_def(i32)
    hi = operand_def(i32)
    assembly_format = "$lo `to` $hi attr-dict"
    traits = traits_def(IsTerminator(), HasParent(FamilyOp))

    def __init__(self, lo: SSAValue, hi: SSAValue) -> None:
        super().__init__(operands=[lo, hi])


@irdl_op_definition
class WhenOp(IRDLOperation):
    """The set if the condition holds, else nothing."""

    name = "interval.when"
    T: ClassVar = VarConstraint("T", base(SetType))
    condition = operand_def(i1)
    value = operand_def(T)
    result = result_def(T)
    assembly_format = "$condition `,` $value attr-dict `:` type($value)"
    traits = traits_def(Pure())

    def __init__(self, condition: SSAValue, value: SSAValue) -> None:
        super().__init__(operands=[condition, value], result_types=[value.type])


@irdl_op_definition
class ConcatOp(IRDLOperation):
    """The parts put together; they are sorted and disjoint: nothing of a later part lies before the end of an earlier
    one.

    Families stand last; they may lie before, between or behind the ranges, and are disjoint from them and from each
    other.
    """

    name = "interval.concat"
    parts = var_operand_def(SetType)
    result = result_def(SetType)
    assembly_format = "$parts attr-dict `:` functional-type($parts, $result)"
    traits = traits_def(Pure())

    def __init__(self, parts: Sequence[SSAValue]) -> None:
        arity = arity_sum([set_of(part).count for part in parts])
        super().__init__(operands=[list(parts)], result_types=[SetType(arity)])

    def verify_(self) -> None:
        expected = arity_sum([set_of(part).count for part in self.parts])
        _verify_arity(self, self.result, expected)


class Binary(IRDLOperation):
    """A set from two. `ARITY` gives the largest number of intervals that the result may need."""

    ARITY: ClassVar[Callable[[int, int], int]]

    lhs = operand_def(SetType)
    rhs = operand_def(SetType)
    result = result_def(SetType)
    assembly_format = "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        arity = type(self).ARITY(set_of(lhs).count, set_of(rhs).count)
        super().__init__(operands=[lhs, rhs], result_types=[SetType(arity)])

    def verify_(self) -> None:
        _verify_arity(self, self.result, type(self).ARITY(set_of(self.lhs).count, set_of(self.rhs).count))


def _either(lhs: int, rhs: int) -> int:
    return arity_sum([lhs, rhs])


@irdl_op_definition
class UnionOp(Binary):
    """Keys in either set; the operands may overlap."""

    name = "interval.union"
    ARITY: ClassVar[Callable[[int, int], int]] = staticmethod(_either)


@irdl_op_definition
class IntersectOp(Binary):
    """Keys in both sets."""

    name = "interval.intersect"
    ARITY: ClassVar[Callable[[int, int], int]] = staticmethod(arity_product)


@irdl_op_definition
class ComplementOp(IRDLOperation):
    """Keys in [0, keys) that are not in the set."""

    name = "interval.complement"
    value = operand_def(SetType)
    result = result_def(SetType)
    assembly_format = "$value attr-dict `:` functional-type(operands, results)"
    traits = traits_def(Pure())

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value], result_types=[SetType(arity_sum([set_of(value).count], 1))])

    def verify_(self) -> None:
        _verify_arity(self, self.result, arity_sum([set_of(self.value).count], 1))


@irdl_op_definition
class BetweenOp(IRDLOperation):
    """A set known by two: inner is inside it, it is inside outer, and the predicate decides for keys in outer but not
    in inner.

    For masks that no few intervals say. Tiles outside outer are empty, tiles inside inner full; the predicate takes
    (q, kv). `why` tells a reader what intervals could not say.
    """

    name = "interval.between"
    inner = operand_def(SetType)
    outer = operand_def(SetType)
    why = opt_prop_def(ArrayAttr[StringAttr])
    body = region_def("single_block")
    result = result_def(SetType(UNBOUNDED))
    assembly_format = "$inner `,` $outer (`because` $why^)? $body attr-dict `:` type($inner) `,` type($outer)"
    traits = traits_def(Pure())

    def __init__(self, inner: SSAValue, outer: SSAValue, body: Region | None = None, why: Sequence[str] = ()) -> None:
        super().__init__(
            operands=[inner, outer],
            regions=[body or Region(Block(arg_types=[i32, i32]))],
            properties={"why": ArrayAttr([StringAttr(reason) for reason in why]) if why else None},
            result_types=[SetType(UNBOUNDED)],
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """What `why` says."""
        return () if self.why is None else tuple(reason.data for reason in self.why)

    def verify_(self) -> None:
        if [arg.type for arg in self.body.block.args] != [i32, i32]:
            raise VerifyException("the body of interval.between takes (q: i32, kv: i32)")
        if not isinstance(self.body.block.last_op, YieldOp):
            raise VerifyException("the body of interval.between must end in interval.yield")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends the body of a `between`: whether the pair is visible."""

    name = "interval.yield"
    visible = operand_def(i1)
    assembly_format = "$visible attr-dict"
    traits = traits_def(IsTerminator(), HasParent(BetweenOp))

    def __init__(self, visible: SSAValue) -> None:
        super().__init__(operands=[visible])


def _verify_arity(op: IRDLOperation, result: SSAValue, expected: int) -> None:
    if set_of(result).count != expected:
        raise VerifyException(f"{op.name} gives {SetType(expected)}, the result says {result.type}")


INTERVAL = Dialect(
    "interval",
    [
        FuncOp,
        ReturnOp,
        ReadOp,
        SegmentOfOp,
        SearchOp,
        IsqrtOp,
        RangeOp,
        FamilyOp,
        MemberOp,
        WhenOp,
        ConcatOp,
        UnionOp,
        IntersectOp,
        ComplementOp,
        BetweenOp,
        YieldOp,
    ],
    [SetType, PatchesAttr],
)
