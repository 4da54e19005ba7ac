"""Matrices of Winograd's minimal filtering, generated from points in exact fractions, and edges of FFT tiles.

F(m, r) computes m outputs of a filter of r taps from n = m + r - 1 inputs with n products:

    y = A^T [(G w) * (B^T d)]

A product of polynomials of degree below m and r has n coefficients, so it is known from its values at n points, one of
which may be infinity; the transpose of that algorithm (Toom and Cook's) is a correlation. With finite points p_k,
M_k(x) = prod of (x - p_l) over l != k, and N_k = M_k(p_k):

    A^T[i][k] = p_k^i            G[k][j] = p_k^j / N_k        B^T[k] = coefficients of M_k
    A^T[m-1][inf] = 1            G[inf][r-1] = 1              B^T[inf] = coefficients of prod over all of (x - p_k)

Points are 0, pairs +-p and infinity, so that even and odd powers are shared by a pair. Which points decides the error:
0, +-2/3, +-3/2 have a third of that of 0, +-1, +-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

Matrix = tuple[tuple[Fraction, ...], ...]

# n -> the positive points of its pairs.
PAIRS = {4: (Fraction(1),), 6: (Fraction(2, 3), Fraction(3, 2)), 8: (Fraction(1), Fraction(2), Fraction(1, 2))}

# (m, r) of the tiles that are used -> bound of the error over kinds of data, with sums of at most 64 terms at a time.
WINOGRAD_ERRORS = {(2, 3): 6e-7, (4, 3): 1.5e-6, (6, 3): 8e-6, (2, 5): 1.8e-6}
FFT_EDGES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Winograd:
    """F(m x m, r x r): m outputs and r taps along each axis."""

    m: int
    r: int

    @property
    def n(self) -> int:
        """Inputs along each axis, and products."""
        return self.m + self.r - 1

    @property
    def points(self) -> tuple[Fraction, ...]:
        """The finite ones: 0, then pairs +p, -p."""
        return (Fraction(0), *(sign * p for p in PAIRS[self.n] for sign in (1, -1)))

    @cached_property
    def exact(self) -> tuple[Matrix, Matrix, Matrix]:
        """A^T (m, n), G (n, r) and B^T (n, n)."""
        m, r, n, points = self.m, self.r, self.n, self.points
        others = [[q for q in points if q != p] for p in points]
        norms = []
        for k, rest in enumerate(others):
            norm = Fraction(1)
            for q in rest:
                norm *= points[k] - q
            norms.append(norm)
        at = tuple(tuple([p ** i for p in points] + [Fraction(i == m - 1)]) for i in range(m))
        g = tuple(tuple(points[k] ** j / norms[k] for j in range(r)) for k in range(n - 1))
        g += (tuple(Fraction(j == r - 1) for j in range(r)),)
        bt = tuple((*_polynomial(rest), Fraction(0)) for rest in others) + (_polynomial(points),)
        return at, g, bt

    def rounded(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns A^T, G and B^T, each number rounded once."""
        return _rounded(self, np.dtype(dtype))

    @property
    def flops(self) -> tuple[int, int, int]:
        """FLOP of a transform of one channel of a tile, in two passes of rows: of an input, a filter, an output.

        Pairs of points share their even and their odd part.
        """
        q, n, m, r = len(PAIRS[self.n]), self.n, self.m, self.r
        inputs, filters, outputs = 4 * q + q * (4 * q - 1), q * (2 * r + 1), 2 * q * (m + 1) + 2
        return inputs * 2 * n, filters * (r + n), outputs * (n + m)

    @cached_property
    def table(self) -> np.ndarray:
        """The coefficients that the compiled kernels read, float32, each rounded once.

        With q pairs +-p_k, Z(x) the product of (x^2 - p_k^2) over all pairs and Q_k that over all but one, whose
        leading coefficients are 1 and left out:

            Z       (q)             by x^0, x^2, ...: rows 0 and infinity of B^T
            pairs   (q, q + m + r)  Q_k (q - 1), p_k, p_k^i (m), p_k^j / N_k (r): rows of B^T are x (x +- p_k) Q_k
            1 / N   of point 0
        """
        at, g, bt = self.exact
        q = len(PAIRS[self.n])
        numbers = [bt[0][2 * j] for j in range(q)]
        for k, p in enumerate(PAIRS[self.n]):
            numbers += [bt[1 + 2 * k][2 * j + 2] for j in range(q - 1)] + [p]
            numbers += [at[i][1 + 2 * k] for i in range(self.m)] + list(g[1 + 2 * k])
        return np.array([float(v) for v in [*numbers, g[0][0]]]).astype(np.float32)


@lru_cache(maxsize=32)
def _rounded(tile: Winograd, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at, g, bt = (np.array([[float(v) for v in row] for row in matrix]).astype(dtype) for matrix in tile.exact)
    return at, g, bt


def _polynomial(roots: list[Fraction] | tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Returns the coefficients of the product of (x - root), lowest first."""
    coefficients = [Fraction(1)]
    for root in roots:
        longer = [Fraction(0), *coefficients]
        for k, c in enumerate(coefficients):
            longer[k] -= root * c
        coefficients = longer
    return tuple(coefficients)


def winograd_tiles(r: int) -> tuple[Winograd, ...]:
    """Returns the tiles for filters of r x r taps, that with the largest error last."""
    return tuple(sorted((Winograd(m, taps) for m, taps in WINOGRAD_ERRORS if taps == r),
                        key=lambda tile: WINOGRAD_ERRORS[tile.m, tile.r]))


def fft_edges(r: int, longest: int) -> tuple[int, ...]:
    """Returns the edges of tiles for filters of r taps on an axis whose outputs are `longest`: none much too large."""
    whole = longest + r - 1
    fitting = [edge for edge in FFT_EDGES if edge >= r + 1]
    cut = next((k for k, edge in enumerate(fitting) if edge >= whole), len(fitting) - 1)
    return tuple(fitting[:cut + 1])
