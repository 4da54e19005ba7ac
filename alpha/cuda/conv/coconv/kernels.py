"""Contextual convolution by the kernels of conv/ffma and conv/mma: their tiles over the work lists of all levels.

fprop and dgrad are one launch for all levels; outputs are written in place, dx once. In 16 bits and in planes the
operands are those of conv2d.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from alpha.cuda.conv.costs import Cost
from alpha.cuda.conv.ffma.gemm import TILES
from alpha.cuda.conv.ffma.slab import MOST_SEGMENTS, FfmaSlab, SlabTile
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.mma.mma import MmaSlab
from alpha.cuda.conv.schedule import LIMIT, oversized
from alpha.cuda.conv.wgmma import BF16, FP16, FP32, TF32
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import ITEMSIZE
from alpha.ops.coconv_desc import CoConvDesc


class _Levels(SlabTile):
    """What differs where a description has levels; see alpha.cuda.conv.planner for the members."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.name += " over levels"

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        if self.pass_name == "dgrad" and len(desc.levels) > MOST_SEGMENTS:
            return f"{len(desc.levels)} levels, a sum has at most {MOST_SEGMENTS} segments"
        channels = multiples(desc)
        if any(channels[name] % self.tile.vector for name in self.copied):
            return f"channels of a group and of levels, {channels}, are no multiples of {self.tile.vector}"
        if self.shared > context.max_shared:
            return f"{self.shared} bytes of shared memory, the device has {context.max_shared}"
        return too_large(desc)

    def least_us(self, desc: CoConvDesc) -> float:  # type: ignore[override]
        return 0.0

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        stage, = self._cheapest(desc)[1].stages
        return Cost((stage._replace(nbytes=desc.nbytes(ITEMSIZE[self.writes])),))


class LevelFfma(_Levels, FfmaSlab):
    """A tile of conv_v2 or ks_deconv over levels."""


class LevelMma(_Levels, MmaSlab):
    """A tile of conv_mma over levels."""


def multiples(desc: CoConvDesc) -> dict[str, int]:
    """Returns what divides the channels of a group: of x; and of all levels, and where these begin."""
    groups = desc.levels[0][1].groups
    return {"input": desc.levels[0][1].ic // groups,
            "output": gcd(*(n for first, level in desc.levels for n in (first, level.oc // groups)))}


def too_large(desc: CoConvDesc) -> str | None:
    """Returns what of desc exceeds the kernels' 32-bit integers, or None."""
    for size in (prod(desc.y_shape[1:]), prod(desc.w_shape)):
        if size >= LIMIT:
            return f"an image of y, or w, of all levels: {size} >= 2^31"
    return next(filter(None, (oversized(level) for _, level in desc.levels)), None)


FMA = {str(tile): tile for tile in TILES}
# In fprop a tile's columns are a level's, which are few; in dgrad the channels of x.
MMA = {"fprop": {1: MmaTile(128, 32, 32, 32, 1, 4, 3), 2: MmaTile(128, 32, 32, 32, 2, 3, 2)},
       "dgrad": {1: MmaTile(128, 64, 64, 32, 1, 4, 3), 2: MmaTile(128, 64, 64, 32, 2, 3, 2)}}
CANDIDATES: dict[str, tuple[SlabTile, ...]] = {
    pass_name: (*(LevelFfma(pass_name, FMA[name]) for name in names), *(
        LevelMma(pass_name, mode, MMA[pass_name][mode.planes]) for mode in (FP32, TF32, BF16, FP16)))
    for pass_name, names in (("fprop", ("64x64x16/128", "32x32x16/64")), ("dgrad", ("64x64x16/128",)))}
