"""Contextual convolution on CUDA: description -> plan -> launch.

One level is a convolution. Several are computed in one launch (kernels.py), in one for each level (by_level.py), or
composed of convolutions and copies (composed.py), whichever is fastest by estimate; with ALPHA_TUNE=1 by the clock.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any, NamedTuple

from alpha.config import config
from alpha.cuda.conv import conv2d_bias_act_cuda, conv2d_dgrad_cuda, conv2d_wgrad_cuda, planner
from alpha.cuda.conv.coconv import by_level, composed, halo, halo_wgrad, kernels
from alpha.cuda.conv.costs import Cost, Stage, device, time_us
from alpha.cuda.lazy import flush_gradients, statistics, write_for
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import Epilogue
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


CANDIDATES: dict[str, tuple[Any, ...]] = {
    name: tuple(c for room in (kernels, halo, halo_wgrad, by_level) for c in room.CANDIDATES.get(name, ()))
    for name in planner.PASSES}
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
    exact = next((c for c in fitting if c.takes_guard), None)
    if not exact and planner.PRECISIONS[precision].stores == "float32":  # what follows where planes lose the range
        fitting = []
    options = [planner.Option(c, None, time_us(c.cost(desc)) + time_us(planner.conversion(c, desc, precision)))
               for c in fitting]
    options.append(planner.Option(Composed(pass_name, precision), None, composed_us(pass_name, desc, precision)))
    if config.tune and fitting:
        options = planner.measured(pass_name, desc, precision, options)  # type: ignore[arg-type]
    times, best = {option.candidate.name: option.time_us for option in options}, min(options, key=lambda o: o.time_us)
    if isinstance(best.candidate, Composed):
        return Plan(None, None, times)
    launch = planner.launch_of(best.candidate, desc, precision, exact and exact.whole())  # type: ignore[arg-type]
    return Plan(best.candidate, launch, times)


class Composed(planner.Candidate):
    """The composition, beside the candidates: to be timed, by ALPHA_TUNE=1.  What it computes is let go."""

    name = "composed"

    def __init__(self, pass_name: str, precision: str) -> None:
        self.pass_name, self.reads = pass_name, planner.PRECISIONS[precision].stores

    def prepare(self, desc: CoConvDesc) -> planner.Launch:  # type: ignore[override]
        if self.pass_name == "fprop":
            return lambda x, w, y: composed.fprop(desc, x, w, None, None)
        of_pass = composed.dgrad if self.pass_name == "dgrad" else composed.wgrad
        return lambda a, b, out: of_pass(desc, a, b)


def composed_us(pass_name: str, desc: CoConvDesc, precision: str) -> float:
    """Estimates the time of the composition: of the convolutions, and of the copies of what belongs to a level."""
    one, stored, levels = device().table.conversion, ITEMSIZE[planner.PRECISIONS[precision].stores], len(desc.levels)
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
        one = composed.geometry(desc.levels[0][1])
        return conv2d_bias_act_cuda(x, w, b, activation=activation, for_norm=for_norm, **one)
    chosen, launch, _ = plan("fprop", desc, planner.precision_of(x.dtype))
    if launch is None:
        return composed.fprop(desc, x, w, b, activation)
    write_for(x, chosen.reads)
    flush_gradients()
    y = empty(desc.y_shape, x.dtype)
    launch(x, w, statistics.ask(y) if for_norm else y, Epilogue.of(b and as_float32(b), activation))
    return y


@coconv2d_dgrad.impl("cuda")
def coconv2d_dgrad_cuda(g: Array, w: Array, *, hw: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.dgrad(g.shape, w.shape, hw, **levels)
    if len(desc.levels) == 1:
        return conv2d_dgrad_cuda(g, w, hw=hw, **composed.geometry(desc.levels[0][1]))
    chosen, launch, _ = plan("dgrad", desc, planner.precision_of(g.dtype))
    if launch is None:
        return composed.dgrad(desc, g, w)
    write_for(g, chosen.reads)
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
    write_for(x, chosen.reads)
    write_for(g, chosen.reads)
    dw = empty(desc.w_shape, "float32")
    launch(x, g, dw)
    return dw
