"""Contextual convolution made of convolutions, copies and a concatenation: what serves where no kernel of its own fits.

Each level is a convolution that the planner plans; its channels are copied to where they belong.
"""

from __future__ import annotations

from typing import Any

from alpha.cuda.conv import conv2d_bias_act_cuda, conv2d_dgrad_cuda, conv2d_wgrad_cuda
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.ops.shape import slice_axes_cuda
from alpha.cuda.ops.shape.concat import concat_cuda
from alpha.cuda.runtime.memory import Array
from alpha.op import registry
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc


def fprop(desc: CoConvDesc, x: Array, w: Array, b: Array | None, activation: str | None) -> Array:
    """Returns y."""
    parts = [conv2d_bias_act_cuda(x, part(w, 0, first, level.oc), None if b is None else part(b, 0, first, level.oc),
                                  activation=activation, **geometry(level)) for first, level in desc.levels]
    return concat_cuda(parts, axis=3)


def dgrad(desc: CoConvDesc, g: Array, w: Array) -> Array:
    """Returns dx, summed over the levels in float32."""
    hw, dtype, total = desc.x_shape[1:3], g.dtype, None
    for first, level in desc.levels:
        dx = conv2d_dgrad_cuda(part(g, 3, first, level.oc), part(w, 0, first, level.oc), hw=hw, **geometry(level))
        dx = dx if dtype == "float32" else convert(dx, "float32")
        total = dx if total is None else registry["add"].impls["cuda"](total, dx)
    return total if dtype == "float32" else convert(total, dtype)


def wgrad(desc: CoConvDesc, x: Array, g: Array) -> Array:
    """Returns dw."""
    f = desc.w_shape[1:3]
    return concat_cuda([conv2d_wgrad_cuda(x, part(g, 3, first, level.oc), f=f, **geometry(level))
                        for first, level in desc.levels], axis=0)


def geometry(level: ConvDesc) -> dict[str, Any]:
    """Returns the attributes of a level as a convolution."""
    h, w = level.h, level.w
    return dict(stride=(h.s, w.s), padding=(h.p, w.p), dilation=(h.d, w.d), groups=level.groups)


def part(x: Array, axis: int, first: int, count: int) -> Array:
    """Returns a copy of a range along one axis; x itself where that is all."""
    ranges = tuple((first, count, 1) if k == axis else (0, n, 1) for k, n in enumerate(x.shape))
    return slice_axes_cuda(x, ranges=ranges, shape=tuple(n for _, n, _ in ranges))
