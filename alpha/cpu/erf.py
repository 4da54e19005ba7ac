"""The error function to double precision, which NumPy lacks.

Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): for |x| up to
0.46875 a rational function of x^2, beyond it erf(x) = 1 - exp(-x^2) times another one. Differs: Cody changes to a third
function above 4, where only erfc gains by it; here the second one serves up to 6, from where erf is 1 in float64.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

CENTRE, END = 0.46875, 6.0

# Coefficients of numerator and denominator, highest power first.
_INNER = ((1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
           3.20937758913846947e3),
          (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3))
_OUTER = ((2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
           2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
           1.23033935479799725e3),
          (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
           3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    above, below = (np.full_like(x, first) for first, *_ in coefficients)
    for value, rest in zip((above, below), coefficients):
        for c in rest[1:]:
            value *= x
            value += c
    return above / below


def erf(x: Array, out: Array) -> Array:
    """Writes erf(x) to `out` and returns it; computed in float64, relative error below 1e-15.  NaN stays NaN."""
    wide = np.asarray(x, np.float64)
    size = np.abs(wide)
    y = np.where(np.isnan(size), size, 1.0)
    inner, outer = size <= CENTRE, (size > CENTRE) & (size < END)
    y[inner] = size[inner] * _ratio(_INNER, size[inner] ** 2)
    y[outer] = 1.0 - np.exp(-size[outer] ** 2) * _ratio(_OUTER, size[outer])
    out[...] = np.copysign(y, wide)
    return out
