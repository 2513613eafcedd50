"""The road from a mask to its tiling, as one readable list of passes."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.utils.exceptions import VerifyException

from compilemask.dialects import interval, tiling
from compilemask.dialects.registry import make_context
from compilemask.errors import LoweringError, TargetError
from compilemask.lowering.descriptor_layout import Room
from compilemask.lowering.interval_to_tiling import IntervalToTilingPass, moving_bounds, normal_form
from compilemask.lowering.mask_to_interval import MaskToIntervalPass
from compilemask.passes.instrument import Observer, observing, run_passes
from compilemask.passes.interval_normalize import IntervalNormalizePass
from compilemask.passes.interval_patch import IntervalPatchPass

LEVELS = ("mask", "interval", "tiling")
"""The levels above the kernels, from the top."""

_CLEAN_UP: tuple[ModulePass, ...] = (CanonicalizePass(), CommonSubexpressionElimination())

PASSES: dict[str, tuple[ModulePass, ...]] = {
    "mask": (),
    "interval": (MaskToIntervalPass(), IntervalNormalizePass(), *_CLEAN_UP),
    "tiling": (IntervalToTilingPass(),),
}
"""The passes that lead to each level from the one above."""


def passes_to(level: str) -> list[ModulePass]:
    """All passes from the mask level down to `level`; raises TargetError for an unknown one."""
    if level not in LEVELS:
        raise TargetError(f"unknown level {level!r}: expected one of {', '.join(LEVELS)}")
    return [item for name in LEVELS[: LEVELS.index(level) + 1] for item in PASSES[name]]


def with_patches(passes: Sequence[ModulePass], patch: IntervalPatchPass) -> list[ModulePass]:
    """The passes that lead to a tiling whose tiles of an image are patches."""
    steps: list[ModulePass] = []
    for item in passes:
        if isinstance(item, IntervalToTilingPass):
            steps += [patch, *_CLEAN_UP]
        steps.append(item)
    return steps


def lower(module: ModuleOp, to: str, context: Context | None = None) -> ModuleOp:
    """A copy of the module, lowered to a level. Functions that are already there or further down stay as they are.

    Raises LoweringError, naming the pass, if a result does not verify or a mask is nested too deeply.
    """
    return apply(module, passes_to(to), context)


def apply(module: ModuleOp, passes: Sequence[ModulePass], context: Context | None = None) -> ModuleOp:
    """A copy of the module to which the passes were applied; raises LoweringError as `lower` does."""
    lowered, follower = module.clone(), _Follower()
    try:
        with observing(follower):
            run_passes(lowered, passes, context or make_context())
    except VerifyException as error:
        if "out of range" in str(error):
            raise LoweringError(f"{follower.name}: a number of the mask leaves 32 bits: {error}") from None
        raise LoweringError(f"{follower.name} made invalid IR: {error}") from error
    except RecursionError:
        raise LoweringError(f"{follower.name}: the mask is nested more deeply than Python's stack reaches") from None
    return lowered


class _Follower(Observer):
    """Knows which pass runs."""

    name = ""

    def before(self, step: int, item: ModulePass, module: ModuleOp) -> None:
        self.name = item.name


def tiling_of(module: ModuleOp) -> tiling.FuncOp:
    """The one tiling function of a module."""
    found = [func for func in module.walk() if isinstance(func, tiling.FuncOp)]
    if len(found) != 1:
        raise LoweringError(f"expected one tiling.func in the module, found {len(found)}")
    return found[0]


def interval_of(module: ModuleOp) -> interval.FuncOp:
    """The one interval function of a module."""
    found = [func for func in module.walk() if isinstance(func, interval.FuncOp)]
    if len(found) != 1:
        raise LoweringError(f"expected one interval.func in the module, found {len(found)}")
    return found[0]


def room(module: ModuleOp) -> Room:
    """How much room a mask's descriptor needs, from its tiling level."""
    func, tiles = interval_of(module), tiling_of(module)
    shared = tiles.patterns == tiling.Patterns.SHARED
    form = normal_form(func)
    return Room(tiles.reserve, form.ranges_of_both, shared, len(moving_bounds(func)) if shared else 0)
