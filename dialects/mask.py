"""Level 1, `mask`: an attention mask as a region of the (query, key) plane.

A `!mask.region` is a set of pairs (q, kv) with 0 <= q < queries and 0 <= kv < keys; a pair in the region is visible.
Leaves say simple regions, `union`, `intersect`, `subtract` and `complement` combine them. All positions are token
positions from 0. Parameters of a `mask.func` are `i32` values known to the host or `memref<?xi32>` tables in device
memory; both are run-time data.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import (
    I64,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    i1,
    i32,
    i64,
)
from xdsl.interfaces import HasFolderInterface
from xdsl.ir import Attribute, Block, Dialect, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_region_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.traits import Commutative, HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects.function import FunctionLike, MisplacedOperationError, verify_ascending, verify_table
from compilemask.dialects.mask_body import computes_scalars, depends_on, verify_scalar_body
from compilemask.dialects.mask_interface import RegionInterface


@irdl_attr_definition
class RegionType(ParametrizedAttribute, TypeAttribute):
    """A set of (query, key) pairs."""

    name = "mask.region"


@irdl_attr_definition
class SegmentsType(ParametrizedAttribute, TypeAttribute):
    """A partition of positions into consecutive segments (documents, answers, ...)."""

    name = "mask.segments"


@irdl_attr_definition
class GridType(ParametrizedAttribute, TypeAttribute):
    """A raster-order image of height x width tokens that starts at some position."""

    name = "mask.grid"


@irdl_op_definition
class FuncOp(FunctionLike):
    """A mask by name. Its arguments are the mask's parameters; its result is the region of visible pairs."""

    name = "mask.func"

    def verify_(self) -> None:
        self.verify_signature((), RegionType)
        parent = self.parent_op()
        if parent is not None and not isinstance(parent, ModuleOp):
            raise VerifyException(f"mask.func @{self.sym_name.data} must stand in a module, not in {parent.name}")
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException(f"mask.func @{self.sym_name.data} must end in mask.return")
        _verify_region_body(self)
        verify_ascending(self)


