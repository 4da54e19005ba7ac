"""dgrad of a first layer of 64 filters of 3x3x3 on tensor cores, from sm_80 on: conv_stem_mma_dgrad.cu.

Modes are those of alpha.cuda.conv.first_layer.mma.stem_mma. A warp computes a band of lines of dx, and reads the
lines of g for it once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.first_layer.mma.stem_mma import MODES, Mode
from alpha.cuda.conv.first_layer.stem import channels_refusal, float32_filters
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array
from alpha.ops.conv_desc import ConvDesc, ceil_div

WARPS, POSITIONS, CHANNELS, TAPS, COLUMNS = 4, 32, 64, 3, 32  # of the kernel; columns of a product, in blocks of 8
PLACES = 6                              # of w's fragments
PER_BAND = 2                            # what a band takes beside its lines of g, in lines: an estimate


class Bands(NamedTuple):
    """How an image is cut: lines of a band of dx, bands and segments of an image, and the first position of g's lines
    that is of any use."""

    height: int
    per_height: int
    segments: int
    first: int

    @property
    def per_image(self) -> int:
        return self.per_height * self.segments


@lru_cache(maxsize=256)
def bands_of(desc: ConvDesc, warps: int) -> Bands:
    """Returns the bands that so many warps at a time do first."""
    h, w = desc.h, desc.w
    first = max(0, w.p - w.f + 1)  # a wide padding has positions of g that meet nothing but padding
    segments = 1 + max(0, ceil_div(min(w.o, w.i + w.p) - first - POSITIONS, POSITIONS + 1 - w.f))

    def lines(height: int) -> int:  # of g, that a warp goes through
        return ceil_div(desc.n * segments * ceil_div(h.i, height), warps) * (height + h.f - 1 + PER_BAND)

    height = min(sorted({ceil_div(h.i, bands) for bands in range(1, h.i + 1)}, reverse=True), key=lines)
    return Bands(height, ceil_div(h.i, height), segments, first)


class StemMmaDgrad(Candidate):
    """stem_mma_dgrad in a mode."""

    pass_name = "dgrad"

    def __init__(self, mode: Mode) -> None:
        self.mode, self.precisions, self.name = mode, (mode.precision,), f"conv_stem_mma_dgrad {mode.precision}"
        self.reads = self.writes = mode.dtype
        shared = PLACES * 8 * CHANNELS * ITEMSIZE[mode.dtype] * (2 if mode.products == 3 else 1)
        self.kernel = Kernel(
            "conv_stem_mma_dgrad.cu", "stem_mma_dgrad", "ptr g, ptr w, ptr dx, i32 images, i32 ih, i32 iw, i32 ic, "
            "i32 oh, i32 ow, i32 oc, i32 fh, i32 fw, i32 pad_h, i32 pad_w, i32 height, i32 bands, i32 segments, "
            "i32 first", threads=32 * WARPS, shared=shared, defines=mode.defines)
        self.blocks = 3 if mode.products == 1 else 2  # resident on a multiprocessor

    def _bands(self, desc: ConvDesc) -> Bands:
        return bands_of(desc, device().sm_count * self.blocks * WARPS)

    def rejection(self, desc: ConvDesc) -> str | None:
        if refused := channels_refusal(desc):
            return refused
        if any(axis.s > 1 or axis.d > 1 for axis in (desc.h, desc.w)):
            return "strides and dilations of 1 are served"
        if (desc.h.f, desc.w.f, desc.ic, desc.oc) != (TAPS, TAPS, TAPS, CHANNELS):
            return f"{desc.oc} filters of {desc.h.f}x{desc.w.f}x{desc.ic}, {CHANNELS} of 3x3x3 are served"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        bands, c = self._bands(desc), device().table.stem_mma
        lines = desc.n * bands.segments * (desc.h.i + bands.per_height * (desc.h.f - 1))  # of g
        products = lines * POSITIONS * COLUMNS * CHANNELS * self.mode.products
        itemsize = ITEMSIZE[self.mode.dtype]  # float32 has half the rate
        return Cost((Stage(products * itemsize / c.dgrad, "mma", desc.nbytes(itemsize) / c.dram["dgrad"], "dram",
                           c.depth["dgrad"], c.launches["dgrad"]),))

    def prepare(self, desc: ConvDesc) -> Launch:
        bands, kernel, h, w = self._bands(desc), self.kernel, desc.h, desc.w
        grid = min(ceil_div(desc.n * bands.per_image, WARPS), context.sm_count * self.blocks)
        sizes = desc.n, h.i, w.i, desc.ic, h.o, w.o, desc.oc, h.f, w.f, h.p, w.p, *bands

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, float32_filters(w), dx, *sizes)
        return launch


CANDIDATES = tuple(StemMmaDgrad(mode) for mode in MODES)
