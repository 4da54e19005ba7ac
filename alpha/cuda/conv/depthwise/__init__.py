"""Depthwise convolution: conv_depthwise.cu, of any filters, with any number of them per channel; in any dtype, of 3x3,
5x5 or 7x7 and stride 1 or 2, conv_depthwise_strip.cu."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.ffma.schedule_wgrad import tap_table
from alpha.cuda.conv.planner import Candidate, Launch, precision_of
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty, upload
from alpha.ops.conv_desc import ConvDesc, TapClass, ceil_div
from alpha.plan import Cost, Stage

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


def _wgrad_launch(kernel: Kernel, grid: tuple[int, ...], taps: int, channels: int, *arguments: Any) -> Launch:
    """Returns the launch of a kernel whose grid begins with slices of a sum, and of the one that adds these up."""
    def launch(x: Array, g: Array, dw: Array) -> None:
        slices = empty((grid[0], taps, channels), "float32")
        kernel(grid, x, g, slices, *arguments)
        SUM(ceil_div(taps * channels, LANES), slices, dw, grid[0], taps, channels)
    return launch


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
        return _wgrad_launch(self.kernel, (slices, column_tiles, taps), taps, desc.oc, table, *sizes)


_ENTRIES = {"fprop": ("gather", GATHER_ARGS), "dgrad": ("gather", GATHER_ARGS), "wgrad": ("wgrad", WGRAD_ARGS)}
ANY = tuple(Depthwise(name, Kernel("conv_depthwise.cu", f"depthwise_{entry}", args, threads=THREADS))
            for name, (entry, args) in _ENTRIES.items())


# ---- strips ----------------------------------------------------------------------------------------------------------

STRIP_THREADS, P, VECTOR = 128, 4, 2  # of conv_depthwise_strip.cu, as all of `_Shape`
# What a tile costs beside the strips that its threads compute, by estimate: reading a pixel, a last wave of blocks, the
# beginning of each; and runs of channels of fewer bytes, by the filter, which an H200's times decided.
READ, WAVE, BEGIN = 0.3, 0.5, 0.25
SHORT = {3: (0.5, 128), 5: (0.15, 64), 7: (0.15, 64)}
FILTERS, STRIDES = (3, 5, 7), (1, 2)
_CUT = ("i32 n, i32 height, i32 width, i32 images, i32 rows, i32 columns, i32 down, i32 across, i32 lanes, "
        "i32 first_h, i32 first_w, i32 in_height, i32 in_width, i32 channels, i32 pad_h, i32 pad_w")
_STRIP_ARGS = f"ptr in, ptr w, ptr bias, ptr out, {_CUT}, i32 flipped, i32 relu"
_STRIP_WGRAD_ARGS = f"ptr x, ptr g, ptr slices, {_CUT}, i32 tiles, i32 unused"
_KERNELS = {(name, f, s): per_dtype("conv_depthwise_strip.cu", f"strip_{name}", args, threads=STRIP_THREADS,
                                    defines={"F": f, "STRIDE": s})
            for f in FILTERS for s in STRIDES
            for name, args in (("gather", _STRIP_ARGS), ("scatter", _STRIP_ARGS), ("wgrad", _STRIP_WGRAD_ARGS))
            if (name, s) != ("scatter", 1)}


class Strip(Candidate):
    """A pass of a depthwise convolution, in strips of four columns a thread."""

    def __init__(self, pass_name: str, dtype: str) -> None:
        self.pass_name, self.reads, self.writes = pass_name, dtype, "float32" if pass_name == "wgrad" else dtype
        self.name = f"depthwise_strip_{pass_name} {dtype}"
        if dtype != "float32":  # tf32 rounds float32 to float16, but here nobody does
            self.precisions = (precision_of(dtype),)

    def rejection(self, desc: ConvDesc) -> str | None:
        h, w = desc.h, desc.w
        if not desc.groups == desc.ic == desc.oc or desc.ic % VECTOR:
            return f"{desc.ic} -> {desc.oc} channels in {desc.groups} groups, not a multiple of 2, each by itself"
        if (h.f, h.s, h.d) != (w.f, w.s, w.d) or h.f not in FILTERS or h.s not in STRIDES or h.d > 1:
            return f"filters of {h.f}x{w.f}, strides {h.s}, {w.s}, dilations {h.d}, {w.d}"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        c = device().table.depthwise
        return Cost((Stage(desc.useful_flops / c.strips["fma"], "fma",
                           desc.nbytes(ITEMSIZE[self.reads]) / c.strips[self.pass_name], "dram", c.depth, c.launches),))

    def prepare(self, desc: ConvDesc) -> Launch:
        return self._wgrad(desc) if self.pass_name == "wgrad" else self._maps(desc)

    def _maps(self, desc: ConvDesc) -> Launch:
        h, w, back = desc.h, desc.w, self.pass_name == "dgrad"
        (n, height, width, c), (_, *read) = (desc.x_shape, desc.y_shape) if back else (desc.y_shape, desc.x_shape)
        scatter, flipped = back and h.s == 2, back and h.s == 1
        pads = (h.f - 1 - h.p, w.f - 1 - w.p) if flipped else (h.p, w.p)
        firsts = (-(h.p % 2), -(w.p % 2)) if scatter else (0, 0)
        blocks, tiles, cut = _Shape(h.f, h.s, self.pass_name).cut(n, height - firsts[0], width - firsts[1], c,
                                                                  ITEMSIZE[self.reads])
        sizes = (n, height, width, *cut, *firsts, *read[:2], c, *pads, flipped)
        kernel = _KERNELS["scatter" if scatter else "gather", h.f, h.s][self.reads]

        def launch(x: Array, weight: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel((blocks, tiles), x, as_float32(weight), b, y, *sizes, relu)
        return launch

    def _wgrad(self, desc: ConvDesc) -> Launch:
        h, w, c, taps = desc.h, desc.w, desc.ic, desc.h.f ** 2
        shape = _Shape(h.f, h.s, "wgrad")
        blocks, tiles, cut = shape.cut(desc.n, h.o, w.o, c, ITEMSIZE[self.reads])
        slices = max(1, min(shape.resident * context.sm_count // tiles, blocks,
                            desc.nbytes(ITEMSIZE[self.reads]) // (8 * taps * c)))
        slices = ceil_div(blocks, ceil_div(blocks, slices))
        sizes = (desc.n, h.o, w.o, *cut, 0, 0, h.i, w.i, c, h.p, w.p, blocks, 0)
        return _wgrad_launch(_KERNELS["wgrad", h.f, h.s][self.reads], (slices, tiles), taps, c, *sizes)


class _Shape:
    """How a kernel cuts maps into tiles."""

    def __init__(self, f: int, s: int, pass_name: str) -> None:
        self.f, self.s, self.wgrad, self.scatter = f, s, pass_name == "wgrad", pass_name == "dgrad" and s == 2
        self.rows = 8 if f == 3 and s == 1 else 4                            # Q of the kernel
        self.most = 43008 if f == 3 else 49152 if self.wgrad else 36096      # bytes of a tile
        self.resident = 5 if f == 3 else 4                                   # blocks of a multiprocessor
        self.vector = VECTOR if f == 3 or not self.wgrad else 1

    def pixels(self, rows: int, columns: int) -> int:
        """Returns how many pixels a tile of one image has in shared memory."""
        columns = up(columns, P)
        read = [(k + 1) // 2 + self.f // 2 if self.scatter else (k - 1) * self.s + self.f for k in (rows, columns)]
        return read[0] * read[1] + self.wgrad * rows * columns

    def cut(self, n: int, height: int, width: int, channels: int, itemsize: int) -> tuple[int, int, tuple[int, ...]]:
        """Returns the number of tiles, of tiles of channels, and images to lanes as the kernels take them.

        Of all tiles that fit the one is taken that costs least, of an output, by estimate.
        """
        least, groups = (float("inf"), 0, (0, 0, (0,))), channels // self.vector
        short, short_bytes = SHORT[self.f]
        most = lanes_for(groups)
        for lanes in (most, most // 2, most // 4) if most > 8 else (most,):
            strips, tiles, run = STRIP_THREADS // lanes, ceil_div(groups, lanes), lanes * self.vector * itemsize
            for rows in {min(height, k) for k in range(self.rows, min(height, 32) + self.rows, self.rows)}:
                for columns in {min(width, up(ceil_div(width, k), P)) for k in range(1, ceil_div(width, P) + 1)}:
                    read, down, across = self.pixels(rows, columns), ceil_div(height, rows), ceil_div(width, columns)
                    each, fit = ceil_div(rows, self.rows) * ceil_div(columns, P), self.most // (read * run)
                    images = min(n, fit, max(1, ceil_div(strips, each) if down * across == 1 else 1))
                    if not images:
                        continue
                    blocks = ceil_div(n, images) * down * across
                    computed = (up(images * each, strips) + BEGIN * strips) * lanes * self.rows * P * self.vector
                    cost = (blocks * tiles * computed / (n * height * width * channels)
                            * (1 + WAVE * self.resident * context.sm_count / (blocks * tiles))
                            + READ * read / (rows * columns) + short * (run < short_bytes))
                    found = blocks, tiles, (images, rows, columns, down, across, lanes)
                    least = min(least, (cost, -lanes, found))
        return least[2]


def up(value: int, step: int) -> int:
    """Returns the next multiple."""
    return ceil_div(value, step) * step


STRIPS = tuple(Strip(name, dtype) for name in ("fprop", "dgrad", "wgrad") for dtype in FLOAT_DTYPES)
CANDIDATES = (*ANY, *STRIPS)
