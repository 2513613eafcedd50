"""from_mask_mod on hand-written mask_mods: what they may do, what they read, and what they are refused for."""

from __future__ import annotations

import collections
import functools
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_descriptor_kernels import check_equal
from test_levels_agree import check_levels
from torch.nn.attention.flex_attention import and_masks, create_mask, or_masks

import compilemask as cm
from compilemask.dialects import interval
from compilemask.lowering import pipeline

SIZE = (150, 170)
N = max(SIZE)
LABELS = torch.randint(0, 4, (N,), generator=torch.Generator().manual_seed(0))
SORTED = LABELS.sort().values
LIMITS = torch.tensor([40, 90])
PER_BATCH = torch.stack([SORTED, SORTED + (torch.arange(N) >= 100)])
PER_HEAD = torch.stack([torch.arange(N) // 9, torch.arange(N) // 30, torch.arange(N) // 70])
BOTH = torch.stack([torch.stack([PER_HEAD[h] // (b + 1) for h in range(3)]) for b in range(2)])
VALID = torch.arange(N) < 120
COUNT = torch.tensor(33)
SQUARE = torch.rand(N, N, generator=torch.Generator().manual_seed(1)) < 0.2

MaskMod = Callable[..., Any]


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """kv <= q."""
    return q >= kv


def sequence_of_ifs(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """torch.where on integers and on truth values."""
    width = torch.where(q < 50, 10, torch.where(q < 100, 20, 40))
    return torch.where(q % 2 == 0, (q - kv).abs() < width, q >= kv)


def in_place(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """The augmented operators."""
    seen = q >= kv
    seen &= q - kv < 50
    seen |= kv < 3
    return seen


def constants(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Tensors that the function makes."""
    allowed = torch.tensor([1, 3], device=q.device)
    offset = torch.full((), 7, device=q.device)
    return (LABELS[kv].unsqueeze(-1) == allowed).any(-1) & (q + offset >= kv) & q.new_ones((), dtype=torch.bool)


def partly(limit: int, b: Any, h: Any, q: Any, kv: Any) -> Any:
    """For functools.partial."""
    return kv < limit


class WithState:
    """A mask_mod that is an object."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def __call__(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return self.ids[q] == self.ids[kv]


MODS: dict[str, tuple[MaskMod, tuple[int, int], int | None]] = {
    "causal": (causal, (1, 1), 1),
    "nobody": (lambda b, h, q, kv: q < 0, (1, 1), 0),
    "constant": (lambda b, h, q, kv: torch.ones((), dtype=torch.bool), (1, 1), 1),
    "logical functions": (
        lambda b, h, q, kv: torch.logical_and(torch.ge(q, kv), torch.logical_not(torch.gt(q - kv, 30))),
        (1, 1),
        1,
    ),
    "methods": (lambda b, h, q, kv: q.ge(kv).logical_and(kv.sub(3).ge(0)).logical_or(q.eq(kv)), (1, 1), 1),
    "reversed operators": (lambda b, h, q, kv: (100 - kv > 2 * q - 7) & (kv > 4), (1, 1), 1),
    "minimum and maximum": (lambda b, h, q, kv: torch.maximum(q, 20 + kv) <= torch.minimum(3 * kv, q + 40), (1, 1), 1),
    "clamp": (lambda b, h, q, kv: kv.clamp(10, 60) <= q.clamp(min=5), (1, 1), 1),
    "floor": (lambda b, h, q, kv: ((q - 70) // 16 == (kv - 70) // 16) | (kv - 3) // -1 > 0, (1, 1), None),
    "blocks": (lambda b, h, q, kv: torch.div(q, 16, rounding_mode="floor") >= torch.floor_divide(kv, 16), (1, 1), 1),
    "remainder": (lambda b, h, q, kv: torch.remainder(kv - 5, 32) < 7, (1, 1), -1),
    "choices": (sequence_of_ifs, (1, 1), 2),
    "augmented": (in_place, (1, 1), 2),
    "constants": (constants, (1, 1), None),
    "different": (lambda b, h, q, kv: (q != kv) & ((q < 9) == (kv < 9)), (1, 1), 2),
    "exclusive": (lambda b, h, q, kv: (kv < 20) ^ (q < 30), (1, 1), 1),
    "shifts": (lambda b, h, q, kv: (q >> 4) == (kv >> 4), (1, 1), 1),
    "bits": (lambda b, h, q, kv: ((kv & 31) < 5) & (q >= kv), (1, 1), -1),
    "truth as a number": (lambda b, h, q, kv: kv - (q > 10).to(torch.int32) * 5 <= 20, (1, 1), 1),
    "towards zero": (
        lambda b, h, q, kv: torch.div(q - 70, 9, rounding_mode="trunc") == torch.div(kv - 70, 9, rounding_mode="trunc"),
        (1, 1),
        None,
    ),
    "remainder towards zero": (lambda b, h, q, kv: torch.fmod(kv - q, 7) >= -2, (1, 1), None),
    "sign": (lambda b, h, q, kv: torch.sign(q - kv) >= 0, (1, 1), 1),
    "masked fill": (lambda b, h, q, kv: (q >= kv).masked_fill(kv < 3, True), (1, 1), 1),
    "search": (
        lambda b, h, q, kv: torch.searchsorted(LIMITS, q, right=True) == torch.searchsorted(LIMITS, kv, right=True),
        (1, 1),
        None,
    ),
    "buckets": (lambda b, h, q, kv: torch.bucketize(q, LIMITS) >= torch.bucketize(kv, LIMITS), (1, 1), 2),
    "count": (lambda b, h, q, kv: torch.count_nonzero(q >= LIMITS) == (kv >= LIMITS).sum(), (1, 1), None),
    "composed": (or_masks(and_masks(causal, lambda b, h, q, kv: q - kv < 30), lambda b, h, q, kv: kv < 5), (1, 1), 2),
    "partial": (functools.partial(partly, 9), (1, 1), 1),
    "unsorted ids": (lambda b, h, q, kv: LABELS[q] == LABELS[kv], (1, 1), None),
    "sorted ids": (lambda b, h, q, kv: (SORTED[q] == SORTED[kv]) & (q >= kv), (1, 1), 1),
    "object": (WithState(SORTED), (1, 1), 1),
    "ids in order": (lambda b, h, q, kv: SORTED[kv] <= SORTED[q], (1, 1), 1),
    "ids of tiles": (lambda b, h, q, kv: SORTED[kv // 8] == SORTED[q // 8], (1, 1), 1),
    "positions": (lambda b, h, q, kv: kv < LIMITS[0], (1, 1), 1),
    "scalar tensor": (lambda b, h, q, kv: (kv < COUNT) | causal(b, h, q, kv), (1, 1), 1),
    "truth table": (lambda b, h, q, kv: ~VALID[kv], (1, 1), None),
    "rows of truth": (lambda b, h, q, kv: VALID[q] & (q >= kv), (1, 1), 1),
    "negative index": (lambda b, h, q, kv: (LABELS[q - 5] == 1) & (q >= kv), (1, 1), 1),
    "plane": (lambda b, h, q, kv: SQUARE[q, kv], (1, 1), None),
    "length per batch": (lambda b, h, q, kv: (kv < LIMITS[b]) & (q >= kv), (2, 1), 1),
    "ids per batch": (lambda b, h, q, kv: (PER_BATCH[b, q] == PER_BATCH[b, kv]) & (q >= kv), (2, 1), 1),
    "ids per head": (lambda b, h, q, kv: PER_HEAD[h, q] == PER_HEAD[h, kv], (1, 3), 1),
    "ids per batch and head": (lambda b, h, q, kv: BOTH[b, h, q] == BOTH[b, h][kv], (2, 3), 1),
    "transposed": (lambda b, h, q, kv: BOTH.transpose(0, 1)[h, b, q] == BOTH[b, h, kv], (2, 3), 1),
    "head as a number": (lambda b, h, q, kv: q - kv <= 10 * (h + 1) + b, (2, 3), 1),
}


def arity(mask: cm.Mask) -> int | None:
    """How many intervals a row has at most; None if a predicate decides."""
    func = pipeline.interval_of(pipeline.lower(mask.module(), "interval"))
    end = func.body.block.last_op
    assert isinstance(end, interval.ReturnOp)
    return None if isinstance(end.value.owner, interval.BetweenOp) else interval.set_of(end.value).count


@pytest.mark.parametrize("name", MODS)
def test_equals_flex_attention(name: str) -> None:
    mask_mod, (batches, heads), expected_arity = MODS[name]
    mask = cm.from_mask_mod(mask_mod, batches, heads)
    expected = create_mask(mask_mod, batches, heads, *SIZE, device="cpu")
    assert torch.equal(mask.dense(*SIZE).expand(expected.shape), expected)
    check_levels(mask, *SIZE)
    assert arity(mask) == expected_arity


# ---- what a mask reads ----


def test_tables_are_read_when_the_mask_runs() -> None:
    ids, limit = SORTED.clone(), torch.tensor(5)
    mask_mod = lambda b, h, q, kv: (ids[q] == ids[kv]) | (kv < limit)  # noqa: E731
    mask = cm.from_mask_mod(mask_mod)
    ids[100:] += 1
    limit.fill_(9)
    check_levels(mask, *SIZE)
    assert torch.equal(mask.dense(*SIZE), create_mask(mask_mod, 1, 1, *SIZE, device="cpu"))


def test_truth_tables_and_parts_of_tables_are_read_when_the_mask_runs() -> None:
    valid, rows = VALID.clone(), BOTH.int().clone()
    mask_mod = lambda b, h, q, kv: valid[kv] & (rows[0][1:][b, q] >= rows[0, 2, kv])  # noqa: E731
    mask = cm.from_mask_mod(mask_mod, B=2)
    valid[3:9] = False
    rows += 1
    rows[0, 2, 5] = 0
    with pytest.raises(cm.MaskError, match="no longer ascends"):
        mask.check_lengths(*SIZE)
    rows[0, 2] = 7
    mask.check_lengths(*SIZE)
    assert torch.equal(mask.dense(*SIZE), create_mask(mask_mod, 2, 1, *SIZE, device="cpu"))


def test_names_of_parameters_and_of_the_mask() -> None:
    mask = cm.from_mask_mod(and_masks(causal, WithState(SORTED), lambda b, h, q, kv: LABELS[q] < 3))
    assert [parameter.name for parameter in mask.parameters] == ["ids", "LABELS"]
    assert cm.from_mask_mod(causal).name == "causal"
    assert cm.from_mask_mod(lambda b, h, q, kv: q > kv).name == "mask_mod"


def test_one_program_for_all_values() -> None:
    def make(ids: torch.Tensor) -> cm.Mask:
        return cm.from_mask_mod(lambda b, h, q, kv: ids[q] == ids[kv])

    assert make(SORTED).key == make(SORTED // 2).key
    assert make(SORTED).key != make(LABELS).key, "whether ids ascend is part of the structure"


def test_promised_order() -> None:
    mask_mod = lambda b, h, q, kv: SORTED[q] == SORTED[kv]  # noqa: E731
    for promise in ("SORTED", SORTED):
        assert arity(cm.from_mask_mod(mask_mod, sorted_tables=[promise])) == 1
    with pytest.raises(cm.MaskError, match="sorted_tables has nonsense, but the mask_mod reads SORTED"):
        cm.from_mask_mod(mask_mod, sorted_tables=["nonsense"])
    with pytest.raises(cm.MaskError, match="LABELS, which does not ascend"):
        cm.from_mask_mod(lambda b, h, q, kv: LABELS[q] == LABELS[kv], sorted_tables=["LABELS"])


def test_combines_with_other_masks() -> None:
    mask = cm.from_mask_mod(WithState(SORTED)) & cm.causal() - cm.cols(3, 5)
    check_levels(mask, *SIZE)


def test_computes_with_the_batch_that_a_table_says() -> None:
    mask = cm.from_mask_mod(lambda b, h, q, kv: kv < LIMITS[b])
    assert mask.batch_shape == (2, 1)


# ---- what is refused ----

FLOATS = torch.rand(N)


def changed(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Changes a tensor in place."""
    seen = q >= kv
    seen.logical_and_(kv > 3)
    return seen


def repeated(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Loops as often as an index says."""
    while kv > 8:
        kv = kv - 8
    return kv == 3


COUNTER, LOG, WRITTEN = 0, [], torch.zeros(4, dtype=torch.int32)


def assigned(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Counts its calls."""
    global COUNTER
    COUNTER += 1
    return q >= kv


def written(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Writes to a tensor that it captured."""
    WRITTEN[1] = 5
    return q >= WRITTEN[kv]


class Settings:
    """An object with a field, and one that it computes once."""

    width = 3
    seen: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.calls = 0

    @functools.cached_property
    def reach(self) -> int:
        """Twice the width."""
        return 2 * self.width


SETTINGS, ARRAY, RECENT, NESTED = Settings(), np.zeros(3), collections.deque([1], maxlen=1), ([0], [1])


def counted(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Counts its calls in a field of an object."""
    SETTINGS.calls += 1
    return q >= kv


def counted_in_a_class(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Changes a class."""
    Settings.width = Settings.width + 1
    return q >= kv


def counted_in_an_array(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Changes an array of numpy."""
    ARRAY[1] += 1
    return q >= kv


def shuffled(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Draws a number from Python's generator."""
    return q - kv < random.randint(1, 100)


def assigned_inside(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Counts its calls in a function of its own."""

    def count() -> Any:
        global COUNTER
        COUNTER += 2
        return q

    return count() >= kv


def written_inside(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Writes to a tensor in a function of its own."""

    def write() -> Any:
        WRITTEN[2] = 6
        return q

    return write() >= kv


def kept_inside(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """Changes only what it made itself."""
    rows, last = [], kv

    def keep() -> Any:
        nonlocal last
        last = q
        rows.append(q)
        return rows[0]

    return (keep() >= kv) & (last >= kv)


class Counting:
    """Counts its calls in a field."""

    calls = 0

    def __call__(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        self.calls = self.calls + 1
        return q >= kv


BAD: dict[str, tuple[MaskMod, str]] = {
    "if": (lambda b, h, q, kv: q if q > kv else kv, "use & | ~ and torch.where"),
    "int": (lambda b, h, q, kv: int(q) > 3, "use & | ~"),
    "item": (lambda b, h, q, kv: q.item() > 3, "use & | ~"),
    "list": (lambda b, h, q, kv: [1, 2][q] == kv, "use & | ~"),
    "division": (
        lambda b, h, q, kv: q / 2 > kv,
        "write the comparison with integers, .* or use // or rounding_mode",
    ),
    "float": (lambda b, h, q, kv: q * 0.5 > kv, "0.5 .float."),
    "to float": (lambda b, h, q, kv: q.float() > kv, "converts to torch.float32"),
    "zero": (lambda b, h, q, kv: q // 0 > kv, "divides by zero"),
    "floats": (lambda b, h, q, kv: FLOATS[q] > kv, "tensor of torch.float32"),
    "whole table": (lambda b, h, q, kv: kv == LABELS, "LABELS|shape .170. without an index|shape .170., expected"),
    "vector": (lambda b, h, q, kv: torch.stack([q, kv]) > 3, "shape .2., expected"),
    "unknown": (lambda b, h, q, kv: torch.gcd(q, kv) == 1, "calls gcd, which is not supported"),
    "in place": (changed, "changes a tensor in place .logical_and_."),
    "batch": (lambda b, h, q, kv: q + b > kv, "pass B="),
    "head": (lambda b, h, q, kv: q + h > kv, "pass H="),
    "compared with a float": (lambda b, h, q, kv: q > 2.5, "write the comparison with integers"),
    "while": (repeated, "use & | ~ for truth values, and torch.where.condition, a, b. for if"),
    "random": (lambda b, h, q, kv: (q >= kv) & (torch.rand(()) < 0.5), "calls rand, a random number generator"),
    "assigned": (assigned, "assigns to COUNTER, a variable outside"),
    "appended": (lambda b, h, q, kv: LOG.append(q) or q >= kv, "changes LOG, which lies outside"),
    "written": (written, "changes WRITTEN, which lies outside"),
    "assigned inside": (assigned_inside, "assigns to COUNTER, a variable outside"),
    "written inside": (written_inside, "changes WRITTEN, which lies outside"),
    "appended in a lambda": (lambda b, h, q, kv: (lambda: LOG.append(q) or q)() >= kv, "changes LOG, which lies"),
    "appended in a list": (lambda b, h, q, kv: [LOG.append(i) for i in (1, 2)] and q >= kv, "changes LOG, which lies"),
    "field inside": (lambda b, h, q, kv: (lambda: counted(b, h, q, kv))(), "changes SETTINGS, which lies outside"),
    "field": (counted, "changes SETTINGS, which lies outside"),
    "class": (counted_in_a_class, "changes Settings, which lies outside"),
    "part of a class": (lambda b, h, q, kv: Settings.seen.append(1) or q >= kv, "changes Settings"),
    "array": (counted_in_an_array, "changes ARRAY, which lies outside"),
    "queue": (lambda b, h, q, kv: RECENT.append(q) or q >= kv, "changes RECENT, which lies outside"),
    "list in a tuple": (lambda b, h, q, kv: NESTED[0].append(1) or q >= kv, "changes NESTED, which lies outside"),
    "random in place": (lambda b, h, q, kv: (q >= kv) & (torch.empty(()).uniform_() < 0.5), "calls uniform_, a random"),
    "normal": (lambda b, h, q, kv: (q >= kv) & (torch.normal(0.0, 1.0, ())[()] < 0), "calls normal, a random"),
    "Python's random": (shuffled, "draws random numbers, which a captured tensor has to hold"),
    "numpy's random": (lambda b, h, q, kv: q >= kv + int(np.random.randint(3)), "draws random numbers"),
    "numpy array": (lambda b, h, q, kv: ARRAY[q] == kv, "capture torch.from_numpy"),
    "root": (lambda b, h, q, kv: ((q - kv) ** 2).sqrt() < 5, "calls sqrt, .* masks are made of integer arithmetic"),
    "tensor of a float": (lambda b, h, q, kv: q < torch.tensor(2.5), "write the comparison with integers"),
    "own field": (Counting(), "changes self, which lies outside"),
    "mistake": (lambda b, h, q, kv: LABELS.missing > kv, "cannot be traced: AttributeError"),  # pyright: ignore
    "nothing": (lambda b, h, q, kv: None, "None .NoneType."),
    "slice": (lambda b, h, q, kv: SQUARE[q, 3:][kv], "in a way that is not supported"),
    "large number": (lambda b, h, q, kv: q < 2**31, "no 32-bit integer"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    mask_mod, message = BAD[name]
    with pytest.raises(cm.MaskError, match=message):
        cm.from_mask_mod(mask_mod)


def test_what_a_function_keeps_for_itself_is_no_side_effect() -> None:
    assert torch.equal(cm.from_mask_mod(kept_inside).dense(9, 9), cm.causal().dense(9, 9))


@pytest.mark.parametrize("name", ["while", "assigned", "written", "in place", "assigned inside", "written inside"])
def test_errors_name_the_line(name: str) -> None:
    line = {
        "while": "while kv > 8:",
        "assigned": "COUNTER += 1",
        "written": "WRITTEN[1] = 5",
        "in place": "seen.logical_and_(kv > 3)",
        "assigned inside": "COUNTER += 2",
        "written inside": "WRITTEN[2] = 6",
    }[name]
    with pytest.raises(cm.MaskError, match=r"test_from_mask_mod.py:\d+: " + re.escape(line)):
        cm.from_mask_mod(BAD[name][0])


def test_errors_in_a_helper_name_the_line_of_the_helper() -> None:
    with pytest.raises(cm.MaskError, match="while kv > 8"):
        cm.from_mask_mod(and_masks(causal, repeated))


def test_what_an_object_computes_once_is_no_side_effect() -> None:
    settings = Settings()
    mask = cm.from_mask_mod(lambda b, h, q, kv: (q - kv).abs() < settings.reach)
    assert torch.equal(mask.dense(9, 9), cm.window(settings.reach - 1, settings.reach - 1).dense(9, 9))


@pytest.mark.parametrize("make", [cm.from_mask_mod, cm.from_score_mod])
def test_numbers_of_batches_and_heads(make: Any) -> None:
    def mod(*arguments: Any) -> Any:
        *_, b, h, q, kv = arguments
        return q + b >= kv + h

    for wrong in (-1, 2.5, True, "2"):
        with pytest.raises((cm.MaskError, cm.ScoreError), match="B, the number of batches, must be"):
            make(mod, wrong, 2)
        with pytest.raises((cm.MaskError, cm.ScoreError), match="H, the number of heads, must be"):
            make(mod, 2, wrong)
    q, k, v = torch.empty(3, 0, 2, 40, 16)
    assert cm.flex_attention(q, k, v, mask_mod=mod).shape == q.shape  # type: ignore[union-attr]
    assert cm.flex_attention(q, k, v, score_mod=mod).shape == q.shape  # type: ignore[union-attr]


def test_more_errors() -> None:
    with pytest.raises(cm.MaskError, match="takes a mask_mod"):
        cm.from_mask_mod(5)  # pyright: ignore
    with pytest.raises(cm.MaskError, match="for 2 batches, expected 3"):
        cm.from_mask_mod(lambda b, h, q, kv: kv < LIMITS[b], B=3)


# ---- kernels ----

IN_KERNELS = ("sorted ids", "ids of tiles", "ids per batch and head", "remainder", "head as a number", "unsorted ids")


@pytest.mark.parametrize("name", IN_KERNELS)
def test_kernels_build_the_same_descriptor(name: str) -> None:
    mask_mod, (batches, heads), _ = MODS[name]
    check_equal(cm.from_mask_mod(mask_mod, batches, heads), 300, 280)
