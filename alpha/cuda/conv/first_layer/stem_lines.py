"""fprop of 3x3 filters from at most four channels on FMA units: conv_stem_lines.cu."""

from __future__ import annotations

from typing import NamedTuple

from alpha.cuda.conv.first_layer.stem import MOST_CHANNELS, estimate_3x3_us, refusal_of_3x3
from alpha.cuda.conv.planner import Launch, register
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ConvDesc, ceil_div

TAPS, RUN, LANES, COLUMNS = 3, 8, 8, 64  # of conv_stem_lines.cu
MOST_PADDING = TAPS - 1
THREADS = 256
RUNS = THREADS // LANES                  # of a tile
TILE_RUNS = (4, 8, 2, 16, 1, 32)         # of a line of a tile; the first is taken of those that waste as little
BLOCKS = {True: (2, 2, 2, 1), False: (2, 1, 1, 1)}  # on a multiprocessor, by whole runs and channels: registers
PARTS = 1.1                              # of the time, where runs are not whole
SEEN = 0.27                              # of alpha.cuda.conv.first_layer.stem.estimate_us
SHAPE_ARGS = "i32 ih, i32 iw, i32 oh, i32 ow, i32 oc, i32 pad_h, i32 pad_w, i32 lines, i32 runs, i32 span, i32 line"


class Tiles(NamedTuple):
    """How the outputs of an image are cut: lines and runs of a tile, tiles of an image."""

    lines: int
    runs: int
    per_image: int


def tiles_of(desc: ConvDesc) -> Tiles:
    """Returns the fewest tiles."""
    every = [Tiles(RUNS // runs, runs, ceil_div(desc.h.o, RUNS // runs) * ceil_div(desc.w.o, runs * RUN))
             for runs in TILE_RUNS]
    return min(every, key=lambda tiles: tiles.per_image)


class StemLinesFprop:
    """stem_lines_fprop; see alpha.cuda.conv.planner for the members."""

    pass_name, reads, writes, takes_guard = "fprop", "float32", "float32", False
    name = "stem_lines_fprop"

    def __init__(self) -> None:
        self.kernels = {(whole, ic): Kernel(
            "conv_stem_lines.cu", "stem_lines_fprop", f"ptr x, ptr w, ptr b, ptr y, {SHAPE_ARGS}, i32 tiles, i32 relu",
            threads=THREADS, defines={"CHANNELS": ic, "THREADS": THREADS, "BLOCKS": BLOCKS[whole][ic - 1],
                                      "WHOLE": int(whole)})
            for whole in BLOCKS for ic in range(1, MOST_CHANNELS + 1)}

    def fits(self, desc: ConvDesc) -> str:
        h, w = desc.h, desc.w
        if refused := refusal_of_3x3(desc):
            return refused
        if max(h.p, w.p) > MOST_PADDING:
            return f"padding {h.p}, {w.p}, up to {MOST_PADDING} is served"
        return f"{desc.oc} output channels are no multiple of 4" if desc.oc % 4 else ""

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        columns = ceil_div(desc.oc, COLUMNS) * COLUMNS / desc.oc
        positions = tiles_of(desc).per_image * RUNS * RUN / (desc.h.o * desc.w.o)
        return estimate_3x3_us(desc, sm_count, columns * positions * (PARTS if desc.w.o % RUN else 1.0), SEEN)

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        return 0.0  # what it costs is known at once

    def prepare(self, desc: ConvDesc) -> Launch:
        tiles, whole, ic = tiles_of(desc), desc.w.o % RUN == 0, desc.ic
        kernel, total, column_tiles = self.kernels[whole, ic], desc.n * tiles.per_image, ceil_div(desc.oc, COLUMNS)
        grid = min(total, max(1, context.sm_count * BLOCKS[whole][ic - 1] // column_tiles)), column_tiles
        span = (tiles.runs * RUN + TAPS - 1) * ic
        sizes = (desc.h.i, desc.w.i, desc.h.o, desc.w.o, desc.oc, desc.h.p, desc.w.p, tiles.lines, tiles.runs, span,
                 ceil_div(span, 4) * 4, total)

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool) -> None:
            kernel(grid, x, w, b, y, *sizes, relu)
        return launch


register(StemLinesFprop())
