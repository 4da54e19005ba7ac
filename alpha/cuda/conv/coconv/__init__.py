"""Contextual convolution on CUDA: description -> plan -> launch.

One level is a convolution. Several are computed by the tiles of kernels.py, or composed of convolutions (composed.py)
where none of them fits, or where that is faster by estimate.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from alpha.config import config
from alpha.cuda.conv import conv2d_bias_act_cuda, conv2d_dgrad_cuda, conv2d_wgrad_cuda, planner
from alpha.cuda.conv.coconv import composed
from alpha.cuda.conv.coconv.kernels import CANDIDATES
from alpha.cuda.conv.costs import rates
from alpha.cuda.lazy.deferred import Deferred, flush_gradients
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Pair


class Plan(NamedTuple):
    """How a pass is computed.

    Attributes:
        chosen, launch: the candidate, and its launch on arrays as the precision stores them; None: composed.
        times_us: estimates by name.
    """

    chosen: Any
    launch: planner.Launch | None
    times_us: dict[str, float]

    def __str__(self) -> str:
        name = self.chosen.name if self.chosen else "composed"
        return "\n".join(f"{'*' if n == name else ' '} {n:48} {us:10.1f} us" for n, us in self.times_us.items())


_plans: dict[tuple[str, CoConvDesc, str], Plan] = {}


def plan(pass_name: str, desc: CoConvDesc, precision: str) -> Plan:
    """Returns the plan of a pass, made at the first call for this description and precision."""
    found = _plans.get((pass_name, desc, precision))
    if found is None:
        found = _plans[pass_name, desc, precision] = _make(pass_name, desc, precision)
        if config.debug > 2:
            print(f"plan of {pass_name} of {desc} in {precision}:\n{found}", file=sys.stderr)
    return found


def _make(pass_name: str, desc: CoConvDesc, precision: str) -> Plan:
    fitting = [c for c in CANDIDATES[pass_name] if planner.serves(c, precision) and not c.rejection(desc)]
    times = {c.name: c.cost(desc, context.sm_count) + planner.conversion_us(c, desc, precision) for c in fitting}
    alone = composed_us(pass_name, desc, precision)
    best = min(fitting, key=lambda c: times[c.name], default=None)
    if best is None or times[best.name] > alone:
        return Plan(None, None, {"composed": alone, **times})
    exact = next((c for c in fitting if c.takes_guard), None)
    exact = exact.whole() if hasattr(exact, "whole") else exact
    return Plan(best, planner.launch_of(best, desc, precision, exact), {"composed": alone, **times})


def composed_us(pass_name: str, desc: CoConvDesc, precision: str) -> float:
    """Estimates the time of the composition: of the convolutions, and of the copies of what belongs to a level."""
    found = sum(planner.rank(pass_name, level, context.sm_count, precision, every=False)[0].time_us
                for _, level in desc.levels)
    n, h, w, oc = desc.y_shape
    nbytes = ITEMSIZE[planner.PRECISIONS[precision].stores] * n * h * w * oc
    return found + len(desc.levels) * planner.LAUNCH_US + 2 * nbytes / rates().bytes_per_us


def _ready(chosen: Any, *maps: Array) -> None:
    """Has maps written that wait for a reader, as a candidate reads them."""
    for x in maps:
        if x.__class__ is Deferred:
            x.derived.write_for(chosen.reads)  # type: ignore[union-attr]


@coconv2d.impl("cuda")
def coconv2d_cuda(x: Array, w: Array, **levels: Any) -> Array:
    return coconv2d_bias_act_cuda(x, w, None, activation=None, **levels)


@coconv2d_bias_act.impl("cuda")
def coconv2d_bias_act_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None, **levels: Any) -> Array:
    desc = CoConvDesc.fprop(x.shape, w.shape, **levels)
    if len(desc.levels) == 1:
        return conv2d_bias_act_cuda(x, w, b, activation=activation, **composed.geometry(desc.levels[0][1]))
    chosen, launch, _ = plan("fprop", desc, planner.precision_of(x.dtype))
    if launch is None:
        return composed.fprop(desc, x, w, b, activation)
    _ready(chosen, x)
    flush_gradients()
    bias = b if b is None or b.dtype == "float32" else convert(b, "float32")
    y = empty(desc.y_shape, x.dtype)
    launch(x, w, bias, y, activation == "relu")
    return y


@coconv2d_dgrad.impl("cuda")
def coconv2d_dgrad_cuda(g: Array, w: Array, *, hw: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.dgrad(g.shape, w.shape, hw, **levels)
    if len(desc.levels) == 1:
        return conv2d_dgrad_cuda(g, w, hw=hw, **composed.geometry(desc.levels[0][1]))
    chosen, launch, _ = plan("dgrad", desc, planner.precision_of(g.dtype))
    if launch is None:
        return composed.dgrad(desc, g, w)
    _ready(chosen, g)
    flush_gradients()
    dx = empty(desc.x_shape, g.dtype)
    launch(g, w, dx)
    return dx


@coconv2d_wgrad.impl("cuda")
def coconv2d_wgrad_cuda(x: Array, g: Array, *, f: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.wgrad(x.shape, g.shape, f, **levels)
    if len(desc.levels) == 1:
        return conv2d_wgrad_cuda(x, g, f=f, **composed.geometry(desc.levels[0][1]))
    chosen, launch, _ = plan("wgrad", desc, planner.precision_of(x.dtype))
    if launch is None:
        return composed.wgrad(desc, x, g)
    _ready(chosen, x, g)
    dw = empty(desc.w_shape, "float32")
    launch(x, g, dw)
    return dw
