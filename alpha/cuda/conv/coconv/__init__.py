"""Contextual convolution on CUDA: description -> plan -> launch.

One level is a convolution. Several are computed in one launch (halo.py, levels.py), in one for each level (levels.py),
or composed of convolutions that the planner plans and of copies, whichever is fastest by estimate; with ALPHA_TUNE=1
by the clock.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from alpha.core.op import registry
from alpha.core.precision import PRECISIONS
from alpha.cuda.conv import conv2d_bias_act_cuda, conv2d_dgrad_cuda, conv2d_wgrad_cuda, planner
from alpha.cuda.conv.coconv import halo, levels
from alpha.cuda.conv.costs import device, time_us
from alpha.cuda.lazy import flush_gradients, statistics, write_for
from alpha.cuda.ops.pointwise import as_float32, convert
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.ops.shape import slice_axes_cuda
from alpha.cuda.ops.shape.concat import concat_cuda
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc, Pair
from alpha.plan import Cost, Stage


class Composed(planner.Candidate):
    """The composition, beside the candidates, in one precision.  Its launch is there to be timed, by ALPHA_TUNE=1: what
    that computes is let go."""

    name = "composed"

    def __init__(self, pass_name: str, precision: str) -> None:
        self.pass_name, self.precisions = pass_name, (precision,)
        self.reads = self.writes = PRECISIONS[precision].dtype

    def rejection(self, desc: CoConvDesc) -> None:  # type: ignore[override]
        return None

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        return Cost((Stage(composed_us(self.pass_name, desc, *self.precisions)),))

    def prepare(self, desc: CoConvDesc) -> planner.Launch:  # type: ignore[override]
        of_pass = {"fprop": _composed_fprop, "dgrad": _composed_dgrad, "wgrad": _composed_wgrad}[self.pass_name]
        return lambda a, b, out: of_pass(desc, a, b)


CANDIDATES = (*levels.TOGETHER, *halo.CANDIDATES, *levels.BY_LEVEL)
planner.register(*CANDIDATES, *(Composed(*each) for each in product(planner.PASSES, PRECISIONS)), of=CoConvDesc)


def composed_us(pass_name: str, desc: CoConvDesc, precision: str) -> float:
    """Estimates the time of the composition: of the convolutions, and of the copies of what belongs to a level."""
    one, stored, levels = device().table.conversion, ITEMSIZE[PRECISIONS[precision].dtype], len(desc.levels)
    found = sum(planner.rank(pass_name, level, precision, every=False)[0].time_us for _, level in desc.levels)
    nbytes, copies = 2 * stored * prod(desc.y_shape), levels  # y is put together, g is taken apart
    if pass_name == "dgrad":  # and dx is added up, in float32
        moved = 12 * (levels - 1) + (6 * (levels + 1) if stored < 4 else 0)
        nbytes, copies = nbytes + moved * prod(desc.x_shape), copies + levels - 1
    return found + time_us(Cost((Stage(nbytes=nbytes, depth=copies * one.depth, launches=copies * one.launches),)))


@coconv2d.impl("cuda")
def coconv2d_cuda(x: Array, w: Array, **levels: Any) -> Array:
    return coconv2d_bias_act_cuda(x, w, None, activation=None, **levels)


@coconv2d_bias_act.impl("cuda")
def coconv2d_bias_act_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None, for_norm: bool = False,
                           **levels: Any) -> Array:
    desc = CoConvDesc.fprop(x.shape, w.shape, **levels)
    if len(desc.levels) == 1:
        one = _geometry(desc.levels[0][1])
        return conv2d_bias_act_cuda(x, w, b, activation=activation, for_norm=for_norm, **one)
    launch = _launch("fprop", desc, x)
    if launch is None:
        return _composed_fprop(desc, x, w, b, activation)
    y = empty(desc.y_shape, x.dtype)
    launch(x, w, statistics.ask(y) if for_norm else y, Epilogue.of(b and as_float32(b), activation))
    return y


@coconv2d_dgrad.impl("cuda")
def coconv2d_dgrad_cuda(g: Array, w: Array, *, hw: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.dgrad(g.shape, w.shape, hw, **levels)
    if len(desc.levels) == 1:
        return conv2d_dgrad_cuda(g, w, hw=hw, **_geometry(desc.levels[0][1]))
    launch = _launch("dgrad", desc, g)
    if launch is None:
        return _composed_dgrad(desc, g, w)
    dx = empty(desc.x_shape, g.dtype)
    launch(g, w, dx)
    return dx


@coconv2d_wgrad.impl("cuda")
def coconv2d_wgrad_cuda(x: Array, g: Array, *, f: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.wgrad(x.shape, g.shape, f, **levels)
    if len(desc.levels) == 1:
        return conv2d_wgrad_cuda(x, g, f=f, **_geometry(desc.levels[0][1]))
    launch = _launch("wgrad", desc, x, g)
    if launch is None:
        return _composed_wgrad(desc, x, g)
    dw = empty(desc.w_shape, "float32")
    launch(x, g, dw)
    return dw


def _launch(pass_name: str, desc: CoConvDesc, *maps: Array) -> planner.Launch | None:
    """Returns the launch of a pass, whose maps have been written as it reads them; None where it is composed."""
    made = planner.plan(pass_name, desc, planner.precision_of(maps[0].dtype))  # type: ignore[arg-type]
    if isinstance(made.chosen, Composed):
        return None
    for x in maps:
        write_for(x, made.chosen.reads)
    if pass_name != "wgrad":
        flush_gradients()
    return made.launch


# ---- composed: each level is a convolution, whose channels are copied to where they belong --------------------------
def _composed_fprop(desc: CoConvDesc, x: Array, w: Array, b: Array | None = None, activation: str | None = None
                    ) -> Array:
    """Returns y."""
    parts = [conv2d_bias_act_cuda(x, _part(w, 0, first, level.oc), None if b is None else _part(b, 0, first, level.oc),
                                  activation=activation, **_geometry(level)) for first, level in desc.levels]
    return concat_cuda(parts, axis=3)


def _composed_dgrad(desc: CoConvDesc, g: Array, w: Array) -> Array:
    """Returns dx, summed over the levels in float32."""
    hw, dtype, total = desc.x_shape[1:3], g.dtype, None
    for first, level in desc.levels:
        dx = conv2d_dgrad_cuda(_part(g, 3, first, level.oc), _part(w, 0, first, level.oc), hw=hw, **_geometry(level))
        dx = dx if dtype == "float32" else convert(dx, "float32")
        total = dx if total is None else registry["add"].impls["cuda"](total, dx)
    return total if dtype == "float32" else convert(total, dtype)


def _composed_wgrad(desc: CoConvDesc, x: Array, g: Array) -> Array:
    """Returns dw."""
    f = desc.w_shape[1:3]
    return concat_cuda([conv2d_wgrad_cuda(x, _part(g, 3, first, level.oc), f=f, **_geometry(level))
                        for first, level in desc.levels], axis=0)


def _geometry(level: ConvDesc) -> dict[str, Any]:
    """Returns the attributes of a level as a convolution."""
    h, w = level.h, level.w
    return dict(stride=(h.s, w.s), padding=(h.p, w.p), dilation=(h.d, w.d), groups=level.groups)


def _part(x: Array, axis: int, first: int, count: int) -> Array:
    """Returns a copy of a range along one axis; x itself where that is all."""
    ranges = tuple((first, count, 1) if k == axis else (0, n, 1) for k, n in enumerate(x.shape))
    return slice_axes_cuda(x, ranges=ranges, shape=tuple(n for _, n, _ in ranges))
