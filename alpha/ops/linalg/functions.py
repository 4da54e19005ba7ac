"""Linear algebra of tensors on any device: NumPy computes it on the host, to which a GPU's elements are copied."""

from __future__ import annotations

from typing import NamedTuple

from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.graph import grad_enabled
from alpha.core.inputs.arguments import checked
from alpha.core.tensor import Tensor
from alpha.ops.elementwise import to_device
from alpha.ops.linalg.decompositions import (
    cholesky_factor,
    determinant,
    eigen_symmetric,
    linear_solve,
    log_determinant,
    matrix_inverse,
    qr_factors,
    singular_values,
)
from alpha.ops.shape import squeeze, unsqueeze


class Triangular(NamedTuple):
    """Results of qr."""

    Q: Tensor
    R: Tensor


class Eigen(NamedTuple):
    """Results of eigh."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Singular(NamedTuple):
    """Results of svd."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class LogDet(NamedTuple):
    """Results of slogdet."""

    sign: Tensor
    logabsdet: Tensor


def _matrices(where: str, name: str, x: Tensor, square: bool = True) -> Tensor:
    """Returns x on the host.  Raises AlphaError unless it holds matrices."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise ShapeError(message(where, f"{name} has shape {x.shape}, {'square ' if square else ''}matrices are needed",
                                 "pass (..., n, n)" if square else "pass (..., m, n)"))
    if x.dtype not in ("float32", "float64"):
        raise DTypeError(message(where, f"{name} has dtype {x.dtype}, float32 or float64 is needed",
                                 'convert it: x.astype("float32")'))
    return x if x.device == "cpu" else to_device(x, "cpu")


def _back(y: Tensor, like: Tensor) -> Tensor:
    return y if like.device == "cpu" else to_device(y, like.device)


@checked
def inv(x: Tensor) -> Tensor:
    """Returns the inverse of each matrix.

    Args:
        x: shape (..., n, n); float32 or float64.
    Raises:
        ShapeError: x has no square matrices.  DTypeError: x has another dtype.  DataError: a matrix has no inverse.
    NumPy computes it on the host, so a GPU is waited for. It is differentiable, as often as is needed.
    """
    return _back(matrix_inverse(_matrices("inv", "x", x)), x)


@checked
def solve(a: Tensor, b: Tensor) -> Tensor:
    """Returns y with a @ y = b, which is more precise than inv(a) @ b.

    Args:
        a: shape (..., n, n); float32 or float64.
        b: shape (n,), or (..., n, k) with the leading axes of a; dtype of a.
    Returns:
        y of the shape of b.
    Raises:
        ShapeError: the shapes do not fit.  DTypeError: the dtypes differ.  DataError: a matrix has no inverse.
    NumPy computes it on the host: see inv.
    """
    left = _matrices("solve", "a", a)
    vector = b.ndim == 1
    right = _matrices("solve", "b", unsqueeze(b, -1) if vector else b, square=False)
    if right.shape[-2] != a.shape[-1] or right.dtype != left.dtype or (
            right.shape[:-2] != a.shape[:-2]):
        raise ShapeError(message("solve", f"a has shape {a.shape} and dtype {a.dtype}, b {b.shape} and {b.dtype}",
                                 "pass b of shape (n,) or (..., n, k), with the leading axes and the dtype of a"))
    y = _back(linear_solve(left, right), a)
    return squeeze(y, -1) if vector else y


@checked
def cholesky(x: Tensor) -> Tensor:
    """Returns the lower triangle L of each symmetric matrix, with L @ L.mT = x.

    Args:
        x: shape (..., n, n), symmetric and positive definite; its lower triangle is read.  float32 or float64.
    Raises:
        ShapeError, DTypeError: see inv.  DataError: a matrix is not positive definite.
    NumPy computes it on the host: see inv. The gradient is symmetric.
    """
    return _back(cholesky_factor(_matrices("cholesky", "x", x)), x)


@checked
def det(x: Tensor) -> Tensor:
    """Returns the determinant of each matrix: shape (..., n, n) -> (...).

    Raises:
        ShapeError, DTypeError: see inv.  DataError, in the gradient alone: a matrix has no inverse.
    NumPy computes it on the host: see inv.
    """
    return _back(determinant(_matrices("det", "x", x)), x)


@checked
def slogdet(x: Tensor) -> LogDet:
    """Returns (sign, logabsdet) of the determinant of each matrix, which does not overflow; -inf where it is 0.

    Raises:
        ShapeError, DTypeError: see inv.  DataError, in the gradient alone: a matrix has no inverse.
    NumPy computes it on the host: see inv.
    """
    sign, value = log_determinant(_matrices("slogdet", "x", x))
    return LogDet(_back(sign.detach(), x), _back(value, x))


@checked
def qr(x: Tensor) -> Triangular:
    """Returns (Q, R) with Q @ R = x: Q (..., m, k) has orthonormal columns, R (..., k, n) is upper triangular.

    Args:
        x: shape (..., m, n), k = min(m, n); float32 or float64. With a gradient m is at least n.
    Raises:
        ShapeError: x has no matrices, or m is below n and a gradient is wanted.  DTypeError: see inv.
        DataError, in the gradient alone: columns of x depend on each other.
    NumPy computes it on the host: see inv.
    """
    host = _matrices("qr", "x", x, square=False)
    if x.shape[-2] < x.shape[-1] and x.requires_grad and grad_enabled():
        raise ShapeError(message("qr", f"x has shape {x.shape}, fewer rows than columns, which has no gradient here",
                                 "pass x.detach(), or at least as many rows as columns"))
    q, r = qr_factors(host)
    return Triangular(_back(q, x), _back(r, x))


@checked
def eigh(x: Tensor) -> Eigen:
    """Returns (eigenvalues, eigenvectors) of symmetric matrices, values rising, vectors as columns.

    Args:
        x: shape (..., n, n), symmetric: its lower triangle is read.  float32 or float64.
    Raises:
        ShapeError, DTypeError: see inv.  DataError: an element is not finite.
    NumPy computes it on the host: see inv. Signs of vectors are arbitrary, and vectors of equal values have no
    gradient (NaN or infinite).
    """
    values, vectors = eigen_symmetric(_matrices("eigh", "x", x))
    return Eigen(_back(values, x), _back(vectors, x))


@checked
def svd(x: Tensor) -> Singular:
    """Returns (U, S, Vh) with U @ diag(S) @ Vh = x, S falling: the reduced form, PyTorch's full_matrices=False.

    Args:
        x: shape (..., m, n), k = min(m, n); float32 or float64.
    Returns:
        U (..., m, k) and Vh.mT (..., n, k) with orthonormal columns, S (..., k).
    Raises:
        ShapeError: x has no matrices.  DTypeError: see inv.  DataError: an element is not finite.
    NumPy computes it on the host: see inv. Signs of vectors are arbitrary, and vectors of equal values, or of a value
    of 0, have no gradient (NaN or infinite); S has one.
    """
    u, w, vt = singular_values(_matrices("svd", "x", x, square=False))
    return Singular(_back(u, x), _back(w, x), _back(vt, x))
