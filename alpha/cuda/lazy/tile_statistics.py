"""Means and variances of a convolution's output that its kernel counts tile by tile: conv/wgmma/tile_statistics.cuh.

A convolution does not know who reads its output. Where gradients are recorded and no activation is fused, that is batch
norm, as a rule: then the kernel leaves what batch norm would read the whole output for. It lies with the output, in
`Array.derived`, so that whatever changes elements drops it, and is the first batch norm's, which needs it once. Where
nobody asks, a few per cent of the kernel's time were spent in vain.
"""

from __future__ import annotations

from alpha.cuda.runtime.memory import Array, empty
from alpha.graph import grad_enabled

NAME = "statistics"
QUANTITIES = 3  # mean, m2, count


def are_expected(relu: bool) -> bool:
    """Tells whether batch norm may follow a convolution, with or without a relu in it."""
    return grad_enabled() and not relu


def attach(y: Array, slots: int) -> Array:
    """Returns memory for the statistics of y, to be filled before anybody else sees y.

    Returns:
        float32, shape (slots, QUANTITIES, C): mean, m2 = sum((y - mean)^2) and count of parts of a channel.
    """
    parts = empty((slots, QUANTITIES, y.shape[-1]), "float32")
    y.derive()[NAME] = parts
    return parts


def take(x: Array) -> Array | None:
    """Returns the statistics of x, which are gone then; None where there are none of its channels."""
    found: Array | None = x.derived.get(NAME) if x.derived else None
    if found is None or found.shape[-1] != x.shape[-1]:
        return None
    x.derive().pop(NAME)
    return found
