"""Depthwise convolution of any filters, with any number of them per channel: conv_depthwise.cu."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.ffma.schedule_wgrad import tap_table
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, upload
from alpha.ops.conv_desc import ConvDesc, TapClass, ceil_div

THREADS = 256                         # of conv_depthwise.cu
LANES = 32                            # along the channels, at most
BLOCKS = 6                            # resident on a multiprocessor
SLICE_BYTES = 32 << 20
GATHER_ARGS = ("ptr in, ptr w, ptr bias, ptr out, ptr table_h, ptr table_w, i32 positions, i32 height, i32 width, "
               "i32 in_height, i32 in_width, i32 in_channels, i32 channels, i32 fw, i32 taps, i32 tap_step_h, "
               "i32 tap_step_w, i32 step_h, i32 step_w, i32 divisor, i32 terms, i32 lanes, i32 relu, i32 unused")
WGRAD_ARGS = ("ptr x, ptr g, ptr slices, ptr tap_table, i64 x_image, i64 g_image, i32 images, i32 channels, "
              "i32 multiplier, i32 x_h, i32 x_w, i32 g_h, i32 lanes, i32 share")
SUM = Kernel("conv_depthwise.cu", "depthwise_sum", "ptr slices, ptr dw, i32 count, i32 taps, i32 channels",
             threads=512)


def lanes_for(channels: int) -> int:
    """Returns how many threads side by side share the channels: a power of two."""
    return min(LANES, 1 << (channels - 1).bit_length())


def axis_table(size: int, classes: Iterable[TapClass]) -> np.ndarray:
    """Returns int32 (size, 4): first tap, number of taps, position that the first one reads."""
    table = np.zeros((size, 4), np.int32)
    for c in classes:
        for position, start in zip(c.positions, c.starts):
            table[position, :3] = c.tap, c.count, start
    return table


class Depthwise(Candidate):
    """A pass of a depthwise convolution."""

    def __init__(self, pass_name: str, kernel: Kernel) -> None:
        self.pass_name, self.kernel = pass_name, kernel
        self.name = f"depthwise_{pass_name}"

    def rejection(self, desc: ConvDesc) -> str | None:
        if desc.groups != desc.ic:
            return f"{desc.ic // desc.groups} input channels per group, not 1"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        c = device().table.depthwise
        more = c.multiplied[self.pass_name] if desc.oc > desc.ic else 1.0
        return Cost((Stage(desc.useful_flops / c.efficiency, "fma", more * desc.nbytes() / c.dram, "dram", c.depth,
                           c.launches),))

    def prepare(self, desc: ConvDesc) -> Launch:
        return self._wgrad(desc) if self.pass_name == "wgrad" else self._gather(desc)

    def _gather(self, desc: ConvDesc) -> Launch:
        h, w, multiplier, fprop = desc.h, desc.w, desc.oc // desc.ic, self.pass_name == "fprop"
        if fprop:
            classes, shapes, steps = (h.fprop_classes, w.fprop_classes), (desc.y_shape, desc.x_shape), (1, 1, h.d, w.d)
        else:
            classes, shapes = (h.dgrad_classes, w.dgrad_classes), (desc.x_shape, desc.y_shape)
            first_h, first_w = h.dgrad_classes[0], w.dgrad_classes[0]  # steps are the same for all inputs
            steps = first_h.tap_step, first_w.tap_step, first_h.step, first_w.step
        (n, height, width, channels), (_, *read) = shapes
        tables = [upload(axis_table(*each)) for each in zip((height, width), classes)]
        positions, lanes = n * height * width, lanes_for(channels)
        column_tiles = ceil_div(channels, lanes)
        # enough blocks to fill the device a few times, each for many positions
        blocks = min(ceil_div(positions, THREADS // lanes), ceil_div(4 * BLOCKS * context.sm_count, column_tiles))
        sizes = (positions, height, width, *read, channels, w.f, h.f * w.f, *steps,
                 *((multiplier, 1) if fprop else (1, multiplier)), lanes)
        kernel = self.kernel

        def launch(x: Array, weight: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel((blocks, column_tiles), x, weight, b, y, *tables, *sizes, relu, 0)
        return launch

    def _wgrad(self, desc: ConvDesc) -> Launch:
        h, w, taps, multiplier = desc.h, desc.w, desc.h.f * desc.w.f, desc.oc // desc.ic
        table = upload(tap_table(desc))
        lanes = lanes_for(desc.oc)
        column_tiles, rows = ceil_div(desc.oc, lanes), THREADS // lanes
        lines = desc.n * h.o
        slices = max(1, min(ceil_div(BLOCKS * context.sm_count, column_tiles * taps), lines // rows,
                            SLICE_BYTES // (4 * taps * desc.oc)))
        share = ceil_div(lines, slices)
        sizes = (h.i * w.i * desc.ic, h.o * w.o * desc.oc, desc.n, desc.oc, multiplier, h.s * w.i * desc.ic,
                 w.s * desc.ic, w.o * desc.oc, lanes, share)
        kernel, grid, sum_grid = self.kernel, (slices, column_tiles, taps), ceil_div(taps * desc.oc, LANES)

        def launch(x: Array, g: Array, dw: Array) -> None:
            parts = empty((slices, taps, desc.oc), "float32")
            kernel(grid, x, g, parts, table, *sizes)
            SUM(sum_grid, parts, dw, slices, taps, desc.oc)
        return launch


_ENTRIES = {"fprop": ("gather", GATHER_ARGS), "dgrad": ("gather", GATHER_ARGS), "wgrad": ("wgrad", WGRAD_ARGS)}
CANDIDATES = tuple(Depthwise(name, Kernel("conv_depthwise.cu", f"depthwise_{entry}", args, threads=THREADS))
                   for name, (entry, args) in _ENTRIES.items())
