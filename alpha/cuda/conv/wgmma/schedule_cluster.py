"""Work lists of clusters: the blocks of a cluster share one tile, of which each sums up a slice.

A cluster has one tile, and ends with it; those that do not fit onto the device wait for others to end. So clusters are
for sums of which there are fewer than multiprocessors. A cluster adds up its slices itself, in each other's shared
memory: there is no second launch.
"""

from __future__ import annotations

import numpy as np

from alpha.cuda.conv.wgmma import schedule
from alpha.cuda.conv.wgmma.schedule import COSTS, ROWS, Costs, Pixels, WorkList


def at_a_time(sm_count: int, size: int) -> int:
    """Returns how many clusters of so many blocks run at a time: 66, 30 and 15 of 2, 4 and 8 on an H100, whose 132
    multiprocessors are in groups that larger clusters do not fill."""
    return max(1, (sm_count if size <= 2 else sm_count * 10 // 11) // size)


def cluster_list(pixels: Pixels, images: int, columns: int, *, rows: int = ROWS, size: int) -> WorkList:
    """Returns the list of clusters of `size` blocks, the longest sums first; see `work_list` for the arguments."""
    tiles = schedule.uncut_tiles(pixels, images, columns, rows)
    tiles = tiles[np.argsort(-tiles["blocks"], kind="stable")]
    items = schedule.cut_evenly(tiles, np.full(tiles.size, size), pixels.classes)
    count = items.size
    lists = schedule.entry_lists(items, np.arange(count), np.zeros(count), np.ones(count), pixels.classes)
    return WorkList(lists, lists[:0, 0], 0)


def cluster_makespan(pixels: Pixels, images: int, columns: int, sm_count: int, costs: Costs = COSTS, *,
                     rows: int = ROWS, size: int) -> float:
    """Returns when the last cluster is done; no list is made."""
    tiles, sums = schedule.tile_counts(pixels, images, columns, rows), schedule.sums_of(pixels.classes)
    _, parts = schedule.slices(sums, np.full(len(tiles), size))
    of_class = np.repeat(np.arange(len(tiles)), size)
    longest = schedule.cost_of(of_class, parts, pixels.classes, costs).reshape(-1, size).max(axis=1)
    return schedule.last_load(longest, tiles, min(at_a_time(sm_count, size), int(tiles.sum())))
