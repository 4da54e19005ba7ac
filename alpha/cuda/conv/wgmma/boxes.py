"""Boxes of positions: what a tile of fprop and dgrad has in the place of pixels where there are few images.

A box has positions of a residue class side by side (in dgrad at stride 2 there are four classes, else there is one),
`height` x `width` of `images` images, powers of two, so that TMA copies it at once. What it has beyond the map is read
as zeros, and not written. All its positions read the taps that any of them needs: padding is multiplied at the border
alone. Boxes whose taps are the same are a class, as pixels are elsewhere. Or all boxes of a residue class read all of
its taps (`trimmed` False): then a tile has boxes of any place, and fewer tiles are not full. The estimate decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product, starmap
from typing import NamedTuple

from alpha.cuda.conv.wgmma.pixels import Pixels, boxed, steps
from alpha.ops.conv_desc import ConvDesc, Pair, ceil_div

STRIDES = (1, 2, 4)            # for which there are maps of each residue class
IMAGES = (128, 64, 32, 16, 8)  # of a tile's pixel; rows / images boxes make up a tile
ROWS = 128                     # of a tile, as a rule
MOST_PIXELS = 16               # of a tile: a lane of the producer has one, or a box of filters
STORED_ROWS = 64               # that are stored at once
LEAST_ROWS = 8                 # of a box: the swizzle has it begin at a multiple of 1024 bytes
LONGEST = 1 << 15              # of an axis in wgrad, see wgrad_producer.cuh
MOST_IMAGES = 64               # of a batch, from which on pixels fill tiles
MOST_SHAPES, MORE_TILES = 4, 1.25  # that are estimated: those with the fewest tiles, and no more than so many times


class Box(NamedTuple):
    """What a box of a tile has."""

    images: int
    height: int = 1
    width: int = 1

    @property
    def rows(self) -> int:
        return self.images * self.height * self.width

    def apart(self, pass_name: str, desc: ConvDesc) -> tuple[Pair, Pair]:
        """Returns how far its positions lie apart, as `steps` does."""
        return steps(pass_name, desc) if self.height * self.width > 1 else ((1, 1), (1, 1))

    def packed(self, pass_name: str, desc: ConvDesc) -> int:
        """Returns the box as conv_wgmma_producer.cuh reads it, with how far its positions lie apart."""
        read, written = self.apart(pass_name, desc)
        numbers = (self.rows, self.height, self.width, *read, *written)
        return sum((number.bit_length() - 1) << 4 * k for k, number in enumerate(numbers))

    @property
    def spans(self) -> tuple[int, int, int, int]:
        """What a copy of it spans: (column, row, image, group)."""
        return self.width, self.height, self.images, 1

    @property
    def stored(self) -> Box:
        """The part of it that is stored at once."""
        width = min(self.width, STORED_ROWS)
        height = min(self.height, STORED_ROWS // width)
        return Box(min(self.images, STORED_ROWS // (width * height)), height, width)


@lru_cache(maxsize=1024)
def shapes(pass_name: str, desc: ConvDesc, rows: int, most_boxes: int = MOST_PIXELS) -> tuple[Box, ...]:
    """Returns the boxes that are worth an estimate, for tiles of so many rows."""
    if desc.n > MOST_IMAGES:
        return ()
    (out_h, out_w), found = ((desc.h.o, desc.w.o) if pass_name == "fprop" else
                             (ceil_div(desc.h.i, desc.h.s), ceil_div(desc.w.i, desc.w.s))), []
    if any(s not in STRIDES or min(axis.i, axis.o) < s for axis in (desc.h, desc.w) for s in (axis.s,)):
        return ()
    for box in _boxes(rows, min(most_boxes, rows // LEAST_ROWS)):
        count = ceil_div(out_h, box.height) * ceil_div(out_w, box.width) * ceil_div(desc.n, box.images)
        found.append((ceil_div(count * box.rows, rows), rows // box.rows, abs(box.height - box.width), box))
    found.sort()
    return tuple(box for tiles, *_, box in found[:MOST_SHAPES] if tiles <= MORE_TILES * found[0][0])


@lru_cache(maxsize=1024)
def windowed(desc: ConvDesc, rows: int) -> tuple[Box, ...]:
    """Returns the boxes of fprop that have whole windows of 2 x 2 in all rows that are stored at once."""
    return tuple(box for box in shapes("fprop", desc, rows, rows // STORED_ROWS)
                 if box.width > 1 and box.stored.height > 1)


def tile_boxes(pass_name: str, desc: ConvDesc, rows: int, pixels: Pixels, positions: bool, pooled: bool
               ) -> Iterator[tuple[Box, Pixels]]:
    """Yields what a tile may have: images of pixels, and boxes of positions, where it may, with the pass in these.
    pooled: boxes of whole windows of 2 x 2 alone."""
    possible = [images for images in IMAGES if images <= rows <= MOST_PIXELS * images]
    for images in possible:
        if not pooled and (images < 2 * pixels.images or images == possible[-1]):
            yield Box(images), pixels
    for box in windowed(desc, rows) if pooled else shapes(pass_name, desc, rows) if positions else ():
        for trimmed in (True, False):
            yield box, boxed(pass_name, desc, box.height, box.width, trimmed)


@lru_cache(maxsize=1024)
def wgrad_box(desc: ConvDesc, rows: int) -> Box | None:
    """Returns the boxes with which sums over outputs have the fewest blocks of so many, each box of them a copy; or
    None."""
    if desc.n > MOST_IMAGES or max(desc.h.o, desc.w.o) >= LONGEST:
        return None
    found = []
    for box in _boxes(rows, rows // LEAST_ROWS):
        count = ceil_div(desc.n, box.images) * ceil_div(desc.h.o, box.height) * ceil_div(desc.w.o, box.width)
        blocks, copies = ceil_div(count * box.rows, rows), rows // box.rows
        found.append((blocks * copies, copies, abs(box.height - box.width), box))
    return min(found)[-1]


def _boxes(rows: int, most_boxes: int) -> Iterator[Box]:
    for box in starmap(Box, product([1 << k for k in range(8)], repeat=3)):
        if rows // most_boxes <= box.rows <= min(rows, ROWS) and box.rows > box.images:
            yield box
