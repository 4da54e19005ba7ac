"""Work lists of tiles whose filters stay in shared memory (kernels/held_filters.cuh).

Multiprocessors are dealt to the filters by their share of the time: most have one set of filters throughout, others two
or three after each other. Of the tiles that read the same ones the next in the batch goes to whoever is free first, so
that all multiprocessors are at the same images: tiles of other columns read the same pixels at that time, and write the
rest of the same lines of memory.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from alpha.cuda.conv.schedule_wgmma import (
    CLASS,
    COSTS,
    ROWS,
    Costs,
    Pixels,
    WorkList,
    cost_of,
    entry_lists,
    sums_of,
    tile_counts,
    uncut_tiles,
)

FILTERS = ("runs_h", "runs_w", "tap_h", "tap_h_step", "tap_w", "tap_w_step", "run", "length", "lead")  # of a class


def most_blocks(pixels: Pixels) -> int:
    """Returns the blocks of the longest sum, all of whose filters must have room."""
    return int(sums_of(pixels.classes).blocks.max())


def held_list(pixels: Pixels, images: int, columns: int, sm_count: int, costs: Costs = COSTS, *, rows: int = ROWS
              ) -> WorkList:
    """Returns the list whose multiprocessors all have as much to do; see `work_list` for the arguments.

    No sum is cut: an entry's slot is 1 where its filters are to be loaded, which are other ones than those of the entry
    before, else 0.
    """
    items = uncut_tiles(pixels, images, columns, rows)
    filters = np.unique(pixels.classes[:, [CLASS.index(name) for name in FILTERS]], axis=0, return_inverse=True)[1]
    key = np.ravel_multi_index((items["group"], items["column"], filters.ravel()[items["class"]]),
                               (pixels.groups, pixels.columns, len(pixels.classes)))
    order = np.lexsort((items["pixel"], items["class"], items["image"], key))
    items, key = items[order], key[order]
    there = np.minimum(pixels.columns - items["column"], columns)
    cost = cost_of(items["class"], sums_of(pixels.classes).of(items["class"]), pixels.classes, costs)
    cost -= costs.tile * (1 - there / there.max())  # the end of a tile is the storing of its columns
    owner = _deal(cost, key, min(sm_count, items.size))
    order = np.argsort(owner, kind="stable")
    items, key, cost, owner = items[order], key[order], cost[order], owner[order]
    changes = np.ones(items.size, dtype=bool)
    changes[1:] = (key[1:] != key[:-1]) | (owner[1:] != owner[:-1])
    items["slot"] = changes
    lists = entry_lists(items, owner, np.arange(items.size), cost, pixels.classes)
    load = np.bincount(owner, cost + costs.filters * items["slot"])
    return WorkList(lists, lists[:0, 0], 0, float(load.max()))


def _deal(cost: np.ndarray, key: np.ndarray, units: int) -> np.ndarray:
    """Returns the unit of each item: of those with the same key, which follow each other and take as long, the one that
    is free first of those that have a part in the key.

    A unit has a part in as many keys as fill its share of the time, in their order, one after the other.
    """
    owner, share, done = np.zeros(cost.size, dtype=np.int64), cost.sum() / units, 0.0
    begins = np.flatnonzero(np.diff(key, prepend=-1))
    for first, end in zip(begins, [*begins[1:], cost.size]):
        count, each = int(end - first), float(cost[first])
        until = done + count * each
        some = np.arange(int(done / share), min(ceil(until / share), units))
        begin, close = (np.clip(at - some * share, 0, share) for at in (done, until))  # of each unit's part
        starts = begin + each * np.arange(int(share / each) + 2)[:, None]
        beyond = starts + each / 2 - close  # its part, where it is positive
        chosen = np.lexsort((np.where(beyond > 0, beyond, starts).ravel(), (beyond > 0).ravel()))[:count]
        owner[first:end] = some[chosen[np.argsort(starts.ravel()[chosen], kind="stable")] % some.size]
        done = until
    return np.unique(owner, return_inverse=True)[1]  # a tile longer than a share leaves units without one


def held_makespan(pixels: Pixels, images: int, columns: int, sm_count: int, costs: Costs = COSTS, *, rows: int = ROWS
                  ) -> float:
    """Returns about what the busiest block of `held_list` does, without making the list."""
    tiles, sums = tile_counts(pixels, images, columns, rows), sums_of(pixels.classes)
    each = cost_of(np.arange(len(tiles)), sums, pixels.classes, costs)
    missing = columns - pixels.columns / -(-pixels.columns // columns) if pixels.columns > columns else 0
    each = each - costs.tile * missing / columns
    longest = each[tiles > 0].max()
    return ceil(tiles @ each / min(sm_count, tiles.sum()) / longest - 0.01) * longest + costs.filters
