"""Winograd and FFT in NumPy, one pipeline: the oracle of both, and FFT's implementation.

What    y = out( filter(w) . in(x) ) for each tile of m x m outputs, which reads n x n inputs, n = m + r - 1:

            V[k][p][ic] = in(x)      U[k][ic][oc] = filter(w)      M[k][p][oc] = sum over ic of V U      y = out(M)

        over spectral points k and tiles p. dgrad is fprop of g with turned filters, whose channels are exchanged, and
        padding r - 1 - p. wgrad is filter_t( sum over p of in(x) . out_t(g) ).
Zeros   tiles reach over the border: zeros of the padding are multiplied here, and only here.
Sums    of 64 terms at a time, each from 0; in wgrad two levels of them. That keeps F(4x4, 3x3) within 2e-6.
Source  Winograd's minimal filtering by points (tile_transform.py); the convolution theorem, with the filter's
        spectrum conjugated as this is a correlation. A circular product of n >= m + r - 1 points has m
        outputs that did not wrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from alpha.ops.algorithms.family import Way, images_at_a_time, outer_at_a_time, tiles_of
from alpha.ops.algorithms.tile_transform import Winograd
from alpha.ops.conv_desc import ConvDesc, Pair, ceil_div

Array = np.ndarray

TERMS = 64  # of a sum before it is added to others


class TileTransform(Protocol):
    """Both ways from tiles to spectral points; arrays of tiles have the axes (tiles, height, width, channels)."""

    m: Pair
    n: int

    def inputs(self, d: Array) -> Array:
        """V (K, P, C) of input tiles (P, n, n, C)."""

    def filters(self, w: Array) -> Array:
        """U (K, IC, OC) of filters (OC, FH, FW, IC)."""

    def outputs(self, products: Array) -> Array:
        """Tiles (P, m, m, C) of products (K, P, C)."""

    def outputs_t(self, g: Array) -> Array:
        """The transpose of outputs: (K, P, C) of gradients (P, m, m, C)."""

    def filters_t(self, products: Array) -> Array:
        """The transpose of filters: (OC, FH, FW, IC) of products (K, OC, IC)."""


class WinogradTransform:
    """F(m x m, r x r) by dense matrices, each number rounded once."""

    def __init__(self, m: int, r: int, dtype: np.dtype) -> None:
        self.m, self.n = (m, m), m + r - 1
        self.at, self.g, self.bt = Winograd(m, r).rounded(dtype)

    def inputs(self, d: Array) -> Array:
        return _by_point(_both_axes(self.bt, d))

    def filters(self, w: Array) -> Array:
        return _by_point(_both_axes(self.g, w)).transpose(0, 2, 1)

    def outputs(self, products: Array) -> Array:
        return _both_axes(self.at, _by_tile(products, self.n))

    def outputs_t(self, g: Array) -> Array:
        return _by_point(_both_axes(self.at.T, g))

    def filters_t(self, products: Array) -> Array:
        return _both_axes(self.g.T, _by_tile(products, self.n))


class FftTransform:
    """Tiles of edge x edge, by the half spectrum of real numbers."""

    def __init__(self, edge: int, f: Pair) -> None:
        self.n, self.f = edge, f
        self.m = edge - f[0] + 1, edge - f[1] + 1

    def _spectrum(self, tiles: Array) -> Array:
        return _by_point(np.fft.rfft2(tiles, (self.n, self.n), axes=(1, 2)))

    def _tiles(self, spectrum: Array, size: Pair) -> Array:
        points = spectrum.reshape(self.n, self.n // 2 + 1, *spectrum.shape[1:])
        return np.fft.irfft2(points, (self.n, self.n), axes=(0, 1))[:size[0], :size[1]].transpose(2, 0, 1, 3)

    def inputs(self, d: Array) -> Array:
        return self._spectrum(d)

    def filters(self, w: Array) -> Array:
        return self._spectrum(w).conj().transpose(0, 2, 1)

    def outputs(self, products: Array) -> Array:
        return self._tiles(products, self.m)

    def outputs_t(self, g: Array) -> Array:
        return self._spectrum(g).conj()

    def filters_t(self, products: Array) -> Array:
        return self._tiles(products, self.f)


def transform_of(way: Way, desc: ConvDesc, dtype: np.dtype) -> TileTransform:
    """Returns the transform of a way to compute a convolution."""
    if way.name == "winograd":
        return WinogradTransform(way.tile, desc.h.f, dtype)
    return FftTransform(way.tile, (desc.h.f, desc.w.f))


def fprop(way: Way, desc: ConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y.  x (N, IH, IW, IC), w (OC, FH, FW, IC / groups), one dtype."""
    _forward(way, "fprop", desc, x, w, (desc.h.p, desc.w.p), y)


