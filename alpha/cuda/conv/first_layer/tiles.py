"""The tiles of first layers, whose kernels have a patch of x in shared memory; and which layers these are."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.ops.conv_desc import ConvDesc, ceil_div

MOST_CHANNELS = 4          # of the input
PATCH = 5120               # elements of x that a tile reads, at most
WARPS = 8                  # that copy a patch
COPY, PER_TILE = 0.5, 2    # of a tile, in blocks of 16 positions of all channels: estimates


def channels_refusal(desc: ConvDesc, most: int = MOST_CHANNELS) -> str | None:
    """Returns why desc is no first layer of up to `most` input channels, or None."""
    if desc.groups > 1 or desc.ic > most:
        return f"{desc.ic} input channels in {desc.groups} groups, 1 to {most} in one are served"
    return None


def patch_of(desc: ConvDesc, height: int, width: int) -> tuple[int, int]:
    """Returns how many lines of x, and pixels of a line, height x width positions read."""
    lines, pixels = ((n - 1) * axis.s + (axis.f - 1) * axis.d + 1 for n, axis in ((height, desc.h), (width, desc.w)))
    return lines, pixels


class Tiles(NamedTuple):
    """How the outputs of an image are cut: positions of a tile, tiles of an image, and the patch of x for a tile: its
    lines, and the elements of one."""

    height: int
    width: int
    per_height: int
    per_width: int
    lines: int
    line: int

    @property
    def per_image(self) -> int:
        return self.per_height * self.per_width


@lru_cache(maxsize=256)
def tiles_of(desc: ConvDesc, positions: int, spare: int, blocks: int) -> Tiles | None:
    """Returns the tiles that are done first, by so many blocks that multiply and copy them, one after the other; None
    where no patch has room.  positions: of a tile, at most; spare: elements from the end of a line to the next, at
    most."""
    best, least = None, float("inf")
    for width in range(1, min(desc.w.o, positions) + 1):
        most = min(desc.h.o, positions // width)
        while most:
            per_height = ceil_div(desc.h.o, most)
            height = ceil_div(desc.h.o, per_height)  # all about as high as another
            lines, pixels = patch_of(desc, height, width)
            tiles = Tiles(height, width, per_height, ceil_div(desc.w.o, width), lines, pixels * desc.ic)
            copies = ceil_div(lines, WARPS) * ceil_div(tiles.line, 128)  # 4 elements a thread
            rounds = max(1.0, desc.n * tiles.per_image / blocks)
            cost = rounds * (COPY * copies + ceil_div(height * width, 16) + PER_TILE)
            if lines * (tiles.line + spare) <= PATCH and cost < least:
                best, least = tiles, cost
            most //= 2
    return best
