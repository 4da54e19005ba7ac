"""TF32 of float32 as it is stored, in inference on Hopper: maps have no planes there.

Tiles of conv_wgmma.cu whose products are those of TF32: a unit takes float32, of which it ignores the low 13 bits, half
as many elements a clock as of 16 bits. But nothing has to be measured and split, which of a small map takes as long as
the convolution itself. To all but the instruction an element is two of 16 bits: boxes, runs and work lists are those of
twice as many channels. Filters are rounded to nearest, once; x is cut off (docs/explanation/numerics.md has the error).

In training norms write planes (lazy/deferred.py), which the gradient of the filters reads too: they cost nothing there.
dgrad has no such tiles, as the instruction reads filters of this type along k alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.wgmma import TF32, Wgmma
from alpha.cuda.conv.wgmma.tiles import Tile, fitting, survivors
from alpha.cuda.lazy import as_stored, is_inferring, kept_with
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.walk import THREADS
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.plan import Cost

_ROUND = Kernel("planes.cu", "planes_tf32", "ptr x, ptr y, i64 size", threads=THREADS)


@lru_cache(maxsize=1024)
def halves(desc: ConvDesc) -> ConvDesc:
    """Returns the convolution of x and w of which each element counts as two."""
    return replace(desc, ic=2 * desc.ic)


def rounded(w: Array) -> Array:
    """Returns w as TF32 has it."""
    y = empty(w.shape, "float32")
    _ROUND(ceil_div(w.size, THREADS), w, y, w.size)
    return y


class AsStored(Candidate):
    """One tile."""

    pass_name, joins, precisions = "fprop", True, ("tf32",)

    def __init__(self, tile: Tile) -> None:
        self.tile = Wgmma(self.pass_name, replace(TF32, operand="float32"), tile)
        self.name = self.tile.name

    def rejection(self, desc: ConvDesc) -> str | None:
        return self.tile.rejection(halves(desc)) if is_inferring() else "is for alpha.inference: see its file"

    def cost(self, desc: ConvDesc) -> Cost:
        return self.tile.cost(halves(desc))

    def least_us(self, desc: ConvDesc) -> float:
        return self.tile.least_us(halves(desc))

    def prepare(self, desc: ConvDesc) -> Launch:
        run = self.tile.on_operands(halves(desc))

        def launch(x: Array, w: Array, *rest: Any, **more: Any) -> None:
            run(as_stored(x), as_stored(kept_with(w, "tf32", lambda: rounded(w))), *rest, **more)
        return launch


CANDIDATES = tuple(map(AsStored, survivors("maps in tf32 as stored", fitting(1))))
