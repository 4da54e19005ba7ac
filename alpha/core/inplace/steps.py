"""Views of NumPy arrays, by the names of the ops that make them; and strides, in elements, of views under a shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@lru_cache(maxsize=2048)
def dense_strides(shape: Shape) -> Shape:
    """Returns the strides of elements that lie side by side."""
    return tuple([prod([max(1, n) for n in shape[k + 1:]]) for k in range(len(shape))])


@lru_cache(maxsize=2048)
def strides_under(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Returns strides of elements under another shape; None where one for each axis cannot tell their places."""
    if 0 in shape or not shape:
        return dense_strides(new)
    found, k = [0] * len(new), len(new) - 1
    size = covered = 1
    step = strides[-1]
    for axis in range(len(shape) - 1, -1, -1):
        size *= shape[axis]
        if axis and (shape[axis - 1] == 1 or strides[axis - 1] == size * step):
            continue    # both axes are one
        while k >= 0 and (covered < size or new[k] == 1):
            found[k] = covered * step
            covered *= new[k]
            k -= 1
        if covered != size:
            return None
        if axis:
            size, covered, step = 1, 1, strides[axis - 1]
    return tuple(found) if k < 0 else None


def same(a: np.ndarray) -> np.ndarray:
    return a


def reshaped(a: np.ndarray, shape: Shape) -> np.ndarray:
    return a.reshape(shape)


def permuted(a: np.ndarray, axes: Shape) -> np.ndarray:
    return a.transpose(axes)


def sliced(a: np.ndarray, ranges: tuple[tuple[int, int, int], ...], shape: Shape, in_place: bool) -> np.ndarray:
    key: list[Any] = [...]
    for first, count, step in reversed(ranges):
        stop = first + count * step
        key.insert(0, slice(first, stop if stop >= 0 else None, step) if count else slice(0))
    part = a[tuple(key)]
    if part.shape == shape:
        return part
    strides = strides_under(part.shape, part.strides, shape)    # axes of length 1 went or came
    return np.lib.stride_tricks.as_strided(part, shape, strides)


def expanded(a: np.ndarray, shape: Shape) -> np.ndarray:
    new = len(shape) - a.ndim
    sizes = [a.shape[k - new] if n == -1 else n for k, n in enumerate(shape)]
    return np.lib.stride_tricks.as_strided(a, sizes, (*[0] * new, *[
        s if n == m else 0 for s, n, m in zip(a.strides, a.shape, sizes[new:])]))


def diagonal(a: np.ndarray, offset: int, axis1: int, axis2: int) -> np.ndarray:
    found = a.diagonal(offset, axis1, axis2)
    found.flags.writeable = a.flags.writeable
    return found


STEPS: dict[str, Callable[..., np.ndarray]] = {
    "reshape": reshaped, "permute": permuted, "slice_axes": sliced, "expand": expanded, "diagonal": diagonal}
