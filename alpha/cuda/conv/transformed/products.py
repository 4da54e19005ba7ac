"""The products of transformed tiles: grouped convolutions of 1x1 maps, a group per spectral point, on FMA units.

    V (tiles, points, inner)  times  U (points, inner, outer),   and   V transposed times G (tiles, points, outer)

are what KS-deconv and Sk-dilated multiply already. Their kernels are compiled so that sums of TERMS terms are
made at a time (gemm_ffma.cuh): that keeps Winograd's error within fp32's promise, however many channels or tiles. Work
lists go point by point, as a point's operands are read by all of its tiles.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from alpha.cuda.conv.ffma.gemm import Tile
from alpha.cuda.conv.ffma.sk_dilated import WgradTile
from alpha.cuda.conv.ffma.slab import SlabTile
from alpha.cuda.conv.schedule import Slabs, dgrad_slabs
from alpha.ops.conv_desc import ConvDesc

TERMS = 64
TILES = Tile(64, 64, 16, 8, 4, 3, 4, terms=TERMS), Tile(32, 32, 16, 4, 4, 3, 8, vector=1, terms=TERMS)


class PointSlabs(Slabs):
    """The work of a product, point by point."""

    def work(self, tile_rows: int, tile_columns: int) -> np.ndarray:
        found = super().work(tile_rows, tile_columns)
        return np.ascontiguousarray(found[np.lexsort((found[:, 2], found[:, 1], found[:, 3]))])


class Forward(SlabTile):
    """M (tiles, points, outer) from V and U: the dgrad of a 1x1 convolution, as U's rows are the terms of the sum."""

    splits = (1,)  # sums that are made of TERMS terms at a time are not cut

    def __init__(self, tile: Tile) -> None:
        super().__init__("dgrad", tile)
        self.slabs_of = lru_cache(maxsize=64)(lambda desc: PointSlabs(*dgrad_slabs(desc)))


Product = Forward | WgradTile
FORWARD, GRADIENT = (tuple(map(Forward, TILES)), tuple(map(WgradTile, TILES)))


@lru_cache(maxsize=1024)
def product_of(desc: ConvDesc, over_tiles: bool) -> Product | None:
    """Returns the kernel of a product, None if none can compute it on this device."""
    return next((product for product in (GRADIENT if over_tiles else FORWARD) if not product.rejection(desc)), None)
