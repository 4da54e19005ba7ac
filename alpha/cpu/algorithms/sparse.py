"""Calls of the compiled sparse kernels (alpha/cpu/kernels/sparse); arrays are C-contiguous float32.

Ask native.usable first.
"""

from __future__ import annotations

import numpy as np

from alpha.cpu import native
from alpha.cpu.conv_tables import dgrad_table, forward_table
from alpha.cpu.memory import empty
from alpha.ops.conv_desc import ConvDesc

Array = np.ndarray


def fprop(desc: ConvDesc, x: Array, w: Array, y: Array, bias: Array | None = None, relu: bool = False) -> None:
    """y = x * w (+ bias), then max(y, 0) if relu; no product with a zero of x is made."""
    _forward(forward_table(desc), x, w, y, bias, relu, False)


def dgrad(desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """dx = the gradient with respect to x; no product with a zero of g is made."""
    _forward(dgrad_table(desc), g, w, dx, None, False, True)


def wgrad(desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """dw = the gradient with respect to w; no product with a zero of x is made."""
    library, ptr, shape = native.loaded(), native.ptr, native.table_ptr(forward_table(desc))
    work = empty((library.sparse_wgrad_floats(shape),))
    library.sparse_wgrad(shape, ptr(x), ptr(g), ptr(dw), ptr(work))


def linear(x: Array, turned: Array, bias: Array | None, y: Array, relu: bool) -> None:
    """y = x @ turned (+ bias), then max(y, 0) if relu; rows of turned that meet zeros are not read.  turned (I, O)."""
    (inputs, outputs), ptr = turned.shape, native.ptr
    native.loaded().linear_sparse(ptr(x), ptr(turned), ptr(bias), ptr(y), len(x), inputs, outputs, relu)


def _filters(table: Array, w: Array, turned: bool) -> Array:
    """Returns the filters as the kernels read them."""
    library, shape = native.loaded(), native.table_ptr(table)
    filters = empty((library.sparse_filter_floats(shape),))
    library.sparse_filters(shape, native.ptr(w), native.ptr(filters), turned)
    return filters


def _forward(table: Array, x: Array, w: Array, y: Array, bias: Array | None, relu: bool, turned: bool) -> None:
    library, ptr, shape = native.loaded(), native.ptr, native.table_ptr(table)
    filters = native.prepared(w, ("sparse", table.tobytes()), lambda w: _filters(table, w, turned))
    if filters is None:
        filters = _filters(table, w, turned)
    work = empty((library.sparse_floats(shape),))
    library.sparse_run(shape, ptr(x), ptr(filters), ptr(bias), ptr(y), ptr(work), relu, False)
