"""The lowering of every mask of the catalogue, proved for all lengths and parameters in little time."""

from __future__ import annotations

import time

import pytest
from catalogue import CATALOGUE
from test_prove import check_assumptions, verdicts_of

pytest.importorskip("z3")

SECONDS = 5


@pytest.mark.parametrize("name", CATALOGUE)
def test_lowering_is_proved(name: str) -> None:
    mask = CATALOGUE[name].make(200, 300)
    started = time.process_time()
    verdicts = verdicts_of(mask)
    spent = time.process_time() - started
    assert all(verdict.status == "proved" for verdict in verdicts), "\n".join(map(str, verdicts))
    assert spent < SECONDS


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_is_assumed_is_possible(name: str) -> None:
    check_assumptions(CATALOGUE[name].make(200, 300))
