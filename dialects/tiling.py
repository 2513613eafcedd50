"""Level 3, `tiling`: which key tiles a query tile visits, and the attention that visits them.

A `tiling.func` takes (tile, queries, keys, mask parameters...) and returns the runs of key tiles that query tile
`tile` visits, each tile `full` (every pair of the tile that lies inside the sequence is visible) or `partial` (some
are: a stored bit pattern says which). Tiles in which nothing is visible are in no run.

A query tile is described in two steps. `envelope` bounds one interval of the mask over the tile's rows: its *cover*
holds all keys that some row sees, its *core* all keys that every row sees. `classify` then decides each key tile:
inside a core it is full, outside all covers it is empty, and where envelopes do not decide, the visible pairs are
counted. Counting makes the classes exact, whatever the bounds do from row to row.

`tiling.attention` is the attention itself, independent of any mask: it follows a descriptor (docs/descriptor.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    I32,
    AnyFloat,
    BFloat16Type,
    Float16Type,
    Float32Type,
    IntAttr,
    IntegerAttr,
    MemRefType,
    SymbolRefAttr,
    TensorType,
    f32,
    i32,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    Dialect,
    ParametrizedAttribute,
    Region,
    SpacedOpaqueSyntaxAttribute,
    SSAValue,
    TypeAttribute,
)
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_result_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from compilemask.dialects.function import FunctionLike
from compilemask.dialects.interval import PATCHES, PatchesAttr
from compilemask.dialects.narrowing import is_memref, is_tensor
from compilemask.dialects.tiling_score import (
    SCORE_TYPES,
    ReadOp,
    ScoreOp,
    Weights,
    WeightsAttr,
    YieldOp,
    is_table_type,
    verify_score_block,
)
from compilemask.dialects.tiling_score_gradient import AccumulateOp, ScoreGradientOp

# ---- attributes ----


@irdl_attr_definition
class ShapeAttr(ParametrizedAttribute):
    """Rows and keys of a tile: `#tiling.shape<128 x 128>`. Rows must be a multiple of 16, keys must be 128."""

    name = "tiling.shape"
    rows: IntAttr
    keys: IntAttr

    def __init__(self, rows: int | IntAttr, keys: int | IntAttr) -> None:
        super().__init__(
            IntAttr(rows) if isinstance(rows, int) else rows, IntAttr(keys) if isinstance(keys, int) else keys
        )

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            rows = parser.parse_integer(allow_boolean=False, allow_negative=False)
            parser.parse_keyword("x")
            keys = parser.parse_integer(allow_boolean=False, allow_negative=False)
        return (IntAttr(rows), IntAttr(keys))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.rows.data} x {self.keys.data}")

    def verify(self) -> None:
        rows, keys = self.rows.data, self.keys.data
        if rows < 16 or rows % 16 or keys != 128:
            raise VerifyException(f"a tile of {rows} x {keys}: rows must be a multiple of 16 and keys 128")


@irdl_attr_definition
class ReserveAttr(ParametrizedAttribute):
    """Room for partial tiles, from shapes alone: `#tiling.reserve<2 per query_tile, 3 per key_tile>`.

    A bound on the partial tiles of one mask, from how its interval bounds move from row to row. `, 31 lines of
    argument 4` adds, per query tile, the key tiles that 31 lines of a raster touch whose pitch is argument 4 of the
    tiling function. `unknown`, printed alone, means that only the number of all tiles bounds the partial ones.
    """

    name = "tiling.reserve"
    per_query_tile: IntAttr
    per_key_tile: IntAttr
    lines: IntAttr
    pitch_argument: IntAttr

    UNKNOWN: ClassVar[int] = -1

    def __init__(
        self,
        per_query_tile: int | IntAttr,
        per_key_tile: int | IntAttr,
        lines: int | IntAttr = 0,
        pitch_argument: int | IntAttr = 0,
    ) -> None:
        values = (per_query_tile, per_key_tile, lines, pitch_argument)
        super().__init__(*(IntAttr(x) if isinstance(x, int) else x for x in values))

    def verify(self) -> None:
        """Raise unless the text says all of it."""
        parts = (self.per_key_tile.data, self.lines.data, self.pitch_argument.data)
        if self.is_unknown and parts != (self.UNKNOWN, 0, 0):
            raise VerifyException("an unknown reserve has no parts")
        if not self.lines.data and self.pitch_argument.data:
            raise VerifyException(f"a reserve of 0 lines has no pitch, got argument {self.pitch_argument.data}")

    @classmethod
    def unknown(cls) -> ReserveAttr:
        """The reserve of a mask about which nothing is known."""
        return cls(cls.UNKNOWN, cls.UNKNOWN)

    @property
    def is_unknown(self) -> bool:
        """Whether only the number of all tiles bounds the partial ones."""
        return self.per_query_tile.data == self.UNKNOWN

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            if parser.parse_optional_keyword("unknown") is not None:
                return tuple(cls.unknown().parameters)
            per_query = parser.parse_integer(allow_boolean=False, allow_negative=False)
            parser.parse_keyword("per")
            parser.parse_keyword("query_tile")
            parser.parse_punctuation(",")
            per_key = parser.parse_integer(allow_boolean=False, allow_negative=False)
            parser.parse_keyword("per")
            parser.parse_keyword("key_tile")
            lines = pitch = 0
            if parser.parse_optional_punctuation(",") is not None:
                lines = parser.parse_integer(allow_boolean=False, allow_negative=False)
                for keyword in ("lines", "of", "argument"):
                    parser.parse_keyword(keyword)
                pitch = parser.parse_integer(allow_boolean=False, allow_negative=False)
        return (IntAttr(per_query), IntAttr(per_key), IntAttr(lines), IntAttr(pitch))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if self.is_unknown:
                printer.print_string("unknown")
                return
            printer.print_string(f"{self.per_query_tile.data} per query_tile, {self.per_key_tile.data} per key_tile")
            if self.lines.data:
                printer.print_string(f", {self.lines.data} lines of argument {self.pitch_argument.data}")


class Patterns(StrEnum):
    """Where the bit patterns of partial tiles live."""

    STORED = "stored"
    """One pattern per partial tile."""

    SHARED = "shared"
    """The mask depends on kv - q only: tiles on one diagonal share a pattern."""


@irdl_attr_definition
class PatternsAttr(EnumAttribute[Patterns], SpacedOpaqueSyntaxAttribute):
    """`#tiling<patterns stored>` or `#tiling<patterns shared>`."""

    name = "tiling.patterns"


class Precision(StrEnum):
    """Arithmetic of the two matrix products for float32 inputs; half-precision inputs always multiply exactly into
    float32.
    """

    IEEE = "ieee"
    TF32 = "tf32"
    TF32X3 = "tf32x3"


@irdl_attr_definition
class PrecisionAttr(EnumAttribute[Precision], SpacedOpaqueSyntaxAttribute):
    """`#tiling<precision ieee>`, `#tiling<precision tf32>` or `#tiling<precision tf32x3>`."""

    name = "tiling.precision"


# ---- types ----


@irdl_attr_definition
class RowsType(ParametrizedAttribute, TypeAttribute):
    """The rows of one query tile: first to last, the last one cut at the end of the sequence."""

    name = "tiling.rows"


@irdl_attr_definition
class EnvelopeType(ParametrizedAttribute, TypeAttribute):
    """Bounds on one interval over the rows of a tile: its cover and its core."""

    name = "tiling.envelope"


@irdl_attr_definition
class RunsType(ParametrizedAttribute, TypeAttribute):
    """Runs of key tiles, ascending and disjoint, each full or partial."""

    name = "tiling.runs"


@irdl_attr_definition
class DescriptorType(ParametrizedAttribute, TypeAttribute):
    """A descriptor in memory: for each query tile its partial tiles, their bit patterns, and its full runs."""

    name = "tiling.descriptor"


# ---- which tiles ----


@irdl_op_definition
class FuncOp(FunctionLike):
    """(tile, queries, keys, parameters...) -> the runs of key tiles that a query tile visits.

    Attributes: `shape` (`#tiling.shape<...>`), `patterns` (`#tiling<patterns ...>`) and `reserve`
    (`#tiling.reserve<...>`); `patches` (`#interval.patches<...>`) if tiles of an image are patches of it.
    """

    name = "tiling.func"

    def verify_(self) -> None:
        self.verify_signature(("tile", "queries", "keys"), RunsType)
        for name, kind in (("shape", ShapeAttr), ("patterns", PatternsAttr), ("reserve", ReserveAttr)):
            if not isinstance(self.attributes.get(name), kind):
                raise VerifyException(f"tiling.func @{self.sym_name.data} needs the attribute {name} = #{kind.name}")
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException(f"tiling.func @{self.sym_name.data} must end in tiling.return")
        self._verify_patches()

    def _verify_patches(self) -> None:
        if PATCHES not in self.attributes:
            return
        if (patches := self.patches) is None:
            raise VerifyException(f"tiling.func @{self.sym_name.data}: {PATCHES} must be #{PatchesAttr.name}")
        rows, keys = self.shape.rows.data, self.shape.keys.data
        if (prod(patches.query_shape), prod(patches.key_shape)) != (rows, keys):
            raise VerifyException(f"tiling.func @{self.sym_name.data}: patches must be tiles, of {rows} x {keys}")

    @property
    def shape(self) -> ShapeAttr:
        """Rows and keys of a tile."""
        shape = self.attributes["shape"]
        assert isinstance(shape, ShapeAttr)
        return shape

    @property
    def patches(self) -> PatchesAttr | None:
        """Shapes of patches, if tiles are that."""
        found = self.attributes.get(PATCHES)
        return found if isinstance(found, PatchesAttr) else None

    @property
    def patterns(self) -> Patterns:
        """Whether patterns are stored per tile or shared along diagonals."""
        patterns = self.attributes["patterns"]
        assert isinstance(patterns, PatternsAttr)
        return patterns.data

    @property
    def reserve(self) -> ReserveAttr:
        """Bound on the partial tiles."""
        reserve = self.attributes["reserve"]
        assert isinstance(reserve, ReserveAttr)
        return reserve


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a `tiling.func` with its runs."""

    name = "tiling.return"
    value = operand_def(RunsType)
    assembly_format = "$value attr-dict"
    traits = traits_def(IsTerminator(), HasParent(FuncOp))

    def __init__(self, value: SSAValue) -> None:
        super().__init__(operands=[value])


