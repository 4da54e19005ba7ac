"""ConvV2 and KS-deconv, conv_slab.cu, in FFMA: what a tile costs, how long sums are cut, the launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from alpha.cuda.conv.costs import RESERVED, device, time_us
from alpha.cuda.conv.ffma.gemm import TILES, Tile, makespan
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import Slabs, dgrad_slabs, fprop_slabs, multiples, oversized
from alpha.cuda.conv.split import SPLITS, cut, refusal, shares, workspace
from alpha.cuda.lazy import EXACT_ARGS, UNFLAGGED
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context, lacks
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, upload
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Cost

ENTRIES = {"fprop": "conv_v2", "dgrad": "ks_deconv"}
SLABS = {"fprop": lru_cache(maxsize=256)(fprop_slabs), "dgrad": lru_cache(maxsize=256)(dgrad_slabs)}

# SlabTensors of conv_slab.cuh, and Exact.
SLAB_ARGS = ("ptr in, ptr w, ptr b, ptr out, ptr slots, ptr arrived, ptr classes, ptr work, i64 in_image, "
             "i64 out_image, i32 images, i32 columns, i32 w_row, i32 relu, i64 in_plane, i64 w_plane, ptr in_scale, "
             f"ptr w_scale, {EXACT_ARGS}")
UNSCALED = (0, 0, None, None, *UNFLAGGED, 0)  # of float32: no planes, scales, flags
MOST_SEGMENTS, SEGMENT_BYTES = 8, 40  # of a sum of dgrad; those of fprop have one


class ConvTile(Candidate):
    """A kernel with one tile.  `copied` names the channels, "input" or "output", that it copies 16 bytes of at a time;
    `static_shared` is the shared memory that it has beside the tiles, in bytes."""

    copied: tuple[str, ...] = ("input", "output")

    def __init__(self, tile: Tile | MmaTile, name: str, kernel: Kernel, static_shared: int) -> None:
        self.tile, self.name, self.kernel, self.static_shared = tile, name, kernel, static_shared

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block on this device."""
        return self.kernel.shared + self.static_shared

    @property
    def resident(self) -> int:
        """How many blocks of it a multiprocessor holds, as registers and this device's shared memory allow."""
        if not context.max_shared:  # no device yet
            return self.tile.blocks
        blocks = self.tile.blocks * 3 // 4 if context.staged else self.tile.blocks  # as copies.cuh has it
        return max(1, min(blocks, (context.max_shared + RESERVED) // (self.shared + RESERVED)))

    def slab_clocks(self) -> float:
        """Returns the clocks that a full multiprocessor spends on a slab."""
        raise NotImplementedError

    def least_us(self, desc: ConvDesc) -> float:
        """Returns the time of the products alone, shared evenly among multiprocessors that are full."""
        tile, on = self.tile, device()
        clocks = self.slab_clocks() / (tile.rows * tile.columns * tile.k) * desc.useful_flops / 2
        return clocks / on.sm_count / on.clocks_per_us

    def rejection(self, desc: ConvDesc) -> str | None:
        if lacking := lacks(self.kernel.needs):
            return lacking
        channels = multiples(desc)
        if any(channels[name] % self.tile.vector for name in self.copied):
            numbers = " and ".join(f"{channels[name]} {name}" for name in self.copied)
            return f"{numbers} channels of a group are no multiples of {self.tile.vector}"
        if self.shared > context.max_shared:
            return f"{self.shared} bytes of shared memory, the device has {context.max_shared}"
        return oversized(desc)


class SlabTile(ConvTile):
    """A tile of conv_v2, for fprop, or of ks_deconv, for dgrad, whose sums may be cut into slices.

    Args:
        pass_name: "fprop" or "dgrad".
        elements: the macros ELEMENT and OUT of tiles on tensor cores.
    """

    splits = SPLITS  # into how many slices the longest sums may be cut

    def __init__(self, pass_name: str, tile: Tile | MmaTile, name: str = "", elements: dict[str, str] | None = None
                 ) -> None:
        self.pass_name, self.b_kmajor = pass_name, pass_name == "fprop"
        rows, segments = 2 * tile.rows + tile.columns * self.b_kmajor, 1 if self.b_kmajor else MOST_SEGMENTS
        kernel = Kernel("conv_slab.cu", ENTRIES[pass_name], SLAB_ARGS, threads=tile.threads, needs=tile.needs,
                        defines={**tile.defines, **(elements or {})}, shared=tile.shared_bytes(True, self.b_kmajor),
                        staged=tile.staged_bytes(True, self.b_kmajor))
        super().__init__(tile, name or f"{ENTRIES[pass_name]} {tile}", kernel,
                         8 * rows + SEGMENT_BYTES * segments + 64)
        self.slabs_of: Callable[[ConvDesc | CoConvDesc], Slabs] = SLABS[pass_name]
        self.copied = ("input",) if pass_name == "fprop" else ("input", "output")

    def rejection(self, desc: ConvDesc) -> str | None:
        if self.pass_name == "dgrad" and len(desc.levels) > MOST_SEGMENTS:
            return f"{len(desc.levels)} levels, a sum has at most {MOST_SEGMENTS} segments"
        return super().rejection(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        return self.cheapest(desc)[1]

    def slab_clocks(self) -> float:
        return self.tile.slab_clocks(self.b_kmajor)

    def cheapest(self, desc: ConvDesc | CoConvDesc) -> tuple[int, Cost]:
        """Returns into how many slices the longest sums are cut, so that all is done first, and what that costs."""
        sums, slab_clocks, blocks = self.sums(desc), self.slab_clocks(), self.resident * device().sm_count
        return min(((split, makespan(slab_clocks, self.tile.threads, shares(sums, split))) for split in self.splits
                    if split == 1 or not refusal(sums, split, blocks)), key=lambda option: time_us(option[1]))

    def sums(self, desc: ConvDesc | CoConvDesc) -> list[tuple[int, int]]:
        """Returns (number of tiles, slabs of each) per class, the longest first."""
        return self.slabs_of(desc).slabs(self.tile.rows, self.tile.columns, self.tile.k)

    def prepare(self, desc: ConvDesc) -> Launch:
        run = self.run_of(desc)

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            run(x, w, y, epilogue, UNSCALED)
        return launch

    def run_of(self, desc: ConvDesc | CoConvDesc) -> Callable[..., None]:
        """Returns run(in, w, out, epilogue, scaled): a launch, `scaled` being what reading planes takes."""
        slabs, tile, (counts, each) = self.slabs_of(desc), self.tile, zip(*self.sums(desc))
        work, slots = cut(slabs.work(tile.rows, tile.columns), np.repeat(each, counts), self.cheapest(desc)[0])
        kernel, grid, arrays = self.kernel, len(work), (upload(slabs.classes), upload(work))
        floats = tile.rows * tile.columns
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.columns, slabs.w_row

        def run(x: Any, w: Any, y: Array, epilogue: Epilogue, scaled: tuple[Any, ...]) -> None:
            b, relu = epilogue
            kernel(grid, x, w, b, y, *workspace(slots, floats), *arrays, *sizes, relu, *scaled)
        return run


CANDIDATES = tuple(SlabTile(pass_name, tile) for pass_name in SLABS for tile in TILES)
