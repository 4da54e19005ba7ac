"""Calls of the compiled Winograd kernels (alpha/cpu/kernels/winograd/winograd.cpp); arrays are C-contiguous float32.

Ask native.usable first. With a dilation d, of which the padding is a multiple, every d-th pixel is a map of its own.
y and g may be wider than the convolution says: `first` is then the first of their channels that is meant. So the groups
of a convolution are one after the other, each of them some of the channels of x and y.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from alpha.cpu import native
from alpha.cpu.memory import empty
from alpha.ops.algorithms.family import Way, one_group
from alpha.ops.algorithms.tile_transform import Winograd
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc

Array = np.ndarray
_FIRST = np.zeros(1, np.int64)   # of the only level


def fprop(way: Way, desc: ConvDesc, x: Array, w: Array, y: Array, bias: Array | None = None,
          relu: bool = False, first: int = 0, add: bool = False) -> None:
    """y = x * w (+ bias), then max(y, 0) if relu.  add: y is a summand of its own, before relu."""
    for one, i, o in groups(desc):
        base, places = _map("fprop", way, one, x.shape[3], y.shape[3]), (_ptr(bias, o), _ptr(y, first + o))
        filters = _prepared(base, way, one, w, o)
        if filters is None:
            _forward(base, way, one, _ptr(x, i), _filters(w, o), places[1], places[0], relu, False, add)
        else:
            shape, work = _workspace(base)
            native.loaded().winograd_run(native.table_ptr(shape), native.table_ptr(_table(way, one)), _ptr(x, i),
                                         _ptr(filters), *places, _ptr(work), relu, add)


def _prepared(base: Array, way: Way, one: ConvDesc, w: Array, first: int) -> Array | None:
    """Returns the transformed filters of channels out from `first` on, where a recording has them made once."""
    def make(w: Array) -> Array:
        library, shape = native.loaded(), base.copy()
        filters = empty((library.winograd_filter_floats(_ptr(shape)),))
        library.winograd_filters(_ptr(shape), _ptr(_table(way, one)), _filters(w, first), _ptr(filters))
        return filters
    return native.prepared(w, (way, one, first), make)


def _workspace(base: Array) -> tuple[Array, Array]:
    """Returns the map with the number of threads, and memory for a call that has its filters."""
    library, shape = native.loaded(), base.copy()
    at = native.table_ptr(shape)
    total = library.winograd_floats(at)     # which writes the number of threads
    return shape, empty((total - library.winograd_filter_floats(at),))


def dgrad(way: Way, desc: ConvDesc, g: Array, w: Array, dx: Array, first: int = 0, add: bool = False) -> None:
    """dx = the gradient with respect to x, which is fprop of g with turned filters; if add, dx += that."""
    for one, i, o in groups(desc):
        _forward(_map("dgrad", way, one, dx.shape[3], g.shape[3]), way, one, _ptr(g, first + o), _filters(w, o),
                 _ptr(dx, i), None, False, True, add)


def wgrad(way: Way, desc: ConvDesc, x: Array, g: Array, dw: Array, first: int = 0) -> None:
    """dw = the gradient with respect to w."""
    for one, i, o in groups(desc):
        of_map = _map("wgrad", way, one, x.shape[3], g.shape[3])
        _wgrad(of_map, _FIRST, _table(way, one), _ptr(x, i), _ptr(g, first + o), _filters(dw, o))


def groups(desc: ConvDesc) -> Iterator[tuple[ConvDesc, int, int]]:
    """Yields the convolution of each group, and its first channels of x and of y."""
    one = one_group(desc) if desc.groups > 1 else desc
    return ((one, k * one.ic, k * one.oc) for k in range(desc.groups))


def levels_wgrad(way: Way, desc: CoConvDesc, x: Array, g: Array, dw: Array) -> None:
    """dw of all levels of a contextual convolution, of one way."""
    _wgrad(*_levels("wgrad", way, desc), _table(way, desc.levels[0][1]), _ptr(x), _ptr(g), _ptr(dw))


def _wgrad(base: Array, firsts: Array, table: Array, x: Any, g: Any, dw: Any) -> None:
    library, shapes = native.loaded(), base.copy()
    work = empty((library.winograd_wgrad_floats(native.table_ptr(shapes), len(firsts)),))
    library.winograd_wgrad(native.table_ptr(shapes), len(firsts), native.table_ptr(firsts), native.table_ptr(table), x,
                           g, dw, _ptr(work))


def levels(pass_name: str, way: Way, desc: CoConvDesc, source: Array, w: Array, out: Array, bias: Array | None = None,
           relu: bool = False) -> None:
    """All levels of a contextual convolution, of one way: y of x, or with pass_name "dgrad" dx of g."""
    library, (base, firsts) = native.loaded(), _levels(pass_name, way, desc)
    shapes, turned = base.copy(), pass_name == "dgrad"
    work = empty((library.winograd_levels_floats(native.table_ptr(shapes), len(firsts)),))
    library.winograd_levels(native.table_ptr(shapes), len(firsts), native.table_ptr(firsts),
                            native.table_ptr(_table(way, desc.levels[0][1])), _ptr(source), _ptr(w), _ptr(bias),
                            _ptr(out), _ptr(work), relu, turned)


def pool(way: Way, desc: ConvDesc, x: Array, w: Array, bias: Array | None, y: Array) -> None:
    """y = the largest of each 2 x 2 of relu(x * w + bias), which is not kept."""
    library, (base, points) = native.loaded(), tables("fprop", way, desc)
    shape, work = _workspace(base)
    filters = _prepared(base, way, desc, w, 0)
    if filters is None:
        filters = empty((library.winograd_filter_floats(native.table_ptr(shape)),))
        library.winograd_filters(native.table_ptr(shape), native.table_ptr(points), _ptr(w), _ptr(filters))
    library.winograd_pool(native.table_ptr(shape), native.table_ptr(points), _ptr(x), _ptr(filters), _ptr(bias),
                          _ptr(y), _ptr(work))


def _forward(base: Array, way: Way, desc: ConvDesc, x: Any, w: Any, y: Any, bias: Any, relu: bool, turned: bool,
             add: bool) -> None:
    library, shape = native.loaded(), base.copy()
    work = empty((library.winograd_floats(native.table_ptr(shape)),))
    library.winograd_forward(native.table_ptr(shape), native.table_ptr(_table(way, desc)), x, w, bias, y, _ptr(work),
                             relu, turned, add)


@lru_cache(maxsize=1024)
def _map(pass_name: str, way: Way, desc: ConvDesc, of_x: int, of_y: int) -> Array:
    """Returns Map of winograd.hpp, without the number of threads.

    of_x, of_y: channels from a pixel of x or dx to the next, and of y or g.
    """
    h, w, r, d = desc.h, desc.w, desc.h.f, desc.h.d
    x, y, padding = (h.i, w.i, desc.ic), (h.o, w.o, desc.oc), (h.p // d, w.p // d)
    if pass_name == "dgrad":
        padding = r - 1 - padding[0], r - 1 - padding[1]
        return np.array([desc.n, *y, *x, *padding, way.tile, r, d, of_y, of_x, 0], np.int64)
    return np.array([desc.n, *x, *y, *padding, way.tile, r, d, of_x, of_y, 0], np.int64)


@lru_cache(maxsize=1024)
def _levels(pass_name: str, way: Way, desc: CoConvDesc) -> tuple[Array, Array]:
    """Returns the maps of all levels, one behind the other, and the first channel of each."""
    maps = [_map(pass_name, way, level, desc.x_shape[3], desc.y_shape[3]) for _, level in desc.levels]
    return np.concatenate(maps), np.array([first for first, _ in desc.levels], np.int64)


@lru_cache(maxsize=16)
def _tile_table(m: int, r: int) -> Array:
    return Winograd(m, r).table


def _table(way: Way, desc: ConvDesc) -> Array:
    return _tile_table(way.tile, desc.h.f)


def tables(pass_name: str, way: Way, desc: ConvDesc, of_x: int = 0, of_y: int = 0) -> tuple[Array, Array]:
    """Returns the map, without the number of threads, and the transform's matrices, as the kernels take them.

    of_x, of_y: channels of x and of y or g, if those of desc are a part of them.
    """
    return _map(pass_name, way, desc, of_x or desc.ic, of_y or desc.oc), _table(way, desc)


def _filters(w: Array, first: int) -> Any:
    """Returns the address of the filters of channels out from `first` on."""
    return _ptr(w, first * (w.size // len(w)))


def _ptr(a: Array | None, first: int = 0) -> Any:
    """Returns the address of an array's elements, from number `first` on."""
    return None if a is None else ctypes.c_void_p((native.ptr(a).value or 0) + 4 * first)
