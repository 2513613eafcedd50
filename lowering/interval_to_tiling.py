"""`interval-to-tiling`: from the keys that a row sees to the tiles that a query tile visits.

Each interval function @NAME in normal form gets a tiling function @NAME_tiles beside it: an envelope for each part of
the set, and one classification. Its attributes say how partial tiles are masked (`patterns`) and how much room they
need at most (`reserve`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith as xdsl_arith
from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from compilemask.dialects import interval, tiling
from compilemask.dialects.interval import PATCHES
from compilemask.errors import LoweringError
from compilemask.lowering.descriptor_layout import KEYS, ceil_div
from compilemask.passes import bound_motion
from compilemask.passes.bounds import Bounds, function_bounds, lift
from compilemask.passes.interval_patch import patches_of

SUFFIX = "_tiles"
"""What a tiling function's name has behind that of its interval function."""


@dataclass(frozen=True)
class NormalForm:
    """The parts of a function in normal form. For a `between`, `ranges` and `families` are those of its outer set."""

    ranges: tuple[interval.RangeOp, ...]
    families: tuple[interval.FamilyOp, ...]
    between: interval.BetweenOp | None = None

    @property
    def parts(self) -> int:
        """How many envelopes bound the set."""
        return 1 if self.between is not None else len(self.ranges) + len(self.families)

    @property
    def ranges_of_both(self) -> int:
        """How many ranges there are, those of the inner set of a `between` included."""
        if self.between is None:
            return len(self.ranges)
        inner = self.between.inner.owner
        assert isinstance(inner, interval.ConcatOp)
        return len(self.ranges) + sum(isinstance(part.owner, interval.RangeOp) for part in inner.parts)


def normal_form(func: interval.FuncOp) -> NormalForm:
    """The parts of an interval function; raises LoweringError unless `interval-normalize` has run."""
    terminator = func.body.block.last_op
    assert isinstance(terminator, interval.ReturnOp)
    root = terminator.value.owner
    between = root if isinstance(root, interval.BetweenOp) else None
    concat = between.outer.owner if between is not None else root
    if not isinstance(concat, interval.ConcatOp):
        raise _not_normal(func, concat)
    owners = [part.owner for part in concat.parts]
    for owner in owners:
        if not isinstance(owner, interval.RangeOp | interval.FamilyOp):
            raise _not_normal(func, owner)
    return NormalForm(
        tuple(owner for owner in owners if isinstance(owner, interval.RangeOp)),
        tuple(owner for owner in owners if isinstance(owner, interval.FamilyOp)),
        between,
    )


def _not_normal(func: interval.FuncOp, owner: object) -> LoweringError:
    name = getattr(owner, "name", "a block argument")
    return LoweringError(f"@{func.sym_name.data} is not in normal form ({name}): run interval-normalize first")


def moving_bounds(func: interval.FuncOp) -> list[SSAValue]:
    """The bounds of a function that move with q, in the order that numbers shared patterns (docs/descriptor.md)."""
    return bound_motion.moving_bounds(func, normal_form(func).ranges, function_bounds(func))


# ---- attributes ----


def _reserve(func: interval.FuncOp, form: NormalForm, bounds: Bounds, rows: int) -> tiling.ReserveAttr:
    """Room for partial tiles, from how the bounds of the function move over tiles of so many rows."""
    motion = bound_motion.Motion(func.body.block.args[0], rows)
    for item in form.ranges:
        motion.add(lift(bounds, item.lo))
        motion.add(lift(bounds, item.hi))
    arities = [interval.set_of(family.result).count for family in form.families]
    if form.between is not None or not motion.known or interval.UNBOUNDED in arities:
        return tiling.ReserveAttr.unknown()
    if not all(motion.follows_raster(lift(bounds, f.first), lift(bounds, f.pitch), bounds) for f in form.families):
        return tiling.ReserveAttr.unknown()
    per_query, per_key, lines = motion.per_query_tile, motion.per_key_tile, sum(arities)
    if not lines:
        return tiling.ReserveAttr(per_query, per_key)
    pitch = form.families[0].pitch
    if isinstance(pitch.owner, Block):
        return tiling.ReserveAttr(per_query, per_key, lines, pitch.index)  # type: ignore[attr-defined]
    if isinstance(pitch.owner, xdsl_arith.ConstantOp) and isinstance(pitch.owner.value, IntegerAttr):
        width = max(pitch.owner.value.value.data, 1)
        reach = (lines + ceil_div(rows - 1, width) + 1) * width
        return tiling.ReserveAttr(per_query + ceil_div(reach, KEYS) + 1, per_key)
    return tiling.ReserveAttr.unknown()


def _patterns(func: interval.FuncOp, form: NormalForm, bounds: Bounds) -> tiling.Patterns:
    """Shared if every bound is 0 below, the number of keys above, or moves with q one to one."""
    if form.between is not None or form.families:
        return tiling.Patterns.STORED
    q = func.body.block.args[0]
    moving = bound_motion.moving_bounds(func, form.ranges, bounds)
    relative = all(bound_motion.is_relative(lift(bounds, bound), q) for bound in moving)
    return tiling.Patterns.SHARED if relative else tiling.Patterns.STORED


# ---- the function ----


def tiling_function(func: interval.FuncOp, rows: int = 128) -> tiling.FuncOp:
    """The tiling function of an interval function, for query tiles of `rows` rows or, in patched order, of a patch."""
    form, bounds = normal_form(func), function_bounds(func)
    patches = patches_of(func)
    if patches is not None:
        rows = prod(patches.query_shape)
    inputs = func.function_type.inputs.data
    block = Block(arg_types=inputs)
    for name, argument, old in zip(
        ("tile", *[None] * (len(inputs) - 1)), block.args, func.body.block.args, strict=True
    ):
        argument.name_hint = name or old.name_hint
    builder = Builder(InsertPoint.at_end(block))
    given = block.args[1:]
    symbol = func.sym_name.data
    tile_rows = builder.insert(tiling.RowsOp(block.args[0], block.args[1])).result
    tile_rows.name_hint = "rows"
    envelopes = [builder.insert(tiling.EnvelopeOp(symbol, part, tile_rows, given)).result for part in range(form.parts)]
    for part, envelope in enumerate(envelopes):
        envelope.name_hint = f"envelope{part}"
    runs = builder.insert(tiling.ClassifyOp(symbol, tile_rows, envelopes, given)).result
    runs.name_hint = "runs"
    builder.insert(tiling.ReturnOp(runs))
    attributes: dict[str, Attribute] = {
        "shape": tiling.ShapeAttr(rows, KEYS),
        "patterns": tiling.PatternsAttr(_patterns(func, form, bounds)),
        "reserve": _reserve(func, form, bounds, rows),
    }
    if patches is not None:
        attributes[PATCHES] = patches
    return tiling.FuncOp(
        symbol + SUFFIX, FunctionType.from_lists(inputs, [tiling.RunsType()]), Region(block), attributes
    )


@dataclass(frozen=True)
class IntervalToTilingPass(ModulePass):
    """Add a tiling function for every interval function; `rows` is the height of a query tile."""

    name = "interval-to-tiling"

    rows: int = 128

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        present = {func.sym_name.data for func in op.walk() if isinstance(func, tiling.FuncOp)}
        for func in list(op.walk()):
            if isinstance(func, interval.FuncOp) and func.sym_name.data + SUFFIX not in present:
                Builder(InsertPoint.after(func)).insert(tiling_function(func, self.rows))
