"""Dropout on the CPU: the compiled kernel where it can be used, else NumPy, with the same bits."""

from __future__ import annotations

import numpy as np

from alpha.cpu import native
from alpha.cpu.memory import empty_like
from alpha.ops.dropout import keyed_dropout
from alpha.random import STREAMS, uniform

Array = np.ndarray


@keyed_dropout.impl("cpu")
def keyed_dropout_cpu(x: Array, *, p: float, seed: int, offset: int) -> Array:
    y = empty_like(x)
    if p == 1:
        y.fill(0)
    elif native.usable(x):
        native.dropout(x, y, p, seed, STREAMS["dropout"], offset)
    else:
        dropped = uniform(seed, STREAMS["dropout"], offset, x.size).reshape(x.shape) < p
        np.multiply(x, 1 / (1 - p), out=y)
        y[dropped] = 0
    return y