def dgrad(way: Way, desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx (N, IH, IW, IC).  g (N, OH, OW, OC)."""
    turned = w[:, ::-1, ::-1]
    turned = turned if desc.groups > 1 else turned.transpose(3, 1, 2, 0)
    _forward(way, "dgrad", desc, g, turned, (desc.h.f - 1 - desc.h.p, desc.w.f - 1 - desc.w.p), dx)


def wgrad(way: Way, desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw (OC, FH, FW, IC / groups)."""
    t, tile = tiles_of(way, "wgrad", desc), transform_of(way, desc, x.dtype)
    depthwise, step = desc.groups > 1, outer_at_a_time(way, t, desc.groups > 1)
    for first in range(0, desc.oc, step):
        part = slice(first, first + step)
        total = Sum()
        for images in images_of(way, desc, "wgrad"):
            v = tile.inputs(input_tiles(x[images], tile, (desc.h.p, desc.w.p), (desc.h.o, desc.w.o)))
            u = tile.outputs_t(output_tiles(g[images, :, :, part], tile))
            for k in range(0, v.shape[1], TERMS):
                left, right = u[:, k:k + TERMS], v[:, k:k + TERMS]
                total.add((left * right).sum(1)[:, :, None] if depthwise else np.matmul(left.transpose(0, 2, 1), right))
        dw[part] = tile.filters_t(total.value())


class Sum:
    """A sum of arrays, TERMS at a time from 0, which are then added up."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Array | None = None
        self.recent: Array | None = None

    def add(self, term: Array) -> None:
        self.recent = term if self.recent is None else np.add(self.recent, term, out=self.recent)
        self.count += 1
        if self.count % TERMS == 0:
            self.total, self.recent = self.value(), None

    def value(self) -> Array | None:
        return self.recent if self.total is None else self.total if self.recent is None else self.total + self.recent


def _forward(way: Way, pass_name: str, desc: ConvDesc, x: Array, w: Array, padding: Pair, y: Array) -> None:
    """Writes y (N, H, W, C) of a correlation of x with w (C, FH, FW, channels of x), of stride 1."""
    t, tile = tiles_of(way, pass_name, desc), transform_of(way, desc, x.dtype)
    depthwise, size = desc.groups > 1, y.shape[1:3]
    step = outer_at_a_time(way, t, depthwise)
    for first in range(0, y.shape[3], step):
        part = slice(first, first + step)
        u = tile.filters(np.ascontiguousarray(w[part]))
        for images in images_of(way, desc, pass_name):
            v = tile.inputs(input_tiles(x[images], tile, padding, size))
            products = v * u if depthwise else _product(v, u)
            write_tiles(tile.outputs(products), y[images, :, :, part], tile.m)


def images_of(way: Way, desc: ConvDesc, pass_name: str) -> Iterator[slice]:
    step = images_at_a_time(way, tiles_of(way, pass_name, desc))
    return (slice(n, n + step) for n in range(0, desc.n, step))


def _product(v: Array, u: Array) -> Array:
    """Returns the product per spectral point, of at most TERMS terms at a time."""
    y = np.matmul(v[..., :TERMS], u[:, :TERMS])
    for k in range(TERMS, v.shape[2], TERMS):
        y += np.matmul(v[..., k:k + TERMS], u[:, k:k + TERMS])
    return y


def _both_axes(matrix: Array, tiles: Array) -> Array:
    """Returns matrix . tile . matrix^T for each tile (P, a, b, C)."""
    p, a, b, c = tiles.shape
    rows = np.matmul(matrix, np.ascontiguousarray(tiles).reshape(p, a, b * c)).reshape(p, -1, b, c)
    return np.matmul(matrix, rows)


def _by_point(tiles: Array) -> Array:
    """Returns (points, P, C) of (P, height, width, C)."""
    p, a, b, c = tiles.shape
    return np.ascontiguousarray(tiles.transpose(1, 2, 0, 3)).reshape(a * b, p, c)


def _by_tile(products: Array, n: int) -> Array:
    """Returns (P, n, n, C) of (points, P, C)."""
    _, p, c = products.shape
    return products.reshape(n, n, p, c).transpose(2, 0, 1, 3)


def _grid(size: Pair, m: Pair) -> Pair:
    return ceil_div(size[0], m[0]), ceil_div(size[1], m[1])


def input_tiles(x: Array, tile: TileTransform, padding: Pair, size: Pair) -> Array:
    """Returns the tiles (P, n, n, C) that outputs of a size read; they overlap, and are padded with zeros."""
    (rows, columns), (mh, mw) = _grid(size, tile.m), tile.m
    before = padding
    after = [max(0, (count - 1) * m + tile.n - p - i) for count, m, p, i in
             zip((rows, columns), tile.m, padding, x.shape[1:3])]
    padded = np.pad(x, ((0, 0), (before[0], after[0]), (before[1], after[1]), (0, 0)))
    sn, sh, sw, sc = padded.strides
    tiles = as_strided(padded, (len(x), rows, columns, tile.n, tile.n, x.shape[3]),
                       (sn, mh * sh, mw * sw, sh, sw, sc), writeable=False)
    return tiles.reshape(-1, tile.n, tile.n, x.shape[3])


def output_tiles(g: Array, tile: TileTransform) -> Array:
    """Returns the tiles (P, m, m, C) of a map, filled up with zeros."""
    (rows, columns), (mh, mw) = _grid(g.shape[1:3], tile.m), tile.m
    filled = np.pad(g, ((0, 0), (0, rows * mh - g.shape[1]), (0, columns * mw - g.shape[2]), (0, 0)))
    return filled.reshape(len(g), rows, mh, columns, mw, g.shape[3]).transpose(0, 1, 3, 2, 4, 5).reshape(
        -1, mh, mw, g.shape[3])


def write_tiles(tiles: Array, y: Array, m: Pair) -> None:
    (rows, columns), (n, h, w, c) = _grid(y.shape[1:3], m), y.shape
    whole = tiles.reshape(n, rows, columns, *m, c).transpose(0, 1, 3, 2, 4, 5)
    y[...] = whole.reshape(n, rows * m[0], columns * m[1], c)[:, :h, :w]
