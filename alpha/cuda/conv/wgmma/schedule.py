"""Work lists of fprop and dgrad on Hopper's tensor cores: tiles in coordinates, dealt out longest first.

Positions that read the same taps form a class, as in conv/schedule.py. A tile has `images` successive images of
rows / images pixels of one class. A block of its sum is a chunk of 64 of a run: the channels of a tap, or where these
are no multiple of 64 and the taps of a filter's row meet neighbouring pixels, those of the whole row, side by side in
NHWC. The last chunk of a run has what is left, and is multiplied in steps of 16. Rows of a box that begin between two
lines of 128 bytes take longer to copy: `_aligned` has the first chunk begin where a line does, `lead` zeros before the
run. `paired` has neighbouring outputs of a row share what they read.

Tiles are dealt out, the longest first, to the multiprocessor that is free first. Where memory is what limits, a list
then goes through the batch, all classes of its first images before the next ones: what several classes read comes from
device memory once. Else it begins with the longest. Where there are too few tiles to go round, long sums are cut into
slices, tiles of their own whose results the kernel adds up, if that list is done first.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.schedule import grids
from alpha.ops.conv_desc import ConvDesc, TapClass, ceil_div

ROWS, CHUNK = 128, 64  # rows of a tile, as a rule; values of a block
STEP = 16              # values that are multiplied at once
ALIGNED_FROM = 128     # images of a batch from which runs have a lead
CLASS = ("pixels", "width", "in_h", "in_h_step", "in_w", "in_w_step", "out_h", "out_h_step", "out_w", "out_w_step",
         "runs_h", "runs_w", "tap_in_h", "tap_in_w", "tap_h", "tap_h_step", "tap_w", "tap_w_step", "run", "length",
         "lead", "pair")
ITEM = ("blocks", "heads", "whole", "block", "slot", "slice", "pixel", "image", "column", "group", *CLASS)
ITEM_SIZE = 32         # integers of an entry in conv_wgmma_producer.cuh: those of ITEM, in this order
END = -1               # blocks of the entry that ends a list
SLICED_WAVES = 2       # more tiles than this per multiprocessor are never cut
SLICES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


class Pixels(NamedTuple):
    """A pass as the kernel sees it."""

    # int32 array (classes, len(CLASS)), those with most taps first; "run" is the number of taps in a run, "length" that
    # of its values, "pair" how far apart the outputs of a pair are, of which "runs_w" pixels are read in a row, or 0.
    classes: np.ndarray
    images: int                     # of the batch
    channels: int                   # of a group that are summed over at each tap
    columns: int                    # channels of a group of the tensor that is written
    groups: int                     # of both
    unit: int                       # values of the sum in a box of the filters
    side: tuple[int, int] = (1, 1)  # height and width of a box of positions, which "pixels" counts then (boxes.py)

    def boxes(self, images: int, rows: int) -> int:
        """Returns how many pixels, or boxes of them, of so many images a tile has."""
        return rows // (images * self.side[0] * self.side[1])

    @property
    def runs(self) -> range:
        """How many taps runs have, from the shortest to the longest."""
        taps = field(self.classes, "run")[_runs(self.classes) > 0].tolist() or [1]
        return range(min(taps), max(taps) + 1)


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


COSTS = Costs()


class WorkList(NamedTuple):
    """Who does what."""

    # int32 array (blocks of the grid, entries, ITEM_SIZE), columns as in ITEM and as conv_wgmma_producer.cuh explains
    # them: a list for each block, END behind its last entry. An entry is a tile, or a slice of one.
    items: np.ndarray
    sliced: np.ndarray  # int32 (tiles, ITEM_SIZE), those that were cut, with the number of their slices as "slice"
    slots: int          # of the workspace


def fprop_pixels(desc: ConvDesc) -> Pixels:
    """Returns the classes of y = x * w."""
    channels, columns = desc.ic // desc.groups, desc.oc // desc.groups
    joined = desc.groups == 1 and channels % CHUNK > 0
    classes = _classes(desc.n, desc.h.fprop_classes, desc.w.fprop_classes, (1, 1), desc.w.i, channels, joined)
    return Pixels(classes, desc.n, channels, columns, desc.groups, CHUNK)


def dgrad_pixels(desc: ConvDesc) -> Pixels:
    """Returns the classes of the gradient with respect to x.  Boxes of filters have channels of one tap."""
    channels, columns = desc.oc // desc.groups, desc.ic // desc.groups
    unit = gcd(channels, CHUNK) if channels % STEP == 0 else CHUNK
    joined = desc.groups == 1 and unit < CHUNK
    spacing = desc.h.s, desc.w.s
    classes = _classes(desc.n, desc.h.dgrad_classes, desc.w.dgrad_classes, spacing, desc.w.o, channels, joined)
    return Pixels(classes, desc.n, channels, columns, desc.groups, unit)


def _classes(images: int, h_classes: tuple[TapClass, ...], w_classes: tuple[TapClass, ...], spacing: tuple[int, int],
             width: int, channels: int, joined: bool) -> np.ndarray:
    """spacing: distance of neighbouring positions in a class; width: pixels in a row of what is read; joined: a run has
    all taps of a row, where it can."""
    found = []
    for h, w, taps, (h0, h_step, h_count), (w0, w_step, w_count) in grids(h_classes, w_classes, spacing):
        run = w.count if joined and taps and w.step == 1 else 1
        found.append((
            h_count * w_count, w_count, *(_reads(h) if taps else (0, 0)), *(_reads(w) if taps else (0, 0)),
            h0, h_step, w0, w_step, h.count if taps else 0, w.count // run if taps else 0, h.step, w.step,
            h.tap, h.tap_step, w.tap, w.tap_step, run, run * channels, 0, 0))
    classes = np.array(found, dtype=np.int32)
    classes = classes[np.argsort(-_runs(classes) * field(classes, "run"), kind="stable")]
    return _aligned(classes, width, channels) if joined and images >= ALIGNED_FROM else classes


def _aligned(classes: np.ndarray, width: int, channels: int) -> np.ndarray:
    """Returns the classes, cut by where in a line of memory their runs begin; see `_classes`.

    A lead that would make a chunk more is not worth it.
    """
    if width * channels % CHUNK:
        return classes
    found = []
    for row in classes:
        c = dict(zip(CLASS, row.tolist()))
        period = CHUNK // gcd(CHUNK, c["in_w_step"] * channels)  # pixels after which runs begin at the same place
        leads = [(c["in_w"] + r * c["in_w_step"]) * channels % CHUNK for r in range(min(period, c["width"]))]
        leads = [lead if lead + c["length"] <= ceil_div(c["length"], CHUNK) * CHUNK else 0 for lead in leads]
        if not any(leads) or (c["runs_w"] > 1 and c["tap_in_w"] * channels % CHUNK):
            found.append(row)
            continue
        rows = c["pixels"] // c["width"]
        for r, lead in enumerate(leads):
            count = ceil_div(c["width"] - r, period)
            moved = {a: c[a] + r * c[a + "_step"] for a in ("in_w", "out_w")}
            steps = {a + "_step": period * c[a + "_step"] for a in moved}
            found.append(_changed(c, pixels=rows * count, width=count, lead=lead, **moved, **steps))
    return np.stack(found)


def paired(pixels: Pixels) -> Pixels:
    """Returns the pass with pairs of outputs in the place of two, in all classes where they share what they read."""
    found = []
    for row in pixels.classes:
        c = dict(zip(CLASS, row.tolist()))
        taps, pairs = c["runs_w"], c["width"] // 2
        if pairs == 0 or (taps > 1 and c["tap_in_w"] != c["in_w_step"]) or c["length"] % CHUNK:
            found.append(row)
            continue
        rows, last = c["pixels"] // c["width"], c["width"] - 1
        found.append(_changed(c, pixels=rows * pairs, width=pairs, runs_w=taps + (taps > 0), pair=c["out_w_step"],
                              tap_in_w=c["in_w_step"], in_w_step=2 * c["in_w_step"], out_w_step=2 * c["out_w_step"]))
        if c["width"] % 2:
            found.append(_changed(c, pixels=rows, width=1, in_w=c["in_w"] + last * c["in_w_step"],
                                  out_w=c["out_w"] + last * c["out_w_step"]))
    return pixels._replace(classes=np.stack(found))


def _changed(of_class: dict[str, int], **values: int) -> np.ndarray:
    return np.array([{**of_class, **values}[name] for name in CLASS], dtype=np.int32)


def _reads(tap_class: TapClass) -> tuple[int, int]:
    return tap_class.starts[0], tap_class.start_step


def field(classes: np.ndarray, name: str) -> np.ndarray:
    """Returns a column of classes."""
    return classes[:, CLASS.index(name)]


def _runs(classes: np.ndarray) -> np.ndarray:
    return field(classes, "runs_h") * field(classes, "runs_w")


def work_list(pixels: Pixels, images: int, columns: int, sm_count: int, costs: Costs = COSTS, *,
              rows: int = ROWS, by_image: bool = False) -> WorkList:
    """Returns the list that is done first.

    Args:
        pixels: the pass.
        images: neighbouring images of a tile, a divisor of `rows` (of a box, where pixels are in boxes).
        columns: of a tile.
        sm_count: blocks that run at the same time.
        costs: of a tile beside its sum.
        rows: of a tile.
        by_image: go through the batch.
    """
    _, longest = estimate(pixels, images, columns, sm_count, costs, rows=rows)
    items, slots = _cut(uncut_tiles(pixels, images, columns, rows), longest, pixels.classes)
    cost = cost_of(items["class"], _Sums(items["blocks"], items["heads"], items["whole"]), pixels.classes, costs)
    owner = longest_first(cost, min(sm_count, items.size))
    cut = items[(items["slice"] > 1) & (items["slice"] < 1 << 16)]  # the first slice of each
    lists = entry_lists(items, owner, items["image"] if by_image else np.zeros_like(owner), cost, pixels.classes)
    return WorkList(lists, _records(cut, pixels.classes), slots)


def estimate(pixels: Pixels, images: int, columns: int, sm_count: int, costs: Costs = COSTS, *,
             rows: int = ROWS) -> tuple[float, int]:
    """Returns the makespan of the list that is done first, and the blocks of its longest slice; see `work_list`.

    It is what the busiest block does, and the addition of slices, in blocks of a sum. No list is made: all tiles of a
    class are alike.
    """
    tiles, sums = tile_counts(pixels, images, columns, rows), sums_of(pixels.classes)
    most, found = int(sums.blocks.max()), []
    few = tiles.sum() <= SLICED_WAVES * sm_count and not field(pixels.classes, "pair").any()
    for count in SLICES if few else (1,):
        if count > max(most, 1):
            break
        longest = ceil_div(most, count)
        number = np.maximum(-(-sums.blocks // max(longest, 1)), 1)
        of_class = np.repeat(np.arange(len(number)), number)
        _, parts = slices(sums, number)
        cost = cost_of(of_class, parts, pixels.classes, costs)
        slots = int(tiles[number > 1] @ number[number > 1])
        last = last_load(cost, tiles[of_class], min(sm_count, int(tiles @ number)))
        found.append((last + (slots > 0) * costs.launch + slots * costs.slot, count, longest))
    return min(found)[::2]


class _Sums(NamedTuple):
    """Of each sum or slice: its blocks, of them the heads, which come first, and the whole ones, which follow."""

    blocks: np.ndarray
    heads: np.ndarray
    whole: np.ndarray

    def of(self, which: np.ndarray | int) -> _Sums:
        return _Sums(*(each[which] for each in self))


def tile_counts(pixels: Pixels, images: int, columns: int, rows: int) -> np.ndarray:
    """Returns the tiles of each class."""
    grid = ceil_div(pixels.images, images) * pixels.groups * ceil_div(pixels.columns, columns)
    return grid * -(-field(pixels.classes, "pixels").astype(np.int64) // pixels.boxes(images, rows))


def sums_of(classes: np.ndarray) -> _Sums:
    """Returns those of the tiles of each class."""
    runs, end, heads = _runs(classes), field(classes, "lead") + field(classes, "length"), _is_head(classes)
    return _Sums(runs * -(-end // CHUNK), runs * heads, runs * np.maximum((end + STEP - 1) // CHUNK - heads, 0))


def _is_head(classes: np.ndarray) -> np.ndarray:
    """Returns whether the first chunk of a class's runs begins with a step that is left out."""
    return (field(classes, "lead") >= STEP) & (field(classes, "length") > 0)


