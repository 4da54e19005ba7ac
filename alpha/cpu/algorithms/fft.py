"""FFT's convolution in float32: transforms by NumPy, products by the compiled grouped 1x1 convolution.

A complex number is a pair of real ones, and a complex product a real one of twice the channels:

    [Re M, Im M] = [Re V, Im V] [[Re U, Im U], [-Im U, Re U]]

so that V and M are what NumPy's transforms read and write, (tiles, spectral points, channels, 2), and the product over
all spectral points is a convolution of 1x1 maps with as many groups as there are points. Its sums have an order that
no number of threads changes. tiles.py is the oracle, and says what the pipeline is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from alpha.cpu import native
from alpha.cpu.algorithms import tiles
from alpha.cpu.memory import empty
from alpha.ops.algorithms.family import Way, outer_at_a_time, tiles_of
from alpha.ops.conv_desc import Axis, ConvDesc, Pair

Array = np.ndarray


def fprop(way: Way, desc: ConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y.  groups of 1."""
    _forward(way, "fprop", desc, x, w, (desc.h.p, desc.w.p), y)


def dgrad(way: Way, desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx."""
    turned = w[:, ::-1, ::-1].transpose(3, 1, 2, 0)
    _forward(way, "dgrad", desc, g, turned, (desc.h.f - 1 - desc.h.p, desc.w.f - 1 - desc.w.p), dx)


def wgrad(way: Way, desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw."""
    t, tile = tiles_of(way, "wgrad", desc), tiles.FftTransform(way.tile, (desc.h.f, desc.w.f))
    step = outer_at_a_time(way, t, False)
    for first in range(0, desc.oc, step):
        part = slice(first, first + step)
        total = tiles.Sum()
        for images in tiles.images_of(way, desc, "wgrad"):
            v = _spectrum(tile, tiles.input_tiles(x[images], tile, (desc.h.p, desc.w.p), (desc.h.o, desc.w.o)))
            u = _spectrum(tile, tiles.output_tiles(g[images, :, :, part], tile))
            k, ic, oc = t.points, v.shape[3], u.shape[3]
            d = empty((k * 2 * oc, 1, 1, 2 * ic))
            native.conv_wgrad(_products(len(v), k, 2 * ic, 2 * oc), _real(v), _real(u), d)
            d = d.reshape(k, oc, 2, ic, 2)
            products = np.empty((k, oc, ic), np.complex64)
            products.real = d[:, :, 0, :, 0] + d[:, :, 1, :, 1]     # V times the conjugate of g's spectrum
            products.imag = d[:, :, 0, :, 1] - d[:, :, 1, :, 0]
            total.add(products)
        dw[part] = tile.filters_t(total.value())


def _forward(way: Way, pass_name: str, desc: ConvDesc, x: Array, w: Array, padding: Pair, y: Array) -> None:
    """Writes y (N, H, W, C) of a correlation of x with w (C, FH, FW, channels of x), of stride 1."""
    t, tile = tiles_of(way, pass_name, desc), tiles.FftTransform(way.tile, (desc.h.f, desc.w.f))
    step = outer_at_a_time(way, t, False)
    for first in range(0, y.shape[3], step):
        part = slice(first, first + step)
        spectrum = _spectrum(tile, np.ascontiguousarray(w[part]))
        oc, ic, k = len(spectrum), x.shape[3], t.points
        spectrum = spectrum.reshape(oc, k, ic).transpose(1, 0, 2)
        u = empty((k, oc, 2, ic, 2))                                # of the conjugate: this is a correlation
        u[:, :, 0, :, 0] = u[:, :, 1, :, 1] = spectrum.real
        u[:, :, 0, :, 1], u[:, :, 1, :, 0] = spectrum.imag, -spectrum.imag
        for images in tiles.images_of(way, desc, pass_name):
            v = _spectrum(tile, tiles.input_tiles(x[images], tile, padding, y.shape[1:3]))
            m = np.empty((*v.shape[:3], oc), np.complex64)
            native.conv_fprop(_products(len(v), k, 2 * ic, 2 * oc), _real(v), u.reshape(-1, 1, 1, 2 * ic), _real(m))
            whole = np.fft.irfft2(m, (tile.n, tile.n), axes=(1, 2))[:, :tile.m[0], :tile.m[1]]
            tiles.write_tiles(whole, y[images, :, :, part], tile.m)


def _spectrum(tile: tiles.FftTransform, blocks: Array) -> Array:
    """Returns the half spectrum (P, E, E / 2 + 1, C) of tiles."""
    return np.ascontiguousarray(np.fft.rfft2(blocks, (tile.n, tile.n), axes=(1, 2)))


def _real(spectrum: Array) -> Array:
    """Returns (P, 1, 1, points * C * 2) of (P, E, E / 2 + 1, C), the same memory."""
    return spectrum.view(np.float32).reshape(len(spectrum), 1, 1, -1)


@lru_cache(maxsize=1024)
def _products(count: int, points: int, inner: int, outer: int) -> ConvDesc:
    axis = Axis(i=1, o=1, f=1, s=1, p=0, d=1)
    return ConvDesc(count, points * inner, points * outer, axis, axis, points)
