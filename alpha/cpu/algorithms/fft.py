"""FFT in float32: compiled transforms of tiles (alpha/cpu/kernels/fft_tile.cpp), and grouped 1x1 convolutions.

A complex number is a pair of real ones, and a product with the conjugate of U a real one of twice the channels:

    [Re M]   [ Re U   Im U] [Re V]
    [Im M] = [-Im U   Re U] [Im V]

so that V (tiles, spectral points, 2, channels) times U, over all spectral points, is a convolution of 1x1 maps with as
many groups as there are points; its sums have an order that no number of threads changes. U is written as the panels
that it reads, for whole vectors of channels out. dU, from V and the spectrum of g, is that convolution's wgrad.
tiles.py is the oracle, and says what the pipeline is.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np

from alpha.cpu import native
from alpha.cpu.algorithms.tiles import Sum, images_of
from alpha.cpu.conv_tables import forward_table
from alpha.cpu.memory import empty
from alpha.cpu.shape import contiguous
from alpha.ops.algorithms.family import Way, outer_at_a_time, tiles_of
from alpha.ops.conv_desc import Axis, ConvDesc, Pair, ceil_div

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
    t, f, edge = tiles_of(way, "wgrad", desc), (desc.h.f, desc.w.f), way.tile
    m, size = (edge - f[0] + 1, edge - f[1] + 1), (desc.h.o, desc.w.o)
    step = outer_at_a_time(way, t, False)
    for first in range(0, desc.oc, step):
        part = np.ascontiguousarray(g[..., first:first + step])
        oc, total = part.shape[3], Sum()
        for images in images_of(way, desc, "wgrad"):
            v = _spectra(x[images], edge, size, m, (desc.h.p, desc.w.p), (edge, edge))
            u = _spectra(part[images], edge, size, m, (0, 0), m)
            products = empty((t.points * 2 * oc, 1, 1, 2 * desc.ic))
            native.conv_wgrad(_products(len(v), t.points, 2 * desc.ic, 2 * oc), v, u, products)
            total.add(products)
        filters = _map((oc, *f, desc.ic), edge, f, f, (0, 0), f, oc)
        sums = total.value()
        assert sums is not None
        _call("fft_inverse", filters, sums, dw[first:first + step])


def _forward(way: Way, pass_name: str, desc: ConvDesc, x: Array, w: Array, padding: Pair, y: Array) -> None:
    """Writes y (N, H, W, C) of a correlation of x with w (C, FH, FW, channels of x), of stride 1."""
    t, f, edge = tiles_of(way, pass_name, desc), w.shape[1:3], way.tile
    m, ic, lanes = (edge - f[0] + 1, edge - f[1] + 1), x.shape[3], native.loaded().vector_lanes()
    step = outer_at_a_time(way, t, False)
    for first in range(0, y.shape[3], step):
        part = w[first:first + step].transpose(1, 2, 3, 0)     # taps, channels in, channels out
        written = part.shape[3]
        oc = ceil_div(written, lanes) * lanes
        filters = contiguous(part) if oc == written else np.pad(part, ((0, 0),) * 3 + ((0, oc - written),))
        u = empty((t.points * 2 * ic * 2 * oc,))
        _call("fft_tiles", _map((1, *f, ic * oc), edge, f, f, (0, 0), f, oc), filters, u)
        for images in images_of(way, desc, pass_name):
            v = _spectra(x[images], edge, y.shape[1:3], m, padding, (edge, edge))
            products = empty((len(v), 1, 1, t.points * 2 * oc))
            table = forward_table(_products(len(v), t.points, 2 * ic, 2 * oc))
            native.loaded().conv_run(*map(native.ptr, (table, v, None, u, None, products)), False, False)
            whole = oc == y.shape[3]
            out = y[images] if whole else empty((*y[images].shape[:3], oc))
            _call("fft_inverse", _map(out.shape, edge, out.shape[1:3], m, (0, 0), m, 0), products, out)
            if not whole:
                y[images, :, :, first:first + written] = out[..., :written]


def _spectra(x: Array, edge: int, size: Pair, step: Pair, padding: Pair, taken: Pair) -> Array:
    """Returns V (tiles, 1, 1, points * 2 * C) of the tiles of a map that outputs of a size read, `step` apart."""
    shape = _map(x.shape, edge, size, step, padding, taken, 0)
    count = len(x) * ceil_div(size[0], step[0]) * ceil_div(size[1], step[1])
    v = empty((count, 1, 1, edge * (edge // 2 + 1) * 2 * x.shape[3]))
    _call("fft_tiles", shape, x, v)
    return v


@lru_cache(maxsize=1024)
def _map(shape: tuple[int, ...], edge: int, size: Pair, step: Pair, padding: Pair, taken: Pair,
         filters: int) -> Array:
    """Returns Map of fft_tile.cpp."""
    grid = ceil_div(size[0], step[0]), ceil_div(size[1], step[1])
    return np.array([*shape, *grid, *step, *padding, *taken, edge, filters], np.int64)


def _call(name: str, shape: Array, source: Array, target: Array) -> None:
    getattr(native.loaded(), name)(*(ctypes.c_void_p(a.__array_interface__["data"][0])
                                     for a in (shape, source, target)))


@lru_cache(maxsize=1024)
def _products(count: int, points: int, inner: int, outer: int) -> ConvDesc:
    axis = Axis(i=1, o=1, f=1, s=1, p=0, d=1)
    return ConvDesc(count, points * inner, points * outer, axis, axis, points)
