"""Linear algebra on the CPU, by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from alpha.core.errors import DataError, message
from alpha.ops.linalg import decompositions as ops

Array = np.ndarray


def _computed(where: str, f: Callable[..., Any], *arrays: Array) -> Any:
    """Returns what NumPy computes; NaN for matrices that hold NaN or an infinity.  Raises DataError where it cannot."""
    whole = all(a.ndim > 1 for a in arrays)     # a matrix is looked at, what is none NumPy refuses
    lost = np.logical_or.reduce([~np.isfinite(a).all((-2, -1)) for a in arrays]) if whole else np.bool_(False)
    if lost.any():      # LAPACK may not end with them
        first, *others = arrays
        arrays = (np.where(lost[..., None, None], np.eye(*first.shape[-2:], dtype=first.dtype), first),
                  *[np.where(lost[..., None, None], a.dtype.type(0), a) for a in others])
    try:
        with np.errstate(all="ignore"):
            found = f(*arrays)
    except np.linalg.LinAlgError as error:
        raise DataError(message(where, f"a matrix of shape {arrays[0].shape[-2:]} fails: {error}", "look for "
                                "rows that depend on each other, or add a small multiple of eye(n)")) from None
    made = [np.array(a, arrays[0].dtype, order="C") for a in (found if isinstance(found, tuple) else (found,))]
    for a in made if lost.any() else ():
        a[lost] = np.nan
    return tuple(made) if isinstance(found, tuple) else made[0]


@ops.matrix_inverse.impl("cpu")
def matrix_inverse_cpu(x: Array) -> Array:
    return _computed("inv", np.linalg.inv, x)


@ops.linear_solve.impl("cpu")
def linear_solve_cpu(a: Array, b: Array) -> Array:
    return _computed("solve", np.linalg.solve, a, b)


@ops.cholesky_factor.impl("cpu")
def cholesky_factor_cpu(x: Array) -> Array:
    return _computed("cholesky", np.linalg.cholesky, x)


@ops.determinant.impl("cpu")
def determinant_cpu(x: Array) -> Array:
    return _computed("det", np.linalg.det, x)


@ops.log_determinant.impl("cpu")
def log_determinant_cpu(x: Array) -> tuple[Array, Array]:
    sign, value = _computed("slogdet", lambda a: tuple(np.linalg.slogdet(a)), x)
    return sign.reshape(x.shape[:-2]), value.reshape(x.shape[:-2])


@ops.qr_factors.impl("cpu")
def qr_factors_cpu(x: Array) -> tuple[Array, Array]:
    q, r = _computed("qr", lambda a: tuple(np.linalg.qr(a)), x)
    return q, r


@ops.eigen_symmetric.impl("cpu")
def eigen_symmetric_cpu(x: Array) -> tuple[Array, Array]:
    w, v = _computed("eigh", lambda a: tuple(np.linalg.eigh(a)), x)
    return w, v


@ops.singular_values.impl("cpu")
def singular_values_cpu(x: Array) -> tuple[Array, Array, Array]:
    u, w, vt = _computed("svd", lambda a: tuple(np.linalg.svd(a, full_matrices=False)), x)
    return u, w, vt
