"""Tiles of the matrix products behind convolutions and matmul: the host's view of gemm_ffma.cuh."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.costs.records import Key
from alpha.cuda.conv.split import Share
from alpha.cuda.runtime.context import OLDEST
from alpha.plan import Cost, Stage


class Tile(NamedTuple):
    """Sizes of a tile: rows x columns, by slabs of k; rows x columns of one thread; buffers; blocks per multiprocessor;
    the number of floats that one copy moves: 4 where all chunks are aligned to 16 bytes, else 1; and the terms of sums
    that are made from 0 each before they are added up, 0: all."""

    rows: int
    columns: int
    k: int
    thread_rows: int
    thread_columns: int
    stages: int
    blocks: int
    vector: int = 4
    terms: int = 0

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.k}/{self.threads}" + ("" if self.vector == 4 else " unaligned")

    @property
    def key(self) -> Key:
        """The key of its constants."""
        return self.rows, self.columns, self.k, self.threads, self.vector

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def defines(self) -> dict[str, int]:
        return {"TILE_M": self.rows, "TILE_N": self.columns, "TILE_K": self.k, "THREAD_M": self.thread_rows,
                "THREAD_N": self.thread_columns, "PIPELINE": self.stages, "VECTOR": self.vector,
                "MIN_BLOCKS": self.blocks, **({"TERMS": self.terms} if self.terms else {})}

    def shared_bytes(self, a_kmajor: bool, b_kmajor: bool) -> int:
        """Returns the dynamic shared memory of a block; K-major rows are padded by four floats."""
        return 4 * self.stages * (self.rows * (self.k + 4 * a_kmajor) + self.columns * (self.k + 4 * b_kmajor))

    def staged_bytes(self, a_kmajor: bool, b_kmajor: bool) -> int:
        """Returns that where copies pass through registers: one buffer."""
        return self.shared_bytes(a_kmajor, b_kmajor) // self.stages

    @property
    def needs(self) -> tuple[int, int]:
        """The compute capability that its kernels need."""
        return OLDEST

    def clocks(self, efficiency: float) -> float:
        """Returns the clocks that a full multiprocessor spends on a slab.  efficiency: of the FMA rate."""
        return self.rows * self.columns * self.k / (device().fma * efficiency)

    def slab_clocks(self, b_kmajor: bool = False) -> float:
        """Returns those of fprop, dgrad and matmul."""
        taken = device().table.ffma.tiles[self.key]
        return self.clocks(taken.rate * (taken.kmajor if b_kmajor else 1))


# What fprop, dgrad and matmul choose from. Tiles with 8x8 elements per thread are fastest on large products, those with
# 8x4 come close with twice the warps, and flat ones waste less where a tap class or a batch has few rows.
TILES = (Tile(64, 64, 16, 8, 8, 3, 6), Tile(64, 64, 16, 8, 4, 3, 4), Tile(32, 64, 16, 8, 4, 3, 8),
         Tile(32, 32, 16, 4, 4, 3, 8), Tile(16, 64, 16, 4, 4, 4, 8), Tile(64, 64, 16, 8, 8, 3, 4, vector=1),
         Tile(32, 32, 16, 4, 4, 3, 8, vector=1))


def makespan(slab_clocks: float, threads: int, work: list[Share]) -> Cost:
    """Returns what a launch costs, which ends with its last block: that goes to the queue that is done first.

    Args:
        slab_clocks: of a full multiprocessor.
        threads: of a block.
        work: the shares of the blocks, the longest first, in which order they start.
    """
    sm_count, c = device().sm_count, device().table.ffma
    queues = max(1, 128 // threads)  # a block of two warps uses half of the four schedulers
    slices = max(share.slices for share in work)
    clocks = [(share.blocks, share.slabs * slab_clocks * queues + c.tile_clocks + (share.slices > 1) * c.slice_clocks)
              for share in work]
    ends = np.zeros(sm_count * queues)
    for count, each in clocks:
        whole, rest = divmod(count, len(ends))
        ends += whole * each
        ends.sort()
        ends[:rest] += each
    end = float(ends.max()) + clocks[-1][1] * (1 / c.alone - 1)  # the last block has its queue to itself
    if slices > 1:
        end += c.slice_clocks + slices * c.add_clocks
    return Cost((Stage(end, "clocks", depth=c.depth, launches=c.launches),))