@irdl_op_definition
class RowsOp(IRDLOperation):
    """The rows of query tile `tile` in a sequence of `queries` rows, for the enclosing function's tile shape."""

    name = "tiling.rows"
    tile = operand_def(i32)
    queries = operand_def(i32)
    result = result_def(RowsType())
    assembly_format = "$tile `of` $queries attr-dict"
    traits = traits_def(Pure(), HasParent(FuncOp))

    def __init__(self, tile: SSAValue, queries: SSAValue) -> None:
        super().__init__(operands=[tile, queries], result_types=[RowsType()])


@irdl_op_definition
class EnvelopeOp(IRDLOperation):
    """Bounds on one part of the set that `callee` returns, over the rows of a tile. Parts are those of its normal
    form, from 0.

    For a range [lo, hi): cover = [min lo, max hi) over the rows that see anything of it, core = [max lo, min hi),
    empty when some row sees nothing. For a family: cover = from the first line's cell to the last line's, core =
    empty. For a `between`: the one part is the hull of its outer set.
    """

    name = "tiling.envelope"
    part = prop_def(IntegerAttr[I32])
    callee = prop_def(SymbolRefAttr)
    rows = operand_def(RowsType())
    arguments = var_operand_def()
    result = result_def(EnvelopeType())
    assembly_format = "$part `of` $callee `over` $rows `given` $arguments attr-dict `:` type($arguments)"
    traits = traits_def(Pure(), HasParent(FuncOp))

    def __init__(self, callee: str | SymbolRefAttr, part: int, rows: SSAValue, arguments: Sequence[SSAValue]) -> None:
        super().__init__(
            properties={"callee": _symbol(callee), "part": IntegerAttr(part, i32)},
            operands=[rows, list(arguments)],
            result_types=[EnvelopeType()],
        )

    def verify_(self) -> None:
        if self.part.value.data < 0:
            raise VerifyException(f"tiling.envelope: there is no part {self.part.value.data}; parts count from 0")