def slices(sums: _Sums, count: np.ndarray) -> tuple[np.ndarray, _Sums]:
    """Returns the first block of each slice, and what it has.  count: slices of each sum."""
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    sums, count = _Sums(*(np.repeat(each, count) for each in sums)), np.repeat(count, count)
    begin = sums.blocks * number // count
    length = sums.blocks * (number + 1) // count - begin
    heads = np.clip(sums.heads - begin, 0, length)
    return begin, _Sums(length, heads, np.clip(sums.heads + sums.whole - begin, 0, length) - heads)


def uncut_tiles(pixels: Pixels, images: int, columns: int, rows: int) -> np.ndarray:
    """Returns uncut items, class by class; neighbours share what they read."""
    parts = []
    sums, boxes = sums_of(pixels.classes), pixels.boxes(images, rows)
    for number, count in enumerate(field(pixels.classes, "pixels").tolist()):
        image, pixel, group, column = np.indices((
            ceil_div(pixels.images, images), ceil_div(count, boxes), pixels.groups,
            ceil_div(pixels.columns, columns))).reshape(4, -1)
        part = np.zeros(image.size, dtype=[(name, np.int32) for name in (*ITEM[:ITEM.index("pixels")], "class")])
        part["blocks"], part["heads"], part["whole"] = sums.of(number)
        part["slice"], part["class"], part["group"] = 1, number, group
        part["pixel"], part["image"], part["column"] = pixel * boxes, image * images, column * columns
        parts.append(part)
    return np.concatenate(parts)


