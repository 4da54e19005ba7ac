"""Convolution on the CPU: the compiled direct kernels where they can be used, else NumPy (conv_numpy.py).

What algorithms.chosen returns takes the place of the direct kernels.
"""

from __future__ import annotations

import numpy as np

from alpha.config import config
from alpha.cpu import conv_numpy, native
from alpha.cpu.algorithms import chosen, for_zeros
from alpha.cpu.half import in_float32
from alpha.cpu.memory import empty
from alpha.ops.algorithms.names import AUTO, Request
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_wgrad
from alpha.ops.conv_desc import ConvDesc, Pair

Array = np.ndarray


@conv2d.impl("cpu")
def conv2d_cpu(x: Array, w: Array, **attrs) -> Array:
    return conv2d_bias_act_cpu(x, w, None, activation=None, **attrs)


@conv2d_dgrad.impl("cpu")
@in_float32()
def conv2d_dgrad_cpu(g: Array, w: Array, *, hw: Pair, algorithm: Request = AUTO, **geometry) -> Array:
    desc, compiled = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry), native.usable(g, w)
    other = chosen("dgrad", desc, algorithm, compiled)
    dx = empty(desc.x_shape, g.dtype)
    (other.run if other else native.conv_dgrad if compiled else conv_numpy.dgrad)(desc, g, w, dx)
    return dx


@conv2d_wgrad.impl("cpu")
@in_float32(rounded=False)
def conv2d_wgrad_cpu(x: Array, g: Array, *, f: Pair, algorithm: Request = AUTO, **geometry) -> Array:
    desc, compiled = ConvDesc.wgrad(x.shape, g.shape, f, **geometry), native.usable(x, g)
    other = chosen("wgrad", desc, algorithm, compiled)
    dw = empty(desc.w_shape, x.dtype)
    (other.run if other else native.conv_wgrad if compiled else conv_numpy.wgrad)(desc, x, g, dw)
    return dw


@conv2d_bias_act.impl("cpu")
@in_float32()
def conv2d_bias_act_cpu(x: Array, w: Array, b: Array | None, *, activation: str | None, for_norm: bool = False,
                        algorithm: Request = AUTO, **geometry) -> Array:
    desc, compiled = ConvDesc.fprop(x.shape, w.shape, **geometry), native.usable(x, w)
    other = chosen("fprop", desc, algorithm, compiled)
    if compiled and config.conv_sparsity:
        other = for_zeros(desc, algorithm, x, other)
    y = empty(desc.y_shape, x.dtype)
    if other is None and compiled:
        native.conv_fprop(desc, x, w, y, bias=b, relu=activation == "relu")
        return y
    if other and other.fused:
        other.run(desc, x, w, y, b, activation == "relu")
        return y
    (other.run if other else conv_numpy.fprop)(desc, x, w, y)
    if b is not None:
        y += b
    if activation == "relu":
        np.maximum(y, 0, out=y)
    return y
