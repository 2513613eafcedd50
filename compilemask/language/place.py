"""Masks of parts of a sequence: moved, cut off, and put behind one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, i64
from xdsl.ir import BlockArgument, Region, SSAValue

from compilemask.dialects import mask as dialect
from compilemask.errors import MaskError
from compilemask.language.builder import Builder
from compilemask.language.extent import Extent, Plane, last_offset
from compilemask.language.leaves import cols as cols_mask
from compilemask.language.leaves import rows as rows_mask
from compilemask.language.mask import Mask
from compilemask.language.values import Value, scalar
from compilemask.language.values import offsets as checked_offsets

if TYPE_CHECKING:
    from compilemask.language.values import Scalar, Table

    Span = tuple[Scalar, Scalar]
    """Positions begin <= p < end."""


def _place(
    builder: Builder,
    mask: Mask,
    rows: tuple[SSAValue, SSAValue],
    cols: tuple[SSAValue, SSAValue],
    ascending: Sequence[int] = (),
) -> SSAValue:
    """The mask on a part of the plane. `ascending` numbers tables of which its bounds are entries, and which ascend."""
    with builder.body() as body:
        region = builder.region(mask)
        body.add_op(dialect.ReturnOp(region))
    op = dialect.PlaceOp(rows, cols, Region(body))
    if ascending:
        op.attributes["ascending"] = ArrayAttr([IntegerAttr(number, i64) for number in ascending])
    return builder.add(op, "part")


@dataclass(frozen=True, eq=False, repr=False)
class _Placed(Mask):
    inner: Mask
    row_begin: Value
    row_end: Value
    begin: Value
    end: Value
    LABEL: ClassVar[str] = "place"
    HAS_BODIES: ClassVar[bool] = True

    @property
    def operands(self) -> tuple[Mask, ...]:
        return (self.inner,)

    def planes(self) -> tuple[Plane | None, ...]:
        values = (self.row_begin, self.row_end, self.begin, self.end)
        return (Plane(values, lambda q, kv, row_begin, row_end, begin, end: (row_end - row_begin, end - begin)),)

    def extents(self) -> tuple[Extent, ...]:
        return (
            Extent("place: the end of the rows", (self.row_end,), lambda end: end),
            Extent("place: the end of the columns", (self.end,), lambda end: end, keys_only=True),
        )

    def emit(self, builder: Builder) -> SSAValue:
        bounds = {"row_begin": self.row_begin, "row_end": self.row_end, "begin": self.begin, "end": self.end}
        row_begin, row_end, begin, end = (builder.scalar(name, value) for name, value in bounds.items())
        return _place(builder, self.inner, (row_begin, row_end), (begin, end))


@dataclass(frozen=True, eq=False, repr=False)
class _Shifted(Mask):
    inner: Mask
    rows: Value
    cols: Value
    LABEL: ClassVar[str] = "shift"
    HAS_BODIES: ClassVar[bool] = True

    @property
    def operands(self) -> tuple[Mask, ...]:
        return (self.inner,)

    def planes(self) -> tuple[Plane | None, ...]:
        return (Plane((self.rows, self.cols), lambda queries, keys, rows, cols: (queries - rows, keys - cols)),)

    def emit(self, builder: Builder) -> SSAValue:
        rows, cols = builder.scalar("rows", self.rows), builder.scalar("cols", self.cols)
        queries, keys = builder.add(dialect.QueriesOp(), "queries"), builder.add(dialect.KeysOp(), "keys")
        return _place(builder, self.inner, (rows, queries), (cols, keys))


@dataclass(frozen=True, eq=False, repr=False)
class _Concatenated(Mask):
    parts: tuple[Mask, ...]
    offsets: Value
    key_offsets: Value | None
    LABEL: ClassVar[str] = "concatenate"
    HAS_BODIES: ClassVar[bool] = True

    @property
    def operands(self) -> tuple[Mask, ...]:
        return self.parts

    def planes(self) -> tuple[Plane | None, ...]:
        return tuple(
            Plane((self.offsets, self.key_offsets or self.offsets), _part_sizes(number))
            for number in range(len(self.parts))
        )

    def extents(self) -> tuple[Extent, ...]:
        last = Extent("concatenate: the last offset", (self.offsets,), last_offset)
        if self.key_offsets is None:
            return (last,)
        return (last, Extent("concatenate: the last key offset", (self.key_offsets,), last_offset, keys_only=True))

    def emit(self, builder: Builder) -> SSAValue:
        rows, table = self._spans(builder, "offsets", self.offsets)
        cols, key_table = rows, table
        if self.key_offsets is not None:
            cols, key_table = self._spans(builder, "key_offsets", self.key_offsets)
        visible: SSAValue | None = None
        for part, span, columns in zip(self.parts, rows, cols, strict=True):
            region = _place(builder, part, span, columns, sorted({table.index, key_table.index}))
            visible = region if visible is None else builder.add(dialect.UnionOp(visible, region), "visible")
        assert visible is not None
        return visible

    def _spans(
        self, builder: Builder, hint: str, offsets: Value
    ) -> tuple[list[tuple[SSAValue, SSAValue]], BlockArgument]:
        """Where the parts begin and end, and the table that says so."""
        table = builder.table(hint, offsets)
        assert isinstance(table, BlockArgument)
        reads = [builder.add(dialect.ReadOp(table, builder.constant(i)), "offset") for i in range(len(self.parts) + 1)]
        return list(pairwise(reads)), table


def _part_sizes(number: int) -> Callable[..., Any]:
    def sizes(queries: int, keys: int, *tables: Any) -> tuple[Any, ...]:
        return tuple(table[..., number + 1] - table[..., number] for table in tables)

    return sizes


def placed(mask: Mask, rows: Span, cols: Span) -> Mask:
    """`Mask.place`."""
    row_begin, row_end = _span("place: rows", rows)
    begin, end = _span("place: cols", cols)
    return _Placed(mask, row_begin, row_end, begin, end)


def shifted(mask: Mask, rows: Scalar, cols: Scalar) -> Mask:
    """`Mask.shift`."""
    return _Shifted(mask, scalar("shift: rows", rows), scalar("shift: cols", cols))


def cropped(mask: Mask, rows: Span | None, cols: Span | None) -> Mask:
    """`Mask.crop`."""
    for what, span, strip in (("rows", rows, rows_mask), ("cols", cols, cols_mask)):
        if span is not None:
            _span(f"crop: {what}", span)
            mask = mask & strip(*span)
    return mask


def _span(what: str, span: Span) -> tuple[Value, Value]:
    if not isinstance(span, tuple | list) or len(span) != 2:
        raise MaskError(f"{what} must be a pair (begin, end), got {span!r}")
    return scalar(f"{what}, begin", span[0], 0), scalar(f"{what}, end", span[1], 0)


def concatenate(masks: Sequence[Mask], offsets: Table, key_offsets: Table | None = None) -> Mask:
    """Sequences behind one another: each part is masked by a mask of its own, and parts do not see each other.

    Part i holds the positions offsets[i] <= p < offsets[i + 1] (the `cu_seqlens` of FlashAttention). Its mask counts
    positions from the part's first one, and its numbers of queries and keys are the part's. Positions outside all parts
    see and are seen by nothing. For many parts of one kind, `document` is shorter: `causal() & document(offsets)`.

    Args:
        masks: n of them, at least one.
        offsets: ascending, not negative, int32/int64 data of shape [n + 1], [B, n + 1] or [B, H, n + 1].
        key_offsets: those of the keys, if the parts do not hold as many keys as queries.

    Raises:
        MaskError: not one offset more than masks, or offsets (in host memory) do not ascend; where it is used, if there
            are fewer positions than the last offset, or a part's mask does not fit it.
    """
    if not isinstance(masks, tuple | list):
        raise MaskError(f"concatenate takes a list of masks, got {type(masks).__name__}")
    for mask in masks:
        if not isinstance(mask, Mask):
            raise MaskError(f"concatenate takes masks, got {type(mask).__name__}")
    if not masks:
        raise MaskError("concatenate takes at least one mask")
    keys = None if key_offsets is None else _offsets("concatenate: key_offsets", key_offsets, len(masks))
    return _Concatenated(tuple(masks), _offsets("concatenate: offsets", offsets, len(masks)), keys)


def _offsets(what: str, value: Table, parts: int) -> Value:
    offsets = checked_offsets(what, value)
    assert not isinstance(offsets.data, int)
    if offsets.data.shape[-1] != parts + 1:
        raise MaskError(f"{what} of {parts} masks must have {parts + 1} entries, got {offsets.data.shape[-1]}")
    return offsets


__all__ = ["concatenate", "cropped", "placed", "shifted"]
