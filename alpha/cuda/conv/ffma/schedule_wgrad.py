"""Work list of wgrad: tiles of the filter gradient, cut along their sums so that every multiprocessor has a share.

Outputs for which a tap meets a real input are a rectangle of pixels in each image (Axis.wgrad_range), so a line k of
its sum (sk_dilated.cu) is  image = k // pixels,  h = k % pixels // width,  w = k % width,  and a tile is cut into
ranges of k. There are two ways to cut, and `schedule` takes what costs less:

    sliced    every tile into the same number of slices, one block each. Blocks that run at the same time then read the
              same images for different taps, which the L2 cache serves: what few channels on large maps need.
    streamed  all tiles in a row, cut into one equal share per block, wherever that falls. No block idles: what taps of
              unequal length and many tiles need.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.costs import Device, device
from alpha.cuda.conv.split import slots_of
from alpha.ops.conv_desc import ConvDesc, ceil_div

TAP_FIELDS = ("pixels", "width", "g", "x", "w", "unused0", "unused1", "unused2")

WORKSPACE_BYTES = 64 << 20
LEAST_SLABS = 8          # of a unit: shorter ones are all start and end


class Tiling(NamedTuple):
    """What the schedule needs to know of a kernel: its tile, lines per slab, blocks at a time, time of a slab, bytes of
    an element that it reads, and the device; None: that of this process."""

    rows: int
    columns: int
    k: int
    blocks: int
    slab_us: float
    itemsize: int = 4
    on: Device | None = None


class Schedule(NamedTuple):
    """Tables as the kernels read them, int32."""

    taps: np.ndarray   # (taps, 8), columns as in TAP_FIELDS; `WgradTap` in sk_dilated.cu
    units: np.ndarray  # (units, 8), columns as in `WgradUnit`
    first: np.ndarray  # (blocks + 1,), block b computes units first[b] .. first[b + 1] - 1
    sums: np.ndarray   # (tiles in several units, 5), rows as `SumTile` of conv/sum_slices.cu has them
    slots: int         # tiles of workspace
    time_us: float     # estimate


def tap_table(desc: ConvDesc) -> np.ndarray:
    """Returns the rectangle of outputs of each tap; pixels = 0 where the tap meets no input."""
    h, w, icg = desc.h, desc.w, desc.ic // desc.groups
    rows = []
    for fh in range(h.f):
        for fw in range(w.f):
            (h0, h1), (w0, w1) = h.wgrad_range(fh), w.wgrad_range(fw)
            pixels = (h1 - h0) * (w1 - w0)
            g = (h0 * w.o + w0) * desc.oc if pixels else 0
            x = (h.input_of(h0, fh) * w.i + w.input_of(w0, fw)) * desc.ic if pixels else 0
            rows.append((pixels, max(1, w1 - w0), g, x, (fh * w.f + fw) * icg, 0, 0, 0))
    return np.array(rows, np.int32)


@lru_cache(maxsize=512)
def schedule(desc: ConvDesc, tiling: Tiling) -> Schedule:
    """Returns the cheapest work list by estimate."""
    taps = tap_table(desc)
    tiles = _tiles(desc, tiling)
    slabs = -(-taps[tiles[:, 0], 0].astype(np.int64) * desc.n // tiling.k)
    options = [_streamed(slabs, min(tiling.blocks, max(1, int(slabs.sum()) // LEAST_SLABS)))]
    options += [_sliced(slabs, count) for count in _slice_counts(len(tiles), slabs, tiling)]
    costs = [_cost_us(desc, tiling, slabs, *option) for option in options]
    best = int(np.argmin(costs))
    return _tables(desc, tiling, taps, tiles, *options[best], costs[best])


def _tiles(desc: ConvDesc, tiling: Tiling) -> np.ndarray:
    """Returns (tiles, 4): tap, group, first row, first column; tiles of a tap follow each other."""
    ocg, icg = desc.oc // desc.groups, desc.ic // desc.groups
    grid = np.indices((desc.h.f * desc.w.f, desc.groups, ceil_div(ocg, tiling.rows), ceil_div(icg, tiling.columns)))
    return grid.reshape(4, -1).T * (1, 1, tiling.rows, tiling.columns)


def _slice_counts(tiles: int, slabs: np.ndarray, tiling: Tiling) -> list[int]:
    """Returns numbers of slices that fill one to four waves of blocks, within the workspace."""
    most = min(int(slabs.max()) // LEAST_SLABS, WORKSPACE_BYTES // (4 * tiling.rows * tiling.columns * tiles))
    counts = {tiling.blocks * waves // tiles for waves in (1, 2, 3, 4)}
    return sorted({1} | {count for count in counts if 1 < count <= most})


def _sliced(slabs: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (units, 3) of tile, first slab, last slab + 1, and the blocks' first units: slice by slice."""
    tiles = np.arange(len(slabs))
    cuts = [slabs * s // count for s in range(count + 1)]
    units = np.concatenate([np.stack([tiles, a, b], axis=1) for a, b in pairwise(cuts)])
    length = units[:, 2] - units[:, 1]
    units = units[(length > 0) | (slabs[units[:, 0]] == 0) & (np.arange(len(units)) < len(slabs))]
    if count == 1:  # no slices to keep together: the longest first
        units = units[np.argsort(units[:, 1] - units[:, 2], kind="stable")]
    return units, np.arange(len(units) + 1)


def _streamed(slabs: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns units and the blocks' first units as `_sliced` does: one equal share for each block."""
    ends = np.cumsum(slabs)
    total = int(ends[-1])
    snap = total // blocks // 16  # a cut that falls next to the edge of a tile moves there
    units, first, tile, at = [], [0], 0, 0
    for b in range(blocks):
        goal = total * (b + 1) // blocks
        near = int(ends[np.abs(ends - goal).argmin()])
        goal = near if abs(near - goal) <= snap else goal
        while tile < len(slabs) and (at < goal or ends[tile] <= at or b == blocks - 1):
            start = int(ends[tile] - slabs[tile])
            stop = min(int(ends[tile]), max(goal, at))
            units.append((tile, at - start, stop - start))
            at = stop
            if at < ends[tile]:
                break
            tile += 1
        first.append(len(units))
    return np.array(units), np.array(first)


def _cost_us(desc: ConvDesc, tiling: Tiling, slabs: np.ndarray, units: np.ndarray, first: np.ndarray) -> float:
    on = tiling.on or device()
    c = on.table.ffma
    length = units[:, 2] - units[:, 1]
    blocks = len(first) - 1
    streamed = blocks < len(units)
    if streamed:
        work = np.add.reduceat(length * tiling.slab_us + c.unit_us, first[:-1][first[:-1] < first[1:]]).max()
    else:
        work = _makespan(length, tiling.blocks) * tiling.slab_us + c.unit_us * ceil_div(blocks, tiling.blocks)
    line = min(tiling.rows, desc.oc // desc.groups) + min(tiling.columns, desc.ic // desc.groups)
    traffic = float(slabs.sum()) * tiling.k * line * tiling.itemsize
    together = desc.nbytes() * tiling.itemsize / 4 if not streamed and blocks > len(slabs) else traffic
    slots = len(units) - len(slabs)
    adding = (c.sum_us + 2 * slots * tiling.rows * tiling.columns * 4 / (c.sum_dram * on.dram)) if slots else 0.0
    return float(max(work, min(traffic, together) / on.dram) + adding)


def _makespan(length: np.ndarray, slots: int) -> float:
    """Returns the end of the last unit, where the next unit goes to the slot that is free first."""
    padded, ends = np.pad(length, (0, -len(length) % slots)), np.zeros(slots, length.dtype)
    for units in padded.reshape(-1, slots):  # near enough: a round starts on the slots in order of their ends
        ends = np.sort(ends) + units
    return float(ends.max())


def _tables(desc: ConvDesc, tiling: Tiling, taps: np.ndarray, tiles: np.ndarray, units: np.ndarray, first: np.ndarray,
            time_us: float) -> Schedule:
    """Returns the schedule: slots are handed out tile by tile, the slices of a tile in ascending order."""
    lines = taps[tiles[:, 0], 0] * desc.n
    pieces = np.bincount(units[:, 0], minlength=len(tiles))
    cut = np.flatnonzero(pieces > 1)
    slot, start = slots_of(units[:, 0], units[:, 1], pieces > 1)
    k_end = np.minimum(units[:, 2] * tiling.k, lines[units[:, 0]])
    table = np.column_stack([tiles[units[:, 0]], units[:, 1] * tiling.k, k_end, slot, np.zeros_like(slot)])

    ocg, icg = desc.oc // desc.groups, desc.ic // desc.groups
    tap, group, row, col = tiles[cut].T
    out = (group * ocg + row) * (len(taps) * icg) + taps[tap, TAP_FIELDS.index("w")] + col
    sums = np.column_stack([start[cut], pieces[cut], out, np.minimum(tiling.rows, ocg - row),
                            np.minimum(tiling.columns, icg - col)])
    return Schedule(taps, table.astype(np.int32), first.astype(np.int32), sums.astype(np.int32), int(pieces[cut].sum()),
                    time_us)
