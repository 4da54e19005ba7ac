"""Tiles of the matrix products by mma.sync: the host's view of gemm_mma.cuh."""

from __future__ import annotations

from typing import NamedTuple

from alpha.cuda.conv.costs import device
from alpha.cuda.runtime.context import OLDEST

ITEMSIZE = 2  # bytes of an element of a plane


class MmaTile(NamedTuple):
    """Sizes of a tile: rows x columns, of which a warp has warp_rows x warp_columns; planes of an operand; buffers;
    blocks per multiprocessor that registers allow.  Members have the names of those of conv.ffma.gemm.Tile."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    planes: int
    stages: int
    blocks: int
    k: int = 32
    vector: int = 8
    needs: tuple[int, int] = OLDEST  # compute capability

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    @property
    def defines(self) -> dict[str, str | int]:
        return {"TILE_M": self.rows, "TILE_N": self.columns, "WARP_M": self.warp_rows, "WARP_N": self.warp_columns,
                "OPERAND_PLANES": self.planes, "PIPELINE": self.stages, "MIN_BLOCKS": self.blocks}

    @property
    def slab_bytes(self) -> int:
        return (self.rows + self.columns) * self.k * self.planes * ITEMSIZE

    def shared_bytes(self, a_kmajor: bool = True, b_kmajor: bool = True) -> int:
        """Returns the dynamic shared memory of a block, whichever way round the operands lie."""
        return self.stages * self.slab_bytes

    def staged_bytes(self, a_kmajor: bool = True, b_kmajor: bool = True) -> int:
        """Returns that where copies pass through registers: one buffer of two planes, two of one."""
        return 2 // self.planes * self.slab_bytes

    def slab_clocks(self, b_kmajor: bool = True) -> float:
        """Returns the clocks that a full multiprocessor spends on a slab: on products, on shared memory, or on copies
        from the L2 cache, whichever takes longest."""
        on, c = device(), device().table.mma
        products = self.planes * (self.planes + 1) // 2
        multiplied = products * self.rows * self.columns * self.k / on.mma
        read = self.threads // 32 * (self.warp_rows + self.warp_columns) * self.k * self.planes * ITEMSIZE
        shared = (read + self.slab_bytes) / c.shared_bytes
        copied = self.slab_bytes * on.sm_count * on.clocks_per_us / (c.l2 * on.l2)
        return max(multiplied, shared, copied) / c.efficiency


TILES = {1: (MmaTile(128, 128, 64, 64, 1, 4, 2), MmaTile(128, 64, 64, 32, 1, 4, 3), MmaTile(64, 64, 32, 32, 1, 4, 4)),
         2: (MmaTile(128, 64, 64, 32, 2, 3, 2), MmaTile(64, 64, 32, 32, 2, 3, 3))}
