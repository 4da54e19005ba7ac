"""wgrad of 3x3 filters over at most four channels: conv_stem_window.cu."""

from __future__ import annotations

import numpy as np

from alpha.cuda.conv.ffma.gemm import LAUNCH_US
from alpha.cuda.conv.ffma.sk_dilated import SUM_SLICES
from alpha.cuda.conv.first_layer.stem import MOST_CHANNELS, columns_refusal, estimate_3x3_us, refusal_of_3x3
from alpha.cuda.conv.planner import UNGUARDED, Launch, register
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, upload
from alpha.ops.conv_desc import ConvDesc, ceil_div

TAPS, RUN, COLUMNS = 3, 32, 64         # of conv_stem_window.cu
WARPS, DEPTH = 4, 16                   # of a block; pixels of g that a warp copies ahead, a power of two
BLOCKS = 2                             # on a multiprocessor
LEAST_PIXELS = 16                      # of a warp: fewer are all start and end
SPLIT = 32                             # of conv/sum_slices.cu
SEEN = 0.29                            # of alpha.cuda.conv.first_layer.stem.estimate_us


class StemWindowWgrad:
    """stem_window_wgrad; see alpha.cuda.conv.planner for the members."""

    pass_name, reads, writes, takes_guard = "wgrad", "float32", "float32", False
    name = "stem_window_wgrad"

    def __init__(self) -> None:
        self.kernels = [Kernel(
            "conv_stem_window.cu", "stem_window_wgrad", "ptr x, ptr g, ptr work, i32 images, i32 ih, i32 iw, i32 oh, "
            "i32 ow, i32 oc, i32 pad_h, i32 pad_w, i32 run", threads=32 * WARPS, shared=shared_bytes(ic),
            defines={"CHANNELS": ic, "WARPS": WARPS, "DEPTH": DEPTH, "MIN_BLOCKS": BLOCKS})
            for ic in range(1, MOST_CHANNELS + 1)]

    def fits(self, desc: ConvDesc) -> str:
        return refusal_of_3x3(desc) or columns_refusal(desc, COLUMNS)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        return 2 * LAUNCH_US + estimate_3x3_us(desc, sm_count, COLUMNS / desc.oc, SEEN)

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        return 0.0  # what it costs is known at once

    def prepare(self, desc: ConvDesc) -> Launch:
        h, w, kernel = desc.h, desc.w, self.kernels[desc.ic - 1]
        pixels = ceil_div(desc.n, 2) * h.o * w.o  # of two images at a time
        blocks = min(context.sm_count * BLOCKS, ceil_div(pixels, WARPS * LEAST_PIXELS))
        run = ceil_div(w.o, ceil_div(w.o, RUN))
        sizes = desc.n, h.i, w.i, h.o, w.o, desc.oc, h.p, w.p, run
        row = TAPS * TAPS * desc.ic
        floats = COLUMNS * row
        sums = upload(np.array([(0, blocks, 0, 1, desc.oc * row, 0, 0, 0)], np.int32))  # SumTile in sum_slices.cu

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((blocks * floats,), "float32")
            kernel(blocks, x, g, work, *sizes)
            SUM_SLICES((floats * SPLIT // 1024, 1), work, dw, sums, floats, floats, floats, SPLIT, *UNGUARDED)
        return launch


def shared_bytes(ic: int) -> int:
    """Returns what the rings and the columns of a block take."""
    record = ceil_div(TAPS * ic, 4) * 4
    return 4 * WARPS * (DEPTH * 128 + 4 * (RUN + TAPS - 1) * record)


register(StemWindowWgrad())
