"""Sk-dilated in FFMA: sk_dilated.cu with its tiles, and the sum of its slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.ffma.gemm import Tile
from alpha.cuda.conv.ffma.schedule_wgrad import TAP_FIELDS, Schedule, Tiling, schedule
from alpha.cuda.conv.ffma.slab import UNSCALED, ConvTile
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.planner import Launch
from alpha.cuda.lazy import EXACT_ARGS
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, offset, upload
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Cost, Stage

# Of 128x64 a multiprocessor would hold four blocks; three have fewer slices to add up.
TILES = (Tile(128, 128, 16, 8, 8, 4, 2), Tile(64, 64, 16, 8, 8, 3, 8), Tile(32, 32, 16, 4, 4, 4, 8),
         Tile(32, 32, 16, 4, 4, 4, 6, vector=1), Tile(128, 64, 16, 8, 8, 4, 3))
LINE_BYTES = 16  # of the table of lines, 2 * threads of them: static shared memory, which comes on top

# WgradTensors of sk_dilated.cu, and Exact.
WGRAD_ARGS = ("ptr x, ptr g, ptr dw, ptr work, ptr taps, ptr units, ptr first, i64 x_image, i64 g_image, i32 x_h, "
              "i32 x_w, i32 g_h, i32 g_w, i32 rows, i32 cols, i32 dw_row, i64 x_plane, i64 g_plane, ptr x_scale, "
              f"ptr g_scale, {EXACT_ARGS}")
_SUM_SLICES = Kernel("sum_slices.cu", "sum_slices", "ptr work, ptr dw, ptr tiles, i32 tile_quads, i32 tile_cols, "
                     "i32 dw_row, i32 split, i32 apart", threads=256)
MOST_SPLIT = 32            # threads that share an element of a sum
ENOUGH_THREADS = 1 << 17   # of a sum: more share no further


def sum_of(tiles: Any, rows: int, columns: int, dw_row: int, apart: int = 1, accumulators: bool = False
           ) -> Callable[[Array, Array], None]:
    """Returns the launch (workspace, dw) that adds up the slots of tiles of rows x columns.

    tiles: of each the first slot, the number of slots, the elements of dw up to it, and the rows and columns of it that
        exist, as `SumTile` of conv/sum_slices.cu has them.
    apart: how far the slots of a tile are from each other.
    accumulators: slots are as wgmma has them in registers.
    """
    table, quads, row = np.array(tiles, np.int32).reshape(-1, 5), rows * columns // 4, 0 if accumulators else columns
    most, threads, split = table[:, 1].max(initial=1), quads * len(tiles), 1
    while split < MOST_SPLIT and (quads * split % 256 or (2 * split <= most and threads * split < ENOUGH_THREADS)):
        split *= 2
    assert quads * split % 256 == 0, f"{rows}x{columns}: a block of 256 threads has whole parts of a tile"
    there, grid = upload(table), (quads * split // 256, len(tiles))

    def launch(work: Array, dw: Array) -> None:
        _SUM_SLICES(grid, work, dw, there, quads, row, dw_row, split, apart)
    return launch


class WgradTile(ConvTile):
    """A tile of sk_dilated, over the work list of schedule_wgrad.py.  elements: as of SlabTile."""

    pass_name = "wgrad"
    itemsize = 4  # bytes of what it reads of an element

    def __init__(self, tile: Tile | MmaTile, name: str = "", elements: dict[str, str] | None = None) -> None:
        kernel = Kernel("sk_dilated.cu", "sk_dilated", WGRAD_ARGS, threads=tile.threads, needs=tile.needs,
                        shared=tile.shared_bytes(False, False), staged=tile.staged_bytes(False, False),
                        defines={**tile.defines, **(elements or {})})
        super().__init__(tile, name or f"sk_dilated {tile}", kernel, 2 * LINE_BYTES * tile.threads)

    def slab_clocks(self) -> float:
        return self.tile.clocks(device().table.ffma.wgrad[self.tile.key].rate)

    def schedule(self, desc: ConvDesc) -> Schedule:
        tile, blocks, on = self.tile, self.resident, device()
        slab_us = self.slab_clocks() * blocks / on.clocks_per_us  # while all blocks of a multiprocessor work
        return schedule(desc, Tiling(tile.rows, tile.columns, tile.k, blocks * on.sm_count, slab_us, self.itemsize, on))

    def cost(self, desc: ConvDesc) -> Cost:
        c = device().table.ffma
        return Cost((Stage(self.schedule(desc).time_us, depth=c.depth, launches=c.launches),))

    def prepare(self, desc: ConvDesc) -> Launch:
        return self.on_operands(desc)

    def on_operands(self, desc: ConvDesc, first: int = 0, channels: int = 0) -> Launch:
        """Returns the launch (x, g, dw); first, channels: as of `run_of`."""
        run = self.run_of(desc, first, channels)

        def launch(x: Array, g: Array, dw: Array) -> None:
            run(x, offset(g, 4 * first), dw, UNSCALED)
        return launch

    def run_of(self, desc: ConvDesc, first: int, channels: int) -> Callable[..., None]:
        """Returns run(x, g, dw, scaled): a launch, and the sum of slices; `scaled` as of SlabTile.

        first, channels: if g has so many channels and dw as many filters, those of desc being from `first` on.
        """
        plan, tile, pitch, kernel = self.schedule(desc), self.tile, channels or desc.oc, self.kernel
        table = plan.taps.copy()
        table[:, TAP_FIELDS.index("g")] = table[:, TAP_FIELDS.index("g")] // desc.oc * pitch
        tables = [upload(a) for a in (table, plan.units, plan.first)]
        h, w, icg = desc.h, desc.w, desc.ic // desc.groups
        dw_row = h.f * w.f * icg
        sizes = (h.i * w.i * desc.ic, h.o * w.o * pitch, h.s * w.i * desc.ic, w.s * desc.ic, w.o * pitch, pitch,
                 desc.oc // desc.groups, icg, dw_row)
        slots, tile_floats = plan.slots, tile.rows * tile.columns
        grid, add_up = len(plan.first) - 1, sum_of(plan.sums, tile.rows, tile.columns, dw_row)

        def run(x: Any, g: Any, dw: Array, scaled: tuple[Any, ...]) -> None:
            work, out = empty((slots * tile_floats,), "float32") if slots else None, offset(dw, 4 * first * dw_row)
            kernel(grid, x, g, out, work, *tables, *sizes, *scaled)
            if work:
                add_up(work, out)
        return run


CANDIDATES = tuple(map(WgradTile, TILES))
