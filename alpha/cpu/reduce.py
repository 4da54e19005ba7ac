"""Reductions: float sums by a compiled kernel where it can be used, else by NumPy in float64.

Either way the order is fixed, and the error that of rounding the result, with a few of the terms' roundings at most.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from alpha.cpu import native
from alpha.cpu.elementwise import FEW, quietly
from alpha.cpu.memory import empty
from alpha.ops import reduce as ops

Array = np.ndarray
Axes = ops.Axes
LONG = 1 << 14  # elements of a row that one thread adds up; of longer ones several threads add parts
BRIEF = 1 << 11  # elements below which NumPy adds them up in less time than a call of a kernel takes


def _sum(x: Array, *, axis: Axes, keepdims: bool, dtype: str | None) -> Array:
    result = dtype or (x.dtype if x.dtype.kind == "f" else np.int64)
    total = total_of(x, ops.normal_axes(axis, x.ndim, "sum"), result)
    return total.reshape(ops.reduced_shape(x.shape, axis, keepdims, "sum")).astype(result, copy=False)


@ops.sum.impl("cpu")
def sum_cpu(x: Array, *, axis: Axes, keepdims: bool, dtype: str | None) -> Array:
    if dtype in (None, "float32") and x.size >= BRIEF and native.usable(x):
        view, shape = _plan(x.shape, axis, keepdims)
        if view is not None:
            return _native_sums(x, empty(shape, x.dtype), *view)
    return quietly(_sum, x, axis=axis, keepdims=keepdims, dtype=dtype)  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _plan(whole: tuple[int, ...], axis: Axes, keepdims: bool) -> tuple[tuple[int, int, int] | None, tuple[int, ...]]:
    """Returns (outer, count, inner) of a reduction, None where that is not all of it, and the shape of the result."""
    outer, count, inner, _, others = _view(whole, ops.normal_axes(axis, len(whole), "sum"))
    return None if others else (outer, count, inner), ops.reduced_shape(whole, axis, keepdims, "sum")


def _native_sums(x: Array, out: Array, outer: int, count: int, inner: int) -> Array:
    """Returns `out` with the sums of x as (outer, count, inner) over its second axis."""
    if inner == 1 and count <= LONG:
        native.sum_rows(x, out, outer, count)
    else:
        native.sum_middle(x, out, outer, count, inner)
    return out


@ops.bias_grad.impl("cpu")
def bias_grad_cpu(g: Array, *, dtype: str | None) -> Array:
    return sum_cpu(g, axis=tuple(range(g.ndim - 1)), keepdims=False, dtype=dtype)


def _mean(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    shape = ops.reduced_shape(x.shape, axis, keepdims, "mean")
    total = total_of(x, ops.normal_axes(axis, x.ndim, "mean"), np.float64)
    return (total / ops.reduced_count(x.shape, axis, "mean")).reshape(shape).astype(x.dtype, copy=False)


@ops.mean.impl("cpu")
def mean_cpu(x: Array, **attrs: Any) -> Array:
    return quietly(_mean, x, **attrs)  # type: ignore[no-any-return]


@ops.var.impl("cpu")
def var_cpu(x: Array, *, axis: Axes, keepdims: bool, correction: int) -> Array:
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    axes, count = ops.normal_axes(axis, x.ndim, "var"), ops.reduced_count(x.shape, axis, "var")
    with np.errstate(all="ignore"):
        mean = total_of(wide, axes, np.float64) / count
        mean = mean.reshape(ops.reduced_shape(x.shape, axis, True, "var")).astype(wide.dtype)
        away = np.subtract(wide, mean, out=empty(wide.shape, wide.dtype))
        rest = total_of(away, axes, np.float64)  # what rounding has left out of the mean, times count
        squares = total_of(np.square(away, out=away), axes, np.float64)
        if wide.dtype == np.float32 and not np.isfinite(squares).all():     # they may be beyond float32, and var not
            squares = total_of(np.square(wide.astype(np.float64) - mean), axes, np.float64).reshape(rest.shape)
        var = (squares - rest * rest / count) / (count - correction)
        return var.reshape(ops.reduced_shape(x.shape, axis, keepdims, "var")).astype(x.dtype, copy=False)


@ops.max.impl("cpu")
def max_cpu(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    return _extreme(x, axis, keepdims, np.max, "max")


@ops.min.impl("cpu")
def min_cpu(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    return _extreme(x, axis, keepdims, np.min, "min")


def _extreme(x: Array, axis: Axes, keepdims: bool, oracle: Any, name: str) -> Array:
    axes = ops.normal_axes(axis, x.ndim, name)
    if not x.size or x.size < FEW or not native.usable(x):
        return np.asarray(oracle(x, axis=axes, keepdims=keepdims))
    outer, count, inner, shape, others = _view(x.shape, axes)
    out = empty((outer, inner), x.dtype)
    native.extreme(x, out, outer, count, inner, name == "max")
    left = np.asarray(oracle(out.reshape(shape), axis=others)) if others else out
    return left.reshape(ops.reduced_shape(x.shape, axis, keepdims, name))


@ops.argmax.impl("cpu")
def argmax_cpu(x: Array, *, axis: int | None, keepdims: bool) -> Array:
    return np.asarray(np.argmax(x, axis=axis, keepdims=keepdims))


def _sum_to(x: Array, *, shape: tuple[int, ...]) -> Array:
    return total_of(x, ops.repeated_axes(x.shape, shape), x.dtype).reshape(shape).astype(x.dtype, copy=False)


@ops.sum_to.impl("cpu")
def sum_to_cpu(x: Array, **attrs: Any) -> Array:
    return quietly(_sum_to, x, **attrs)  # type: ignore[no-any-return]


def sums(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Returns sums over ascending axes, in the dtype of x: for implementations of other ops."""
    shape = ops.reduced_shape(x.shape, axes, keepdims, "sum")
    return total_of(x, axes, x.dtype).reshape(shape).astype(x.dtype, copy=False)


def total_of(x: Array, axes: tuple[int, ...], dtype: Any) -> Array:
    """Returns the sums over ascending axes, C-contiguous, without these axes: in `dtype`, or wider."""
    if x.size < BRIEF or not native.usable(x):
        return np.ascontiguousarray(np.add.reduce(x, axis=axes, dtype=np.float64 if x.dtype.kind == "f" else np.int64))
    outer, count, inner, shape, others = _view(x.shape, axes)
    out = _native_sums(x, empty((outer, inner), np.float64 if others else dtype), outer, count, inner)
    return np.add.reduce(out.reshape(shape), axis=others) if others else out


@lru_cache(maxsize=1024)
def _view(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...]]:
    """Returns (outer, count, inner) of the last reduced axes that are neighbours; what is left; its reduced axes."""
    axes = tuple([k for k in axes if shape[k] > 1])
    last = axes[-1] + 1 if axes else 0
    first = last
    while first and (first - 1 in axes or shape[first - 1] == 1):
        first -= 1
    left = shape[:first] + shape[last:]
    others = tuple([k for k in axes if k < first])
    return prod(shape[:first]), prod(shape[first:last]), prod(shape[last:]), left, others