def _cut(tiles: np.ndarray, longest: int, classes: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the tiles in slices of at most `longest` blocks, and the number of slots for these."""
    count = np.maximum(-(-tiles["blocks"] // max(longest, 1)), 1)
    needed = np.where(count > 1, count, 0)
    items = cut_evenly(tiles, count, classes)
    items["slot"] = np.repeat(np.cumsum(needed) - needed, count)
    return items, int(needed.sum())


def cut_evenly(tiles: np.ndarray, count: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the tiles, each in so many slices."""
    items, of_tile = np.repeat(tiles, count), np.repeat(count, count)
    number = np.arange(items.size) - np.repeat(np.cumsum(count) - count, count)
    of_tiles = sums_of(classes).of(tiles["class"])
    items["block"], (items["blocks"], items["heads"], items["whole"]) = slices(of_tiles, count)
    items["slice"] = number * 65536 + of_tile
    return items


def cost_of(of_class: np.ndarray, sums: _Sums, classes: np.ndarray, costs: Costs) -> np.ndarray:
    """Returns what items take, in whole blocks."""
    lead, length = field(classes, "lead") // STEP * STEP, field(classes, "length")
    end = -(-(field(classes, "lead") + length) // STEP) * STEP
    head, tail = (np.minimum(end, CHUNK) - lead) / CHUNK, end % CHUNK / CHUNK  # of a block of fewer steps
    head, tail = (costs.block + (1 - costs.block) * part[of_class] for part in (head, tail))
    blocks = sums.whole + sums.heads * head + (sums.blocks - sums.heads - sums.whole) * tail
    of_pairs, width = field(classes, "pair") > 0, field(classes, "runs_w")
    products = np.where(of_pairs, 2 * (width - 1) / np.maximum(width, 1), costs.alone)  # of a block
    return blocks * products[of_class] + costs.tile * (1 + of_pairs[of_class])


def entry_lists(items: np.ndarray, owner: np.ndarray, turn: np.ndarray, cost: np.ndarray, classes: np.ndarray
                ) -> np.ndarray:
    """Returns the items by owner, turn by turn, of each the longest first, as the kernel reads them."""
    order = np.lexsort((np.arange(items.size), -cost, turn, owner))
    items, owner = items[order], owner[order]
    count = np.bincount(owner)
    place = np.arange(items.size) - np.repeat(np.cumsum(count) - count, count)
    lists = np.zeros((len(count), count.max() + 1, ITEM_SIZE), dtype=np.int32)
    lists[:, :, ITEM.index("blocks")] = END
    lists[owner, place] = _records(items, classes)
    return lists


def _records(items: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns items with their classes, as the kernel reads them."""
    records = np.zeros((items.size, ITEM_SIZE), dtype=np.int32)
    head = ITEM[:ITEM.index("pixels")]
    records[:, :len(ITEM)] = np.column_stack([*(items[name] for name in head), classes[items["class"]]])
    return records


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
