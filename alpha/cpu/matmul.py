"""Matrix products: the compiled convolution kernels for large float32 matrices, else NumPy's BLAS.

The kernels know a linear layer and its two gradients, which are the product a b^T, a b and a^T b. BLAS gets what it
computes on one thread, as its results depend on the number of them: all products of float64, though, and all of them
where there are no kernels, are BLAS's.
"""

from __future__ import annotations

from math import prod

import numpy as np

from alpha.core.errors import ConfigError, message
from alpha.cpu import native
from alpha.cpu.algorithms import sparse, sparse_numpy
from alpha.cpu.algorithms.products import strassen
from alpha.cpu.elementwise import bias_act, quietly
from alpha.cpu.half import in_float32, quiet
from alpha.cpu.memory import empty
from alpha.cpu.reduce import bias_grad_cpu
from alpha.ops.matmul import MOST_SPARSE_ROWS, linear, linear_grad, matmul
from alpha.plan import Request

Array = np.ndarray

WORTHWHILE = 1 << 18        # multiplications; below, BLAS is faster, on one thread; above, its threads would fight ours
WORTHWHILE_VECTOR = 9216    # the same, where a matrix meets a vector
WORTHWHILE_BATCH = 1 << 20  # the same, of many small products together


@matmul.impl("cpu")
@in_float32()
def matmul_cpu(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool, algorithm: Request | None = None) -> Array:
    if algorithm and algorithm.name == "strassen":
        y = _strassen(a, b, transpose_a, transpose_b, algorithm.strict)
        if y is not None:
            return y
    if a.size * b.size >= WORTHWHILE_VECTOR and native.usable(a, b):
        rows, columns = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
        inner, m = rows.shape[-2:] if transpose_a else rows.shape[:-3:-1]
        n = columns.shape[-2 if transpose_b else -1]
        if (m * n * inner >= (WORTHWHILE_VECTOR if m == 1 or n == 1 else WORTHWHILE)
                or max(a.size * n, b.size * m) >= WORTHWHILE_BATCH):
            y = _products(rows, columns, m, n, transpose_a, transpose_b)
            return y.reshape(y.shape[:-2] + (() if a.ndim == 1 else (m,)) + (() if b.ndim == 1 else (n,)))
    left = a.swapaxes(-1, -2) if transpose_a else a
    right = b.swapaxes(-1, -2) if transpose_b else b
    # BLAS also computes lanes that hold no element: what it flags there says nothing.
    return np.asarray(quietly(np.matmul, left, right))


@quiet
def _strassen(a: Array, b: Array, transpose_a: bool, transpose_b: bool, strict: bool) -> Array | None:
    """Returns the product by Strassen's, None where that does not serve and need not.  Raises ConfigError."""
    if a.ndim == b.ndim == 2 and a.dtype.kind == "f" and min(*a.shape, *b.shape) >= 2:
        return strassen(a.T if transpose_a else a, b.T if transpose_b else b)
    if strict:
        raise ConfigError(message("matmul", f"strassen does not serve {a.dtype} {a.shape} by {b.shape}, it needs two "
                                  "matrices of floats with at least 2 rows and columns", 'write algorithm="auto"'))
    return None


def _products(a: Array, b: Array, m: int, n: int, transpose_a: bool, transpose_b: bool) -> Array:
    """Returns the product of each pair of matrices; batch axes broadcast."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = empty((*batch, m, n), a.dtype)
    if transpose_a and transpose_b:
        a, transpose_a = np.ascontiguousarray(a.swapaxes(-1, -2)), False
    pair = [x if prod(x.shape[:-2]) in (1, prod(batch)) else np.ascontiguousarray(
        np.broadcast_to(x, batch + x.shape[-2:])) for x in (a, b)]
    left, right = (x.reshape(prod(x.shape[:-2]), *x.shape[-2:]) for x in pair)
    if len(left) == len(right) == 1:
        _product(left[0], right[0], y, m, n, transpose_a, transpose_b)
    elif n == 1:    # the vector is one row, that meets the rows of a
        right = right.reshape(len(right), 1, right[0].size)
        native.matrix_products(right, left, y.reshape(prod(batch), 1, m), transpose_a=False,
                               transpose_b=not transpose_a)
    else:
        native.matrix_products(left, right, y.reshape(prod(batch), m, n), transpose_a=transpose_a,
                               transpose_b=transpose_b)
    return y


def _product(a: Array, b: Array, y: Array, m: int, n: int, transpose_a: bool, transpose_b: bool) -> None:
    """Makes one product, of which one operand may be transposed: one of the three passes of a linear layer."""
    if transpose_a:
        native.conv_wgrad(native.linear_desc(len(a), n, m), b, a, y)
    elif transpose_b:
        native.conv_fprop(native.linear_desc(m, a.shape[1], n), a, b, y)
    else:
        native.conv_dgrad(native.linear_desc(m, n, a.shape[1]), a, b, y)


def _skips_rows(rows: Array, strict: bool) -> bool:
    """Tells whether the sparse product serves these rows of x.  Raises ConfigError where it must and does not."""
    if strict and len(rows) > MOST_SPARSE_ROWS:
        raise ConfigError(message("linear", f"sparse does not serve x of {len(rows)} rows, {MOST_SPARSE_ROWS} are the "
                                  "most", 'write algorithm="auto", or pass fewer rows at a time', x=rows.shape))
    return len(rows) <= MOST_SPARSE_ROWS


def _linear_sparse(rows: Array, w: Array, b: Array | None, activation: str | None) -> Array:
    y, relu = empty((len(rows), len(w)), rows.dtype), activation == "relu"
    if native.usable(rows, w):
        turned = native.prepared(w, ("turned",), lambda w: np.ascontiguousarray(w.T))
        sparse.linear(rows, np.ascontiguousarray(w.T) if turned is None else turned, b, y, relu)
    else:
        sparse_numpy.linear(rows, w.T, b, y, relu)
    return y


@linear.impl("cpu")
@in_float32()
def linear_cpu(x: Array, w: Array, b: Array | None, *, activation: str | None,
               algorithm: Request | None = None) -> Array:
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])  # -1 has no answer where there are no features
    shape = (*x.shape[:-1], w.shape[0])
    if algorithm and algorithm.name == "sparse" and _skips_rows(rows, algorithm.strict):
        return _linear_sparse(rows, w, b, activation).reshape(shape)
    if (rows.size * len(w) >= WORTHWHILE or native.holds(w)) and native.usable(rows, w) and (
            algorithm is None or algorithm.name != "strassen"):     # BLAS reads no weights that are packed once
        y = empty((len(rows), len(w)), x.dtype)
        native.linear_fwd(rows, w, y, b, activation == "relu")
        return y.reshape(shape)
    y = matmul_cpu(rows, w, transpose_a=False, transpose_b=True, algorithm=algorithm)
    return bias_act(y, b, activation).reshape(shape)


@linear_grad.impl("cpu")
def linear_grad_cpu(g: Array, x: Array, w: Array, *, for_x: bool, for_w: bool, for_b: bool) -> tuple[Array, ...]:
    rows = g.reshape(prod(g.shape[:-1]), g.shape[-1])
    none = np.empty(0, g.dtype)
    dx = matmul_cpu(rows, w, transpose_a=False, transpose_b=False).reshape(x.shape) if for_x else none
    dw = matmul_cpu(rows, x.reshape(len(rows), x.shape[-1]), transpose_a=True, transpose_b=False) if for_w else none
    return dx, dw, bias_grad_cpu(rows, dtype=None) if for_b else none
