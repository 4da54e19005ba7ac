"""Explicit im2col: im2col.cu around a product that the planner finds, to compare with."""

from __future__ import annotations

import struct
from math import prod

from alpha.config import config
from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.planner import Candidate, Launch, plan, precision_of
from alpha.cuda.conv.schedule import POINT, oversized
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty
from alpha.ops.algorithms.family import MIB
from alpha.ops.algorithms.names import Request
from alpha.ops.conv_desc import ConvDesc, ceil_div

DIRECT = Request("direct")
WORKSPACE_MIB, THREADS, MOST_BLOCKS = 512, 256, 1 << 20
_WINDOWS = struct.Struct("q16i")    # Windows of im2col.cu
_IM2COL, _COL2IM = (Kernel("im2col.cu", entry, f"ptr {source}, ptr {target}, block[{_WINDOWS.size}] windows",
                           threads=THREADS) for entry, source, target in (("im2col", "x", "columns"),
                                                                          ("col2im", "columns", "dx")))


class Im2col(Candidate):
    """A pass by explicit columns."""

    algorithm = "im2col"

    def __init__(self, pass_name: str) -> None:
        self.pass_name, self.name = pass_name, f"im2col {pass_name}"

    def rejection(self, desc: ConvDesc) -> str | None:
        needed, limit = self.cost(desc).workspace / MIB, config.conv_workspace_mib or WORKSPACE_MIB
        if needed > limit:
            return f"needs {needed:,.0f} MiB of workspace, the limit is {limit:,}"
        reason = oversized(desc) or oversized(_product(desc))
        return f"has {reason}" if reason else None

    def cost(self, desc: ConvDesc) -> Cost:
        one, columns = device().table.conversion, 4 * prod(_shape(desc))
        product = plan(self.pass_name, _product(desc), precision_of("float32"), DIRECT)
        us = next(option.time_us for option in product.options if option.candidate is product.chosen)
        x = 4 * prod(desc.x_shape)
        return Cost((Stage(nbytes=columns + x, depth=one.depth, launches=one.launches), Stage(us)), columns)

    def prepare(self, desc: ConvDesc) -> Launch:
        inner, shape, h, w = _product(desc), _shape(desc), desc.h, desc.w
        multiply = plan(self.pass_name, inner, precision_of("float32"), DIRECT).launch
        pixels = desc.n * (h.i * w.i if self.pass_name == "dgrad" else h.o * w.o)
        windows = _WINDOWS.pack(pixels, h.i, w.i, desc.ic, h.o, w.o, h.f, w.f, h.s, w.s, h.p, w.p, h.d, w.d,
                                desc.ic // desc.groups, 0, 0)
        kernel = _COL2IM if self.pass_name == "dgrad" else _IM2COL
        size = prod(desc.x_shape) if self.pass_name == "dgrad" else prod(shape)
        grid = min(MOST_BLOCKS, ceil_div(size, THREADS))

        def dgrad(g: Array, weight: Array, dx: Array) -> None:
            columns = empty(inner.x_shape, "float32")
            multiply(g.reshaped(inner.y_shape), weight.reshaped(inner.w_shape), columns)
            kernel(grid, columns, dx, windows)

        second, written = inner.w_shape, inner.y_shape
        if self.pass_name == "wgrad":
            second, written = written, second

        def of_columns(x: Array, other: Array, out: Array, *epilogue: object) -> None:
            columns = empty(inner.x_shape, "float32")
            kernel(grid, x, columns, windows)
            multiply(columns, other.reshaped(second), out.reshaped(written), *epilogue)
        return dgrad if self.pass_name == "dgrad" else of_columns


def _shape(desc: ConvDesc) -> tuple[int, int]:
    """Rows and columns of all groups."""
    return desc.n * desc.h.o * desc.w.o, desc.h.f * desc.w.f * desc.ic


def _product(desc: ConvDesc) -> ConvDesc:
    rows, columns = _shape(desc)
    return ConvDesc(rows, columns, desc.oc, POINT, POINT, desc.groups)


CANDIDATES = tuple(map(Im2col, ("fprop", "dgrad", "wgrad")))
