"""Convolution on the CPU: the compiled direct kernels where they can be used, else NumPy (conv_numpy.py).

What algorithms.chosen returns takes the place of the direct kernels.
"""

from __future__ import annotations

import numpy as np

from alpha.core.config import config
from alpha.cpu import conv_numpy, native
from alpha.cpu.algorithms import chosen, for_zeros, winograd
from alpha.cpu.elementwise import bias_act
from alpha.cpu.half import in_float32
from alpha.cpu.memory import empty
from alpha.cpu.shape import copied
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_dgrad_add, conv2d_wgrad
from alpha.ops.conv_desc import ConvDesc, Pair
from alpha.ops.conv_pool import conv_relu_pool
from alpha.ops.elementwise import add
from alpha.ops.pool import max_pool2d, pool_axes
from alpha.plan import AUTO, Request

Array = np.ndarray
HALVES = (2, 2), (2, 2), (0, 0)     # kernel size, stride and padding of windows that Winograd's tiles hold whole


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


@conv2d_dgrad_add.impl("cpu")
def conv2d_dgrad_add_cpu(g: Array, w: Array, onto: Array, *, in_place: bool, hw: Pair, algorithm: Request = AUTO,
                         **geometry) -> Array:
    desc = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry)
    in_one = in_place and native.usable(g, w, onto) and not chosen("dgrad", desc, algorithm, True)
    if in_one and native.conv_dgrad_adds(desc):
        native.conv_dgrad_add(desc, g, w, onto)
        return onto
    return add.impls["cpu"](onto, conv2d_dgrad_cpu(g, w, hw=hw, algorithm=algorithm, **geometry))


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
                        algorithm: Request = AUTO, residual: Array | None = None, in_place: bool = False,
                        **geometry) -> Array:
    """residual: is added before the activation, where its memory may be the result's if in_place; of inference."""
    desc, compiled = ConvDesc.fprop(x.shape, w.shape, **geometry), native.usable(x, w, residual)
    other, relu = chosen("fprop", desc, algorithm, compiled), activation == "relu"
    if compiled and config.conv_sparsity:
        other = for_zeros(desc, algorithm, x, other)
    adds = residual is not None and compiled and (
        native.packs(desc, w) if other is None else other.way.name == "winograd")
    if residual is not None and not adds:
        y = conv2d_bias_act_cpu(x, w, b, activation=None, algorithm=algorithm, **geometry)
        return bias_act(add.impls["cpu"](y, residual), None, activation)
    y = summand(residual, in_place) if residual is not None else empty(desc.y_shape, x.dtype)
    if other is None and compiled:
        native.conv_fprop(desc, x, w, y, b, relu, add=adds)
        return y
    if other and other.fused:
        other.run(desc, x, w, y, b, relu, **({"add": True} if adds else {}))
        return y
    (other.run if other else conv_numpy.fprop)(desc, x, w, y)
    return bias_act(y, b, activation)


def summand(residual: Array, in_place: bool) -> Array:
    """Returns memory for a sum, which begins with what is added: the memory of that itself, or a copy."""
    if in_place:
        return residual
    y = empty(residual.shape, residual.dtype)
    copied(y, residual)
    return y


@conv_relu_pool.impl("cpu")
@in_float32()
def conv_relu_pool_cpu(x: Array, w: Array, b: Array | None, *, stride: Pair, padding: Pair, pool_kernel_size: Pair,
                       pool_stride: Pair, pool_padding: Pair, algorithm: Request = AUTO) -> Array:
    geometry = dict(stride=stride, padding=padding, dilation=(1, 1), groups=1)
    desc, compiled = ConvDesc.fprop(x.shape, w.shape, **geometry), native.usable(x, w, b)
    window = pool_kernel_size, pool_stride, pool_padding
    h, wide = pool_axes("conv2d_relu_pool", desc.y_shape, *window)
    pooled = empty((desc.n, h.o, wide.o, desc.oc), x.dtype)
    other = chosen("fprop", desc, algorithm, compiled)
    if compiled and other and other.way.name == "winograd" and window == HALVES:
        winograd.pool(other.way, desc, x, w, b, pooled)
        return pooled
    y = conv2d_bias_act_cpu(x, w, b, activation=None, algorithm=algorithm, **geometry)
    if compiled:
        native.max_pool_relu(y, pooled, *window)
        return pooled
    return np.maximum(max_pool2d.impls["cpu"](y, kernel_size=window[0], stride=window[1], padding=window[2])[0], 0)