@irdl_op_definition
class ClassifyOp(IRDLOperation):
    """The runs of a tile: each key tile is full, partial or empty for the set that `callee` returns on the given rows.

    `envelopes` bound the parts of that set, in order; they save work and never change the result.
    """

    name = "tiling.classify"
    callee = prop_def(SymbolRefAttr)
    rows = operand_def(RowsType())
    envelopes = var_operand_def(EnvelopeType())
    arguments = var_operand_def()
    result = result_def(RunsType())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = "$callee `over` $rows (`within` $envelopes^)? `given` $arguments attr-dict `:` type($arguments)"
    traits = traits_def(Pure(), HasParent(FuncOp))

    def __init__(
        self,
        callee: str | SymbolRefAttr,
        rows: SSAValue,
        envelopes: Sequence[SSAValue],
        arguments: Sequence[SSAValue],
    ) -> None:
        super().__init__(
            properties={"callee": _symbol(callee)},
            operands=[rows, list(envelopes), list(arguments)],
            result_types=[RunsType()],
        )


def _symbol(name: str | SymbolRefAttr) -> SymbolRefAttr:
    return SymbolRefAttr(name) if isinstance(name, str) else name


# ---- the attention ----


@irdl_op_definition
class AttentionOp(IRDLOperation):
    """Attention of q over the visible keys, and its log-sum-exp, tile by tile as a descriptor says.

    q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D] in one float type with a static D; Hkv divides Hq, query head h reads
    key head h // (Hq / Hkv). score(q, k) = scale * sum_d q_d k_d, then the optional region maps (score, b, h, q, kv)
    and the captured values to the score that is used (tiling_score.py). out [B, Hq, Sq, D] in the input type is
    sum_kv w_kv v_kv over visible kv, 0 for a row that sees nothing.

    With `weights softmax`, w = exp(score - lse), and lse [B, Hq, Sq] f32 is the natural log of the sum of exp(score)
    over visible kv, to which a `sink`, a table of one logit per head, adds exp(logit): -inf for a row that sees
    nothing, or the logit. With `weights pointwise`, w is the region's result; there is neither lse nor sink.

    A table is one of each batch and query head: the region, of one pair, sees that of the pair.
    """

    name = "tiling.attention"
    query = operand_def(TensorType)
    key = operand_def(TensorType)
    value = operand_def(TensorType)
    descriptor = operand_def(DescriptorType())
    scale = operand_def(f32)
    sink = opt_operand_def(MemRefType)
    captured = var_operand_def()
    precision = prop_def(PrecisionAttr)
    weights = prop_def(WeightsAttr)
    score = region_def()
    out = result_def(TensorType)
    lse = opt_result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$query `,` $key `,` $value `following` $descriptor `scale` $scale `precision` $precision `weights` $weights"
        " (`sink` $sink^ `:` type($sink))? (`given` $captured^ `:` type($captured))? $score attr-dict"
        " `:` type($query) `,` type($key) `,` type($value) `->` type($out) (`,` type($lse)^)?"
    )

    def __init__(
        self,
        query: SSAValue,
        key: SSAValue,
        value: SSAValue,
        descriptor: SSAValue,
        scale: SSAValue,
        precision: Precision = Precision.IEEE,
        score: Region | None = None,
        captured: Sequence[SSAValue] = (),
        *,
        weights: Weights = Weights.SOFTMAX,
        sink: SSAValue | None = None,
    ) -> None:
        lse = TensorType(f32, [DYNAMIC_INDEX] * 3) if weights is Weights.SOFTMAX else None
        super().__init__(
            operands=[query, key, value, descriptor, scale, sink, list(captured)],
            properties={"precision": PrecisionAttr(precision), "weights": WeightsAttr(weights)},
            regions=[score or Region()],
            result_types=[query.type, lse],
        )

    @property
    def head_dim(self) -> int:
        """D."""
        return _tensor(self.query).get_shape()[-1]

    @property
    def element_type(self) -> AnyFloat:
        """Type of q, k, v and out."""
        element = _tensor(self.query).element_type
        assert isinstance(element, Float16Type | BFloat16Type | Float32Type)
        return element

    def verify_(self) -> None:
        query = _tensor(self.query)
        if len(query.get_shape()) != 4 or query.get_shape()[-1] == DYNAMIC_INDEX:
            raise VerifyException(f"tiling.attention takes [B, H, S, D] tensors with a static D, got {query}")
        if not isinstance(query.element_type, Float16Type | BFloat16Type | Float32Type):
            raise VerifyException(f"tiling.attention takes f16, bf16 or f32, got {query.element_type}")
        for name, other in (("k", self.key), ("v", self.value), ("out", self.out)):
            tensor = _tensor(other)
            same = tensor.element_type == query.element_type and tensor.get_shape()[-1:] == query.get_shape()[-1:]
            if not same or len(tensor.get_shape()) != 4:
                raise VerifyException(
                    f"tiling.attention: {name} is {tensor}, expected the rank, D and type of q, {query}"
                )
        self._verify_weights()
        self._verify_score()

    def _verify_weights(self) -> None:
        if self.weights.data is Weights.POINTWISE:
            if self.lse is not None or self.sink is not None or not self.score.blocks:
                raise VerifyException("tiling.attention: pointwise weights come from a region; no lse and no sink")
            return
        lse = None if self.lse is None else _tensor(self.lse)
        if lse is None or lse.element_type != f32 or len(lse.get_shape()) != 3:
            raise VerifyException(f"tiling.attention gives an f32 lse of rank 3, got {lse}")
        if self.sink is None:
            return
        sink = self.sink.type
        if not is_table_type(sink) or (is_memref(sink) and sink.element_type == i32):
            raise VerifyException(f"tiling.attention: a sink is a memref<?xT> of f32, f16 or bf16, got {sink}")

    def _verify_score(self) -> None:
        captured = [value.type for value in self.captured]
        if not self.score.blocks:
            if captured:
                raise VerifyException("tiling.attention captures values, and has no score region that uses them")
            return
        verify_score_block(self.name, self.score.block)
        expected = [argument.type for argument in self.score.block.args[len(SCORE_TYPES) :]]
        if captured != expected:
            given, taken = (", ".join(map(str, types)) for types in (captured, expected))
            raise VerifyException(f"tiling.attention captures ({given}), and its score region takes ({taken})")


def _tensor(value: SSAValue) -> TensorType[Attribute]:
    assert is_tensor(value.type)
    return value.type


TILING = Dialect(
    "tiling",
    [
        *(FuncOp, ReturnOp, RowsOp, EnvelopeOp, ClassifyOp),
        *(AttentionOp, ScoreOp, ScoreGradientOp, ReadOp, AccumulateOp, YieldOp),
    ],
    [
        ShapeAttr,
        ReserveAttr,
        PatternsAttr,
        PrecisionAttr,
        WeightsAttr,
        RowsType,
        EnvelopeType,
        RunsType,
        DescriptorType,
    ],
)
