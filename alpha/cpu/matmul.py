"""Matrix products: the compiled convolution kernels for large float32 matrices, else NumPy's BLAS.

The kernels know a linear layer and its two gradients, which are the product a b^T, a b and a^T b.
"""

from __future__ import annotations

from math import prod

import numpy as np

from alpha.cpu import native
from alpha.cpu.half import in_float32
from alpha.cpu.memory import empty
from alpha.ops.matmul import linear, matmul

Array = np.ndarray

WORTHWHILE = 1 << 18  # multiplications; below, BLAS is faster, on one thread; above, its threads would fight ours


@matmul.impl("cpu")
@in_float32()
def matmul_cpu(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> Array:
    if a.ndim == b.ndim == 2 and a.size * b.shape[not transpose_b] >= WORTHWHILE and native.usable(a, b):
        if transpose_b and not transpose_a:
            return _fprop(a, b)
        if not transpose_b:
            return _wgrad(b, a) if transpose_a else _dgrad(a, b)
    left = a.swapaxes(-1, -2) if transpose_a else a
    right = b.swapaxes(-1, -2) if transpose_b else b
    return np.asarray(np.matmul(left, right))


@linear.impl("cpu")
@in_float32()
def linear_cpu(x: Array, w: Array, b: Array | None, *, activation: str | None) -> Array:
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])  # -1 has no answer where there are no features
    shape = (*x.shape[:-1], w.shape[0])
    if rows.size * len(w) >= WORTHWHILE and native.usable(rows, w):
        return _fprop(rows, w, b, activation == "relu").reshape(shape)
    y = matmul_cpu(rows, w, transpose_a=False, transpose_b=True)
    if b is not None:
        y += b
    if activation == "relu":
        np.maximum(y, 0, out=y)
    return y.reshape(shape)


def _fprop(x: Array, w: Array, b: Array | None = None, relu: bool = False) -> Array:
    """x (rows, inner) @ w (outer, inner)^T."""
    y = empty((len(x), len(w)), x.dtype)
    native.linear_fwd(x, w, y, b, relu)
    return y


def _dgrad(g: Array, w: Array) -> Array:
    """g (rows, outer) @ w (outer, inner)."""
    dx = empty((len(g), w.shape[1]), g.dtype)
    native.linear_dgrad(g, w, dx)
    return dx


def _wgrad(x: Array, g: Array) -> Array:
    """g (rows, outer)^T @ x (rows, inner)."""
    dw = empty((g.shape[1], x.shape[1]), x.dtype)
    native.linear_wgrad(x, g, dw)
    return dw
