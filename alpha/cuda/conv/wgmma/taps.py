"""What tiles of wgrad on Hopper's tensor cores sum up: their taps, and the outputs in which these meet an input.

A tile has the columns of up to `taps` taps, which share what is read of g. Where the rectangles of outputs in which
they have products (Axis.wgrad_range) differ, they are divided into segments, in which the same taps have products. The
sum of a tile runs over its segments, the largest first, in blocks of 64 / images positions x images: position p of a
segment is pixel p % pixels of images p // pixels * images and the following.

Or in strips of up to `strip` neighbouring outputs of a row, where 64 images are a block: then the taps of a tile are of
one filter row, and each meets the input that the tap before it meets at the next output. A kernel with more than two
consumers multiplies all taps of a tile or one: where two of three have products, each has a segment of its own.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.wgmma.boxes import Box
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div

SEGMENT_FIELDS = ("blocks", "h", "w", "height", "width", "tap", "taps", "unused")

BLOCK = 64                # of k
CONSUMER_ROWS = 64


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
        c = device().table.wgmma_wgrad
        return c.unit_us + c.cluster_us * (self.cluster > 1) + self.slot_bytes / c.unit_bytes_per_us

    @property
    def slot_bytes(self) -> int:
        """Bytes of what the consumers sum up in a unit."""
        return self.sums * self.rows * self.taps * self.tap_columns * 4

    @property
    def sums(self) -> int:
        """Of a unit: of two consumers that take its blocks of k in turn each has one, which are added up like units."""
        return consumers(self.rows) // len(self.corners)

    @property
    def part_columns(self) -> int:
        """Of a tap, of a consumer: where 64 rows of one tap have enough columns, each has half of them."""
        halves = self.rows == CONSUMER_ROWS and self.taps == 1 and self.tap_columns >= 2 * BLOCK
        return self.tap_columns // (2 if halves else 1)

    @property
    def corners(self) -> list[tuple[int, int]]:
        """First row and column of the parts of 64 rows by `part_columns` that consumers have of a tap."""
        return list(product(range(0, self.rows, CONSUMER_ROWS), range(0, self.tap_columns, self.part_columns)))

    def cost(self, width: int, taps: int) -> float:
        """Returns what a block or strip of a segment takes, in the time of a block, or pixel, where all is there."""
        side, c = min(width, self.strip), device().table.wgmma_wgrad
        part = c.part if self.taps > 1 else 0.0
        products = side * (part + (1 - part) * taps / self.taps)
        if self.strip == 1:
            return products
        strip = max(products, self.strip * self._copied(side, taps) / self._copied(self.strip, self.taps))
        return strip * (c.strip[self.rows] if side == self.strip else 1.0)

    def _copied(self, side: int, taps: int) -> int:
        return side * self.rows + (taps + side - 1) * self.tap_columns


class Group(NamedTuple):
    """The taps of a tile."""

    shifts: tuple[int, ...]                # pixel of x that output (0, 0) meets, of each tap; of boxes its number
    outs: tuple[int, ...]                  # element of a filter at which each begins
    segments: tuple[tuple[int, ...], ...]  # rows as in SEGMENT_FIELDS
    length: int                            # blocks of all segments
    cost: float                            # of all blocks; that of one is 1 where all taps have products


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


def groups_of(desc: ConvDesc, tiling: Tiling, box: Box) -> list[Group]:
    """Returns the groups of taps: neighbours in a filter, or in a chain of taps whose strips overlap; or, of boxes of
    positions, each tap, whose outputs are in boxes from the first one on."""
    h, w, channels, groups = desc.h, desc.w, desc.ic // desc.groups, []
    ranges = {(fh, fw): (*h.wgrad_range(fh), *w.wgrad_range(fw)) for fh in range(h.f) for fw in range(w.f)}
    met = {tap for tap, (h0, h1, w0, w1) in ranges.items() if h0 < h1 and w0 < w1}
    for members in _members(desc, tiling, met):
        numbers, outputs = [fh * w.f + fw for fh, fw in members], [ranges[tap] for tap in members]
        if box.height * box.width == 1:
            shifts = [h.input_of(0, fh) * w.i + w.input_of(0, fw) for fh, fw in members]
        else:
            (h0, h1, w0, w1), = outputs
            shifts, outputs = numbers, [(0, ceil_div(h1 - h0, box.height), 0, ceil_div(w1 - w0, box.width))]
        segments = _segments(outputs, ceil_div(desc.n, box.images), BLOCK // box.rows, tiling)
        groups.append(Group(tuple(shifts), tuple(number * channels for number in numbers), segments,
                            sum(s[0] for s in segments), sum(s[0] * tiling.cost(s[4], s[6]) for s in segments)))
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
                    each = count if count == tiling.taps or consumers(tiling.rows) == 2 else 1
                    found += [(blocks, h0, left, h1 - h0, width, tap, each, 0) for tap in range(t, t + count, each)]
    return tuple(sorted(found, key=lambda s: -s[0]))
