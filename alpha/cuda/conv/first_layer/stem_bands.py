"""dgrad to at most four channels of 3x3 filters that move by one: conv_stem_bands.cu."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.cuda.conv.first_layer.stem import (
    MOST_CHANNELS,
    THREADS,
    columns_refusal,
    estimate_3x3_us,
    float32_filters,
    refusal_of_3x3,
)
from alpha.cuda.conv.planner import Launch, register
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array
from alpha.ops.conv_desc import ConvDesc, ceil_div

RUN, COLUMNS = 8, 64                # of conv_stem_bands.cu
WARPS, WARP_RUNS = THREADS // 32, 2
BLOCKS = (4, 4, 4, 3)               # on a multiprocessor, by channels of x
PER_BAND = 3                        # what a band takes beside its lines of dx, in lines: an estimate
INSTRUCTIONS = {4: 1.0, 2: 1.11}    # of a line, by an element's bytes: 16 bits are converted
SEEN = 0.19                         # of alpha.cuda.conv.first_layer.stem.estimate_us


class Bands(NamedTuple):
    """How an image is cut: runs of a line, lines of a band of dx, bands of an image."""

    runs: int
    height: int
    per_image: int


@lru_cache(maxsize=256)
def bands_of(desc: ConvDesc, warps: int) -> Bands:
    """Returns the bands that so many warps at a time do first."""
    runs = ceil_div(desc.w.i, RUN)
    pairs = ceil_div(desc.n * runs, WARP_RUNS)

    def lines(height: int) -> int:  # that a warp goes through
        return ceil_div(pairs * ceil_div(desc.h.i, height), warps) * (height + PER_BAND)

    height = min(sorted({ceil_div(desc.h.i, bands) for bands in range(1, desc.h.i + 1)}, reverse=True), key=lines)
    return Bands(runs, height, ceil_div(desc.h.i, height))


class StemBandsDgrad:
    """stem_bands_dgrad of one storage type; see alpha.cuda.conv.planner for the members."""

    pass_name, takes_guard = "dgrad", False

    def __init__(self, dtype: str) -> None:
        self.reads = self.writes = dtype
        self.itemsize = ITEMSIZE[dtype]
        self.name = "stem_bands_dgrad" if dtype == "float32" else f"stem_bands_dgrad {dtype}"
        self.kernels = tuple(Kernel(
            "conv_stem_bands.cu", "stem_bands_dgrad", "ptr g, ptr w, ptr dx, i32 images, i32 ih, i32 iw, i32 oh, "
            "i32 ow, i32 oc, i32 pad_h, i32 pad_w, i32 runs, i32 height, i32 bands", threads=THREADS,
            defines={"CHANNELS": ic, "ELEMENT": C_TYPES[dtype]}) for ic in range(1, MOST_CHANNELS + 1))

    def fits(self, desc: ConvDesc) -> str:
        return refusal_of_3x3(desc) or columns_refusal(desc, COLUMNS)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        padded = COLUMNS / desc.oc * INSTRUCTIONS[self.itemsize]
        return estimate_3x3_us(desc, sm_count, padded, SEEN, self.itemsize)

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        return 0.0  # what it costs is known at once

    def prepare(self, desc: ConvDesc) -> Launch:
        bands, h, w = bands_of(desc, context.sm_count * BLOCKS[desc.ic - 1] * WARPS), desc.h, desc.w
        kernel = self.kernels[desc.ic - 1]
        grid = ceil_div(ceil_div(desc.n * bands.runs, WARP_RUNS) * bands.per_image, WARPS)
        sizes = desc.n, h.i, w.i, h.o, w.o, desc.oc, h.p, w.p, *bands

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, float32_filters(w), dx, *sizes)
        return launch


register(*(StemBandsDgrad(dtype) for dtype in C_TYPES))
