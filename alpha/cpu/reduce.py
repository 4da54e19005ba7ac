"""Reductions in NumPy.  Float sums run pairwise along rows and in blocks down columns: a fixed order, a short chain."""

from __future__ import annotations

from math import prod

import numpy as np

from alpha.cpu import native
from alpha.cpu.elementwise import compiled
from alpha.cpu.memory import empty
from alpha.ops import reduce as ops

Array = np.ndarray
Axes = ops.Axes

BLOCK = 128  # rows added in one chain; the sums of the blocks form the second chain
WIDE = {"e": np.float32, "f": np.float32, "d": np.float64}  # what float16, float32, float64 are summed in


@ops.sum.impl("cpu")
def sum_cpu(x: Array, *, axis: Axes, keepdims: bool, dtype: str | None) -> Array:
    result = dtype or (x.dtype if x.dtype.kind == "f" else np.int64)
    with np.errstate(all="ignore"):
        return _sum(x, axis).reshape(ops.reduced_shape(x.shape, axis, keepdims, "sum")).astype(result, copy=False)


@ops.mean.impl("cpu")
def mean_cpu(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    shape = ops.reduced_shape(x.shape, axis, keepdims, "mean")
    with np.errstate(all="ignore"):
        mean = np.true_divide(_sum(x, axis), ops.reduced_count(x.shape, axis, "mean"))
    return np.asarray(mean).reshape(shape).astype(x.dtype, copy=False)


@ops.var.impl("cpu")
def var_cpu(x: Array, *, axis: Axes, keepdims: bool, correction: int) -> Array:
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    count = ops.reduced_count(x.shape, axis, "var")
    with np.errstate(all="ignore"):
        mean = np.asarray(_sum(wide, axis) / count).reshape(ops.reduced_shape(x.shape, axis, True, "var"))
        away = np.subtract(wide, mean, out=empty(wide.shape, wide.dtype))
        var = _sum(np.square(away, out=away), axis) / (count - correction)
    return np.asarray(var).reshape(ops.reduced_shape(x.shape, axis, keepdims, "var")).astype(x.dtype, copy=False)


@ops.max.impl("cpu")
def max_cpu(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    return np.asarray(np.max(x, axis=ops.normal_axes(axis, x.ndim, "max"), keepdims=keepdims))


@ops.min.impl("cpu")
def min_cpu(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    return np.asarray(np.min(x, axis=ops.normal_axes(axis, x.ndim, "min"), keepdims=keepdims))


@ops.argmax.impl("cpu")
def argmax_cpu(x: Array, *, axis: int | None, keepdims: bool) -> Array:
    return np.asarray(np.argmax(x, axis=axis, keepdims=keepdims))


@ops.sum_to.impl("cpu")
def sum_to_cpu(x: Array, *, shape: tuple[int, ...]) -> Array:
    with np.errstate(all="ignore"):
        return _sum(x, ops.repeated_axes(x.shape, shape)).reshape(shape).astype(x.dtype, copy=False)


def _sum(x: Array, axis: Axes) -> Array:
    """Returns the sums, C-contiguous, without the reduced axes; float16 in float32, integers in int64."""
    wide = WIDE.get(x.dtype.char, np.int64)
    axes = ops.normal_axes(axis, x.ndim, "sum")
    if len(axes) == x.ndim:
        return np.asarray(np.add.reduce(x, axis=None, dtype=wide))
    if axes and axes[-1] == len(axes) - 1:
        return _column_sums(x.reshape(prod(x.shape[:len(axes)]), prod(x.shape[len(axes):])), wide)
    return np.ascontiguousarray(np.add.reduce(x, axis=axes, dtype=wide))


def _column_sums(x: Array, wide: type) -> Array:
    """Returns the sum of the rows.  A chain of rows is as long as NumPy's, hence as inexact, unless it is cut."""
    if compiled(x):
        out = empty(x.shape[1:], x.dtype)
        native.column_sum(x, out)
        return out
    blocks = len(x) // BLOCK
    if blocks < 2:
        return np.add.reduce(x, axis=0, dtype=wide)
    cut = blocks * BLOCK
    total = np.add.reduce(np.add.reduce(x[:cut].reshape(blocks, BLOCK, x.shape[1]), axis=1, dtype=wide), axis=0)
    return total + np.add.reduce(x[cut:], axis=0, dtype=wide)
