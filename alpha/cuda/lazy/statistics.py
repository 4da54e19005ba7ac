"""Means and variances of a convolution's output that its kernel counts tile by tile: conv/wgmma/tile_statistics.cuh;
and the sums over all rows of a gradient that batch norm's backward makes, and knows without reading it.

Who will read the output asks for them, before anything is launched: `conv2d(..., statistics=True)`, as a layer in front
of batch norm does. The kernel then leaves what batch norm would read the whole output for; one that cannot count leaves
nothing. They lie with the output, in `Array.derived`, so that whatever changes elements drops them, and are the first
batch norm's, which needs them once.
"""

from __future__ import annotations

from alpha.cuda.runtime.memory import Array, empty

NAME, SUMS = "statistics", "sums"
QUANTITIES = 3  # mean, m2, count


def ask(y: Array) -> Array:
    """Asks whoever writes y for its statistics, and returns y."""
    y.derive().wanted = NAME
    return y


def attach(y: Array, slots: int) -> Array | None:
    """Returns memory for the statistics of y, to be filled before anybody else sees y; None if nobody asks.

    Returns:
        float32, shape (slots, QUANTITIES, C): mean, m2 = sum((y - mean)^2) and count of parts of a channel.
    """
    derived = y.derived
    if derived is None or derived.wanted != NAME:
        return None
    derived.wanted = ""
    parts = derived[NAME] = empty((slots, QUANTITIES, y.shape[-1]), "float32")
    return parts


def leave_sums(x: Array, sums: Array) -> Array:
    """Leaves the sums of each column of x, float32, for who takes them first, and returns x."""
    x.derive()[SUMS] = sums
    return x


def take(x: Array, name: str = NAME) -> Array | None:
    """Returns the statistics of x, or its SUMS, which are gone then; None where there are none of its columns."""
    found: Array | None = x.derived.get(name) if x.derived else None
    if found is None or found.shape[-1] != x.shape[-1]:
        return None
    x.derive().pop(name)
    return found
