"""Contextual convolution on the CPU: the kernels of conv2d, level by level, on slices of the channels.

What    y[..., a:b] = conv2d of x and w[a:b], with the dilation of the level; the gradients likewise
Place   every level reads and writes its channels where they lie: no slice is copied and nothing is concatenated.
        dgrad: the first level writes dx, the others add to it
Forms   compiled: the direct kernels, or for a level of 3x3 and stride 1 Winograd's: of every d-th pixel, by rows and
        columns, a convolution without dilation is made; NumPy: one of conv_numpy.py for each
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from alpha.core.config import config
from alpha.cpu import conv_numpy, native
from alpha.cpu.algorithms import machine_key, tiles_of_level, way_of_level, winograd, workspace_limit
from alpha.cpu.algorithms.machines import MACHINES
from alpha.cpu.conv import conv2d_bias_act_cpu, conv2d_dgrad_cpu, conv2d_wgrad_cpu, summand
from alpha.cpu.elementwise import bias_act
from alpha.cpu.half import in_float32, quiet
from alpha.cpu.memory import empty
from alpha.ops.algorithms.family import Way, cost_of
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Pair
from alpha.ops.elementwise import add
from alpha.plan import time_us

Array = np.ndarray


@coconv2d.impl("cpu")
def coconv2d_cpu(x: Array, w: Array, **levels) -> Array:
    return coconv2d_bias_act_cpu(x, w, None, activation=None, **levels)


@coconv2d_dgrad.impl("cpu")
@in_float32()
def coconv2d_dgrad_cpu(g: Array, w: Array, *, hw: Pair, **levels) -> Array:
    desc = CoConvDesc.dgrad(g.shape, w.shape, hw, **levels)
    if len(desc.levels) == 1:
        return conv2d_dgrad_cpu(g, w, hw=hw, **_geometry(desc))
    dx = empty(desc.x_shape, g.dtype)
    (compiled_dgrad if native.usable(g, w) else dgrad)(desc, g, w, dx)
    return dx


@coconv2d_wgrad.impl("cpu")
@in_float32(rounded=False)
def coconv2d_wgrad_cpu(x: Array, g: Array, *, f: Pair, **levels) -> Array:
    desc = CoConvDesc.wgrad(x.shape, g.shape, f, **levels)
    if len(desc.levels) == 1:
        return conv2d_wgrad_cpu(x, g, f=f, **_geometry(desc))
    dw = empty(desc.w_shape, x.dtype)
    (compiled_wgrad if native.usable(x, g) else wgrad)(desc, x, g, dw)
    return dw


@coconv2d_bias_act.impl("cpu")
@in_float32()
def coconv2d_bias_act_cpu(x: Array, w: Array, b: Array | None, *, activation: str | None, for_norm: bool = False,
                          residual: Array | None = None, in_place: bool = False, **levels) -> Array:
    """residual, in_place: see conv2d_bias_act_cpu."""
    desc = CoConvDesc.fprop(x.shape, w.shape, **levels)
    if len(desc.levels) == 1:
        return conv2d_bias_act_cpu(x, w, b, activation=activation, residual=residual, in_place=in_place,
                                   **_geometry(desc))
    compiled = native.usable(x, w, residual)
    if residual is not None and not (compiled and _adds(desc, w)):
        y = coconv2d_bias_act_cpu(x, w, b, activation=None, **levels)
        return bias_act(add.impls["cpu"](y, residual), None, activation)
    y = empty(desc.y_shape, x.dtype) if residual is None else summand(residual, in_place)
    if compiled:
        compiled_fprop(desc, x, w, y, b, activation == "relu", residual is not None)
        return y
    fprop(desc, x, w, y)
    return bias_act(y, b, activation)


def _geometry(desc: CoConvDesc) -> dict[str, Any]:
    """Returns the attributes of the only level as a convolution, whose bits it has."""
    (_, one), = desc.levels
    return dict(stride=(one.h.s, one.w.s), padding=(one.h.p, one.w.p), dilation=(one.h.d, one.w.d), groups=one.groups)


# ---- compiled --------------------------------------------------------------------------------------------------------


def ways(pass_name: str, desc: CoConvDesc) -> tuple[Way | None, ...]:
    """Returns for each level its tiles of Winograd's, None for the direct kernels.  Where kernels are compiled."""
    if config.conv_algorithm not in ("auto", "winograd"):
        return (None,) * len(desc.levels)
    return _ways(pass_name, desc, machine_key(), workspace_limit())


