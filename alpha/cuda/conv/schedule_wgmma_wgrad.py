"""Work list of wgrad on Hopper's tensor cores: tiles of several taps, their sums cut into equal shares.

A tile has the columns of up to `taps` taps, which share what is read of g. A tap has products with a rectangle of
outputs (Axis.wgrad_range). Where the rectangles of a tile's taps differ they are divided into segments, rectangles in
which the same taps have products. The sum of a tile runs over its segments, the largest first, in blocks of 64 / images
positions x images: position p of a segment is pixel p % pixels of images p // pixels * images and the following.

A kernel may have strips of up to `strip` neighbouring outputs of a row in the place of blocks, where 64 images are a
block: then the taps of a tile are of one filter row, and each meets the input that the tap before it meets at the next
output, so that neighbouring outputs have all of their inputs but one in common.

A kernel with more than two consumers multiplies all taps of a tile or one: where two of three have products, each of
them has a segment of its own.

The sums are cut into units in proportion to their lengths, so that they fill the multiprocessors once, or two or more
times; `schedule` takes what is done first by estimate. A unit has every count-th block of its tile: at any time all of
them are at the same images, which come from device memory once for each filling and from the L2 cache otherwise. Units
of neighbouring blocks, which balance better, took up to 1.8 times as long.

A kernel may have clusters of blocks with one unit each, whose blocks of k they take in turn. They add up their sums
before these leave the multiprocessors: a tile that is one unit needs no slots, however many blocks sum it up.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.schedule import is_product
from alpha.cuda.conv.schedule_wgmma import longest_first
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div

UNIT_FIELDS = ("next", "row", "col", "rows", "cols", "begin", "end", "step", "slot", "taps", "shift0",
               "shift1", "shift2", "shift3", "out0", "out1", "out2", "out3")
SEGMENT_FIELDS = ("blocks", "h", "w", "height", "width", "tap", "taps", "unused")
SUM_FIELDS = ("slot", "step", "count", "rows", "cols", "taps", "unused0", "unused1", "out0", "out1", "out2", "out3")
MOST_TAPS = 4

IMAGES = (64, 32, 16, 8)  # of a box; 8 rows are the least that the swizzle allows
BLOCK = 64                # of k
CONSUMER_ROWS = 64
WORKSPACE_BYTES = 64 << 20
LEAST_BLOCKS = 4          # of a unit: shorter ones are all start and end
WAVES = (1, 2, 3, 4)
UNIT_US, UNIT_BYTES_PER_US = 1.4, 20e3  # of a unit: start and drain; and the store of its sums
CLUSTER_US = 1.6          # more, where the blocks of a cluster add up theirs
STORED_ROWS = 16          # what a slot has of a tile's rows is a multiple of these
SUM_US, SUM_BYTES_PER_US = 6.5, 5.9e6  # the kernel that adds the slots, and their way there and back
BYTES_PER_US = 3.1e6      # of device memory
CACHE_BYTES = 50e6        # of tensors that the L2 cache keeps
# Of a block, whatever the number of its taps, by taps of a tile: the more there are, the more of a block are copies.
# At stride 2, 5x5, 128x3x64 took 110, 104, 100 us with 0.4, 0.6, 0.8 (64 channels), 128x2x128 73 and 80 with 0.4, 0.6.
PART_COST = {2: 0.4, 3: 0.8, 4: 0.8}
# Of a whole strip on an H100, by rows of a tile, in what its pixels should take.
STRIP_TIME = {192: 0.97, 128: 0.89, 64: 1.09}


def clusters(sm_count: int, size: int) -> int:
    """Returns how many clusters of so many blocks run at a time: 66, 30 and 15 of 2, 4 and 8 on an H100, whose 132
    multiprocessors are in groups that larger clusters do not fill."""
    return max(1, (sm_count if size <= 2 else sm_count * 10 // 11) // size)


def consumers(rows: int) -> int:
    """Returns how many there are of a tile: one for every 64 rows, and two of 64 rows, which take turns."""
    return max(2, rows // CONSUMER_ROWS)


class Tiling(NamedTuple):
    """What the schedule needs to know of a kernel: its tile, blocks at a time, and time of a block of k; where clusters
    share units, those of a cluster."""

    rows: int
    tap_columns: int
    taps: int
    blocks: int
    block_us: float
    planes: int = 1
    strip: int = 1
    cluster: int = 1

    @property
    def unit_us(self) -> float:
        """What a unit takes beyond its blocks of k."""
        return UNIT_US + CLUSTER_US * (self.cluster > 1) + self.slot_bytes / UNIT_BYTES_PER_US

    @property
    def slot_bytes(self) -> int:
        """Bytes of what the consumers sum up in a unit."""
        return self.consumers * self.part_floats * 4

    @property
    def part_floats(self) -> int:
        """Sums of a consumer."""
        return CONSUMER_ROWS * self.taps * self.tap_columns // (2 if self.halves else 1)

    @property
    def halves(self) -> bool:
        """Whether two consumers share a tile of 64 rows by its columns."""
        return self.rows == CONSUMER_ROWS and self.taps == 1 and self.tap_columns >= 2 * BLOCK

    @property
    def in_turn(self) -> bool:
        """Whether they take blocks of k in turn: each has a sum of its own, and they are added up like units."""
        return self.rows == CONSUMER_ROWS and not self.halves

    @property
    def consumers(self) -> int:
        return consumers(self.rows)

    def cost(self, width: int, taps: int) -> float:
        """Returns what a block or strip of a segment takes, in the time of a block, or pixel, where all is there."""
        side = min(width, self.strip)
        part = PART_COST.get(self.taps, 0.0)
        products = side * (part + (1 - part) * taps / self.taps)
        if self.strip == 1:
            return products
        strip = max(products, self.strip * self._copied(side, taps) / self._copied(self.strip, self.taps))
        return strip * (STRIP_TIME[self.rows] if side == self.strip else 1.0)

    def _copied(self, side: int, taps: int) -> int:
        return side * self.rows + (taps + side - 1) * self.tap_columns


class Schedule(NamedTuple):
    """Tables as kernels/sk_dilated_wgmma.cu reads them, int32.

    Attributes:
        images: of a box.
        units: (units, integers of one): columns as in UNIT_FIELDS, then the tile's segments as in SEGMENT_FIELDS. Row b
            is the first unit of block b, `next` the row of the one behind it or -1.
        blocks: of the grid.
        sums: (parts of 64 rows of tiles in slots, 12), columns as in SUM_FIELDS; slots of one consumer.
        slots: of the workspace, for all consumers of a tile.
        time_us: estimate.
    """

    images: int
    units: np.ndarray
    blocks: int
    sums: np.ndarray
    slots: int
    time_us: float


class Group(NamedTuple):
    """The taps of a tile.

    Attributes:
        shifts: pixel of x that output (0, 0) meets, of each tap.
        outs: element of a filter at which each begins.
        segments: rows as in SEGMENT_FIELDS.
        length: blocks of all segments.
        cost: of all blocks; that of one is 1 where all taps have products.
    """

    shifts: tuple[int, ...]
    outs: tuple[int, ...]
    segments: tuple[tuple[int, ...], ...]
    length: int
    cost: float


class Units(NamedTuple):
    """A way to cut.

    Attributes:
        table: (units, 4): tile, and which blocks of its sum: first, end, step.
        first: the blocks' first units.
        sweeps: how often tensors larger than the L2 cache come from device memory.
    """

    table: np.ndarray
    first: np.ndarray
    sweeps: int


@lru_cache(maxsize=512)
def schedule(desc: ConvDesc, tiling: Tiling) -> Schedule:
    """Returns the cheapest work list by estimate."""
    images = _images(desc) if tiling.strip == 1 else BLOCK
    groups = _groups(desc, tiling, images)
    tiles = _tiles(desc, tiling, len(groups))
    best = min(_options(tiling, groups, tiles), key=lambda units: _time_us(desc, tiling, groups, tiles, units))
    return _tables(desc, tiling, images, groups, tiles, best)


def _tiles(desc: ConvDesc, tiling: Tiling, groups: int) -> np.ndarray:
    """Returns (tiles, 5): group of taps, first output and input channel, and how many of both there are from there on
    in their group of the convolution."""
    oc, ic = desc.oc // desc.groups, desc.ic // desc.groups
    grid = np.indices((desc.groups, ceil_div(oc, tiling.rows), ceil_div(ic, tiling.tap_columns), groups))
    part, row, col, group = grid.reshape(4, -1)
    row, col = row * tiling.rows, col * tiling.tap_columns
    return np.stack([group, part * oc + row, part * ic + col, oc - row, ic - col], axis=1)


def _images(desc: ConvDesc) -> int:
    """Returns how many images a box has: as many as possible without making the sums longer."""
    pixels = desc.h.o * desc.w.o
    return min(IMAGES, key=lambda r: (ceil_div(ceil_div(desc.n, r) * pixels, BLOCK // r), -r))


# ---- taps and segments -----------------------------------------------------------------------------------------------


def longest_chain(w: Axis) -> int:
    """Returns how many taps of a row there are that meet inputs a stride apart."""
    leap, rest = divmod(w.s, w.d)
    return ceil_div(w.f, leap) if not rest else 1


def _members(desc: ConvDesc, tiling: Tiling, met: set[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Returns the taps (fh, fw) of each group."""
    taps = [(fh, fw) for fh in range(desc.h.f) for fw in range(desc.w.f)]
    if tiling.strip == 1:
        chains = [[tap for tap in taps if tap in met], [tap for tap in taps if tap not in met]]
    else:
        leap = max(1, desc.w.s // desc.w.d)
        chains = [[(fh, fw) for fw in range(first, desc.w.f, leap)] for fh in range(desc.h.f) for first in range(leap)]
    return [chain[k:k + tiling.taps] for chain in chains for k in range(0, len(chain), tiling.taps)]


def _groups(desc: ConvDesc, tiling: Tiling, images: int) -> list[Group]:
    """Returns the groups of taps: neighbours in a filter, or in a chain of taps whose strips overlap."""
    h, w = desc.h, desc.w
    ranges = {(fh, fw): (*h.wgrad_range(fh), *w.wgrad_range(fw)) for fh in range(h.f) for fw in range(w.f)}
    met = {tap for tap, (h0, h1, w0, w1) in ranges.items() if h0 < h1 and w0 < w1}
    groups = []
    for members in _members(desc, tiling, met):
        segments = _segments([ranges[tap] for tap in members], ceil_div(desc.n, images), BLOCK // images, tiling)
        groups.append(Group(tuple(h.input_of(0, fh) * w.i + w.input_of(0, fw) for fh, fw in members),
                            tuple((fh * w.f + fw) * (desc.ic // desc.groups) for fh, fw in members), segments,
                            sum(s[0] for s in segments),
                            sum(s[0] * tiling.cost(s[4], s[6]) for s in segments)))
    return groups


def _segments(ranges: list[tuple[int, ...]], image_groups: int, pixels: int, tiling: Tiling
              ) -> tuple[tuple[int, ...], ...]:
    """Returns the rectangles that the ranges (h0, h1, w0, w1) of some taps divide their union into, largest first.

    A rectangle is there once for each run of neighbouring taps that have it, or for each of these taps.
    """
    found, strip = [], tiling.strip
    for h0, h1 in pairwise(sorted({edge for r in ranges for edge in r[:2]})):
        here = {t: r for t, r in enumerate(ranges) if r[0] <= h0 < r[1]}
        for w0, w1 in pairwise(sorted({edge for r in here.values() for edge in r[2:]})):
            taps = [t for t, r in here.items() if r[2] <= w0 < r[3]]
            split = w1 - (w1 - w0) % strip
            for left, width, side in ((w0, split - w0, strip), (split, w1 - split, w1 - split)):
                blocks = ceil_div(image_groups * (h1 - h0) * width, pixels * max(1, side))
                for t in (t for t in taps if t - 1 not in taps and width):
                    count = next(n for n in range(1, len(ranges) + 1) if t + n not in taps)
                    each = count if count == tiling.taps or tiling.consumers == 2 else 1
                    found += [(blocks, h0, left, h1 - h0, width, tap, each, 0) for tap in range(t, t + count, each)]
    return tuple(sorted(found, key=lambda s: -s[0]))


# ---- units -----------------------------------------------------------------------------------------------------------


def _options(tiling: Tiling, groups: list[Group], tiles: np.ndarray) -> list[Units]:
    """Returns ways to cut."""
    of_tile = [groups[g] for g in tiles[:, 0].tolist()]
    most = min(max(1, sum(g.length for g in of_tile) // (LEAST_BLOCKS * tiling.cluster)),
               WORKSPACE_BYTES // tiling.slot_bytes)
    totals = {min(most, tiling.blocks * waves) for waves in WAVES} | {len(tiles)}
    return [_shares(tiling, of_tile, total) for total in sorted(totals) if total >= len(tiles)]


def _shares(tiling: Tiling, of_tile: list[Group], total: int) -> Units:
    """Returns at most `total` units: the tile whose shares are longest gets the next cut."""
    heap = [(-g.cost, tile, 1) for tile, g in enumerate(of_tile)]
    heapify(heap)
    for _ in range(total - len(of_tile)):
        cost, tile, count = heap[0]
        if of_tile[tile].length < (count + 1) * LEAST_BLOCKS * tiling.cluster:
            break
        heapreplace(heap, (cost * count / (count + 1), tile, count + 1))
    shares = sorted((tile, count, -cost) for cost, tile, count in heap)
    units = np.array([(tile, k, of_tile[tile].length, count) for tile, count, _ in shares for k in range(count)])
    cost = np.array([each for _, count, each in shares for _ in range(count)])
    owner = longest_first(cost + tiling.unit_us / tiling.block_us, min(tiling.blocks, len(units)))
    order = np.lexsort((np.arange(len(units)), -cost, owner))
    return Units(units[order], np.concatenate([[0], np.cumsum(np.bincount(owner))]), ceil_div(total, tiling.blocks))


def _time_us(desc: ConvDesc, tiling: Tiling, groups: list[Group], tiles: np.ndarray, units: Units) -> float:
    tile, begin, end, step = units.table.T
    cost = np.array([g.cost / max(1, g.length) for g in groups])[tiles[tile, 0]]
    each = cost * -(-(end - begin) // step) * tiling.block_us + tiling.unit_us
    busy = np.concatenate([[0.0], np.cumsum(each)])[units.first]
    rows = np.minimum(tiles[:, 3] + STORED_ROWS - 1, tiling.rows) // STORED_ROWS * STORED_ROWS
    stored = rows * np.minimum(tiles[:, 4], tiling.tap_columns) / (tiling.rows * tiling.tap_columns)
    added = np.bincount(tile, minlength=len(tiles)) - (0 if tiling.in_turn else 1)
    nbytes = float((stored * added).sum()) * tiling.slot_bytes
    adding = SUM_US + nbytes / SUM_BYTES_PER_US if nbytes else 0.0
    return max(float(np.diff(busy).max()), memory_us(desc, tiling, units.sweeps)) + adding


def memory_us(desc: ConvDesc, tiling: Tiling, sweeps: int = 1) -> float:
    """Returns what reading takes at least.

    Boxes that are not of a product are of 64 images, and where they have one tap, blocks of different rows drift apart:
    x is read for each tile of rows.
    """
    image = 2 * tiling.planes * desc.n
    g, x = image * desc.h.o * desc.w.o * desc.oc, image * _read(desc.h) * _read(desc.w) * desc.ic
    if g + x < CACHE_BYTES:
        return (g + x) / BYTES_PER_US
    drifting = desc.h.f * desc.w.f == 1 and not is_product(desc)
    row_tiles = ceil_div(desc.oc // desc.groups, tiling.rows) if drifting else 1
    return max((g + x) * sweeps, g + x * row_tiles) / BYTES_PER_US


def _read(axis: Axis) -> int:
    """Returns how many inputs of an axis are read."""
    return len({axis.input_of(o, t) for t in range(axis.f) for o in range(*axis.wgrad_range(t))})


def _tables(desc: ConvDesc, tiling: Tiling, images: int, groups: list[Group], tiles: np.ndarray, units: Units
            ) -> Schedule:
    """Returns the schedule: slots are handed out tile by tile, those of a tile in the order of its sum."""
    tile, begin = units.table[:, 0], units.table[:, 1]
    pieces = np.bincount(tile, minlength=len(tiles))
    stored = pieces > (0 if tiling.in_turn else 1)
    start = np.cumsum(pieces * stored) - pieces * stored
    order = np.lexsort((begin, tile))
    rank = np.empty(len(tile), int)
    rank[order] = np.arange(len(tile)) - (np.cumsum(pieces) - pieces)[tile[order]]
    slot = np.where(stored[tile], start[tile] + rank, -1)

    ic = desc.ic // desc.groups
    dw_row = desc.h.f * desc.w.f * ic
    group, row, col, rows, cols = tiles.T
    taps = np.array([len(g.outs) for g in groups])[group]
    shift, out = (np.array([(*each, *[0] * (MOST_TAPS - len(each))) for each in column]) for column in
                  ([g.shifts for g in groups], [g.outs for g in groups]))
    out = out[group] + (row * dw_row + col % ic)[:, None]
    most = max(len(g.segments) for g in groups)
    segments = np.zeros((len(groups), most, len(SEGMENT_FIELDS)), int)
    for k, g in enumerate(groups):
        segments[k, :len(g.segments)] = np.array(g.segments).reshape(-1, len(SEGMENT_FIELDS))
    position, following = _chains(units.first, len(tile))
    blocks = int((units.first[1:] > units.first[:-1]).sum())
    table = np.column_stack([following, tiles[tile, 1:], units.table[:, 1:], slot, taps[tile], shift[group[tile]],
                             out[tile], segments.reshape(len(groups), -1)[group[tile]]])[position]
    if tiling.cluster > 1:
        table = _in_clusters(table, tiling.cluster)
        blocks = len(table)

    each = tiling.consumers
    down, right = (0, tiling.tap_columns // each) if tiling.halves else (0 if tiling.in_turn else CONSUMER_ROWS, 0)
    sums = [(each * start[t] + part, 1 if tiling.in_turn else each, pieces[t] * (each if tiling.in_turn else 1),
             rows[t] - part * down, cols[t] - part * right, taps[t], 0, 0, *(out[t] + part * (down * dw_row + right)))
            for t in np.flatnonzero(stored) for part in range(1 if tiling.in_turn else each)
            if rows[t] > part * down and cols[t] > part * right]
    return Schedule(images, table.astype(np.int32), blocks, np.array(sums, np.int32).reshape(-1, len(SUM_FIELDS)),
                    int((pieces * stored).sum()), _time_us(desc, tiling, groups, tiles, units))


def _in_clusters(table: np.ndarray, size: int) -> np.ndarray:
    """Returns the units of blocks whose clusters have those of the table, one each: block b of a cluster has every
    size-th of a unit's blocks of k, from the b-th on."""
    table = np.repeat(table, size, axis=0)
    begin, step, following = (UNIT_FIELDS.index(name) for name in ("begin", "step", "next"))
    table[:, begin] += np.arange(len(table)) % size * table[:, step]
    table[:, step] *= size
    table[:, following] = -1
    return table


def _chains(first: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the units in their new order, first the first one of each block, and where the one behind each is."""
    heads = first[:-1][first[:-1] < first[1:]]
    order = np.concatenate([heads, np.setdiff1d(np.arange(count), heads)])
    place = np.empty(count + 1, int)
    place[order] = np.arange(count)
    last = np.isin(np.arange(1, count + 1), first[1:])
    return order, np.where(last, -1, place[np.minimum(np.arange(1, count + 1), count - 1)])
