"""Contextual convolution on the CPU: the kernels of conv2d, level by level, on slices of the channels.

What    y[..., a:b] = conv2d of x and w[a:b], with the dilation of the level; the gradients likewise
Place   every level reads and writes its channels where they lie: no slice is copied and nothing is concatenated.
        dgrad: the first level writes dx, the others add to it
Forms   compiled: one call for all levels (conv_tables.py); NumPy: one of conv_numpy.py for each
"""

from __future__ import annotations

import numpy as np

from alpha.cpu import conv_numpy, native
from alpha.cpu.half import in_float32
from alpha.cpu.memory import empty
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Pair

Array = np.ndarray


@coconv2d.impl("cpu")
def coconv2d_cpu(x: Array, w: Array, **levels) -> Array:
    return coconv2d_bias_act_cpu(x, w, None, activation=None, **levels)


@coconv2d_dgrad.impl("cpu")
@in_float32()
def coconv2d_dgrad_cpu(g: Array, w: Array, *, hw: Pair, **levels) -> Array:
    desc = CoConvDesc.dgrad(g.shape, w.shape, hw, **levels)
    dx = empty(desc.x_shape, g.dtype)
    (native.conv_dgrad if native.usable(g, w) else dgrad)(desc, g, w, dx)
    return dx


@coconv2d_wgrad.impl("cpu")
@in_float32(rounded=False)
def coconv2d_wgrad_cpu(x: Array, g: Array, *, f: Pair, **levels) -> Array:
    desc = CoConvDesc.wgrad(x.shape, g.shape, f, **levels)
    dw = empty(desc.w_shape, x.dtype)
    (native.conv_wgrad if native.usable(x, g) else wgrad)(desc, x, g, dw)
    return dw


@coconv2d_bias_act.impl("cpu")
@in_float32()
def coconv2d_bias_act_cpu(x: Array, w: Array, b: Array | None, *, activation: str | None, for_norm: bool = False,
                          **levels) -> Array:
    desc = CoConvDesc.fprop(x.shape, w.shape, **levels)
    y = empty(desc.y_shape, x.dtype)
    if native.usable(x, w):
        native.conv_fprop(desc, x, w, y, bias=b, relu=activation == "relu")
        return y
    fprop(desc, x, w, y)
    if b is not None:
        y += b
    if activation == "relu":
        np.maximum(y, 0, out=y)
    return y


# ---- NumPy -----------------------------------------------------------------------------------------------------------


def fprop(desc: CoConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y, each level its channels."""
    for first, level in desc.levels:
        last = first + level.oc
        conv_numpy.fprop(level, x, w[first:last], y[..., first:last])


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
