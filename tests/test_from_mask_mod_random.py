"""Random mask_mods, made of everything that the solver knows: all levels give what the predicate says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_levels_agree import check_levels
from torch.nn.attention.flex_attention import create_mask

import compilemask as cm

Term = Callable[[Any, Any], Any]
IDS = torch.arange(300) // 23
LABELS = torch.randint(0, 3, (300,), generator=torch.Generator().manual_seed(3))

small = st.integers(-40, 60)
divisors = st.sampled_from([1, 2, 16, 20, 24, 48, 96])


def _leaves() -> st.SearchStrategy[Term]:
    return st.one_of(
        small.map(lambda c: lambda q, kv: c),
        st.just(lambda q, kv: q),
        st.just(lambda q, kv: kv),
        st.just(lambda q, kv: kv),
        st.just(lambda q, kv: q - kv),
    )


def _extended(terms: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    def choice(term: Term, other: Term, c: int) -> Term:
        return lambda q, kv: torch.where(q + kv < 3 * c + 100, term(q, kv) + 0 * kv, other(q, kv) + 0 * kv)

    return st.one_of(
        st.builds(lambda a, b: lambda q, kv: a(q, kv) + b(q, kv), terms, terms),
        st.builds(lambda a, b: lambda q, kv: a(q, kv) - b(q, kv), terms, terms),
        st.builds(lambda a, c: lambda q, kv: a(q, kv) * c, terms, st.integers(-3, 3)),
        st.builds(lambda a, d: lambda q, kv: a(q, kv) // d, terms, divisors),
        st.builds(lambda a, d: lambda q, kv: a(q, kv) % d, terms, divisors),
        st.builds(lambda a, b: lambda q, kv: torch.maximum(a(q, kv) + 0 * q, b(q, kv) + 0 * q), terms, terms),
        st.builds(lambda a: lambda q, kv: abs(a(q, kv)), terms),
        st.builds(lambda a: lambda q, kv: IDS[(a(q, kv) + 0 * q).clamp(0, 299)], terms),
        st.builds(lambda a: lambda q, kv: LABELS[(a(q, kv) + 0 * q).clamp(0, 299)], terms),
        st.builds(choice, terms, terms, small),
    )


terms = st.recursive(_leaves(), _extended, max_leaves=4)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
}


def _comparison(a: Term, name: str, b: Term) -> Term:
    return lambda q, kv: COMPARISONS[name](a(q, kv) + 0 * q, b(q, kv))


formulas = st.recursive(
    st.builds(_comparison, terms, st.sampled_from(sorted(COMPARISONS)), terms),
    lambda inner: st.one_of(
        st.builds(lambda a, b: lambda q, kv: a(q, kv) & b(q, kv), inner, inner),
        st.builds(lambda a, b: lambda q, kv: a(q, kv) | b(q, kv), inner, inner),
        st.builds(lambda a, b: lambda q, kv: a(q, kv) ^ b(q, kv), inner, inner),
        st.builds(lambda a: lambda q, kv: ~a(q, kv), inner),
    ),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(formulas, st.sampled_from([(130, 130), (50, 200), (140, 60)]))
def test_random_mask_mods(formula: Term, size: tuple[int, int]) -> None:
    mask_mod = lambda b, h, q, kv: formula(q, kv)  # noqa: E731
    mask = cm.from_mask_mod(mask_mod)
    expected = create_mask(mask_mod, 1, 1, *size, device="cpu")
    assert torch.equal(mask.dense(*size), expected)
    check_levels(mask, *size)
