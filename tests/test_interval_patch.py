"""`interval-patch`: the mask in patched order shows what the mask shows, position by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import cases
from xdsl.dialects.builtin import ModuleOp
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

import compilemask as cm
from compilemask.dialects import interval
from compilemask.dialects.semantics import interval as semantics
from compilemask.errors import LoweringError
from compilemask.language.extent import image_of
from compilemask.lowering import pipeline
from compilemask.lowering.patch_choice import end_with_image, lie_on_raster
from compilemask.lowering.patch_grid import Patches
from compilemask.passes.interval_patch import IntervalPatchPass, patches_of

CLEAN_UP = (CanonicalizePass(), CommonSubexpressionElimination())


@dataclass(frozen=True)
class Case:
    """A mask over a sequence with an image."""

    mask: cm.Mask
    origin: int
    sizes: tuple[int, ...]
    behind: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]

    @property
    def patches(self) -> Patches:
        end = self.origin + int(np.prod(self.sizes))
        return Patches(self.origin, self.sizes, end + self.behind, self.queries, self.keys)


IMAGE, VIDEO = (19, 37), (5, 9, 17)
CASES = {
    "clear": Case(cm.clear(*IMAGE, 6, text=5), 5, IMAGE, 30, (8, 16), (8, 16)),
    "clear, high tiles": Case(cm.clear(*IMAGE, 6, text=5), 5, IMAGE, 30, (12, 16), (8, 16)),
    "clear, no text": Case(cm.clear(*IMAGE, 6), 0, IMAGE, 0, (4, 32), (4, 32)),
    "text last": Case(cm.disk2d(*IMAGE, 6) | cm.rows(703, 733) | cm.cols(703, 733), 0, IMAGE, 30, (8, 16), (8, 16)),
    "box": Case(cm.box2d(*IMAGE, 3, 5, origin=128), 128, IMAGE, 1, (16, 8), (16, 8)),
    "natten2d": Case(cm.natten2d(*IMAGE, 7), 0, IMAGE, 0, (8, 16), (8, 16)),
    "natten2d, dilated": Case(cm.natten2d(*IMAGE, 7, 2, origin=3), 3, IMAGE, 9, (8, 16), (4, 32)),
    "natten3d": Case(cm.natten3d(*VIDEO, (3, 5, 5), origin=1), 1, VIDEO, 130, (2, 8, 8), (2, 8, 8)),
    "natten3d, other shapes": Case(cm.natten3d(*VIDEO, (3, 5, 5)), 0, VIDEO, 0, (4, 4, 8), (1, 8, 16)),
    "windows": Case(cm.sam_window(*IMAGE, 7), 0, IMAGE, 2, (8, 16), (8, 16)),
    "causal": Case(cm.causal(), 3, IMAGE, 5, (8, 16), (8, 16)),
    "documents": Case(cm.document([0, 100, 100, 400, 708]), 3, IMAGE, 5, (8, 16), (8, 16)),
    "all but a box": Case(~cm.box2d(*IMAGE, 2, origin=3), 3, IMAGE, 5, (8, 16), (8, 16)),
    "per batch": Case(cm.window([[10], [60]], 3), 3, IMAGE, 5, (8, 16), (8, 16)),
}
LOW, SHORT = (11, 37), (3, 9, 17)
"""Images of which less is in patches than a mask speaks of: the lines behind lie in tiles of runs."""
LOW_CASES = {
    "lower, disk": Case(cm.disk2d(*IMAGE, 6), 0, LOW, 8 * 37, (8, 16), (8, 16)),
    "lower, clear, more behind": Case(cm.clear(*IMAGE, 6, text=5), 5, LOW, 8 * 37 + 40, (12, 16), (8, 16)),
    "lower, natten2d": Case(cm.natten2d(*IMAGE, 7), 0, LOW, 8 * 37, (8, 16), (8, 16)),
    "lower, windows": Case(cm.sam_window(*IMAGE, 7), 0, LOW, 8 * 37 + 2, (8, 16), (8, 16)),
    "lower, all but a box": Case(~cm.box2d(*IMAGE, 2, origin=3), 3, LOW, 8 * 37 + 5, (8, 16), (8, 16)),
    "fewer frames": Case(cm.natten3d(*VIDEO, (3, 5, 5)), 0, SHORT, 2 * 9 * 17, (2, 8, 8), (2, 8, 8)),
    "heights per batch": Case(cm.disk2d([[19], [9]], 37, 6), 0, LOW, 8 * 37, (8, 16), (8, 16)),
    "another split of the same lines": Case(cm.disk2d(18, 17, 4), 0, (3, 6, 17), 7, (2, 8, 8), (2, 8, 8)),
    "higher than the mask's": Case(cm.disk2d(*LOW, 6), 0, IMAGE, 9, (8, 16), (8, 16)),
}


def patched(module: ModuleOp, case: Case, inside: bool = False) -> ModuleOp:
    return pipeline.apply(module, [IntervalPatchPass(case.keys, case.queries, inside), *CLEAN_UP])


def check(case: Case, transposed: bool = False, inside: bool = False) -> None:
    """Patched order shows the same pairs, and no missing key. `inside`: no line of the mask lies outside the image."""
    patches, compiled = case.patches, cm.compile(case.mask)
    dense = case.mask.dense(patches.length, patches.length).numpy()
    if transposed:
        compiled, dense = compiled.transposed, dense.swapaxes(-1, -2)
    func = pipeline.interval_of(patched(compiled.program.interval_module, case, inside))
    rows, columns = patches.queries.positions, patches.keys.positions
    for b in range(dense.shape[0]):
        arguments = [p.of_mask(b, 0) for p in compiled.parameters] + [case.origin, *case.sizes, patches.length]
        expected = dense[b, 0][np.maximum(rows, 0)][:, np.maximum(columns, 0)] & (columns >= 0)
        found = semantics.visible(func, arguments, len(rows), len(columns))
        np.testing.assert_array_equal(found[rows >= 0], expected[rows >= 0])
        assert not found[:, columns < 0].any(), "a missing key is seen"
        semantics.check_normal_form(func, arguments, len(rows), len(columns))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_mask(name: str, transposed: bool, inside: bool) -> None:
    check(CASES[name], transposed, inside)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", LOW_CASES)
def test_equals_the_mask_of_another_height(name: str, transposed: bool) -> None:
    check(LOW_CASES[name], transposed)


@pytest.mark.parametrize("name", [*CASES, *LOW_CASES])
def test_whether_lines_lie_inside(name: str) -> None:
    """Each case whose lines are all in patches is recognized, and no other; heights in tables are not known."""
    case = {**CASES, **LOW_CASES}[name]
    known = [p.value if isinstance(p.value, int) else None for p in cm.compile(case.mask).parameters]
    found = end_with_image(cm.compile(case.mask).program.intervals, known, case.patches)
    assert found == (name in CASES or name in ("another split of the same lines", "higher than the mask's"))


SHAPES = [((8, 16), (8, 16)), ((4, 32), (16, 8)), ((12, 16), (8, 16)), ((2, 8, 8), (2, 8, 8)), ((1, 8, 16), (4, 4, 8))]
MOST_PAIRS = 1 << 23
"""Of places of queries and keys, that are compared."""


@st.composite
def patched_cases(draw: st.DrawFn) -> Case:
    """Random masks with their own image in patches, or with any image if they speak of none."""
    mask = draw(cases(depth=2)).mask
    queries, keys = draw(st.sampled_from(SHAPES))
    image = image_of(mask.limits, {p.name: p.value for p in mask.parameters})
    origin, sizes = (draw(st.integers(0, 150)), None) if isinstance(image, str) else image
    if sizes is None:
        width = draw(st.integers(1, 40))
        sizes = (draw(st.integers(1, 300 // width + 1)), width)
    if len(queries) == 3:
        frames = draw(st.sampled_from([n for n in range(1, sizes[0] + 1) if sizes[0] % n == 0]))
        sizes = (frames, sizes[0] // frames, sizes[1])
    sizes = (draw(st.integers(1, sizes[0] + 1)), *sizes[1:])
    case = Case(mask, origin, sizes, draw(st.integers(0, 140)), queries, keys)
    # A thin image has a patch, most of which does not exist, for each of its pixels.
    assume(case.patches.queries.total * case.patches.keys.total <= MOST_PAIRS)
    compiled = cm.compile(mask)
    known = [p.value if isinstance(p.value, int) else None for p in compiled.parameters]
    assume(all(lie_on_raster(f, known, case.patches) for f in functions(case.mask)))
    return case


def functions(mask: cm.Mask) -> tuple[interval.FuncOp, interval.FuncOp]:
    compiled = cm.compile(mask)
    return compiled.program.intervals, compiled.transposed.program.intervals


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(patched_cases(), st.booleans())
def test_random_masks(case: Case, transposed: bool) -> None:
    known = [p.value if isinstance(p.value, int) else None for p in cm.compile(case.mask).parameters]
    check(case, transposed, end_with_image(functions(case.mask)[transposed], known, case.patches))


def test_missing_rows_see_what_neighbours_see() -> None:
    """So that they make no tile partial."""
    case = CASES["clear"]
    func = pipeline.interval_of(patched(cm.compile(case.mask).program.interval_module, case))
    grid = case.patches.queries
    found = semantics.visible(func, [*IMAGE, 5, 5, *IMAGE, grid.length], grid.total, grid.total)
    assert (found[5 : grid.tile] == found[4]).all()


def test_the_shapes_are_kept() -> None:
    case = CASES["clear, high tiles"]
    module = patched(cm.compile(case.mask).program.interval_module, case)
    patches = patches_of(pipeline.interval_of(module))
    assert patches is not None
    assert (patches.query_shape, patches.key_shape) == ((12, 16), (8, 16))
    with pytest.raises(LoweringError, match="already"):
        patched(module, case)


def test_only_in_normal_form() -> None:
    module = pipeline.apply(
        cm.compile(cm.causal() & cm.window(3)).program.mask_module, pipeline.passes_to("interval")[:1]
    )
    with pytest.raises(LoweringError, match="normal form"):
        patched(module, CASES["causal"])
