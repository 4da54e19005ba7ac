"""Gradients of inputs at stride 1 as forward passes, by filters that are turned round (kernels/turned_filters.cu).

dx is a convolution of the gradient: taps in the other order, channels swapped, f - 1 - p positions padded. conv_wgmma
reads filters as they lie in memory in both passes, but only forward do the taps of a row follow one another, so that a
pair of outputs can read one run of few channels (schedule_wgmma.py).
"""

from __future__ import annotations

from dataclasses import replace

from alpha.cuda.conv.schedule_wgmma import FEW
from alpha.cuda.conv.wgmma import Wgmma, launch_of_arrays
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, empty
from alpha.cuda.operand import Operand
from alpha.cuda.plan import Launch
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div

TURN_US, THREADS = 2.5, 256


class Turned:
    """A candidate for dgrad by one for fprop; see alpha.cuda.plan for the members."""

    pass_name, takes_guard = "dgrad", False
    kernel = Kernel("turned_filters.cu", "turned_filters", "ptr w, ptr out, i32 oc, i32 taps, i32 ic", threads=THREADS)

    def __init__(self, inner: Wgmma) -> None:
        self.inner, self.mode, self.reads, self.writes = inner, inner.mode, inner.reads, inner.writes
        self.name = f"{inner.name} turned"

    def fits(self, desc: ConvDesc) -> str:
        if desc.groups > 1 or desc.oc not in FEW:
            return f"it is for {FEW} channels of y and one group: they are {desc.oc} and {desc.groups}"
        if any(axis.s > 1 or _padding(axis) < 0 for axis in (desc.h, desc.w)) or desc.w.d > 1:
            return "it is for stride 1, taps beside each other, and no more padding than they reach"
        return self.inner.fits(_forward(desc))

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        return TURN_US + self.inner.cost(_forward(desc), sm_count)

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        return TURN_US + self.inner.least(desc, sm_count)

    def prepare(self, desc: ConvDesc) -> Launch:
        run = self.inner.on_operands(_forward(desc))
        oc, fh, fw, ic = desc.w_shape
        blocks = ceil_div(oc * fh * fw * ic, THREADS)

        def turn_and_run(g: Operand, w: Operand, b: None, dx: Array, relu: bool) -> None:
            turned = empty((w.planes, ic, fh, fw, oc), w.dtype)
            self.kernel((blocks, w.planes), w.ptr, turned, oc, fh * fw, ic)
            run(g, Operand(turned.ptr, (ic, fh, fw, oc), w.dtype, w.planes, w.scale, turned, w.flag), b, dx, relu)
        return launch_of_arrays(self.pass_name, self.reads, turn_and_run)


def _forward(desc: ConvDesc) -> ConvDesc:
    """Returns the convolution of the gradient of y that dgrad is."""
    h, w = (Axis(i=a.o, o=a.i, f=a.f, s=1, p=_padding(a), d=a.d) for a in (desc.h, desc.w))
    return replace(desc, ic=desc.oc, oc=desc.ic, h=h, w=w)


def _padding(axis: Axis) -> int:
    return axis.d * (axis.f - 1) - axis.p


def candidates(inner: tuple[object, ...]) -> tuple[Turned, ...]:
    """Returns those that are worth it: of pairs of outputs."""
    return tuple(Turned(c) for c in inner if isinstance(c, Wgmma) and c.pass_name == "fprop" and c.tile.pairs)
