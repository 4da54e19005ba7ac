"""Tiles of the matrix products behind convolutions and matmul: the host's view of gemm_ffma.cuh."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.split import Share

SIMULATED_BLOCKS = 4096        # beyond it the last wave no longer matters

Blocks = tuple[float, ...]     # clocks of each, the oldest first


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

    def clocks(self, efficiency: float) -> float:
        """Returns the clocks that a full multiprocessor spends on a slab.  efficiency: of the FMA rate."""
        return self.rows * self.columns * self.k / (device().fma * efficiency)

    def slab_clocks(self, b_kmajor: bool = False) -> float:
        """Returns those of fprop, dgrad and matmul."""
        efficiency, kmajor = device().table.ffma.tiles[str(self)]
        return self.clocks(efficiency * (kmajor if b_kmajor else 1))


# What fprop, dgrad and matmul choose from. Tiles with 8x8 elements per thread are fastest on large products, those with
# 8x4 come close with twice the warps, and flat ones waste less where a tap class or a batch has few rows.
TILES = (Tile(64, 64, 16, 8, 8, 3, 6), Tile(64, 64, 16, 8, 4, 3, 4), Tile(32, 64, 16, 8, 4, 3, 8),
         Tile(32, 32, 16, 4, 4, 3, 8), Tile(16, 64, 16, 4, 4, 4, 8), Tile(64, 64, 16, 8, 8, 3, 4, vector=1),
         Tile(32, 32, 16, 4, 4, 3, 8, vector=1))


def makespan(slab_clocks: float, threads: int, resident: int, work: list[Share]) -> Cost:
    """Returns what a launch costs, which ends with its last block.

    Args:
        slab_clocks: of a full multiprocessor.
        threads, resident: of a block, and how many blocks a multiprocessor holds.
        work: the shares of the blocks, the longest first, in which order they start.
    """
    sm_count, c = device().sm_count, device().table.ffma
    queues = max(1, 128 // threads)  # a block of two warps uses half of the four schedulers
    slices = max(share.slices for share in work)
    clocks = [(share.blocks, share.slabs * slab_clocks * queues + c.tile_clocks + (share.slices > 1) * c.slice_clocks)
              for share in work]
    if sum(share.blocks for share in work) > SIMULATED_BLOCKS:
        end = sum(count * each for count, each in clocks) / (sm_count * queues) + clocks[0][1] / 2
    else:
        end = _end(clocks, sm_count * queues, max(1, resident // queues), 2 if slices > 1 else 1, c.alone)
    if slices > 1:
        end += c.slice_clocks + slices * c.add_clocks
    return Cost((Stage(end, "clocks", depth=c.depth, launches=c.launches),))


def _end(work: list[tuple[int, float]], queues: int, resident: int, together: int, alone: float
         ) -> float:
    """Returns when the last block is done, in clocks.

    Blocks start in turn in all queues, up to `resident` in each, which serves the oldest first. It takes up new ones
    `together` at a time: where all blocks are alike those of a queue end at about the same time. Of queues that get
    there at the same time the one with the least to do is first. Queues that hold the same blocks are followed as one.
    alone: rate of a queue that has one block.
    """
    def served(held: Blocks) -> float:  # how long a queue needs for its oldest block
        return held[0] if len(held) > 1 else held[0] / alone

    waiting = [[count, each] for count, each in reversed(work) if count]
    groups: list[tuple[int, Blocks]] = [(queues, ())]
    for _ in range(resident):
        groups = [(some, held + blocks) for count, held in groups for some, blocks in _taken(waiting, count, 1)]
    ends = [(served(held), sum(held), number, count, held) for number, (count, held) in enumerate(groups) if held]
    heapify(ends)
    together, number, now = min(together, resident), len(ends), 0.0
    while ends:
        now, _, _, count, held = heappop(ends)
        for some, blocks in _taken(waiting, count, together if len(held) - 1 <= resident - together else 0):
            left = held[1:] + blocks
            if left:
                number += 1
                heappush(ends, (now + served(left), sum(left), number, some, left))
    return now


def _taken(waiting: list[list], queues: int, wanted: int) -> list[tuple[int, Blocks]]:
    """Hands `wanted` blocks to each queue in turn.  Returns (number of queues, what each of them got).

    Args:
        waiting: [number, clocks] of blocks that are alike, the next ones last; what is handed out is taken away.
    """
    found: list[tuple[int, Blocks]] = []
    while queues and wanted and waiting:
        run = waiting[-1]
        some, blocks = (min(queues, run[0] // wanted), wanted) if run[0] >= wanted else (1, run[0])
        found.append((some, (run[1],) * blocks))
        queues -= some
        run[0] -= some * blocks
        if not run[0]:
            waiting.pop()
    return [*found, (queues, ())] if queues else found
