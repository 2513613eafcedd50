"""2^x for x <= 0 on vectors of f32, in a dozen operations."""

from __future__ import annotations

from functools import cache

import numpy as np

from compilemask.lowering.tiling_to_scf.builder import F32, I32, FunctionBuilder, Value

_DEGREE = 6
_ROUND = 1.5 * 2.0**23
"""A float so large that adding it leaves no room for fractions: the sum ends in the bits of the nearest integer."""


@cache
def _coefficients() -> tuple[float, ...]:
    """Of a polynomial near 2^f for |f| <= 1/2, the constant first: interpolation in Chebyshev's points."""
    fitted = np.polynomial.Chebyshev.interpolate(np.exp2, _DEGREE, domain=[-0.5, 0.5])
    powers = fitted.convert(kind=np.polynomial.Polynomial).coef
    # 2^0 is exactly 1: below, -inf becomes 0 by that.
    return (1.0, *map(float, powers[1:]))


def exp2(fb: FunctionBuilder, x: Value) -> Value:
    """2^x of a vector; 0 for x = -inf and far below the smallest normal float, NaN for NaN."""
    lowest = fb.constant(-127.0, x.type)
    # In this order a NaN is the second operand of the machine's maximum, which that returns.
    x = fb.select(fb.compare("ogt", lowest, x), lowest, x)
    shifted = x + _ROUND
    fraction = x - (shifted - _ROUND)
    *rest, result = (fb.constant(number, x.type) for number in _coefficients())
    for coefficient in reversed(rest):
        result = fb.fma(result, fraction, coefficient)
    # The integer part is added to the exponent: -127 to that of 1.0 leaves no bit set.
    exponent = fb.bits(shifted, I32) << 23
    return fb.bits(fb.bits(result, I32) + exponent, F32)
