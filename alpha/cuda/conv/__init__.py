"""Convolution on CUDA: description -> plan -> launch.  Each algorithm of the C-K-S set has a module of its own."""

from __future__ import annotations

from typing import Any

from alpha.cuda.conv import conv_v2, depthwise, ks_deconv, sk_dilated, stem  # noqa: F401  registers the candidates
from alpha.cuda.memory import Array, empty
from alpha.cuda.plan import plan
from alpha.errors import DTypeError, message
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_wgrad
from alpha.ops.conv_desc import ConvDesc, Pair


@conv2d.impl("cuda")
def conv2d_cuda(x: Array, w: Array, **geometry: Any) -> Array:
    return conv2d_bias_act_cuda(x, w, None, activation=None, **geometry)


@conv2d_bias_act.impl("cuda")
def conv2d_bias_act_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None, **geometry: Any) -> Array:
    desc = ConvDesc.fprop(x.shape, w.shape, **geometry)
    y = _output("conv2d", desc.y_shape, x)
    plan("fprop", desc).launch(x, w, b, y, activation == "relu")
    return y


@conv2d_dgrad.impl("cuda")
def conv2d_dgrad_cuda(g: Array, w: Array, *, hw: Pair, **geometry: Any) -> Array:
    desc = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry)
    dx = _output("conv2d_dgrad", desc.x_shape, g)
    plan("dgrad", desc).launch(g, w, dx)
    return dx


@conv2d_wgrad.impl("cuda")
def conv2d_wgrad_cuda(x: Array, g: Array, *, f: Pair, **geometry: Any) -> Array:
    desc = ConvDesc.wgrad(x.shape, g.shape, f, **geometry)
    dw = _output("conv2d_wgrad", desc.w_shape, x)
    plan("wgrad", desc).launch(x, g, dw)
    return dw


def _output(where: str, shape: tuple[int, ...], like: Array) -> Array:
    if like.dtype != "float32":
        raise DTypeError(message(where, f"the CUDA backend computes it in float32, the operands are {like.dtype}",
                                 'convert them with .astype("float32")'))
    return empty(shape, "float32")
