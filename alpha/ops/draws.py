"""Draws by chances that a tensor has: bernoulli and multinomial, from the stream that `alpha.manual_seed` starts."""

from __future__ import annotations

import numpy as np

from alpha import random
from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import DataError, DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.create import rand
from alpha.ops.elementwise import lt


def _check_floats(where: str, x: Tensor) -> None:
    if x.dtype not in FLOAT_DTYPES:
        raise DTypeError(message(where, f"x has dtype {x.dtype}, floats are needed", 'convert it: x.astype("float32")'))


@public(top=True, method=True)
@checked
def bernoulli(x: Tensor) -> Tensor:
    """y = 1 with probability x, else 0, each element by itself; no gradient.

    Args:
        x: probabilities, in [0, 1].  Any shape; float.
    Returns:
        y of the shape and dtype of x; a number of the process's stream is drawn for each element: see alpha.rand.
    Raises:
        DTypeError: x has integers.  DataError: an element is outside [0, 1] (on a GPU NaN counts as 0).
    """
    _check_floats("bernoulli", x)
    if x.device == "cpu" and x.numel():
        low, high = float(x.detach().numpy().min()), float(x.detach().numpy().max())
        if not 0 <= low <= high <= 1:
            raise DataError(message("bernoulli", f"probabilities go from {low:g} to {high:g}", "pass numbers in "
                                    "[0, 1], x.sigmoid() say"))
    return lt(rand(x.shape, "float32", x.device), x.detach().astype("float32")).astype(x.dtype)


@public(top=True, method=True)
@checked
def multinomial(x: Tensor, num_samples: Count, replacement: bool = False) -> Tensor:
    """y = indices of elements of each row, drawn with chances that are as the elements; no gradient.

    Args:
        x: weights of at least 0, which need not add up to 1.  Shape (N, C) or (C,); float.
        num_samples: how many to draw of each row.
        replacement: whether an element may be drawn more than once.
    Returns:
        y of shape (N, num_samples) or (num_samples,), int64; float64 numbers of the process's stream decide.
    Raises:
        ShapeError: x has another number of axes, or too few elements that are above 0 are left to draw.
        DTypeError: x has integers.  DataError: a weight is below 0, infinite or NaN, or a row has none above 0.
    The draw is made on the host, so a GPU is waited for.
    """
    _check_floats("multinomial", x)
    if x.ndim not in (1, 2):
        raise ShapeError(message("multinomial", f"x has shape {x.shape}, one or two axes are needed",
                                 "pass rows of weights (N, C)"))
    rows = x.detach().numpy().astype(np.float64).reshape(-1, x.shape[-1])
    if not (np.isfinite(rows).all() and (rows >= 0).all()) or (rows.sum(1) <= 0).any():
        raise DataError(message("multinomial", "a row has a weight that is negative or not finite, or none above 0",
                                "pass numbers of at least 0, x.softmax(-1) say", x=x.shape))
    if not replacement and ((rows > 0).sum(1) < num_samples).any():
        raise ShapeError(message("multinomial", f"{num_samples} elements are asked for, a row has "
                                 f"{int((rows > 0).sum(1).min())} above 0", "ask for fewer, or pass replacement=True"))
    count = num_samples if replacement else rows.shape[1]
    drawn = _uniform(len(rows) * count).reshape(len(rows), count)
    if replacement:
        ends = rows.cumsum(1)
        found = np.stack([np.searchsorted(e, u * e[-1], "right") for e, u in zip(ends, drawn)]) if len(rows) else (
            np.zeros((0, count)))
        found = np.minimum(found, [[np.flatnonzero(row)[-1]] for row in rows]) if len(rows) else found
    else:   # the first of clocks that run as fast as their weights: as drawn one after the other
        with np.errstate(divide="ignore"):
            found = np.argsort(-np.log1p(-drawn) / rows, 1, kind="stable")[:, :num_samples]
    return tensor(found.reshape(*x.shape[:-1], num_samples).astype(np.int64), "int64", x.device)


def _uniform(n: int) -> np.ndarray:
    """Returns n numbers in (0, 1), float64, of 48 bits each."""
    seed, offset = random.reserve(2 * n)
    parts = random.uniform(seed, random.STREAMS["default"], offset, 2 * n).astype(np.float64)
    return parts[:n] + parts[n:] * 2.0 ** -24 + 2.0 ** -49
