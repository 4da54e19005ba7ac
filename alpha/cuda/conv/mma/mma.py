"""ConvV2, KS-deconv and Sk-dilated on tensor cores by mma.sync, from sm_75 on: the
kernels of conv/ffma, over their classes, work lists and slices, with tiles of gemm_mma.cuh.

Estimated, not measured: what a tile takes follows from the products, the bytes of shared memory and those of the L2
cache that it needs, and from what conv/costs says of the device. On Hopper wgmma serves whatever both serve.
"""

from __future__ import annotations

from math import prod
from typing import Any

from alpha.core.precision import Precision
from alpha.cuda.conv.costs import device
from alpha.cuda.conv.ffma.sk_dilated import WgradTile
from alpha.cuda.conv.ffma.slab import SlabTile
from alpha.cuda.conv.mma.gemm import TILES, MmaTile
from alpha.cuda.conv.wgmma import BF16, FP16, FP32, TF32, OnOperands, Run, moved_bytes, refusal
from alpha.cuda.lazy import READS, UNFLAGGED, Operand
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import ASYNC, context
from alpha.cuda.runtime.kernel import C_TYPES
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Cost


def handicap(desc: ConvDesc) -> float:
    """Returns what an estimate is multiplied by, so that what was measured to be faster goes first."""
    return device().table.mma.behind_wgmma if context.arch == "sm_90a" and not refusal(desc) else 1.0


class _Mma(OnOperands):
    """What tiles of mma.sync have in common."""

    def cost(self, desc: ConvDesc) -> Cost:
        return super().cost(desc).times(handicap(desc))

    def least_us(self, desc: ConvDesc) -> float:
        return super().least_us(desc) * handicap(desc)


class MmaSlab(_Mma, SlabTile):
    """A tile of conv_v2 or ks_deconv in one mode."""

    def __init__(self, pass_name: str, mode: Precision, tile: MmaTile) -> None:
        self.mode, self.reads, self.writes = mode, mode.operand, mode.dtype
        super().__init__(pass_name, tile, f"conv_mma {tile} {mode.operand} to {mode.dtype}",
                         {"ELEMENT": C_TYPES[mode.element], "OUT": C_TYPES[mode.dtype]})

    def cost(self, desc: ConvDesc) -> Cost:
        stage, = super().cost(desc).stages
        return Cost((stage._replace(nbytes=handicap(desc) * sum(moved_bytes(self.pass_name, self.mode, desc))),))

    def on_operands(self, desc: ConvDesc) -> Run:
        """Returns the launch that takes what the tensor cores read, (x or g, w, output, epilogue)."""
        run_slabs = self.run_of(desc)
        planes = prod(desc.x_shape if self.pass_name == "fprop" else desc.y_shape), prod(desc.w_shape)

        def run(x: Operand, w: Operand, y: Array, epilogue: Epilogue = NOTHING,
                exact: tuple[Any, ...] = UNFLAGGED) -> None:
            run_slabs(x.ptr, w.ptr, y, epilogue, (*planes, x.scale, w.scale, *exact, 0))
        return run


class MmaWgrad(_Mma, WgradTile):
    """A tile of sk_dilated.  It writes float32, whatever it reads."""

    def __init__(self, reads: str, tile: MmaTile) -> None:
        self.reads, self.itemsize = reads, 2 * tile.planes
        super().__init__(tile, f"sk_dilated_mma {reads} {tile}", {"ELEMENT": C_TYPES[READS[reads].dtype]})

    def slab_clocks(self) -> float:
        return self.tile.slab_clocks()

    def on_operands(self, desc: ConvDesc, first: int = 0, channels: int = 0) -> Run:
        """Returns the launch that takes what the tensor cores read, (x, g, dw); first, channels: as of `run_of`."""
        run_at, planes = self.run_of(desc, first, channels), (
            prod(desc.x_shape), prod(desc.y_shape[:3]) * (channels or desc.oc))

        def run(x: Operand, g: Operand, dw: Array, exact: tuple[Any, ...] = UNFLAGGED) -> None:
            run_at(x.ptr, g.ptr + 2 * first, dw, (*planes, x.scale, g.scale, *exact, first))
        return run


def served(tile: MmaTile, element: str, slab: bool) -> MmaTile:
    """Returns a tile with what it needs.

    sm_80 for bfloat16; and for slabs of two planes and 128 rows, whose sums leave staged copies no registers.
    """
    large = slab and tile.planes == 2 and tile.rows == 128
    return tile._replace(needs=ASYNC) if element == "bfloat16" or large else tile


CANDIDATES = (*(MmaSlab(pass_name, mode, served(tile, mode.element, True)) for pass_name in ("fprop", "dgrad")
                for mode in (FP32, TF32, BF16, FP16) for tile in TILES[mode.planes]),
              *(MmaWgrad(reads, served(tile, form.dtype, False)) for reads, form in READS.items()
                for tile in TILES[form.planes]))
