"""Convolution from the elements of its input that are not zero, in NumPy: what a relu has cut costs no product.

A pixel's list has its channels that are not zero, with their values, in order: it depends on no filter, tap or stride,
and all windows that hold the pixel read the same list.

    y[n, oh, ow, :] = sum over taps (fh, fw), over ic with x[n, ih, iw, ic] != 0, of x[n, ih, iw, ic] * w[:, fh, fw, ic]

-0.0 is a zero. NaN and infinities are not: they are multiplied. A zero times an infinity or a NaN is not made.

Every multiplication goes through `_multiply`, so that a test can count them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from alpha.cpu.half import quiet
from alpha.ops.conv_desc import ConvDesc

Array = np.ndarray
BLOCK_BYTES = 4 << 20       # of products at a time


def fprop(desc: ConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y.  x (N, IH, IW, IC), w (OC, FH, FW, IC), y (N, OH, OW, OC), one dtype; groups 1."""
    y[...] = 0
    for fh, fw, out, inp in _taps(desc):
        _add_products(x[inp], w[:, fh, fw].T, y[out])


def dgrad(desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx from the elements of g that are not zero."""
    dx[...] = 0
    for fh, fw, out, inp in _taps(desc):
        _add_products(g[out], w[:, fh, fw], dx[inp])


def wgrad(desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw from the elements of x that are not zero."""
    dw[...] = 0
    for fh, fw, out, inp in _taps(desc):
        part = np.zeros((desc.ic, desc.oc), dw.dtype)
        _sum_lists(_matrix(x[inp]).T, _matrix(g[out]), part)
        dw[:, fh, fw] += part.T


@quiet
def linear(x: Array, turned: Array, bias: Array | None, y: Array, relu: bool) -> None:
    """y = x @ turned (+ bias), then max(y, 0) if relu.  x (N, I), turned (I, O), y (N, O)."""
    y[...] = 0 if bias is None else bias
    _sum_lists(x, turned, y)
    if relu:
        np.maximum(y, 0, out=y)


def _taps(desc: ConvDesc) -> Iterator[tuple[int, int, tuple, tuple]]:
    """Yields (fh, fw, index into y, index into x) of the rectangles that meet at each tap."""
    for fh, oh, ih in desc.h.runs:
        for fw, ow, iw in desc.w.runs:
            yield fh, fw, (slice(None), oh, ow), (slice(None), ih, iw)


def _matrix(a: Array) -> Array:
    return np.ascontiguousarray(a).reshape(-1, a.shape[-1])


def _add_products(source: Array, filters: Array, target: Array) -> None:
    """target[n, h, w, :] += source[n, h, w, :] @ filters, without the zeros of source."""
    part = np.zeros((target.size // target.shape[-1], target.shape[-1]), target.dtype)
    _sum_lists(_matrix(source), filters, part)
    target += part.reshape(target.shape)


def _sum_lists(lists: Array, rows: Array, sums: Array) -> None:
    """sums[k] += sum over i with lists[k, i] != 0 of lists[k, i] * rows[i], in the order of i."""
    owner, index = np.nonzero(lists)
    step = max(1, BLOCK_BYTES // max(1, rows.shape[1] * rows.itemsize))
    for first in range(0, len(owner), step):
        k, i = owner[first:first + step], index[first:first + step]
        products = _multiply(lists[k, i][:, None], rows[i])
        begin = np.flatnonzero(np.diff(k, prepend=-1))
        sums[k[begin]] += np.add.reduceat(products, begin)


def _multiply(a: Array, b: Array) -> Array:
    return np.multiply(a, b)