TOGETHER = 1.3  # times the estimate of levels apart: one call for the narrow gradients of w of all is so much faster


@lru_cache(maxsize=1024)
def _ways(pass_name: str, desc: CoConvDesc, machine: str, limit: int) -> tuple[Way | None, ...]:
    found = tuple(way_of_level(pass_name, level, machine, limit) for _, level in desc.levels)
    if pass_name != "wgrad" or found[0] is None:
        return found
    times = [tiles_of_level(pass_name, level, machine, limit) for _, level in desc.levels]
    if not all(found[0] in each for each in times):
        return found
    apart = sum(each[way] if way else time_us(cost_of(Way("direct"), pass_name, level), MACHINES[machine].rates)
                for each, way, (_, level) in zip(times, found, desc.levels))
    return (found[0],) * len(found) if sum(each[found[0]] for each in times) <= TOGETHER * apart else found


def shared(found: tuple[Way | None, ...]) -> Way | None:
    """Returns the tiles that all levels have alike, by which one call computes them; None where they differ."""
    return found[0] if len(set(found)) == 1 else None


def _adds(desc: CoConvDesc, w: Array) -> bool:
    """Tells whether each level adds to what y has: Winograd's, and the direct kernels where weights are packed."""
    found = ways("fprop", desc)
    if not any(found):
        return native.packs(desc, w)
    return native.holds(w) and all(way or native.packs(desc, w, k) for k, way in enumerate(found))


def compiled_fprop(desc: CoConvDesc, x: Array, w: Array, y: Array, b: Array | None, relu: bool,
                   add: bool = False) -> None:
    """Writes y, each level its channels; add: adds them to what is there, before relu."""
    found = ways("fprop", desc)
    if not any(found):
        return native.conv_fprop(desc, x, w, y, b, relu, add=add)
    if (way := shared(found)) and not native.holds(w):
        return winograd.levels("fprop", way, desc, x, w, y, b, relu)
    for k, (way, (first, level)) in enumerate(zip(found, desc.levels)):
        if way is None:
            native.conv_fprop(desc, x, w, y, b, relu, k, add)
        else:
            rows = slice(first, first + level.oc)
            winograd.fprop(way, level, x, w[rows], y, None if b is None else b[rows], relu, first, add)


def compiled_dgrad(desc: CoConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx, the sum over the levels."""
    found = ways("dgrad", desc)
    if not any(found):
        return native.conv_dgrad(desc, g, w, dx)
    if way := shared(found):
        return winograd.levels("dgrad", way, desc, g, w, dx)
    for k, (way, (first, level)) in enumerate(zip(found, desc.levels)):
        if way is None:
            native.conv_dgrad(desc, g, w, dx, k)
        else:
            winograd.dgrad(way, level, g, w[first:first + level.oc], dx, first, first > 0)


def compiled_wgrad(desc: CoConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw, each level its rows."""
    found = ways("wgrad", desc)
    if not any(found):
        return native.conv_wgrad(desc, x, g, dw)
    if way := shared(found):
        return winograd.levels_wgrad(way, desc, x, g, dw)
    for k, (way, (first, level)) in enumerate(zip(found, desc.levels)):
        if way is None:
            native.conv_wgrad(desc, x, g, dw, k)
        else:
            winograd.wgrad(way, level, x, g, dw[first:first + level.oc], first)


# ---- NumPy -----------------------------------------------------------------------------------------------------------


def fprop(desc: CoConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y, each level its channels."""
    for first, level in desc.levels:
        last = first + level.oc
        conv_numpy.fprop(level, x, w[first:last], y[..., first:last])


@quiet
def dgrad(desc: CoConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx, the sum over the levels."""
    for first, level in desc.levels:
        last = first + level.oc
        part = empty(dx.shape, dx.dtype) if first else dx
        conv_numpy.dgrad(level, g[..., first:last], w[first:last], part)
        if first:
            dx += part


def wgrad(desc: CoConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw, each level its rows."""
    for first, level in desc.levels:
        last = first + level.oc
        conv_numpy.wgrad(level, x, g[..., first:last], dw[first:last])