def _verify_region_body(op: FuncOp | PlaceOp) -> None:
    for inner in op.body.block.ops:
        custom = isinstance(op, FuncOp) and isinstance(inner, RegionInterface)
        if inner.dialect_name() != MASK.name and not custom and not computes_scalars(inner):
            raise MisplacedOperationError(inner, f"a {op.name} holds mask operations and arith on scalars")


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a `mask.func`, or the body of a `mask.place`, with the region of visible pairs."""

    name = "mask.return"
    value = operand_def(RegionType)
    assembly_format = "$value attr-dict"
    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(FuncOp, PlaceOp)))

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value])


# ---- values that depend on the call ----


@irdl_op_definition
class QueriesOp(IRDLOperation):
    """The number of query positions of this call."""

    name = "mask.queries"
    result = result_def(i32)
    assembly_format = "attr-dict"
    traits = traits_def(Pure())

    def __init__(self) -> None:
        super().__init__(result_types=[i32])


@irdl_op_definition
class KeysOp(IRDLOperation):
    """The number of key positions of this call."""

    name = "mask.keys"
    result = result_def(i32)
    assembly_format = "attr-dict"
    traits = traits_def(Pure())

    def __init__(self) -> None:
        super().__init__(result_types=[i32])


@irdl_op_definition
class ReadOp(IRDLOperation):
    """The entry of a table at an index; an index outside the table reads the nearest entry."""

    name = "mask.read"
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
class SearchOp(IRDLOperation):
    """The first index at which a table holds at least a value; its entries ascend.

    -2^30 if already the first entry is large enough, and 2^30 if no entry is (see `interval.search`). So a read at the
    index before that of `value + 1` gives the last entry that is at most `value`, or the first entry if none is.
    """

    name = "mask.search"
    table = operand_def(MemRefType)
    value = operand_def(i32)
    result = result_def(i32)
    assembly_format = "$table `for` $value attr-dict `:` type($table)"
    traits = traits_def(Pure())

    def __init__(self, table: SSAValue, value: SSAValue) -> None:
        super().__init__(operands=[table, value], result_types=[i32])

    def verify_(self) -> None:
        verify_table(self.name, self.table)


# ---- leaves ----


class Leaf(IRDLOperation):
    """An operation that yields a region."""

    result = result_def(RegionType())
    traits = traits_def(Pure())


@irdl_op_definition
class AllOp(Leaf):
    """Every pair."""

    name = "mask.all"
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(result_types=[RegionType()])


@irdl_op_definition
class NoneOp(Leaf):
    """No pair."""

    name = "mask.none"
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(result_types=[RegionType()])


@irdl_op_definition
class BandOp(Leaf):
    """{ (q, kv) : lower <= kv - q <= upper }; a missing bound is no bound."""

    name = "mask.band"
    lower = opt_operand_def(i32)
    upper = opt_operand_def(i32)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = "(`from` $lower^)? (`to` $upper^)? attr-dict"

    def __init__(self, lower: SSAValue | None = None, upper: SSAValue | None = None) -> None:
        super().__init__(operands=[lower, upper], result_types=[RegionType()])

    def verify_(self) -> None:
        if self.lower is None and self.upper is None:
            raise VerifyException("mask.band needs a lower or an upper bound; mask.all is the unbounded band")


class Strip(Leaf):
    """A half-open range of positions on one axis."""

    begin = operand_def(i32)
    end = operand_def(i32)
    assembly_format = "$begin `to` $end attr-dict"

    def __init__(self, begin: SSAValue, end: SSAValue) -> None:
        super().__init__(operands=[begin, end], result_types=[RegionType()])


@irdl_op_definition
class RowsOp(Strip):
    """{ (q, kv) : begin <= q < end }."""

    name = "mask.rows"


@irdl_op_definition
class ColsOp(Strip):
    """{ (q, kv) : begin <= kv < end }."""

    name = "mask.cols"


@irdl_op_definition
class SegmentsOp(IRDLOperation):
    """Segments of ascending offsets: segment s holds offsets[s] <= position < offsets[s + 1]; it may be empty."""

    name = "mask.segments"
    offsets = operand_def(MemRefType)
    result = result_def(SegmentsType())
    assembly_format = "$offsets attr-dict `:` type($offsets)"
    traits = traits_def(Pure())

    def __init__(self, offsets: SSAValue) -> None:
        super().__init__(operands=[offsets], result_types=[SegmentsType()])

    def verify_(self) -> None:
        verify_table(self.name, self.offsets)


@irdl_op_definition
class SameOp(Leaf):
    """{ (q, kv) : q and kv lie in the same segment }; positions outside all segments lie in none."""

    name = "mask.same"
    segments = operand_def(SegmentsType)
    assembly_format = "$segments attr-dict"

    def __init__(self, segments: SSAValue) -> None:
        super().__init__(operands=[segments], result_types=[RegionType()])


@irdl_op_definition
class GridOp(IRDLOperation):
    """The positions origin <= p < origin + height * width as an image: y = (p - origin) // width, x = (p - origin) %
    width.
    """

    name = "mask.grid"
    origin = operand_def(i32)
    height = operand_def(i32)
    width = operand_def(i32)
    result = result_def(GridType())
    assembly_format = "`at` $origin `size` $height `x` $width attr-dict"
    traits = traits_def(Pure())

    def __init__(self, origin: SSAValue, height: SSAValue, width: SSAValue) -> None:
        super().__init__(operands=[origin, height, width], result_types=[GridType()])


@irdl_op_definition
class DiskOp(Leaf):
    """{ (q, kv) on the grid : (qy - ky)^2 + (qx - kx)^2 < radius^2 }."""

    name = "mask.disk"
    grid = operand_def(GridType)
    radius = operand_def(i32)
    assembly_format = "$grid `radius` $radius attr-dict"

    def __init__(self, grid: SSAValue, radius: SSAValue) -> None:
        super().__init__(operands=[grid, radius], result_types=[RegionType()])


@irdl_op_definition
class BoxOp(Leaf):
    """{ (q, kv) on the grid : |qy - ky| <= reach_y and |qx - kx| <= reach_x }."""

    name = "mask.box"
    grid = operand_def(GridType)
    reach_y = operand_def(i32)
    reach_x = operand_def(i32)
    assembly_format = "$grid `reach` $reach_y `x` $reach_x attr-dict"

    def __init__(self, grid: SSAValue, reach_y: SSAValue, reach_x: SSAValue) -> None:
        super().__init__(operands=[grid, reach_y, reach_x], result_types=[RegionType()])


@irdl_op_definition
class WhereOp(Leaf):
    """{ (q, kv) : the body yields true }: any pointwise predicate, in arith and mask.read."""

    name = "mask.where"
    body = region_def("single_block")
    assembly_format = "$body attr-dict"

    def __init__(self, body: Region | None = None) -> None:
        super().__init__(regions=[body or Region(Block(arg_types=[i32, i32]))], result_types=[RegionType()])

    def verify_(self) -> None:
        if [arg.type for arg in self.body.block.args] != [i32, i32]:
            raise VerifyException("the body of mask.where takes (q: i32, kv: i32)")
        if not isinstance(self.body.block.last_op, YieldOp):
            raise VerifyException("the body of mask.where must end in mask.yield")
        verify_scalar_body(self, self.body, YieldOp)


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends the body of a `mask.where`: whether the pair is visible."""

    name = "mask.yield"
    visible = operand_def(i1)
    assembly_format = "$visible attr-dict"
    traits = traits_def(IsTerminator(), HasParent(WhereOp))

    def __init__(self, visible: SSAValue) -> None:
        super().__init__(operands=[visible])


