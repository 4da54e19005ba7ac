"""Work lists of fprop and dgrad on Hopper's tensor cores: tiles in coordinates, dealt out longest first.

Tiles are dealt out, the longest first, to the multiprocessor that is free first. Where memory is what limits, a list
then goes through the batch, all classes of its first images before the next ones: what several classes read comes from
device memory once. Else it begins with the longest. Where there are too few tiles to go round, long sums are cut into
slices, tiles of their own whose results the kernel adds up, if that list is done first.

Or the blocks of a cluster share one tile, of which each sums up a slice. A cluster has one tile, and ends with it;
those that do not fit onto the device wait for others to end. So clusters are for sums of which there are fewer than
multiprocessors. A cluster adds up its slices itself, in each other's shared memory: there is no second launch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.wgmma.boxes import ROWS, Box
from alpha.cuda.conv.wgmma.pixels import CHUNK, CLASS, STEP, Pixels, Sums, field
from alpha.ops.conv_desc import ceil_div

ITEM = ("blocks", "whole", "block", "slot", "slice", "pixel", "image", "column", "group", *CLASS)
ITEM_SIZE = 32         # integers of an entry in conv_wgmma_producer.cuh: those of ITEM, in this order
END = -1               # blocks of the entry that ends a list
SLICED_WAVES = 2       # more tiles than this per multiprocessor are never cut
SLICES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


class Costs(NamedTuple):
    """What there is beside the products of a whole block, in its time: the end of a tile, the launch that adds slices
    up, each slot that this reads, and what a block takes however few its products (not measured); in a list of pairs,
    what a block takes of an output alone; and where filters are held, the change to others."""

    tile: float = 3.0
    launch: float = 3.0
    slot: float = 0.03
    block: float = 0.3
    alone: float = 1.0
    filters: float = 4.0


class Tiles(NamedTuple):
    """The tiles of a pass, and what deals them out."""

    pixels: Pixels
    box: Box         # a pixel of it: neighbouring images of one position as a rule
    columns: int     # of a tile
    sm_count: int    # blocks that run at the same time
    costs: Costs = Costs()
    rows: int = ROWS

    @property
    def boxes(self) -> int:
        """How many a tile has."""
        return self.rows // self.box.rows

    @property
    def counts(self) -> np.ndarray:
        """How many there are of each class."""
        of, images = self.pixels, ceil_div(self.pixels.images, self.box.images)
        pixels = -(-field(of.classes, "pixels").astype(np.int64) // self.boxes)
        return images * of.groups * ceil_div(of.columns, self.columns) * pixels

    def cost(self, of_class: np.ndarray, sums: Sums) -> np.ndarray:
        """Returns what items take, in whole blocks."""
        classes, costs = self.pixels.classes, self.costs
        part = -(-field(classes, "length") // STEP) * STEP % CHUNK / CHUNK  # of a block of fewer steps
        tail = costs.block + (1 - costs.block) * part[of_class]
        blocks = sums.whole + (sums.blocks - sums.whole) * tail
        of_pairs, width = field(classes, "pair") > 0, field(classes, "runs_w")
        products = np.where(of_pairs, 2 * (width - 1) / np.maximum(width, 1), costs.alone)  # of a block
        return blocks * products[of_class] + costs.tile * (1 + of_pairs[of_class])

    def items(self) -> np.ndarray:
        """Returns uncut items, class by class; neighbours share what they read."""
        parts, of, sums = [], self.pixels, self.pixels.sums
        for number, count in enumerate(field(of.classes, "pixels").tolist()):
            image, pixel, group, column = np.indices((
                ceil_div(of.images, self.box.images), ceil_div(count, self.boxes), of.groups,
                ceil_div(of.columns, self.columns))).reshape(4, -1)
            part = np.zeros(image.size, dtype=[(name, np.int32) for name in (*ITEM[:ITEM.index("pixels")], "class")])
            part["blocks"], part["whole"] = sums.of(number)
            part["slice"], part["class"], part["group"] = 1, number, group
            part["pixel"], part["image"] = pixel * self.boxes, image * self.box.images
            part["column"] = column * self.columns
            parts.append(part)
        return np.concatenate(parts)

    def cut(self, items: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Returns uncut items, each in so many slices."""
        found, of_tile = np.repeat(items, count), np.repeat(count, count)
        number = np.arange(found.size) - np.repeat(np.cumsum(count) - count, count)
        found["block"], parts = slices(self.pixels.sums.of(items["class"]), count)
        found["blocks"], found["whole"] = parts
        found["slice"] = number * 65536 + of_tile
        return found

    def lists(self, items: np.ndarray, owner: np.ndarray, turn: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """Returns the items by owner, turn by turn, of each the longest first, as the kernel reads them."""
        order = np.lexsort((np.arange(items.size), -cost, turn, owner))
        items, owner = items[order], owner[order]
        count = np.bincount(owner)
        place = np.arange(items.size) - np.repeat(np.cumsum(count) - count, count)
        lists = np.zeros((len(count), count.max() + 1, ITEM_SIZE), dtype=np.int32)
        lists[:, :, ITEM.index("blocks")] = END
        lists[owner, place] = self.records(items)
        return lists

    def records(self, items: np.ndarray) -> np.ndarray:
        """Returns items with their classes, as the kernel reads them."""
        records = np.zeros((items.size, ITEM_SIZE), dtype=np.int32)
        head = ITEM[:ITEM.index("pixels")]
        records[:, :len(ITEM)] = np.column_stack([*(items[name] for name in head), self.pixels.classes[items["class"]]])
        return records


class WorkList(NamedTuple):
    """Who does what."""

    # int32 array (blocks of the grid, entries, ITEM_SIZE), columns as in ITEM and as conv_wgmma_producer.cuh explains
    # them: a list for each block, END behind its last entry. An entry is a tile, or a slice of one.
    items: np.ndarray
    sliced: np.ndarray  # int32 (tiles, ITEM_SIZE), those that were cut, with the number of their slices as "slice"
    slots: int          # of the workspace


def work_list(tiles: Tiles, by_image: bool = False) -> WorkList:
    """Returns the list that is done first.  by_image: go through the batch."""
    _, longest = estimate(tiles)
    items = tiles.items()
    count = np.maximum(-(-items["blocks"] // max(longest, 1)), 1)
    needed = np.where(count > 1, count, 0)
    items = tiles.cut(items, count)
    items["slot"] = np.repeat(np.cumsum(needed) - needed, count)
    cost = tiles.cost(items["class"], Sums(items["blocks"], items["whole"]))
    owner = longest_first(cost, min(tiles.sm_count, items.size))
    first = items[(items["slice"] > 1) & (items["slice"] < 1 << 16)]  # slices of the tiles that were cut
    lists = tiles.lists(items, owner, items["image"] if by_image else np.zeros_like(owner), cost)
    return WorkList(lists, tiles.records(first), int(needed.sum()))


def estimate(tiles: Tiles) -> tuple[float, int]:
    """Returns the makespan of the list that is done first, and the blocks of its longest slice.

    It is what the busiest block does, and the addition of slices, in blocks of a sum. No list is made: all tiles of a
    class are alike.
    """
    counts, sums, costs = tiles.counts, tiles.pixels.sums, tiles.costs
    most, found = tiles.pixels.most_blocks, []
    few = counts.sum() <= SLICED_WAVES * tiles.sm_count and not field(tiles.pixels.classes, "pair").any()
    for count in SLICES if few else (1,):
        if count > max(most, 1):
            break
        longest = ceil_div(most, count)
        number = np.maximum(-(-sums.blocks // max(longest, 1)), 1)
        of_class = np.repeat(np.arange(len(number)), number)
        cost = tiles.cost(of_class, slices(sums, number)[1])
        slots = int(counts[number > 1] @ number[number > 1])
        last = last_load(cost, counts[of_class], min(tiles.sm_count, int(counts @ number)))
        found.append((last + (slots > 0) * costs.launch + slots * costs.slot, count, longest))
    return min(found)[::2]


def at_a_time(sm_count: int, size: int) -> int:
    """Returns how many clusters of so many blocks run at a time: 66, 30 and 15 of 2, 4 and 8 on an H100, whose 132
    multiprocessors are in groups that larger clusters do not fill."""
    return max(1, (sm_count if size <= 2 else sm_count * 10 // 11) // size)


def cluster_list(tiles: Tiles, size: int) -> WorkList:
    """Returns the list of clusters of `size` blocks, the longest sums first."""
    items = tiles.items()
    items = items[np.argsort(-items["blocks"], kind="stable")]
    items = tiles.cut(items, np.full(items.size, size))
    lists = tiles.lists(items, np.arange(items.size), np.zeros(items.size), np.ones(items.size))
    return WorkList(lists, lists[:0, 0], 0)


def cluster_makespan(tiles: Tiles, size: int) -> float:
    """Returns when the last cluster is done; no list is made."""
    counts = tiles.counts
    _, parts = slices(tiles.pixels.sums, np.full(len(counts), size))
    longest = tiles.cost(np.repeat(np.arange(len(counts)), size), parts).reshape(-1, size).max(axis=1)
    return last_load(longest, counts, min(at_a_time(tiles.sm_count, size), int(counts.sum())))


def slices(sums: Sums, count: np.ndarray) -> tuple[np.ndarray, Sums]:
    """Returns the first block of each slice, and what it has.  count: slices of each sum."""
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    sums, count = Sums(*(np.repeat(each, count) for each in sums)), np.repeat(count, count)
    begin = sums.blocks * number // count
    length = sums.blocks * (number + 1) // count - begin
    return begin, Sums(length, np.clip(sums.whole - begin, 0, length))


def longest_first(cost: np.ndarray, units: int) -> np.ndarray:
    """Returns the unit of each item: the one that is free first, the costly items being dealt before the others."""
    owner, loads = np.zeros(len(cost), dtype=np.int64), np.zeros(units)
    for each in np.unique(cost)[::-1].tolist():
        which = np.flatnonzero(cost == each)
        owner[which] = deal(loads, each, len(which))
    return owner


def last_load(cost: np.ndarray, count: np.ndarray, units: int) -> float:
    """Returns when the last unit is done with `count` items of each cost, dealt as `longest_first` does."""
    loads = np.zeros(units)
    each, group = np.unique(cost, return_inverse=True)
    for one, items in zip(each[::-1].tolist(), np.bincount(group, count)[::-1].astype(np.int64).tolist()):
        deal(loads, one, items)
    return float(loads.max())


def deal(loads: np.ndarray, each: float, items: int) -> np.ndarray:
    """Deals items of one cost, adds them to `loads`, and returns the unit of each.

    They start at the earliest of all times at which one of them could: the load of a unit, and that plus once, twice
    ... their cost.
    """
    units = len(loads)
    depth = ceil_div(items, units) + int((loads.max() - loads.min()) / each) + 1
    starts = loads + each * np.arange(depth)[:, None]
    chosen = np.argsort(starts.ravel(), kind="stable")[:items] % units
    loads += each * np.bincount(chosen, minlength=units)
    return chosen
