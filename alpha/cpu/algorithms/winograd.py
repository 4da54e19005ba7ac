"""Calls of the compiled Winograd kernels (alpha/cpu/kernels/winograd/winograd.cpp); arrays are C-contiguous float32.

Ask native.usable first.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np

from alpha.cpu import native
from alpha.cpu.memory import empty
from alpha.ops.algorithms.family import Way
from alpha.ops.algorithms.tile_transform import Winograd
from alpha.ops.conv_desc import ConvDesc

Array = np.ndarray


def fprop(way: Way, desc: ConvDesc, x: Array, w: Array, y: Array, bias: Array | None = None,
          relu: bool = False) -> None:
    """y = x * w (+ bias), then max(y, 0) if relu."""
    _forward(_map("fprop", way, desc), way, desc, x, w, y, bias, relu, False)


def dgrad(way: Way, desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """dx = the gradient with respect to x, which is fprop of g with turned filters."""
    _forward(_map("dgrad", way, desc), way, desc, g, w, dx, None, False, True)


def wgrad(way: Way, desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """dw = the gradient with respect to w."""
    library, shape = native.loaded(), _map("wgrad", way, desc).copy()
    work = empty((library.winograd_floats(_ptr(shape), True),))
    library.winograd_wgrad(_ptr(shape), _ptr(_table(way, desc)), _ptr(x), _ptr(g), _ptr(dw), _ptr(work))


def pool(way: Way, desc: ConvDesc, x: Array, w: Array, bias: Array | None, y: Array) -> None:
    """y = the largest of each 2 x 2 of relu(x * w + bias), which is not kept."""
    library, (base, points) = native.loaded(), tables("fprop", way, desc)
    shape = base.copy()
    total, count = library.winograd_floats(_ptr(shape), False), library.winograd_filter_floats(_ptr(shape))
    filters, work = empty((count,)), empty((total - count,))
    library.winograd_filters(_ptr(shape), _ptr(points), _ptr(w), _ptr(filters))
    library.winograd_pool(_ptr(shape), _ptr(points), _ptr(x), _ptr(filters), _ptr(bias), _ptr(y), _ptr(work))


def _forward(base: Array, way: Way, desc: ConvDesc, x: Array, w: Array, y: Array, bias: Array | None, relu: bool,
             turned: bool) -> None:
    library, shape = native.loaded(), base.copy()
    work = empty((library.winograd_floats(_ptr(shape), False),))
    library.winograd_forward(_ptr(shape), _ptr(_table(way, desc)), _ptr(x), _ptr(w), _ptr(bias), _ptr(y), _ptr(work),
                             relu, turned)


@lru_cache(maxsize=4096)
def _map(pass_name: str, way: Way, desc: ConvDesc) -> Array:
    """Returns Map of winograd.hpp, without the number of threads."""
    h, w, r = desc.h, desc.w, desc.h.f
    x, y = (h.i, w.i, desc.ic), (h.o, w.o, desc.oc)
    if pass_name == "dgrad":
        return np.array([desc.n, *y, *x, r - 1 - h.p, r - 1 - w.p, way.tile, r, 0], np.int64)
    return np.array([desc.n, *x, *y, h.p, w.p, way.tile, r, 0], np.int64)


@lru_cache(maxsize=16)
def _tile_table(m: int, r: int) -> Array:
    return Winograd(m, r).table


def _table(way: Way, desc: ConvDesc) -> Array:
    return _tile_table(way.tile, desc.h.f)


def tables(pass_name: str, way: Way, desc: ConvDesc) -> tuple[Array, Array]:
    """Returns the map, without the number of threads, and the transform's matrices, as the kernels take them."""
    return _map(pass_name, way, desc), _table(way, desc)


def _ptr(a: Array | None) -> ctypes.c_void_p | None:
    return None if a is None else ctypes.c_void_p(a.__array_interface__["data"][0])
