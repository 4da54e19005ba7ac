"""Pooling on the CPU: the compiled kernels where they can be used, else NumPy, window tap by window tap.

A tap of a window meets one trimmed, strided rectangle of the input (`Axis.runs`): padding is neither stored nor read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from alpha.cpu import native
from alpha.cpu.half import quiet
from alpha.cpu.memory import empty
from alpha.ops.conv_desc import Axis, Pair
from alpha.ops.pool import (
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward,
    adaptive_max_pool2d,
    adaptive_windows,
    avg_pool2d,
    avg_pool2d_backward,
    index_error,
    max_pool2d,
    max_pool2d_backward,
    pool_axes,
    pool_gather,
    pool_scatter,
)

Array = np.ndarray

FEW = 9  # terms that one chain of float32 may add up: equal ones lose 1.5e-7 of the result at most


@max_pool2d.impl("cpu")
def max_pool2d_cpu(x: Array, **window: Pair) -> tuple[Array, Array]:
    h, w = pool_axes("max_pool2d", x.shape, **window)
    y_shape = len(x), h.o, w.o, x.shape[3]
    y, index = empty(y_shape, x.dtype), empty(y_shape, "int32")
    if native.usable(x):
        native.max_pool_fwd(x, y, index, **window)
        return y, index
    rows, cols = (np.array([a.input_of(o, a.fprop_taps(o)[0]) for o in range(a.o)]) for a in (h, w))
    y[...] = x[:, rows[:, None], cols]      # the first element of each window; later ones must be larger
    index[...] = _positions(rows, cols, w.i)
    for out, inp in _taps(h, w):
        values, best = x[inp], y[out]
        larger = (values > best) | np.isnan(values)
        np.copyto(best, values, where=larger)
        np.copyto(index[out], _positions(np.r_[inp[1]], np.r_[inp[2]], w.i), where=larger)
    return y, index


@max_pool2d_backward.impl("cpu")
def max_pool2d_backward_cpu(g: Array, index: Array, *, hw: Pair, **window: Pair) -> Array:
    x_shape = len(g), *hw, g.shape[3]
    if native.usable(g):
        dx = empty(x_shape, g.dtype)
        native.max_pool_bwd(g, index, dx, **window)
        return dx
    h, w = pool_axes("max_pool2d_backward", x_shape, **window)
    dx = _zeros(x_shape, g.dtype, h.f * w.f)
    for out, inp in _taps(h, w):
        taken = index[out] == _positions(np.r_[inp[1]], np.r_[inp[2]], w.i)
        dx[inp] += np.where(taken, g[out], g.dtype.type(0))
    return dx.astype(g.dtype, copy=False)


@adaptive_max_pool2d.impl("cpu")
def adaptive_max_pool2d_cpu(x: Array, *, output_size: Pair) -> tuple[Array, Array]:
    n, ih, iw, c = x.shape
    y, index = empty((n, *output_size, c), x.dtype), empty((n, *output_size, c), "int32")
    for oh, (h0, h1) in enumerate(adaptive_windows(ih, output_size[0])):
        for ow, (w0, w1) in enumerate(adaptive_windows(iw, output_size[1])):
            values = x[:, h0:h1, w0:w1].reshape(n, -1, c)
            best = values.argmax(axis=1)        # a NaN counts as the largest
            y[:, oh, ow] = np.take_along_axis(values, best[:, None], 1)[:, 0]
            if (nan := np.isnan(y[:, oh, ow])).any():   # and the last of several wins, as in max_pool2d
                best = np.where(nan, values.shape[1] - 1 - np.isnan(values[:, ::-1]).argmax(axis=1), best)
            index[:, oh, ow] = (h0 + best // (w1 - w0)) * iw + w0 + best % (w1 - w0)
    return y, index


@pool_scatter.impl("cpu")
@quiet
def pool_scatter_cpu(x: Array, index: Array, *, hw: Pair) -> Array:
    n, _, _, c = x.shape
    y = empty((n, *hw, c), x.dtype)
    if native.usable(x) and index.dtype == np.int32:
        bad = native.pool_scatter(x, index, y)
        if bad >= 0:
            raise index_error("pool_scatter", index.flat[bad], bad, hw)
        return y
    _check_range("pool_scatter", index, hw)
    images = np.arange(n).reshape(n, 1, 1, 1) * (hw[0] * hw[1])
    places = ((images + index) * c + np.arange(c)).reshape(-1)
    y[...] = np.bincount(places, x.reshape(-1), y.size).reshape(y.shape)  # adds in float64
    return y


def _check_range(where: str, index: Array, hw: Pair) -> None:
    if index.size and not 0 <= index.min() <= index.max() < hw[0] * hw[1]:
        bad = int(np.argmax((index < 0) | (index >= hw[0] * hw[1])))
        raise index_error(where, index.flat[bad], bad, hw)


@pool_gather.impl("cpu")
def pool_gather_cpu(x: Array, index: Array) -> Array:
    n, c = len(x), x.shape[3]
    _check_range("pool_gather", index, x.shape[1:3])
    return np.take_along_axis(x.reshape(n, -1, c), index.reshape(n, -1, c), axis=1).reshape(index.shape)


@avg_pool2d.impl("cpu")
@quiet
def avg_pool2d_cpu(x: Array, *, count_include_pad: bool, **window: Pair) -> Array:
    h, w = pool_axes("avg_pool2d", x.shape, **window)
    if native.usable(x):
        y = empty((len(x), h.o, w.o, x.shape[3]), x.dtype)
        native.avg_pool_fwd(x, y, **window, count_include_pad=count_include_pad)
        return y
    total = _zeros((len(x), h.o, w.o, x.shape[3]), x.dtype, h.f * w.f)
    for out, inp in _taps(h, w):
        total[out] += x[inp]
    total /= _counts(h, w, count_include_pad).astype(total.dtype)
    return total.astype(x.dtype, copy=False)


@avg_pool2d_backward.impl("cpu")
@quiet
def avg_pool2d_backward_cpu(g: Array, *, hw: Pair, count_include_pad: bool, **window: Pair) -> Array:
    x_shape = len(g), *hw, g.shape[3]
    if native.usable(g):
        dx = empty(x_shape, g.dtype)
        native.avg_pool_bwd(g, dx, **window, count_include_pad=count_include_pad)
        return dx
    h, w = pool_axes("avg_pool2d_backward", x_shape, **window)
    dx = _zeros(x_shape, g.dtype, h.f * w.f)
    share = g / _counts(h, w, count_include_pad).astype(dx.dtype)
    for out, inp in _taps(h, w):
        dx[inp] += share[out]
    return dx.astype(g.dtype, copy=False)


@adaptive_avg_pool2d.impl("cpu")
def adaptive_avg_pool2d_cpu(x: Array, *, output_size: Pair) -> Array:
    n, ih, iw, c = x.shape
    if window := even_window((ih, iw), output_size):
        return avg_pool2d_cpu(x, **window)
    rows = empty((n, output_size[0], iw, c), np.float64)
    for o, (begin, end) in enumerate(adaptive_windows(ih, output_size[0])):
        x[:, begin:end].mean(axis=1, dtype=rows.dtype, out=rows[:, o])
    y = empty((n, *output_size, c), x.dtype)
    for o, (begin, end) in enumerate(adaptive_windows(iw, output_size[1])):
        y[:, :, o] = rows[:, :, begin:end].mean(axis=2)
    return y


@adaptive_avg_pool2d_backward.impl("cpu")
def adaptive_avg_pool2d_backward_cpu(g: Array, *, hw: Pair) -> Array:
    n, oh, ow, c = g.shape
    if window := even_window(hw, (oh, ow)):
        return avg_pool2d_backward_cpu(g, hw=hw, **window)
    cols = _zeros((n, oh, hw[1], c), g.dtype, ow)
    for o, (begin, end) in enumerate(adaptive_windows(hw[1], ow)):
        cols[:, :, begin:end] += g[:, :, o:o + 1] / cols.dtype.type(end - begin)
    dx = _zeros((n, *hw, c), g.dtype, oh * ow)
    for o, (begin, end) in enumerate(adaptive_windows(hw[0], oh)):
        dx[:, begin:end] += cols[:, o:o + 1] / cols.dtype.type(end - begin)
    return dx.astype(g.dtype, copy=False)


def even_window(hw: Pair, output_size: Pair) -> dict[str, Any] | None:
    """Returns the plain average pool that an adaptive one is; None where its windows differ in size or overlap."""
    if any(i % o for i, o in zip(hw, output_size)):
        return None
    kernel_size = hw[0] // output_size[0], hw[1] // output_size[1]
    return {"kernel_size": kernel_size, "stride": kernel_size, "padding": (0, 0), "count_include_pad": True}


def _taps(h: Axis, w: Axis) -> Iterator[tuple[tuple, tuple]]:
    """Yields, row by row of the window, the rectangle of outputs that has this tap and that of the inputs it reads."""
    everything = slice(None)
    for _, oh, ih in h.runs:
        for _, ow, iw in w.runs:
            yield (everything, oh, ow), (everything, ih, iw)


def _positions(rows: Array, cols: Array, width: int) -> Array:
    return (rows[:, None] * width + cols).astype(np.int32)[:, :, None]


def _counts(h: Axis, w: Axis, count_include_pad: bool) -> Array:
    """Returns the divisors of the outputs, (OH, OW, 1)."""
    if count_include_pad:
        return np.full((1, 1, 1), h.f * w.f)
    rows, cols = (np.array([t1 - t0 for t0, t1 in map(a.fprop_taps, range(a.o))]) for a in (h, w))
    return (rows[:, None] * cols)[:, :, None]


def _zeros(shape: tuple[int, ...], dtype: Any, terms: int) -> Array:
    """Returns zeros to which up to `terms` terms are added one by one: few in 32 bits, many in 64."""
    out = empty(shape, np.promote_types(dtype, np.float32 if terms <= FEW else np.float64))
    out.fill(0)
    return out
