"""dgrad of the first layer on tensor cores, from sm_80 on: conv_stem_mma_dgrad.cu.

Filters are up to 5x5, and a line of them has up to 16 weights of an output channel. Modes are those of
alpha.cuda.conv.first_layer.mma.stem_mma. A warp computes a band of lines of dx, and reads the lines of g for it once.
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

WARPS, POSITIONS, CHANNELS = 4, 32, 64  # of the kernel
TAPS, COLUMNS = 5, 16                   # of FH and FW, and of FW * IC, at most
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
        self.vector = 16 // ITEMSIZE[mode.dtype]
        self.kernels = {rgb: Kernel(
            "conv_stem_mma_dgrad.cu", "stem_mma_dgrad", "ptr g, ptr w, ptr dx, i32 images, i32 ih, i32 iw, i32 ic, "
            "i32 oh, i32 ow, i32 oc, i32 fh, i32 fw, i32 pad_h, i32 pad_w, i32 height, i32 bands, i32 segments, "
            "i32 first", threads=32 * WARPS, shared=self._shared(rgb),
            defines={**mode.defines, "RGB": int(rgb)}) for rgb in (True, False)}

    def _shared(self, rgb: bool) -> int:
        places, blocks = (6, 1) if rgb else (5, 2)  # of w's fragments; of 8 columns
        return places * blocks * 8 * CHANNELS * ITEMSIZE[self.mode.dtype] * (2 if self.mode.products == 3 else 1)

    def _blocks(self, desc: ConvDesc) -> int:
        """Returns how many blocks are resident on a multiprocessor."""
        return 3 if is_rgb(desc) and self.mode.products == 1 else 2

    def _bands(self, desc: ConvDesc) -> Bands:
        return bands_of(desc, device().sm_count * self._blocks(desc) * WARPS)

    def rejection(self, desc: ConvDesc) -> str | None:
        if refused := channels_refusal(desc):
            return refused
        if any(axis.s > 1 or axis.d > 1 for axis in (desc.h, desc.w)):
            return "strides and dilations of 1 are served"
        if max(desc.h.f, desc.w.f) > TAPS or desc.w.f * desc.ic > COLUMNS:
            return f"{desc.h.f}x{desc.w.f}x{desc.ic} filters, up to {TAPS}x{TAPS} are served"
        if desc.oc % self.vector or desc.oc > CHANNELS:
            return f"{desc.oc} output channels, multiples of {self.vector} up to {CHANNELS} are served"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        bands, c = self._bands(desc), device().table.stem_mma
        lines = desc.n * bands.segments * (desc.h.i + bands.per_height * (desc.h.f - 1))  # of g
        columns = 8 * (desc.h.f + 1 if is_rgb(desc) else desc.h.f * 2)
        channels = ceil_div(desc.oc, 4 * self.vector) * 4 * self.vector
        products = lines * POSITIONS * columns * channels * self.mode.products
        itemsize = ITEMSIZE[self.mode.dtype]  # float32 has half the rate
        return Cost((Stage(products * itemsize / c.dgrad, "mma", desc.nbytes(itemsize) / c.dram["dgrad"], "dram",
                           c.depth["dgrad"], c.launches["dgrad"]),))

    def prepare(self, desc: ConvDesc) -> Launch:
        bands, kernel, h, w = self._bands(desc), self.kernels[is_rgb(desc)], desc.h, desc.w
        grid = min(ceil_div(desc.n * bands.per_image, WARPS), context.sm_count * self._blocks(desc))
        sizes = desc.n, h.i, w.i, desc.ic, h.o, w.o, desc.oc, h.f, w.f, h.p, w.p, *bands

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, float32_filters(w), dx, *sizes)
        return launch


def is_rgb(desc: ConvDesc) -> bool:
    """Tells whether desc, which fits, is what the faster of the two kernels serves."""
    return desc.h.f == desc.w.f == desc.ic == 3 and desc.oc == CHANNELS


CANDIDATES = tuple(StemMmaDgrad(mode) for mode in MODES)
