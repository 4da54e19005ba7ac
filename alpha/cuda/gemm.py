"""Tiles of the matrix products behind convolutions and matmul: the host's view of kernels/gemm_ffma.cuh."""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import NamedTuple

CLOCK_GHZ = 1.6                # of an H100 under load; only ratios matter to a choice
FMA_PER_CLOCK = 128            # of a multiprocessor
TILE_CLOCKS = 1500             # before the first and after the last product of a tile
LAUNCH_US = 3.0
SIMULATED_TILES = 4096         # beyond it the last wave no longer matters


class Tile(NamedTuple):
    """Sizes of a tile: rows x columns, by slabs of k; rows x columns of one thread; buffers; blocks per multiprocessor.

    `efficiency` is the fraction of the FMA rate that it reaches while a multiprocessor is full, on an H100 by
    CLOCK_GHZ; `vector` the number of floats that one copy moves: 4 where all chunks are aligned to 16 bytes, else 1.
    """

    rows: int
    columns: int
    k: int
    thread_rows: int
    thread_columns: int
    stages: int
    blocks: int
    efficiency: float
    vector: int = 4

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.k}/{self.threads}" + ("" if self.vector == 4 else " unaligned")

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def defines(self) -> dict[str, int]:
        return {"TILE_M": self.rows, "TILE_N": self.columns, "TILE_K": self.k, "THREAD_M": self.thread_rows,
                "THREAD_N": self.thread_columns, "PIPELINE": self.stages, "VECTOR": self.vector,
                "MIN_BLOCKS": self.blocks}

    def shared_bytes(self, a_kmajor: bool, b_kmajor: bool) -> int:
        """Returns the dynamic shared memory of a block; K-major rows are padded by four floats."""
        return 4 * self.stages * (self.rows * (self.k + 4 * a_kmajor) + self.columns * (self.k + 4 * b_kmajor))

    @property
    def rate_alone(self) -> float:
        """That of a block with a multiprocessor to itself, as a fraction: few warps do not hide latency."""
        return min(1.0, self.threads / 160)


def makespan_us(tile: Tile, slabs: list[tuple[int, int]], sm_count: int) -> float:
    """Estimates the time of a launch whose tiles are handed out longest first.

    Args:
        tile: the tile.
        slabs: pairs (number of tiles, slabs of each), most slabs first.
        sm_count: number of multiprocessors; each works on its tiles at the tile's rate, if there are enough of them.
    """
    clocks = tile.rows * tile.columns * tile.k / (FMA_PER_CLOCK * tile.efficiency)
    tiles = sum(count for count, _ in slabs)
    work = [(count, each * clocks + TILE_CLOCKS) for count, each in slabs]
    if tiles > SIMULATED_TILES:
        load = sum(count * each for count, each in work) / sm_count + work[0][1] / 2
    else:
        load = max(_longest_first(work, sm_count), work[0][1] / tile.rate_alone)
    return LAUNCH_US + load / (CLOCK_GHZ * 1e3)


def _longest_first(work: list[tuple[int, float]], sm_count: int) -> float:
    """Returns when the last multiprocessor is done if each tile goes to the one that is least loaded."""
    loads = [0.0] * sm_count
    heapify(loads)
    for count, each in work:
        for _ in range(count):
            heapreplace(loads, loads[0] + each)
    return max(loads)
