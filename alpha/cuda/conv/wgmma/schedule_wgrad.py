"""Work list of wgrad on Hopper's tensor cores: tiles of several taps, their sums cut into equal shares.

The sums (taps.py) are cut into units in proportion to their lengths, so that they fill the multiprocessors once or more
often; `cut` takes what is done first by estimate. A unit has every count-th block of its tile: at any time all of them
are at the same images, which come from device memory once for each filling. A cluster of blocks has one unit, whose
blocks of k they take in turn, and adds up their sums itself: a tile that is one unit needs no slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.schedule import is_product
from alpha.cuda.conv.split import slots_of
from alpha.cuda.conv.wgmma.boxes import Box, wgrad_box
from alpha.cuda.conv.wgmma.schedule import longest_first
from alpha.cuda.conv.wgmma.taps import BLOCK, CONSUMER_ROWS, SEGMENT_FIELDS, Group, Tiling, consumers, groups_of
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div

UNIT_FIELDS = ("next", "row", "col", "rows", "cols", "begin", "end", "step", "slot", "taps", "shift0",
               "shift1", "shift2", "shift3", "out0", "out1", "out2", "out3")
MOST_TAPS = 4

IMAGES = (64, 32, 16, 8)  # of a box; 8 rows are the least that the swizzle allows
WORKSPACE_BYTES = 64 << 20
LEAST_BLOCKS = 4          # of a unit: shorter ones are all start and end
WAVES = (1, 2, 3, 4)
STORED_ROWS = 16          # what a slot has of a tile's rows is a multiple of these
CACHE_BYTES = 50e6        # of tensors that the L2 cache keeps


class Schedule(NamedTuple):
    """Tables as sk_dilated_wgmma.cu reads them, int32."""

    box: Box          # of outputs; of one output of some images as a rule
    # (units, integers of one): columns as in UNIT_FIELDS, then the tile's segments as in SEGMENT_FIELDS. Row b is the
    # first unit of block b, `next` the row of the one behind it or -1.
    units: np.ndarray
    blocks: int       # of the grid
    sums: np.ndarray  # (parts of tiles in slots, 5), rows as `SumTile` of conv/sum_slices.cu has them
    apart: int        # how far the slots of a part, a consumer's of a tap, are from each other
    slots: int        # of the workspace, of units


class Units(NamedTuple):
    """A way to cut."""

    table: np.ndarray  # (units, 4): tile, and which blocks of its sum: first, end, step
    first: np.ndarray  # the blocks' first units
    sweeps: int        # how often tensors larger than the L2 cache come from device memory


class Cut(NamedTuple):
    """The cheapest way to cut, by estimate, with what it cuts."""

    box: Box
    groups: list[Group]
    tiles: np.ndarray
    units: Units
    time_us: float


@lru_cache(maxsize=512)
def schedule(desc: ConvDesc, tiling: Tiling) -> Schedule:
    """Returns the cheapest work list by estimate; slots are handed out tile by tile, in the order of a tile's sum."""
    box, groups, tiles, units, _ = cut(desc, tiling)
    tile, begin = units.table[:, 0], units.table[:, 1]
    pieces = np.bincount(tile, minlength=len(tiles))
    stored = pieces * tiling.sums > 1
    slot, start = slots_of(tile, begin, stored)

    ic = desc.ic // desc.groups
    dw_row = desc.h.f * desc.w.f * ic
    group, row, col = tiles[:, :3].T
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

    sums = [((start[t] * consumers(tiling.rows) + part) * tiling.taps + tap, pieces[t] * tiling.sums,
             out[t, tap] + down * dw_row + right,
             min(rows - down, CONSUMER_ROWS), min(cols - right, tiling.part_columns))
            for t in np.flatnonzero(stored) for rows, cols in [tiles[t, 3:]] for tap in range(taps[t])
            for part, (down, right) in enumerate(tiling.corners) if rows > down and cols > right]
    return Schedule(box, table.astype(np.int32), blocks, np.array(sums, np.int32).reshape(-1, 5),
                    len(tiling.corners) * tiling.taps, int((pieces * stored).sum()))


@lru_cache(maxsize=512)
def cut(desc: ConvDesc, tiling: Tiling) -> Cut:
    """Returns how `schedule` cuts, which is all that an estimate needs."""
    images = Box(_images(desc, tiling) if tiling.strip == 1 else BLOCK)
    boxes = wgrad_box(desc, BLOCK) if tiling.taps == 1 else None
    return min((_cut(desc, tiling, box) for box in (images, boxes) if box), key=lambda one: one.time_us)


