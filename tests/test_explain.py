"""What `explain` says of a mask: the form, why it is no better one, and counts that agree with the dense mask."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_masks import MASKS

import compilemask as cm
from compilemask.dialects.semantics.tiling import EMPTY, FULL, PARTIAL, brute_force_classes
from compilemask.tools.cli import main
from compilemask.tools.examples import EXAMPLES

LABELS = torch.tensor([3, 1, 2] * 100)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(256, 256), (300, 300), (200, 420)])
def test_counts_agree_with_the_dense_mask(name: str, queries: int, keys: int) -> None:
    mask = MASKS[name](queries, keys)
    found, dense = cm.explain(mask, queries, keys), mask.dense(queries, keys)
    classes = np.concatenate([brute_force_classes(part) for part in dense.flatten(0, 1).numpy()])
    assert (found.batch, found.heads) == mask.batch_shape
    assert found.visible_pairs == int(dense.sum())
    counts = (found.full_tiles, found.partial_tiles, found.empty_tiles)
    assert counts == tuple(int((classes == kind).sum()) for kind in (FULL, PARTIAL, EMPTY))
    assert found.sparsity == pytest.approx(1 - float(dense.double().mean()))
    assert found.descriptor_bytes == cm.compile(mask).descriptor(queries, keys).buffer.nbytes


def test_an_exact_mask() -> None:
    found = cm.explain(cm.causal(), 1024)
    assert (found.exact, found.intervals, found.why) == (True, 1, ())
    assert (found.patterns, found.pattern_count) == ("shared", 1)
    assert found.overhead == pytest.approx(36 * 128 * 128 / (1024 * 1025 / 2))
    assert str(found).splitlines() == [
        "@causal     1,024 queries x 1,024 keys",
        "form        exact: a row sees 1 interval, each bound in closed form",
        "tiles       28 full, 8 partial, 28 empty, of 64",
        "pairs       524,800 visible (50.0% sparse), 589,824 computed: 1.12 for each visible one",
        "patterns    1 shared by all tiles of their diagonals",
        f"descriptor  {found.descriptor_bytes / 1024:.1f} KiB",
    ]


def test_the_readme_shows_what_it_prints() -> None:
    assert f"```\n{cm.explain(cm.causal())}\n```" in (Path(__file__).parent.parent / "README.md").read_text()


def test_nothing_visible() -> None:
    found = cm.explain(cm.window(3) & ~cm.causal(), 200)
    assert (found.visible_pairs, found.overhead, found.sparsity) == (0, None, 1.0)
    assert "for each" not in str(found)


WHY = {
    "unsorted ids": (
        lambda: cm.from_mask_mod(lambda b, h, q, kv: (LABELS[q] == LABELS[kv]) & (q >= kv)),
        "LABELS[kv] is not solved for kv: LABELS is not known to ascend",
    ),
    "nested tables": (
        lambda: cm.where(lambda q, kv, t: t[t[kv] + 1] == q, t=[1, 2]),
        "t[t[kv] + 1] is not solved for t[kv] + 1: t is not known to ascend",
    ),
    "short period": (
        lambda: cm.where(lambda q, kv: (q - kv) % 2 == 0),
        "(q - kv) % 2 repeats every 2 keys; below 16, cells are too many",
    ),
    "period that moves": (
        lambda: cm.where(lambda q, kv: (q - kv) % 48 < 3),
        "(q - kv) % 48 repeats every 48 keys, from another key on in each row",
    ),
    "square": (lambda: cm.where(lambda q, kv: kv * kv < q), "(kv * kv) is not linear in the key"),
    "run-time factor": (lambda: cm.where(lambda q, kv, n: kv * n < q, n=3), "(kv * n) is not linear in the key"),
    "bits": (lambda: cm.where(lambda q, kv: (kv ^ q) < 4), "(kv ^ q) is not linear in the key"),
    "several terms": (
        lambda: cm.where(lambda q, kv: kv // 3 + kv % 32 < q),
        "the key stands in several terms of (kv // 3) + kv - 32 * (kv // 32)",
    ),
    "many intervals": (
        lambda: cm.cols(0, 1) | cm.cols(2, 3) | cm.cols(4, 5) | ~cm.window(3, 3) | cm.window(1, 1) | cm.hstu(90, 4),
        "more than",
    ),
    "two rasters": (lambda: cm.disk2d(10, 10, 3) | cm.disk2d(5, 20, 4), "lines of two rasters stand in one set"),
}


@pytest.mark.parametrize("name", WHY)
def test_why_a_mask_is_bounded(name: str) -> None:
    make, reason = WHY[name]
    found = cm.explain(make(), 100)
    assert not found.exact
    assert any(reason in why for why in found.why), found.why
    assert found.why[0] in str(found)
    assert "because" in str(found)


def test_reasons_of_parts_that_stay_exact_are_not_named() -> None:
    found = cm.explain(cm.where(lambda q, kv: (q - kv) % 2 == 0) & (cm.causal() | cm.cols(0, 3)), 100)
    assert found.why == ("(q - kv) % 2 repeats every 2 keys; below 16, cells are too many",)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_mask_by_name(name: str) -> None:
    found = cm.explain(EXAMPLES[name].mask(512), 512)
    assert found.exact == (not found.why)
    assert found.visible_pairs == int(EXAMPLES[name].mask(512).dense(512, 512).sum())
    assert found.partial_tiles <= found.pattern_capacity or found.patterns == "shared"


def test_lengths_that_do_not_fit() -> None:
    with pytest.raises(cm.MaskError, match="last offset is 9"):
        cm.explain(cm.document([0, 9]), 8)


# ---- the command ----


def test_the_command_prints_what_explain_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "hstu", "--seq", "500", "--keys", "520", "--param", "history=400"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("@hstu ")
    assert "500 queries x 520 keys" in text
    assert "at most 2 intervals" in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "causal", "--seq", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(cm.explain(cm.causal(), 300).to_dict()))
    assert (found["exact"], found["full_tiles"], found["sparsity"]) == (True, 3, pytest.approx(1 - 301 / 600))


def test_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "nonsense"]) == 2
    assert main(["explain", "document", "--seq", "100", "--param", "offsets=0,500"]) == 2
    assert "last offset is 500" in capsys.readouterr().err
