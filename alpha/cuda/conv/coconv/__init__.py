"""Contextual convolution on CUDA: one level is a convolution; several are composed of convolutions."""

from __future__ import annotations

from typing import Any

from alpha.cuda.conv import conv2d_bias_act_cuda, conv2d_dgrad_cuda, conv2d_wgrad_cuda
from alpha.cuda.conv.coconv import composed
from alpha.cuda.runtime.memory import Array
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Pair


@coconv2d.impl("cuda")
def coconv2d_cuda(x: Array, w: Array, **levels: Any) -> Array:
    return coconv2d_bias_act_cuda(x, w, None, activation=None, **levels)


@coconv2d_bias_act.impl("cuda")
def coconv2d_bias_act_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None, **levels: Any) -> Array:
    desc = CoConvDesc.fprop(x.shape, w.shape, **levels)
    if len(desc.levels) == 1:
        return conv2d_bias_act_cuda(x, w, b, activation=activation, **composed.geometry(desc.levels[0][1]))
    return composed.fprop(desc, x, w, b, activation)


@coconv2d_dgrad.impl("cuda")
def coconv2d_dgrad_cuda(g: Array, w: Array, *, hw: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.dgrad(g.shape, w.shape, hw, **levels)
    if len(desc.levels) == 1:
        return conv2d_dgrad_cuda(g, w, hw=hw, **composed.geometry(desc.levels[0][1]))
    return composed.dgrad(desc, g, w)


@coconv2d_wgrad.impl("cuda")
def coconv2d_wgrad_cuda(x: Array, g: Array, *, f: Pair, **levels: Any) -> Array:
    desc = CoConvDesc.wgrad(x.shape, g.shape, f, **levels)
    if len(desc.levels) == 1:
        return conv2d_wgrad_cuda(x, g, f=f, **composed.geometry(desc.levels[0][1]))
    return composed.wgrad(desc, x, g)
