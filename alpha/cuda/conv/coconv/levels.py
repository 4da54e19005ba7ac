"""Contextual convolution by conv2d's kernels, in place: y, g, w and dw are not taken apart.

Together: tiles of conv/ffma and conv/mma over the work lists of all levels, fprop and dgrad in one launch; dx is
written once. By level: a launch for each, as it is the convolution of x with some filters of w, whose outputs are some
channels of y; kernels that know how far pixels lie apart read and write them there: fprop on wgmma, and wgrad on all
units.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any

from alpha.cuda.conv import wgmma
from alpha.cuda.conv.costs import Device, device, time_us
from alpha.cuda.conv.ffma import sk_dilated
from alpha.cuda.conv.ffma.gemm import TILES
from alpha.cuda.conv.ffma.slab import SlabTile
from alpha.cuda.conv.mma import mma
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.planner import Launch
from alpha.cuda.conv.schedule import multiples, oversized
from alpha.cuda.conv.wgmma import BF16, FP16, FP32, TF32, OnOperands, wgrad
from alpha.cuda.lazy import statistics
from alpha.cuda.ops.pointwise.epilogue import NOTHING
from alpha.cuda.runtime.memory import ITEMSIZE, Array
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Cost

EIGHTS = 8  # channels that tensor cores and TMA take at a time


class Levels(SlabTile):
    """A tile of conv_v2 or ks_deconv over levels: what differs from one of a convolution."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.name += " over levels"

    def least_us(self, desc: CoConvDesc) -> float:  # type: ignore[override]
        return 0.0

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        stage, = self.cheapest(desc)[1].stages
        return Cost((stage._replace(nbytes=desc.nbytes(ITEMSIZE[self.writes])),))


class MmaLevels(Levels, mma.MmaSlab):
    """On tensor cores."""


class ByLevel(OnOperands):
    """Tiles of one unit in one mode: each level has the one that is fastest for it, by estimate.

    Args:
        tiles: candidates of conv2d that have `on_operands(desc, first, channels)`.
    """

    def __init__(self, unit: str, tiles: tuple[Any, ...]) -> None:
        self.tiles, self.pass_name, self.reads = tiles, tiles[0].pass_name, tiles[0].reads
        self.writes = tiles[0].writes
        self.name = f"{unit} {self.reads} to {self.writes} by level"

    def best(self, desc: CoConvDesc) -> list[Any]:
        """Returns for each level its tile, or why there is none."""
        together = gcd(*multiples(desc).values())
        return [_best(self, level, together, device()) for _, level in desc.levels]

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        groups = desc.levels[0][1].groups
        if self.reads == "float16x2" and self.pass_name == "fprop" and groups > 1:
            return f"{groups} groups: planes of filters that lie apart have one"
        return oversized(desc) or next((one for one in self.best(desc) if isinstance(one, str)), None)

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        tiles = zip(self.best(desc), desc.levels)
        return Cost(tuple(stage for tile, (_, level) in tiles for stage in tile.cost(level).stages))

    def on_operands(self, desc: CoConvDesc) -> Launch:
        """Returns the launch that takes what the tiles read."""
        channels = desc.y_shape[3]
        runs = [tile.on_operands(level, first, channels) for tile, (first, level) in zip(self.best(desc), desc.levels)]
        slots = self._slots(desc) if self.pass_name == "fprop" else 0

        def launch(a: Any, b: Any, out: Array, *more: Any, **exact: Any) -> None:
            if self.pass_name == "fprop":
                epilogue, = more or (NOTHING,)
                more = epilogue, statistics.attach(out, slots) if slots else None
            for run in runs:
                run(a, b, out, *more, **exact)
        return launch

    def _slots(self, desc: CoConvDesc) -> int:
        """Returns how many slots the statistics of y have, 0 for none: sums in slices and clusters count nothing, and
        the slots of a block are those of its number in all launches."""
        tiles = self.best(desc)
        lists = [tile.work_list(level) for tile, (_, level) in zip(tiles, desc.levels)]
        blocks, count = {len(work.items) for work in lists}, all(tile.tile.cluster == 1 for tile in tiles)
        return wgmma.CONSUMERS * max(blocks) if count and len(blocks) == 1 and not any(w.slots for w in lists) else 0


@lru_cache(maxsize=1024)
def _best(unit: ByLevel, level: ConvDesc, together: int, on: Device) -> Any:
    """together: what divides the channels of all levels; on: what estimates and refusals depend on."""
    reasons = {tile: f"levels have {together} channels or multiples, it takes {of_tile} at a time" if together % of_tile
               else tile.rejection(level) for tile in unit.tiles for of_tile in [getattr(tile.tile, "vector", EIGHTS)]}
    fitting = [tile for tile, reason in reasons.items() if not reason]
    return min(fitting, key=lambda tile: time_us(tile.cost(level), on), default=reasons[unit.tiles[0]])


def _units(name: str, tiles: tuple[Any, ...]) -> list[ByLevel]:
    modes: dict[tuple[str, str], list[Any]] = {}
    for tile in tiles:
        modes.setdefault((tile.reads, tile.writes), []).append(tile)
    return [ByLevel(name, tuple(found)) for found in modes.values()]


# In fprop a tile's columns are a level's, which are few; in dgrad the channels of x.
FFMA = {"fprop": ((64, 64, 16, 128, 4), (32, 32, 16, 64, 4)), "dgrad": ((64, 64, 16, 128, 4),)}     # keys of TILES
MMA = {"fprop": {1: MmaTile(128, 32, 32, 32, 1, 4, 3), 2: MmaTile(128, 32, 32, 32, 2, 3, 2)},
       "dgrad": {1: MmaTile(128, 64, 64, 32, 1, 4, 3), 2: MmaTile(128, 64, 64, 32, 2, 3, 2)}}
TOGETHER = tuple(candidate for pass_name in FFMA for candidate in (
    *(Levels(pass_name, {tile.key: tile for tile in TILES}[key]) for key in FFMA[pass_name]),
    *(MmaLevels(pass_name, mode, mma.served(MMA[pass_name][mode.planes], mode.element, True))
      for mode in (FP32, TF32, BF16, FP16))))
BY_LEVEL = (*_units("conv_wgmma", tuple(c for c in wgmma.CANDIDATES if c.pass_name == "fprop")),
            *_units("sk_dilated", sk_dilated.CANDIDATES), *_units("sk_dilated_wgmma", wgrad.CANDIDATES),
            *_units("sk_dilated_mma", tuple(c for c in mma.CANDIDATES if c.pass_name == "wgrad")))
