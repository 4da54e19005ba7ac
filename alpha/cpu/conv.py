"""Convolution on the CPU: the compiled kernels where they can be used, else NumPy (conv_numpy.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from alpha.cpu import conv_numpy, native
from alpha.cpu.memory import empty
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_wgrad
from alpha.ops.conv_desc import ConvDesc, Pair, Shape

Array = np.ndarray


@conv2d.impl("cpu")
def conv2d_cpu(x: Array, w: Array, **geometry) -> Array:
    return conv2d_bias_act_cpu(x, w, None, activation=None, **geometry)


@conv2d_dgrad.impl("cpu")
def conv2d_dgrad_cpu(g: Array, w: Array, *, hw: Pair, **geometry) -> Array:
    desc = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry)
    if native.usable(g, w):
        dx = empty(desc.x_shape, g.dtype)
        native.conv_dgrad(desc, g, w, dx)
        return dx
    return _in_numpy(conv_numpy.dgrad, desc, g, w, desc.x_shape)


@conv2d_wgrad.impl("cpu")
def conv2d_wgrad_cpu(x: Array, g: Array, *, f: Pair, **geometry) -> Array:
    desc = ConvDesc.wgrad(x.shape, g.shape, f, **geometry)
    if native.usable(x, g):
        dw = empty(desc.w_shape, x.dtype)
        native.conv_wgrad(desc, x, g, dw)
        return dw
    return _in_numpy(conv_numpy.wgrad, desc, x, g, desc.w_shape)


@conv2d_bias_act.impl("cpu")
def conv2d_bias_act_cpu(x: Array, w: Array, b: Array | None, *, activation: str | None, **geometry) -> Array:
    desc = ConvDesc.fprop(x.shape, w.shape, **geometry)
    if native.usable(x, w):
        y = empty(desc.y_shape, x.dtype)
        native.conv_fprop(desc, x, w, y, bias=b, relu=activation == "relu")
        return y
    y = _in_numpy(conv_numpy.fprop, desc, x, w, desc.y_shape)
    if b is not None:
        y += b
    if activation == "relu":
        np.maximum(y, 0, out=y)
    return y


def _in_numpy(run: Callable[..., None], desc: ConvDesc, a: Array, b: Array, shape: Shape) -> Array:
    """Returns what `run` writes; 16-bit numbers are summed in 32 bits and rounded once."""
    out = empty(shape, a.dtype)
    if a.dtype == np.float16:
        wide = empty(shape, "float32")
        run(desc, a.astype(np.float32), b.astype(np.float32), wide)
        out[...] = wide
    else:
        run(desc, a, b, out)
    return out
