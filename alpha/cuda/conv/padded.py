"""Tensor-core kernels for layers whose input channels are no multiple of 8: the missing ones are zeros.

What TMA and cp.async copy are multiples of 16 bytes, so an image of 3 channels gets 5 more, in a copy. Such a layer is
one of the first of a network: its input is small beside its output, and the products with these zeros (on Hopper a row
of three taps is 24 values, in two steps of 16) are made by units that would wait for memory otherwise. In dgrad the
filters get them, and what becomes of them in dx is left out of a copy.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.mma.mma import MmaSlab, MmaWgrad
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.wgmma import Wgmma
from alpha.cuda.conv.wgmma.wgrad import WgmmaWgrad
from alpha.cuda.lazy import Guard
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.ops.shape import pad_cuda, part
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div

MULTIPLE = 8
COLUMNS, WGRAD_TILE = 64, "128x1x64"  # that are worth it: a first layer has few filters, and a tap few columns

Inner = Wgmma | WgmmaWgrad | MmaSlab | MmaWgrad


class Padded(Candidate):
    """A candidate behind a padding of the input channels."""

    def __init__(self, inner: Inner) -> None:
        self.inner, self.pass_name, self.reads, self.writes = inner, inner.pass_name, inner.reads, inner.writes
        self.name = f"{inner.name} padded"

    def rejection(self, desc: ConvDesc) -> str | None:
        if desc.ic % MULTIPLE == 0 or desc.groups > 1:
            return f"{desc.ic} input channels in {desc.groups} groups, it serves what is no multiple of 8, in one"
        return self.inner.rejection(_widened(desc))

    def cost(self, desc: ConvDesc) -> Cost:
        wide, one = _widened(desc), device().table.conversion
        nbytes = (8 + 12 * (self.reads == "float16x2")) * prod(wide.x_shape)  # of an element, to pad and split the copy
        padding = Stage(nbytes=nbytes, depth=4 * one.depth, launches=4 * one.launches)
        return Cost((*self.inner.cost(wide).stages, padding))

    def least_us(self, desc: ConvDesc) -> float:
        return self.inner.least_us(desc)

    def prepare(self, desc: ConvDesc) -> Launch:
        wide = _widened(desc)
        launch, widths = self.inner.prepare(wide), ((0, 0), (0, 0), (0, 0), (0, wide.ic - desc.ic))

        def leave_out(made: Array, result: Array) -> None:
            part("padded", made.shape, tuple((0, n, 1) for n in result.shape), ITEMSIZE[made.dtype], False).copy(
                made, result)

        def fprop(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> Guard:
            return launch(pad_cuda(x, widths=widths, value=0), pad_cuda(w, widths=widths, value=0), y, epilogue)

        def dgrad(g: Array, w: Array, dx: Array) -> Guard:
            made = empty(wide.x_shape, dx.dtype)
            flags: Guard = launch(g, pad_cuda(w, widths=widths, value=0), made)
            leave_out(made, dx)
            return flags

        def wgrad(x: Array, g: Array, dw: Array) -> Guard:
            made = empty(wide.w_shape, "float32")
            flags: Guard = launch(pad_cuda(x, widths=widths, value=0), g, made)
            leave_out(made, dw)
            return flags
        return {"fprop": fprop, "dgrad": dgrad, "wgrad": wgrad}[self.pass_name]


def _widened(desc: ConvDesc) -> ConvDesc:
    return replace(desc, ic=ceil_div(desc.ic, MULTIPLE) * MULTIPLE)


def candidates(inner: tuple[Inner, ...]) -> tuple[Padded, ...]:
    """Returns those candidates that are worth a padding, behind one."""
    return tuple(Padded(c) for c in inner if _is_worth_it(c))


def _is_worth_it(inner: Inner) -> bool:
    if inner.pass_name == "dgrad" and inner.reads == "float16x2":  # LeNet-5, H100: 59 us where FMA units take 49
        return False
    if isinstance(inner, WgmmaWgrad):
        return str(inner.tile) == WGRAD_TILE
    if isinstance(inner, MmaWgrad):
        return inner.tile.rows == inner.tile.columns == COLUMNS
    return inner.tile.columns == COLUMNS and getattr(inner.tile, "cluster", 1) == 1
