"""Contextual convolution by the kernels of conv/ffma and conv/mma: their tiles over the work lists of all levels.

fprop and dgrad are one launch for all levels; outputs are written in place, dx once. wgrad is a launch for each level,
on slices of g and dw. In 16 bits and in planes the operands are those of conv2d.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Any

from alpha.cuda.conv.coconv.schedule import dgrad_slabs, fprop_slabs
from alpha.cuda.conv.costs import Cost
from alpha.cuda.conv.ffma import sk_dilated
from alpha.cuda.conv.ffma.conv_v2 import ConvV2
from alpha.cuda.conv.ffma.gemm import TILES, Tile
from alpha.cuda.conv.ffma.ks_deconv import KsDeconv
from alpha.cuda.conv.ffma.sk_dilated import SkDilated
from alpha.cuda.conv.ffma.slab import SlabTile
from alpha.cuda.conv.mma import mma
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.mma.mma import MmaSlab, MmaWgrad
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.conv.wgmma import BF16, FP16, FP32, TF32, Mode
from alpha.cuda.lazy import KEEP, UNGUARDED, Guard, operand
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.coconv_desc import CoConvDesc

MOST_SEGMENTS, SEGMENT_BYTES = 8, 40  # levels.cuh

FPROP = lru_cache(maxsize=256)(fprop_slabs)
DGRAD = lru_cache(maxsize=256)(dgrad_slabs)


def over_levels(pass_name: str, tile: Tile | MmaTile) -> Any:
    """Returns the tile with the macro LEVELS of conv_slab.cuh: its kernels are others than conv2d's."""
    kind, levels = type(tile), 1 if pass_name == "fprop" else 2

    class OverLevels(kind):  # type: ignore[misc, valid-type]
        @property
        def defines(self) -> dict[str, Any]:
            return {**super().defines, "LEVELS": levels}
    return OverLevels(*tile)


class _Levels(SlabTile):
    """What differs where a description has levels; see alpha.cuda.conv.planner for the members."""

    def _over_levels(self) -> None:
        self.name += " over levels"
        self.slabs_of = FPROP if self.pass_name == "fprop" else DGRAD  # type: ignore[assignment]
        self.shared += MOST_SEGMENTS * SEGMENT_BYTES

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        """Returns why the kernel cannot compute desc, or None."""
        return refusal(desc, self.copied, self.tile.vector) or (
            f"{self.shared} bytes of shared memory" if self.shared > context.max_shared else None)

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        stage, = self._cheapest(desc)[1].stages  # type: ignore[arg-type]
        return Cost((stage._replace(nbytes=desc.nbytes(ITEMSIZE[self.writes])),))


class LevelConvV2(_Levels, ConvV2):
    """A tile of conv_v2 over levels."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(over_levels("fprop", tile))
        self._over_levels()


class LevelKsDeconv(_Levels, KsDeconv):
    """A tile of ks_deconv over levels."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(over_levels("dgrad", tile))
        self._over_levels()


class LevelMma(_Levels, MmaSlab):
    """A tile of conv_mma over levels."""

    def __init__(self, pass_name: str, mode: Mode, tile: MmaTile) -> None:
        super().__init__(pass_name, mode, over_levels(pass_name, tile))
        self._over_levels()


def refusal(desc: CoConvDesc, copied: tuple[str, ...], vector: int) -> str | None:
    """Returns why no kernel over levels computes desc that copies `vector` elements of these channels at a time."""
    if len(desc.levels) > MOST_SEGMENTS:
        return f"{len(desc.levels)} levels, a sum has at most {MOST_SEGMENTS} segments"
    groups = desc.levels[0][1].groups
    output = gcd(*(n for first, level in desc.levels for n in (first, level.oc // groups)))
    channels = {"input": desc.levels[0][1].ic // groups, "output": output}
    if any(channels[name] % vector for name in copied):
        return f"channels of a group and of levels, {channels}, are no multiples of {vector}"
    sizes = [oversized(level) for _, level in desc.levels]
    if prod(desc.y_shape[1:]) >= 1 << 31 or prod(desc.w_shape) >= 1 << 31 or any(sizes):
        return "a tensor exceeds the kernels' 32-bit integers"
    return None


class LevelWgrad(Candidate):
    """The launches of a tile of wgrad, one for each level; see alpha.cuda.conv.planner for the members."""

    pass_name = "wgrad"

    def __init__(self, one: SkDilated | MmaWgrad) -> None:
        self.one, self.reads, self.takes_guard, self.name = one, one.reads, one.takes_guard, f"{one.name} by level"

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        """Returns why the kernel cannot compute desc, or None."""
        reasons = (self.one.rejection(level) for _, level in desc.levels)
        return refusal(desc, self.one.copied, self.one.tile.vector) or next(filter(None, reasons), None)

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        return Cost(tuple(stage for _, level in desc.levels for stage in self.one.cost(level).stages))

    def prepare(self, desc: CoConvDesc) -> Launch:  # type: ignore[override]
        oc, row = desc.y_shape[3], prod(desc.w_shape[1:])
        kernel, parts = self.one.kernel, [(first, self.one.parts(level, oc)) for first, level in desc.levels]

        def launch(x: Array | int, g: int, itemsize: int, dw: Array, more: tuple[Any, ...], guard: Guard) -> None:
            for first, (grid, floats, tables, sizes, add) in parts:
                work = empty((floats,), "float32") if floats else None
                rows = dw.ptr + 4 * first * row
                kernel(grid, x, g + itemsize * first, rows, work, *tables, *sizes, *more)
                if work:
                    add(work, rows, guard)

        def on_elements(x: Array, g: Array, dw: Array, guard: Guard = UNGUARDED) -> None:
            launch(x, g.ptr, 4, dw, guard, guard)

        def on_operands(x: Array, g: Array, dw: Array) -> Guard:
            a, b = operand(x, self.reads, keep=KEEP["activation"]), operand(g, self.reads, keep=KEEP["gradient"])
            launch(a.ptr, b.ptr, 2, dw, (prod(desc.x_shape), prod(desc.y_shape), a.scale, b.scale), UNGUARDED)
            return a.flag, b.flag
        return on_elements if self.takes_guard else on_operands


FMA = [tile for tile in TILES if str(tile) in ("64x64x16/128", "32x32x16/64")]
# Levels of few channels leave columns of a tile empty: these are narrow.
MMA = {1: (MmaTile(128, 32, 32, 32, 1, 4, 3), MmaTile(128, 64, 64, 32, 1, 4, 3)),
       2: (MmaTile(128, 32, 32, 32, 2, 3, 2), MmaTile(128, 64, 64, 32, 2, 3, 2))}
CANDIDATES: dict[str, tuple[Any, ...]] = {
    pass_name: (*map(of_fma, FMA), *(LevelMma(pass_name, mode, tile) for mode in (FP32, TF32, BF16, FP16)
                                     for tile in MMA[mode.planes]))
    for pass_name, of_fma in (("fprop", LevelConvV2), ("dgrad", LevelKsDeconv))}
CANDIDATES["wgrad"] = tuple(LevelWgrad(one) for one in (*sk_dilated.CANDIDATES, *mma.CANDIDATES)
                            if one.pass_name == "wgrad")
