"""How maps are cut into tiles, and where spectral points lie: Tiles of tiles.cuh."""

from __future__ import annotations

import struct
from math import prod
from typing import NamedTuple

from alpha.ops.algorithms.family import Way
from alpha.ops.conv_desc import ConvDesc, Pair, ceil_div

_TILES = struct.Struct("4q16i")     # Tiles of tiles.cuh
TILES_ARG = f"block[{_TILES.size}]"


class Points(NamedTuple):
    """Floats from tile to tile, from point to point, and from real to imaginary parts."""

    item: int
    point: int
    part: int = 0


class Cut(NamedTuple):
    """A map, or filters, in tiles."""

    shape: tuple[int, ...]         # (images, height, width, channels)
    strides: tuple[int, int, int]  # floats from image to image, from column to column, and from channel to channel
    grid: Pair                     # tiles of an image
    step: Pair                     # pixels from tile to tile
    padding: Pair                  # that the first one begins outside
    size: Pair                     # of a tile that count
    turned: bool = False           # whether pixels of a tile are taken in reverse
    filters: bool = False          # whether it is filters that are cut, each of which is a tile

    @property
    def count(self) -> int:
        return self.shape[0] * self.grid[0] * self.grid[1]

    def channels(self, number: int) -> Cut:
        """Returns the cut of so many of the channels."""
        return self._replace(shape=(*self.shape[:3], number))

    def packed(self, points: Points, first: int = 0, count: int = 0) -> bytes:
        """Returns Tiles of tiles.cuh, for `count` tiles from `first` on, or all."""
        (_, h, w, c), (image, pixel, channel) = self.shape, self.strides
        return _TILES.pack(*points, image, h, w, c, pixel, channel, *self.grid, *self.step, *self.padding, *self.size,
                           first, count or self.count, self.turned)


def filters_cut(filters: int, channels: int, f: Pair, strides: tuple[int, int, int], turned: bool = False) -> Cut:
    """Returns so many filters, each of which is a tile of so many channels."""
    return Cut((filters, *f, channels), strides, (1, 1), f, (0, 0), f, turned, True)


def map_cuts(way: Way, pass_name: str, desc: ConvDesc) -> tuple[Cut, Cut]:
    """Returns the tiles of x (of g in dgrad), and those of y (of dx; of g in wgrad).

    dgrad reads g, padded so that the filters can be turned.
    """
    h, w = desc.h, desc.w
    read, written, padding = desc.x_shape, desc.y_shape, (h.p, w.p)
    if pass_name == "dgrad":
        read, written, padding = desc.y_shape, desc.x_shape, (h.f - 1 - h.p, w.f - 1 - w.p)
    edge = (way.tile + h.f - 1, way.tile + w.f - 1) if way.name == "winograd" else (way.tile, way.tile)
    step = edge[0] - h.f + 1, edge[1] - w.f + 1
    grid = ceil_div(written[1], step[0]), ceil_div(written[2], step[1])
    return (Cut(read, _nhwc(read), grid, step, padding, edge),
            Cut(written, _nhwc(written), grid, step, (0, 0), step))


def _nhwc(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return prod(shape[1:]), shape[3], 1
