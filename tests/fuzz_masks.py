"""Random masks by the thousand, against brute force: `make fuzz-masks COUNT=20000 SEED=1`.

Masks are composed of leaves with random parameters, or are mask_mods of random expressions. They come in rounds of 250
with a seed each, counted up from SEED. A failure ends the run and prints a minimized example and the seed of its
round, which `make fuzz-masks COUNT=250 SEED=...` repeats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from strategies import Case, cases
from test_from_mask_mod_random import SIZES, check_formula, formulas
from test_interval_patch import Case as PatchedCase
from test_interval_patch import check as check_patched
from test_interval_patch import patched_cases
from test_levels_agree import check_levels

ROUND = 250
MASK_MODS_EVERY = 5
"""One round of so many is of mask_mods, which take longer."""
PATCHES_EVERY = 7
"""One round of so many others is of masks in patched order."""

budget = settings(
    max_examples=ROUND,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    print_blob=False,
)


def round_of(number: int) -> tuple[str, Callable[[], None]]:
    """What the round with a seed tests, and the test."""
    if number % MASK_MODS_EVERY == 0:

        @seed(number)
        @budget
        @given(formulas, st.sampled_from(SIZES))
        def mask_mods(formula: str, size: tuple[int, int]) -> None:
            check_formula(formula, size)

        return "mask_mods", mask_mods

    if number % PATCHES_EVERY == 0:

        @seed(number)
        @budget
        @given(patched_cases(), st.booleans())
        def in_patches(case: PatchedCase, transposed: bool) -> None:
            check_patched(case, transposed)

        return "masks in patched order", in_patches

    @seed(number)
    @budget
    @given(cases(depth=2))
    def composed(case: Case) -> None:
        check_levels(case.mask, case.queries, case.keys)

    return "composed masks", composed


def main() -> int:
    """Runs rounds until the count is reached; 1 if a mask is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="masks (default: 20000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (default: 1)")
    options = parser.parse_args()
    started = time.monotonic()
    for number in range(options.seed, options.seed + -(-options.count // ROUND)):
        kind, test = round_of(number)
        try:
            test()
        except Exception:
            print(f"\nseed {number}: a mask is wrong; `make fuzz-masks COUNT={ROUND} SEED={number}` repeats it")
            raise
        done = (number - options.seed + 1) * ROUND
        print(f"{done:,} masks, {time.monotonic() - started:,.0f} s; seed {number}, {kind}: right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
