"""Random mask_mods, made of everything that the solver knows: all levels give what the predicate says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_levels_agree import check_levels
from torch.nn.attention.flex_attention import create_mask

import compilemask as cm

TABLES = {
    "IDS": torch.arange(300) // 23,
    "FALLING": 12 - torch.arange(300) // 23,
    "LABELS": torch.randint(0, 3, (300,), generator=torch.Generator().manual_seed(3)),
    "VALID": torch.rand(300, generator=torch.Generator().manual_seed(4)) < 0.7,
}
SIZES = ((130, 130), (50, 200), (140, 60))

Text = st.SearchStrategy[str]
"""Expressions of q and kv as Python writes them, so that a failure can be read and repeated."""


def mask_mod_of(formula: str) -> Callable[..., Any]:
    """The mask_mod that returns a formula."""
    return eval(f"lambda b, h, q, kv: {formula}", {"torch": torch, **TABLES})


numbers = st.integers(-40, 60).map(str)
divisors = st.sampled_from([1, 2, 3, 16, 20, 24, 48, 96])
positions = st.sampled_from(["q", "kv", "kv", "(q - kv)"])


def _inside(term: str) -> str:
    return f"({term} + 0 * q).clamp(0, 299)"


def _extended(terms: Text) -> Text:
    def joined(operation: str) -> Text:
        return st.builds(lambda a, b: f"({a} {operation} {b})", terms, terms)

    def by(operation: str, constants: st.SearchStrategy[int]) -> Text:
        return st.builds(lambda a, c: f"({a} {operation} {c})", terms, constants)

    choice = "torch.where(q + kv < {}, {} + 0 * kv, {} + 0 * kv)"
    return st.one_of(
        *(joined(operation) for operation in ("+", "-")),
        by("*", st.integers(-3, 3)),
        by("//", divisors),
        by("%", divisors),
        by(">>", st.integers(0, 5)),
        by("&", st.sampled_from([1, 7, 15, 31])),
        st.builds(lambda kind, a, b: f"torch.{kind}({a} + 0 * q, {b} + 0 * q)", extremes, terms, terms),
        terms.map(lambda a: f"abs({a})"),
        st.builds(lambda table, a: f"{table}[{_inside(a)}]", st.sampled_from(["IDS", "FALLING", "LABELS"]), terms),
        st.builds(lambda a, b, c: choice.format(c, a, b), terms, terms, st.integers(-20, 280)),
    )


extremes = st.sampled_from(["maximum", "minimum"])
terms: Text = st.recursive(numbers | positions | positions, _extended, max_leaves=4)
relations = st.sampled_from(["==", "!=", "<=", ">"])
comparisons = st.builds(lambda a, relation, b: f"({a} + 0 * q {relation} {b})", terms, relations, terms)
truths = terms.map(lambda a: f"VALID[{_inside(a)}]")
formulas: Text = st.recursive(
    st.one_of(comparisons, comparisons, comparisons, truths),
    lambda inner: st.one_of(
        st.builds(lambda a, operation, b: f"({a} {operation} {b})", inner, st.sampled_from(["&", "|", "^"]), inner),
        inner.map(lambda a: f"~{a}"),
    ),
    max_leaves=4,
)


def check_formula(formula: str, size: tuple[int, int]) -> None:
    """The mask of a formula equals the formula, at every level."""
    mask_mod = mask_mod_of(formula)
    mask = cm.from_mask_mod(mask_mod)
    expected = create_mask(mask_mod, 1, 1, *size, device="cpu")
    assert torch.equal(mask.dense(*size), expected)
    check_levels(mask, *size)


@example("(0 + 0 * q == IDS[(((kv // 3) % 16) + 0 * q).clamp(0, 299)])", (130, 130))
@example("(12 + 0 * q == FALLING[((((kv + 5) // 3) % 16) + 0 * q).clamp(0, 299)])", (50, 200))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(formulas, st.sampled_from(SIZES))
def test_random_mask_mods(formula: str, size: tuple[int, int]) -> None:
    check_formula(formula, size)
