"""Work lists of tiles whose filters stay in shared memory (held_filters.cuh).

Multiprocessors are dealt to the filters by their share of the time. Of the tiles that read the same ones the next in
the batch goes to whoever is free first, so that all multiprocessors are at the same images: tiles of other columns read
the same pixels at that time, and write the rest of the same lines of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from alpha.cuda.conv.wgmma.pixels import CLASS, Pixels
from alpha.cuda.conv.wgmma.schedule import Tiles, WorkList, deal
from alpha.ops.conv_desc import ceil_div

FILTERS = ("runs_h", "runs_w", "tap_h", "tap_h_step", "tap_w", "tap_w_step", "run", "length")  # of a class


def held_list(tiles: Tiles) -> WorkList:
    """Returns the list whose multiprocessors all have as much to do.

    No sum is cut: an entry's slot is 1 where its filters are to be loaded, which are other ones than those of the entry
    before, else 0.
    """
    items = tiles.items()
    key = np.ravel_multi_index((items["group"], items["column"] // tiles.columns,
                                _filters(tiles.pixels)[items["class"]]), _key_shape(tiles))
    order = np.lexsort((items["pixel"], items["class"], items["image"], key))
    items, key = items[order], key[order]
    each, count = _keys(tiles)
    owner = np.concatenate([units[np.argsort(starts, kind="stable")]
                            for units, starts in _deal(each, count, min(tiles.sm_count, items.size))])
    order = np.argsort(owner, kind="stable")
    items, key, owner = items[order], key[order], owner[order]
    changes = np.ones(items.size, dtype=bool)
    changes[1:] = (key[1:] != key[:-1]) | (owner[1:] != owner[:-1])
    items["slot"] = changes
    owner = np.unique(owner, return_inverse=True)[1]  # a tile longer than a share leaves multiprocessors without one
    lists = tiles.lists(items, owner, np.arange(items.size), each[key])
    return WorkList(lists, lists[:0, 0], 0)


def held_makespan(tiles: Tiles) -> tuple[float, float]:
    """Returns what the busiest block of `held_list` does, and the mean; no list is made."""
    each, count = _keys(tiles)
    units = min(tiles.sm_count, int(count.sum()))
    load = np.zeros(units)
    for cost, (which, _) in zip(each[count > 0].tolist(), _deal(each, count, units)):
        number = np.bincount(which, minlength=units)
        load += number * cost + tiles.costs.filters * (number > 0)
    return float(load.max()), float(load.mean())


def _filters(pixels: Pixels) -> np.ndarray:
    """Returns for each class the number of the filters that it reads."""
    found = pixels.classes[:, [CLASS.index(name) for name in FILTERS]]
    return np.unique(found, axis=0, return_inverse=True)[1].ravel()


def _key_shape(tiles: Tiles) -> tuple[int, int, int]:
    return tiles.pixels.groups, ceil_div(tiles.pixels.columns, tiles.columns), len(tiles.pixels.classes)


def _keys(tiles: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a tile takes, and how many there are, by what they read: group, tile of columns, filters."""
    shape, filters = _key_shape(tiles), _filters(tiles.pixels)
    each = np.zeros(shape)
    each[:, :, filters] = tiles.cost(np.arange(shape[2]), tiles.pixels.sums)
    there = np.minimum(tiles.pixels.columns - np.arange(shape[1]) * tiles.columns, tiles.columns)
    each -= tiles.costs.tile * (1 - there / there.max())[:, None] / 2  # half of a tile's end is storing its columns
    count = np.bincount(filters, tiles.counts // (shape[0] * shape[1]), shape[2]).astype(np.int64)
    return each.ravel(), np.tile(count, shape[0] * shape[1])


def _deal(each: np.ndarray, count: np.ndarray, units: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields for each key that has tiles their units, and when these begin with them.

    A unit has a part in as many keys as fill its share of the time, in their order, one after the other.
    """
    share, done = float(each @ count) / units, 0.0
    for cost, tiles in zip(each[count > 0].tolist(), count[count > 0].tolist()):
        until = done + cost * tiles
        first = min(int(done / share), units - 1)
        some = np.arange(first, max(first + 1, min(ceil(until / share), units)))
        begin, end = (np.clip(at - some * share, 0, share) for at in (done, until))  # of each unit's part
        number = np.bincount(deal(share - (end - begin), cost, tiles), minlength=len(some))
        place = np.arange(tiles) - np.repeat(np.cumsum(number) - number, number)
        yield np.repeat(some, number), np.repeat(begin, number) + place * cost
        done = until