def _cut(desc: ConvDesc, tiling: Tiling, box: Box) -> Cut:
    tiling = issuing(tiling, box.rows)
    groups = groups_of(desc, tiling, box)
    tiles = _tiles(desc, tiling, len(groups))
    of_tile = [groups[g] for g in tiles[:, 0].tolist()]
    work_us = sum(g.cost for g in of_tile) * tiling.block_us / tiling.blocks
    best: Cut | None = None
    for total, shares in _shares(tiling, of_tile):
        count = sum(each for _, each, _ in shares)
        if best and work_us + tiling.unit_us * count / tiling.blocks >= best.time_us:
            continue
        units = _units(tiling, of_tile, shares, total)
        time_us = _time_us(desc, tiling, groups, tiles, units)
        if best is None or time_us < best.time_us:
            best = Cut(box, groups, tiles, units, time_us)
    assert best
    return best


def _tiles(desc: ConvDesc, tiling: Tiling, groups: int) -> np.ndarray:
    """Returns (tiles, 5): group of taps, first output and input channel, and how many of both there are from there on
    in their group of the convolution."""
    oc, ic = desc.oc // desc.groups, desc.ic // desc.groups
    grid = np.indices((desc.groups, ceil_div(oc, tiling.rows), ceil_div(ic, tiling.tap_columns), groups))
    part, row, col, group = grid.reshape(4, -1)
    row, col = row * tiling.rows, col * tiling.tap_columns
    return np.stack([group, part * oc + row, part * ic + col, oc - row, ic - col], axis=1)


def issuing(tiling: Tiling, rows: int) -> Tiling:
    """Returns a tiling whose block of k takes as long as the producer at least, if it copies boxes of so many rows."""
    boxes = BLOCK // rows
    if boxes == 1:
        return tiling
    return tiling._replace(block_us=max(tiling.block_us, boxes * device().table.wgmma_wgrad.issue_us * device().slower))


def _images(desc: ConvDesc, tiling: Tiling) -> int:
    """Returns how many images a box has: the fewest blocks count, and that each box of a block is a copy."""
    pixels = desc.h.o * desc.w.o
    def key(rows: int) -> tuple[float, int]:
        return ceil_div(ceil_div(desc.n, rows) * pixels, BLOCK // rows) * issuing(tiling, rows).block_us, -rows
    return min(IMAGES, key=key)


# ---- units -----------------------------------------------------------------------------------------------------------
Share = tuple[int, int, float]  # a tile, into how many units it is cut, and what each costs, in the time of a block


def _shares(tiling: Tiling, of_tile: list[Group]) -> Iterator[tuple[int, list[Share]]]:
    """Gives ways to cut into units, and how many units each may have: the tile whose shares are longest gets the next
    cut."""
    least = LEAST_BLOCKS * tiling.cluster
    most = min(max(1, sum(g.length for g in of_tile) // least), WORKSPACE_BYTES // tiling.slot_bytes)
    totals = {min(most, tiling.blocks * waves) for waves in WAVES} | {len(of_tile)}
    heap, there = [(-g.cost, tile, 1) for tile, g in enumerate(of_tile)], len(of_tile)
    heapify(heap)
    for total in sorted(totals):
        if total < len(of_tile):
            continue
        while there < total:
            cost, tile, count = heap[0]
            if of_tile[tile].length < (count + 1) * least:
                break
            heapreplace(heap, (cost * count / (count + 1), tile, count + 1))
            there += 1
        yield total, sorted((tile, count, -cost) for cost, tile, count in heap)


def _units(tiling: Tiling, of_tile: list[Group], shares: list[Share], total: int) -> Units:
    """Returns the units of shares, of which there may be `total`."""
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
    added = np.bincount(tile, minlength=len(tiles)) - (tiling.sums == 1)
    nbytes = float((stored * added).sum()) * tiling.slot_bytes
    c = device().table.wgmma_wgrad
    adding = c.sum_us + nbytes / c.sum_bytes_per_us if nbytes else 0.0
    return max(float(np.diff(busy).max()), memory_us(desc, tiling, units.sweeps)) + adding


def memory_us(desc: ConvDesc, tiling: Tiling, sweeps: int = 1) -> float:
    """Returns what reading takes at least.

    Boxes that are not of a product are of 64 images, and where they have one tap, blocks of different rows drift apart:
    x is read for each tile of rows.
    """
    image, rate = 2 * tiling.planes * desc.n, device().dram * device().table.wgmma_wgrad.dram
    g, x = image * desc.h.o * desc.w.o * desc.oc, image * _read(desc.h) * _read(desc.w) * desc.ic
    if g + x < CACHE_BYTES:
        return (g + x) / rate
    drifting = desc.h.f * desc.w.f == 1 and not is_product(desc)
    row_tiles = ceil_div(desc.oc // desc.groups, tiling.rows) if drifting else 1
    return max((g + x) * sweeps, g + x * row_tiles) / rate


def _read(axis: Axis) -> int:
    """Returns how many inputs of an axis are read."""
    return len({axis.input_of(o, t) for t in range(axis.f) for o in range(*axis.wgrad_range(t))})


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
