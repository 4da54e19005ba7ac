"""The ops of linear algebra: matrices are the last two axes.  Each runs on the CPU alone, by NumPy's LAPACK."""

from __future__ import annotations

from typing import Any

from alpha.core.op import op
from alpha.core.tensor import Tensor
from alpha.ops.create import arange
from alpha.ops.elementwise import where
from alpha.ops.index.pick import tril
from alpha.ops.matmul import matmul
from alpha.ops.shape import transpose, unsqueeze

Shape = tuple[int, ...]


def flipped(x: Tensor) -> Tensor:
    return transpose(x, -2, -1)


def times(*matrices: Tensor) -> Tensor:
    """Returns the product of matrices, from the left."""
    y = matrices[0]
    for x in matrices[1:]:
        y = matmul(y, x)
    return y


def _diagonal(n: int, device: str) -> Tensor:
    """Returns a mask (n, n) of the diagonal."""
    k = arange(n, device=device)
    return k.reshape(n, 1) == k


def as_diagonal(v: Tensor) -> Tensor:
    """Returns matrices whose diagonals are the last axis of v."""
    return where(_diagonal(v.shape[-1], v.device), unsqueeze(v, -1), 0.0)


def _lower_half(x: Tensor) -> Tensor:
    """Returns the part of x on and below the diagonal, the diagonal halved."""
    lower = tril(x)
    return where(_diagonal(x.shape[-1], x.device), lower * 0.5, lower)


def _over_differences(x: Tensor, v: Tensor) -> Tensor:
    """Returns x[..., i, j] / (v[..., j] - v[..., i]), 0 on the diagonal."""
    own = _diagonal(v.shape[-1], v.device)
    apart = unsqueeze(v, -2) - unsqueeze(v, -1)
    return where(own, 0.0, x / where(own, 1.0, apart))


@op
class matrix_inverse:
    """y = the inverse of each matrix (..., n, n).  Raises DataError for one that has none."""

    args, saves, label = "x", "y", "inv"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        turned = flipped(s.y)
        return -times(turned, g, turned)


@op
class linear_solve:
    """y = the solution of a y = b: a (..., n, n), b (..., n, k).  Raises DataError where a has no inverse."""

    args, saves, label = "a b", "a y", "solve"

    def shape(a, b):
        return b.shape

    def vjp(g, s, needs):
        gb = linear_solve(flipped(s.a), g)
        return (-times(gb, flipped(s.y)) if needs[0] else None), (gb if needs[1] else None)


@op
class cholesky_factor:
    """y = the lower triangle with y y^T = x, of symmetric matrices.  Raises DataError for one that has none."""

    args, saves, label = "x", "y", "cholesky"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        back = matrix_inverse(s.y)
        half = times(flipped(back), _lower_half(times(flipped(s.y), g)), back)
        return (half + flipped(half)) * 0.5


@op
class determinant:
    """y = the determinant of each matrix."""

    args, saves, label = "x", "x y", "det"

    def shape(x):
        return x.shape[:-2]

    def vjp_x(g, s):
        return flipped(matrix_inverse(s.x)) * unsqueeze(unsqueeze(g * s.y, -1), -1)


@op
class log_determinant:
    """sign, y: the sign and the logarithm of the absolute value of each determinant."""

    args, saves, outs, label = "x", "x", "sign y", "slogdet"

    def shape(x):
        return x.shape[:-2], x.shape[:-2]

    def vjp_x(g, s):
        return None if g[1] is None else flipped(matrix_inverse(s.x)) * unsqueeze(unsqueeze(g[1], -1), -1)


@op
class qr_factors:
    """q, r: x = q r, q (..., m, k) with orthonormal columns, r (..., k, n) upper triangular, k = min(m, n)."""

    args, saves, outs, label = "x", "q r", "q r", "qr"

    def shape(x):
        *lead, m, n = x.shape
        k = min(m, n)
        return (*lead, m, k), (*lead, k, n)

    def vjp_x(g, s):
        """x has at least as many rows as columns."""
        gq, gr = g
        inner: Any = None if gr is None else matmul(s.r, flipped(gr))
        if gq is not None:
            part = matmul(flipped(gq), s.q)
            inner = -part if inner is None else inner - part
        lower = tril(inner)
        both = lower + flipped(tril(inner, -1))
        total = matmul(s.q, both)
        total = total if gq is None else total + gq
        return flipped(linear_solve(s.r, flipped(total)))


@op
class eigen_symmetric:
    """w, v: x v = v diag(w) of symmetric matrices, w rising; the lower triangle of x is read."""

    args, saves, outs, label = "x", "w v", "w v", "eigh"

    def shape(x):
        return x.shape[:-1], x.shape

    def vjp_x(g, s):
        gw, gv = g
        inner: Any = None if gw is None else as_diagonal(gw)
        if gv is not None:
            part = _over_differences(matmul(flipped(s.v), gv), s.w)
            inner = part if inner is None else inner + part
        return times(s.v, inner, flipped(s.v))


@op
class singular_values:
    """u, w, vt: x = u diag(w) vt, u (..., m, k) and vt^T (..., n, k) with orthonormal columns, w falling."""

    args, saves, outs, label = "x", "u w vt", "u w vt", "svd"

    def shape(x):
        *lead, m, n = x.shape
        k = min(m, n)
        return (*lead, m, k), (*lead, k), (*lead, k, n)

    def vjp_x(g, s):
        gu, gw, gvt = g
        v, w = flipped(s.vt), s.w
        rows, columns = s.x_shape[-2:]
        inner: Any = None if gw is None else as_diagonal(gw)
        outer: Any = None
        if gu is not None:
            p = matmul(flipped(s.u), gu)
            part = _over_differences(p - flipped(p), w * w) * unsqueeze(w, -2)
            inner = part if inner is None else inner + part
            if rows > columns:
                outer = matmul((gu - matmul(s.u, p)) / unsqueeze(w, -2), s.vt)
        if gvt is not None:
            p = matmul(s.vt, flipped(gvt))
            part = _over_differences(p - flipped(p), w * w) * unsqueeze(w, -1)
            inner = part if inner is None else inner + part
            if columns > rows:
                part = matmul(s.u, (gvt - matmul(flipped(p), s.vt)) / unsqueeze(w, -1))
                outer = part if outer is None else outer + part
        y = times(s.u, inner, flipped(v))
        return y if outer is None else y + outer