@irdl_op_definition
class LinesOp(Leaf):
    """{ (q, kv) : first <= line < last and lo <= kv < hi }, where `line` is kv's line of a raster and the body yields
    the four numbers for (q, line).

    Line l holds the keys base + l * pitch <= kv < base + (l + 1) * pitch, so that a row sees one interval per line:
    windows on images, blocks chosen by a table, regular patterns. `first` and `last` are the same for all lines of a
    row, and at most `at_most` lines count, if that is given. A pitch below 1 counts as 1.

    `columns` may say the same region from the other side, in the same way: the queries of a line that see a key. The
    body alone says what the region is; `mask-transpose` takes the columns for its transpose, which else is a predicate.
    """

    name = "mask.lines"
    base = operand_def(i32)
    pitch = operand_def(i32)
    at_most = opt_prop_def(IntegerAttr[I64])
    columns_at_most = opt_prop_def(IntegerAttr[I64])
    body = region_def("single_block")
    columns = opt_region_def("single_block")
    assembly_format = (
        "`at` $base `pitch` $pitch (`at_most` $at_most^)? $body "
        "(`columns` (`at_most` $columns_at_most^)? $columns^)? attr-dict"
    )

    def __init__(
        self,
        base: SSAValue,
        pitch: SSAValue,
        body: Region | None = None,
        at_most: int | None = None,
        columns: Region | None = None,
        columns_at_most: int | None = None,
    ) -> None:
        limits = {"at_most": at_most, "columns_at_most": columns_at_most}
        super().__init__(
            operands=[base, pitch],
            regions=[body or Region(Block(arg_types=[i32, i32])), [] if columns is None else [columns]],
            properties={name: None if limit is None else IntegerAttr(limit, i64) for name, limit in limits.items()},
            result_types=[RegionType()],
        )

    @property
    def member(self) -> MemberOp:
        """The end of the body."""
        return _member(self.body)

    def depends_on_line(self) -> set[SSAValue]:
        """The values of the body that differ from line to line."""
        return depends_on(self.body, self.body.block.args[1])

    def verify_(self) -> None:
        _verify_lines(self, self.body, "body", self.at_most)
        if self.columns is not None:
            _verify_lines(self, self.columns, "columns", self.columns_at_most)
        elif self.columns_at_most is not None:
            raise VerifyException("mask.lines has a number of columns, but no columns")


def _member(body: Region) -> MemberOp:
    last = body.block.last_op
    assert isinstance(last, MemberOp)
    return last


def _verify_lines(op: LinesOp, body: Region, what: str, at_most: IntegerAttr[I64] | None) -> None:
    takes = "(q: i32, line: i32)" if body is op.body else "(kv: i32, line: i32)"
    if [arg.type for arg in body.block.args] != [i32, i32]:
        raise VerifyException(f"the {what} of mask.lines takes {takes}")
    if not isinstance(body.block.last_op, MemberOp):
        raise VerifyException(f"the {what} of mask.lines must end in mask.member")
    if at_most is not None and at_most.value.data < 0:
        raise VerifyException(f"mask.lines cannot have at most {at_most.value.data} lines")
    verify_scalar_body(op, body, MemberOp)
    if not depends_on(body, body.block.args[1]).isdisjoint((_member(body).first, _member(body).last)):
        raise VerifyException("the first and last line of mask.lines cannot depend on the line")


@irdl_op_definition
class MemberOp(IRDLOperation):
    """Ends the body of a `mask.lines`: the keys [lo, hi) of the line, and the lines [first, last) that there are."""

    name = "mask.member"
    lo = operand_def(i32)
    hi = operand_def(i32)
    first = operand_def(i32)
    last = operand_def(i32)
    assembly_format = "$lo `to` $hi `of` $first `to` $last attr-dict"
    traits = traits_def(IsTerminator(), HasParent(LinesOp))

    def __init__(self, lo: SSAValue, hi: SSAValue, first: SSAValue, last: SSAValue) -> None:
        super().__init__(operands=[lo, hi, first, last])


