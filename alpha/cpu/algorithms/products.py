"""Explicit im2col, and Strassen's product, in NumPy: to compare with, and for products that are large enough.

im2col writes the window of every output as a row, zeros of the padding included, and makes one product of all rows:

    y = cols(x) W^T        dx = col2im(g W)        dW = g^T cols(x)

where col2im, which adds each row back to the pixels that it came from, is the adjoint of cols. The direct kernels read
the same windows without writing them down, and skip the padding.

Strassen's product of halves, in Winograd's form: 7 products and 15 additions where the plain one has 8 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from alpha.ops.algorithms.family import images_of_columns
from alpha.ops.conv_desc import ConvDesc

Array = np.ndarray
Product = Callable[[Array, Array], Array]


def fprop(desc: ConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y by im2col.  x (N, IH, IW, IC), w (OC, FH, FW, IC / groups), one dtype."""
    for images, xs, ws in _blocks(desc):
        columns = _columns(desc, x[images, :, :, xs])
        y[images, :, :, ws] = (columns @ _rows(w[ws]).T).reshape(*y[images, :, :, ws].shape)


def dgrad(desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx by col2im."""
    for images, xs, ws in _blocks(desc):
        rows = _dense(g[images, :, :, ws])
        part = dx[images, :, :, xs]
        part[...] = _col2im(desc, rows @ _rows(w[ws]), part.shape)


def wgrad(desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw by im2col."""
    dw[...] = 0
    for images, xs, ws in _blocks(desc):
        dw[ws] += (_dense(g[images, :, :, ws]).T @ _columns(desc, x[images, :, :, xs])).reshape(dw[ws].shape)


def _blocks(desc: ConvDesc) -> Iterator[tuple[slice, slice, slice]]:
    """Yields images, channels of x and channels of y that are worked on at a time."""
    step, icg, ocg = images_of_columns(desc), desc.ic // desc.groups, desc.oc // desc.groups
    for k in range(desc.groups):
        for n in range(0, desc.n, step):
            yield slice(n, n + step), slice(k * icg, (k + 1) * icg), slice(k * ocg, (k + 1) * ocg)


def _dense(part: Array) -> Array:
    return np.ascontiguousarray(part).reshape(-1, part.shape[3])


def _rows(w: Array) -> Array:
    return w.reshape(len(w), -1)


def _windows(desc: ConvDesc, padded: Array, writeable: bool) -> Array:
    (h, w), (sn, sh, sw, sc) = (desc.h, desc.w), padded.strides
    return as_strided(padded, (len(padded), h.o, w.o, h.f, w.f, padded.shape[3]),
                      (sn, h.s * sh, w.s * sw, h.d * sh, w.d * sw, sc), writeable=writeable)


def _columns(desc: ConvDesc, x: Array) -> Array:
    """Returns (N * OH * OW, FH * FW * C)."""
    padded = np.pad(x, ((0, 0), (desc.h.p,) * 2, (desc.w.p,) * 2, (0, 0)))
    return _windows(desc, padded, False).reshape(len(x) * desc.h.o * desc.w.o, -1)


def _col2im(desc: ConvDesc, columns: Array, shape: tuple[int, ...]) -> Array:
    """Returns the map (N, IH, IW, C) to which each column is added where it came from."""
    n, ih, iw, c = shape
    padded = np.zeros((n, ih + 2 * desc.h.p, iw + 2 * desc.w.p, c), columns.dtype)
    windows = _windows(desc, padded, True)
    values = columns.reshape(windows.shape)
    for fh in range(desc.h.f):
        for fw in range(desc.w.f):
            windows[:, :, :, fh, fw] += values[:, :, :, fh, fw]     # pixels of one tap are apart: no two are the same
    return padded[:, desc.h.p:desc.h.p + ih, desc.w.p:desc.w.p + iw]


def strassen(a: Array, b: Array, product: Product = np.matmul) -> Array:
    """Returns a (M, K) times b (K, N) by one level of halves; odd rows, terms and columns are peeled off."""
    (m, k), n = a.shape, b.shape[1]
    mh, kh, nh = m // 2, k // 2, n // 2
    y = np.empty((m, n), a.dtype)
    _halves(a[:2 * mh, :2 * kh], b[:2 * kh, :2 * nh], y[:2 * mh, :2 * nh], product)
    if k % 2:
        y[:2 * mh, :2 * nh] += a[:2 * mh, k - 1:] * b[k - 1:, :2 * nh]
    if n % 2:
        y[:2 * mh, n - 1] = a[:2 * mh] @ b[:, n - 1]
    if m % 2:
        y[m - 1] = a[m - 1] @ b
    return y


def _halves(a: Array, b: Array, y: Array, product: Product) -> None:
    m, k, n = a.shape[0] // 2, a.shape[1] // 2, b.shape[1] // 2
    a11, a12, a21, a22 = a[:m, :k], a[:m, k:], a[m:, :k], a[m:, k:]
    b11, b12, b21, b22 = b[:k, :n], b[:k, n:], b[k:, :n], b[k:, n:]

    def times(left: Array, right: Array) -> Array:
        return product(np.ascontiguousarray(left), np.ascontiguousarray(right))

    left = a21 + a22
    right = b12 - b11
    low = times(left, right)                    # (a21 + a22)(b12 - b11)
    left -= a11
    np.subtract(b22, right, out=right)
    first = times(a11, b11)
    middle = first + times(left, right)
    y[:m, :n] = first + times(a12, b21)
    y[:m, n:] = middle + low + times(a12 - left, b22)
    middle += times(a11 - a21, b22 - b12)
    y[m:, :n] = middle - times(a22, right - b21)
    y[m:, n:] = middle + low
