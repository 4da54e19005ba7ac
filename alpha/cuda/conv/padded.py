"""Tensor-core kernels for layers whose channels are no multiple of 8: the missing ones are zeros.

What TMA and cp.async copy are multiples of 16 bytes, so an image of 3 channels gets 5 more, in a copy. Such a layer is
one of the first of a network: its input is small beside its output, and the products with these zeros (on Hopper a row
of three taps is 24 values, in two steps of 16) are made by units that would wait for memory otherwise. In dgrad the
filters get them, and what becomes of them in dx is left out of a copy. Few output channels, as DenseNet's 12, get them
too: as more filters, whose results are left out of a copy of y, and as more channels of gradients.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.first_layer.tiles import MOST_CHANNELS
from alpha.cuda.conv.mma.mma import MmaSlab, MmaWgrad
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.wgmma import Wgmma
from alpha.cuda.conv.wgmma.wgrad import WgmmaWgrad
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.ops.shape import pad_cuda, part
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.plan import Cost, Stage

MULTIPLE = 8
COLUMNS = 64    # that are worth it: a first layer has few filters
WGRAD_TILES = (1, 128, 64, 1, 1, 1), (2, 128, 64, 1, 1, 1), (1, 64, 64, 3, 3, 1)    # keys; and a tap few columns

Inner = Wgmma | WgmmaWgrad | MmaSlab | MmaWgrad


class Padded(Candidate):
    """A candidate behind a padding of the channels."""

    def __init__(self, inner: Inner) -> None:
        self.inner, self.pass_name, self.reads, self.writes = inner, inner.pass_name, inner.reads, inner.writes
        self.name = f"{inner.name} padded"

    def rejection(self, desc: ConvDesc) -> str | None:
        wide = self._widened(desc)
        if wide == desc or desc.groups > 1:
            return f"{desc.ic} -> {desc.oc} channels in {desc.groups} groups; it serves no multiples of 8, in one"
        if self.pass_name == "dgrad" and self.reads == "float16x2" and desc.ic > MOST_CHANNELS:
            # LeNet-5's second layer took 59 us so, and 49 on FMA units (H100)
            return f"{desc.ic} input channels; gradients of images have up to {MOST_CHANNELS}"
        return self.inner.rejection(wide)

    def _widened(self, desc: ConvDesc) -> ConvDesc:
        ic, oc = (ceil_div(n, MULTIPLE) * MULTIPLE for n in (desc.ic, desc.oc))
        return replace(desc, ic=ic, oc=oc)

    def cost(self, desc: ConvDesc) -> Cost:
        wide, one = self._widened(desc), device().table.conversion
        padded = (wide.ic > desc.ic) * prod(wide.x_shape) + (wide.oc > desc.oc) * prod(wide.y_shape)
        nbytes = (8 + 12 * (self.reads == "float16x2")) * padded  # of an element, to pad and split the copy
        padding = Stage(nbytes=nbytes, depth=4 * one.depth, launches=4 * one.launches)
        return Cost((*self.inner.cost(wide).stages, padding))

    def result_of(self, desc: ConvDesc) -> Shape:
        return self._widened(desc).x_shape if self.writes != "float32" else desc.x_shape

    def least_us(self, desc: ConvDesc) -> float:
        return self.inner.least_us(desc)

    def prepare(self, desc: ConvDesc) -> Launch:
        wide = self._widened(desc)
        run, (x, w, y) = self.inner.prepare(wide), (wide.x_shape, wide.w_shape, wide.y_shape)
        first, second, written = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (x, y, w)}[self.pass_name]

        def launch(a: Array, b: Array, out: Array, epilogue: Epilogue = NOTHING) -> None:
            made = out if out.shape == written else empty(written, out.dtype)
            bias, relu = epilogue
            more = (Epilogue(bias and _fitted(bias, y[3:]), relu),) * (self.pass_name == "fprop")
            run(_fitted(a, first), _fitted(b, second), made, *more)
            if made is not out:  # what belongs to the result
                ranges = tuple((0, n, 1) for n in out.shape)
                part("padded", made.shape, ranges, ITEMSIZE[made.dtype], False).copy(made, out)
        return launch


def _fitted(x: Array, shape: Shape) -> Array:
    """Returns x with zeros behind its elements along each axis."""
    return x if x.shape == shape else pad_cuda(x, widths=tuple((0, n - m) for n, m in zip(shape, x.shape)), value=0)


def candidates(inner: tuple[Inner, ...]) -> tuple[Padded, ...]:
    """Returns those candidates that are worth a padding, behind one."""
    return tuple(Padded(c) for c in inner if _is_worth_it(c))


def _is_worth_it(inner: Inner) -> bool:
    if isinstance(inner, WgmmaWgrad):
        return inner.tile.key(inner.planes) in WGRAD_TILES
    if isinstance(inner, MmaWgrad):
        return inner.tile.rows == inner.tile.columns == COLUMNS
    if isinstance(inner, Wgmma) and (inner.tile.cluster > 1 or inner.tile.pairs):  # pairs take chunks of 64 channels
        return False
    return inner.tile.columns == COLUMNS