# ---- the algebra ----


class Binary(Leaf, HasFolderInterface):
    """A region from two. `ABSORBING` and `NEUTRAL` are the leaves z and e with z op a = z and e op a = a."""

    ABSORBING: ClassVar[type[Leaf]]
    NEUTRAL: ClassVar[type[Leaf]]

    lhs = operand_def(RegionType)
    rhs = operand_def(RegionType)
    assembly_format = "$lhs `,` $rhs attr-dict"

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[RegionType()])

    def fold(self) -> tuple[SSAValue | Attribute, ...] | None:
        if self.lhs is self.rhs:
            return (self.lhs,)
        for one, other in ((self.lhs, self.rhs), (self.rhs, self.lhs)):
            if isinstance(one.owner, self.ABSORBING):
                return (one,)
            if isinstance(one.owner, self.NEUTRAL):
                return (other,)
        return None


@irdl_op_definition
class UnionOp(Binary):
    """Pairs in either region."""

    name = "mask.union"
    ABSORBING: ClassVar[type[Leaf]] = AllOp
    NEUTRAL: ClassVar[type[Leaf]] = NoneOp
    traits = traits_def(Commutative())


@irdl_op_definition
class IntersectOp(Binary):
    """Pairs in both regions."""

    name = "mask.intersect"
    ABSORBING: ClassVar[type[Leaf]] = NoneOp
    NEUTRAL: ClassVar[type[Leaf]] = AllOp
    traits = traits_def(Commutative())


@irdl_op_definition
class SubtractOp(Leaf, HasFolderInterface):
    """Pairs in the first region and not in the second."""

    name = "mask.subtract"
    lhs = operand_def(RegionType)
    rhs = operand_def(RegionType)
    assembly_format = "$lhs `,` $rhs attr-dict"

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[RegionType()])

    def fold(self) -> tuple[SSAValue | Attribute, ...] | None:
        if isinstance(self.lhs.owner, NoneOp) or isinstance(self.rhs.owner, NoneOp):
            return (self.lhs,)
        return None


@irdl_op_definition
class ComplementOp(Leaf, HasFolderInterface):
    """Pairs that are not in the region."""

    name = "mask.complement"
    region = operand_def(RegionType)
    assembly_format = "$region attr-dict"

    def __init__(self, region: SSAValue) -> None:
        super().__init__(operands=[region], result_types=[RegionType()])

    def fold(self) -> tuple[SSAValue | Attribute, ...] | None:
        if isinstance(inner := self.region.owner, ComplementOp):
            return (inner.region,)
        return None


@irdl_op_definition
class PlaceOp(Leaf):
    """{ (q, kv) : begin <= q < end of the rows, begin <= kv < end of the columns, and the body's region holds the pair
    counted from both begins }.

    The body is a mask of its own, of as many queries and keys as there are rows and columns: its positions,
    `mask.queries` and `mask.keys` are those of the part. So masks are moved, cut off and put behind one another.
    """

    name = "mask.place"
    row_begin = operand_def(i32)
    row_end = operand_def(i32)
    begin = operand_def(i32)
    end = operand_def(i32)
    body = region_def("single_block")
    assembly_format = "`rows` $row_begin `to` $row_end `cols` $begin `to` $end $body attr-dict"

    def __init__(
        self, rows: tuple[SSAValue, SSAValue], cols: tuple[SSAValue, SSAValue], body: Region | None = None
    ) -> None:
        super().__init__(operands=[*rows, *cols], regions=[body or Region(Block())], result_types=[RegionType()])

    def verify_(self) -> None:
        if self.body.block.args:
            raise VerifyException("the body of mask.place takes no arguments")
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException("the body of mask.place must end in mask.return")
        _verify_region_body(self)


MASK = Dialect(
    "mask",
    [
        FuncOp,
        ReturnOp,
        QueriesOp,
        KeysOp,
        ReadOp,
        SearchOp,
        AllOp,
        NoneOp,
        BandOp,
        RowsOp,
        ColsOp,
        SegmentsOp,
        SameOp,
        GridOp,
        DiskOp,
        BoxOp,
        WhereOp,
        YieldOp,
        LinesOp,
        MemberOp,
        UnionOp,
        IntersectOp,
        SubtractOp,
        ComplementOp,
        PlaceOp,
    ],
    [RegionType, SegmentsType, GridType],
)
