"""Samples drawn with weights: which items an epoch has, some of them several times and some not at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.core.errors import DataError, message, shown
from alpha.core.inputs.arguments import bound
from alpha.core.tensor import Tensor
from alpha.random import STREAMS, random_bits


@bound
def balanced_weights(labels: Any) -> np.ndarray:
    """Returns weights with which every class is drawn equally often: 1 / (samples of its class).  Shape (N,), float64.

    Args:
        labels: shape (N,), integers of at least 0.
    Raises:
        DataError: they are something else.
    """
    held = np.asarray(labels.numpy() if isinstance(labels, Tensor) else labels)
    if held.ndim != 1 or held.dtype.kind not in "iu" or not held.size or held.min() < 0:
        raise DataError(message("balanced_weights", f"labels are {shown(held)}, integers of at least 0 and of shape "
                                "(N,) are needed", "number the classes from 0"))
    return 1.0 / np.bincount(held)[held]


def bounds_of(where: str, weights: Any, count: int) -> np.ndarray:
    """Returns where the share of each item ends, rising to 1.  Shape (count,), float64.

    Raises DataError: there is not one weight for each item, one is negative or not finite, or all are 0.
    """
    try:
        held = np.asarray(weights.numpy() if isinstance(weights, Tensor) else weights, np.float64)
    except (TypeError, ValueError):
        held = np.zeros(0)
    if held.shape != (count,) or not np.isfinite(held).all() or (held < 0).any() or not held.sum():
        raise DataError(message(where, f"weights are {shown(weights)}, {count} finite numbers of at least 0 are "
                                "needed, one for each item and not all 0",
                                "pass alpha.data.balanced_weights(labels), say"))
    return np.cumsum(held) / held.sum()


def drawn(bounds: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Returns the items of an epoch, as many as there are, drawn with repetition.  Shape (N,), int64.

    It depends on (seed, epoch) and the weights alone.
    """
    bits = random_bits(seed, STREAMS["draws"], epoch << 40, 2 * len(bounds)).astype(np.uint64)
    shares = ((bits[0::2] << np.uint64(21)) | (bits[1::2] >> np.uint64(11))) * 2.0 ** -53     # in [0, 1)
    return np.minimum(np.searchsorted(bounds, shares, side="right"), len(bounds) - 1).astype(np.int64)
