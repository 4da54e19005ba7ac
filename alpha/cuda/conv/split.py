"""Long sums cut into slices that blocks of their own compute at the same time (split-K): which, and where they go.

Where the tiles of a product are too few to fill the device, or too unequal to end together, the long sums are cut. A
split of s cuts the longest sums into s slices, and the others into slices that are no longer than these; nothing is cut
finer than that, so a sum may keep one block while its neighbour gets several. The kernels' half of it, and the order in
which slices are added up, is split.cuh. Neither half knows what computes a slice, or what its rows are.

    units, slots = cut(work, slabs, split)             # the work list, an entry per slice
    kernel(len(units), ..., *workspace(slots, tile.rows * tile.columns))    # at every launch: "ptr slots, ptr arrived"
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alpha.cuda.runtime.memory import Array, counters, empty
from alpha.ops.conv_desc import ceil_div

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
LEAST_SLABS = 4  # of a slice: shorter ones are all start and end
MOST_WAVES = 3   # of slices: where there are more the device is full

Sums = list[tuple[int, int]]  # (number of tiles, slabs of the sum of each), longest first


class Share(NamedTuple):
    """Blocks that have equally much to do: how many, the slabs of each, and the slices that its tile is made of."""

    blocks: int
    slabs: int
    slices: int = 1


def slices_of(slabs: int, longest: int, split: int) -> int:
    """Returns into how many slices a sum is cut, given in slabs like the longest one."""
    return max(1, ceil_div(slabs * split, max(1, longest)))


def shares(sums: Sums, split: int) -> list[Share]:
    """Returns what the blocks of a launch have to do, the longest first."""
    found = [Share(tiles * slices, ceil_div(slabs, slices), slices) for tiles, slabs in sums
             for slices in [slices_of(slabs, sums[0][1], split)]]
    return sorted(found, key=lambda share: -share.slabs)


def refusal(sums: Sums, split: int, resident: int) -> str | None:
    """Returns why a split does not pay, or None.  resident: blocks that the device runs at a time."""
    longest = sums[0][1]
    if longest < split * LEAST_SLABS:
        return f"the longest sum has {longest} slabs, and a slice of it at least {LEAST_SLABS}"
    slices = sum(share.blocks for share in shares(sums, split))
    if slices > MOST_WAVES * resident:
        return f"{slices} slices, and {resident} blocks fill the device"
    return None


def cut(work: np.ndarray, slabs: np.ndarray, split: int) -> tuple[np.ndarray, int]:
    """Cuts the tiles of a work list into slices.

    Args:
        work: int32 (tiles, 4), what a kernel knows a tile by.
        slabs: (tiles,) those of its sum.
    Returns:
        int32 (slices, 8), longest first: the entry of the tile, its first slot, number of the slice and of slices
        (`Slice` in split.cuh), and 0; and the number of slots that they need.
    """
    longest = int(slabs.max())
    slices = np.array([slices_of(each, longest, split) for each in slabs.tolist()])
    slots = np.where(slices > 1, slices, 0)
    tile = np.repeat(np.arange(len(work)), slices)
    number = np.arange(len(tile)) - np.repeat(np.cumsum(slices) - slices, slices)
    units = np.column_stack([work[tile], (np.cumsum(slots) - slots)[tile], number, slices[tile], np.zeros_like(tile)])
    order = np.argsort(-(-(-slabs // slices))[tile], kind="stable")
    return np.ascontiguousarray(units[order], dtype=np.int32), int(slots.sum())


def slots_of(tile: np.ndarray, begin: np.ndarray, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the slot of each piece of a tile, or -1, and the first slot of each tile: those of a tile follow in the
    order of its sum.  tile, begin: of each piece, and where in the sum it begins; stored: whether a tile has slots."""
    pieces = np.bincount(tile, minlength=len(stored))
    start, rank = np.cumsum(pieces * stored) - pieces * stored, np.empty(len(tile), int)
    rank[np.lexsort((begin, tile))] = np.arange(len(tile)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.where(stored[tile], start[tile] + rank, -1), start


def workspace(slots: int, tile_floats: int) -> tuple[Array | None, Array | None]:
    """Returns where the slices of a launch meet, its `Workspace`: slots for their sums, which come from the pool for
    this launch, and counters of those that have come."""
    return (empty((slots * tile_floats,), "float32"), counters(slots)) if slots else (None, None)
