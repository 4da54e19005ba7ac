"""Contextual convolution (CoConv) and its two gradients: several dilations in one layer, closed under differentiation.

The output channels are split into levels, each a convolution of the same input with its own dilation, so that one layer
sees several scales. One weight tensor of the shape that conv2d has; its rows are ordered by level, and within a level
by group. Dtypes are those of conv2d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.kinds import Activation, Channels, LevelChannels, Levels, Pair
from alpha.core.op import Spec, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import relu_grad
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv import gradients
from alpha.ops.reduce import accumulation_dtype, bias_grad


@public()
@op
class coconv2d:
    """Contextual convolution: levels of output channels, each with its own dilation; no product with a padded zero.

        y[n, oh, ow, oc] = sum_{fh, fw, ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic]   for oc in level l

    where ih = oh*stride + (fh - (FH - 1) / 2) * dilations[l], and iw likewise: level l is conv2d with padding
    dilations[l] * (F - 1) / 2. With one level it is that conv2d, bit for bit.
    Args:
        x: input.  Shape (N, IH, IW, IC), NHWC; float.
        w: filters, FH and FW odd.  Shape (OC, FH, FW, IC / groups), OHWI, rows ordered by level; dtype of x, or
            float32 where that has 16 bits.
        dilations: one int for each level, in any order.
        channels: output channels of each level; they add up to OC. None: the usual split of 1 to 5 levels, 1; 1/2, 1/2;
            1/2, 1/4, 1/4; 1/4 each; 1/4, 1/4, 1/4, 1/8, 1/8.
        stride: int, or pair (height, width); of all levels.
        groups: number of channel groups; it divides IC and the channels of every level.
        for_norm: see conv2d.
    Returns:
        y of shape (N, OH, OW, OC), OH = floor((IH - 1) / stride) + 1.
    Raises:
        ShapeError: a side of the kernel is even; channels and dilations differ in number, channels do not add up to OC
            or have no usual split; a level has no channel, or groups does not divide it; or as conv2d.
    Source: Duta et al., arXiv 2108.07387.  Differs: trimmed filters, and every level writes its channels of y in place.
    """

    args, saves, parameters = "x w", "x w", "w"
    batched = True

    def canon(*, dilations: Levels, channels: LevelChannels = None, stride: Pair = 1, groups: Channels = 1,
              for_norm: bool = False):
        return dict(dilations=dilations, channels=channels, stride=stride, groups=groups, for_norm=for_norm)

    def shape(x, w, *, for_norm, **levels):
        return CoConvDesc.fprop(x.shape, w.shape, **levels).y_shape

    def vjp(g, s, needs, *, for_norm, **levels):
        return _gradients(g, s, needs, **levels)


@public()
@op
class coconv2d_dgrad:
    """Gradient of coconv2d with respect to its input (dgrad): a sum over the levels.

        dx[n, ih, iw, ic] = sum_l sum_{fh, fw, oc in level l} g[n, oh, ow, oc] * w[oc, fh, fw, ic]

    where ih = oh*stride + (fh - (FH - 1) / 2) * dilations[l], and iw likewise.
    Args:
        g: gradient of the output.  Shape (N, OH, OW, OC), NHWC; float.
        w: filters.  Shape (OC, FH, FW, IC / groups), OHWI; dtype of g, or float32 where that has 16 bits.
        hw: (IH, IW) of the input, which g and the stride leave open.
        dilations, channels, stride, groups: those of coconv2d.
    Returns:
        dx of shape (N, IH, IW, IC).
    Raises:
        ShapeError: as coconv2d; OC of g and w differ, or (IH, IW) cannot produce (OH, OW).
    Source: arXiv 2306.15951, KS-deconv-V2, Algorithm 2B, for each level.
    """

    args, saves, parameters = "g w", "g w", "w"
    batched = True

    def canon(*, hw: Pair, dilations: Levels, channels: LevelChannels = None, stride: Pair = 1, groups: Channels = 1):
        return dict(hw=hw, dilations=dilations, channels=channels, stride=stride, groups=groups)

    def shape(g, w, *, hw, **levels):
        return CoConvDesc.dgrad(g.shape, w.shape, hw, **levels).x_shape

    def vjp_g(g, s, *, hw, **levels):
        return coconv2d(g, s.w, **levels)

    def vjp_w(g, s, *, hw, **levels):
        return coconv2d_wgrad(g, s.g, f=s.w_shape[1:3], **levels).astype(s.w_dtype)


@public()
@op
class coconv2d_wgrad:
    """Gradient of coconv2d with respect to its filters (wgrad): each level writes its rows.

        dw[oc, fh, fw, ic] = sum_{n, oh, ow} g[n, oh, ow, oc] * x[n, ih, iw, ic]   for oc in level l

    where ih = oh*stride + (fh - (FH - 1) / 2) * dilations[l], and iw likewise.
    Args:
        x: input of coconv2d.  Shape (N, IH, IW, IC), NHWC; float.
        g: gradient of the output.  Shape (N, OH, OW, OC), NHWC; dtype of x.
        f: (FH, FW) of the filters, which x and g leave open.
        dilations, channels, stride, groups: those of coconv2d.
    Returns:
        dw of shape (OC, FH, FW, IC / groups); float32 where x and g have 16 bits, else of their dtype.
    Raises:
        ShapeError: as coconv2d; the batches of x and g differ, or the input cannot produce (OH, OW).
    Source: arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B, for each level.
    """

    args, saves = "x g", "x g"
    batched = True

    def canon(*, f: Pair, dilations: Levels, channels: LevelChannels = None, stride: Pair = 1, groups: Channels = 1):
        return dict(f=f, dilations=dilations, channels=channels, stride=stride, groups=groups)

    def shape(x, g, *, f, **levels):
        return Spec(CoConvDesc.wgrad(x.shape, g.shape, f, **levels).w_shape, accumulation_dtype(x.dtype))

    def vjp_x(g, s, *, f, **levels):
        return coconv2d_dgrad(s.g, g, hw=s.x_shape[1:3], **levels)

    def vjp_g(g, s, *, f, **levels):
        return coconv2d(s.x, g, **levels)


@public()
@op
class coconv2d_bias_act:
    """Contextual convolution, bias and activation in one pass over y.

        y = activation(coconv2d(x, w) + b)

    Args:
        x, w, dilations, channels, stride, groups, for_norm: see coconv2d.
        b: bias.  Shape (OC,), dtype of w; or None.
        activation: None or "relu".
    Returns:
        y of shape (N, OH, OW, OC).
    Raises:
        ShapeError: as coconv2d, or b does not have shape (OC,), or the activation is unknown.
    """

    args, saves, parameters = "x w b?", "x w y", "w b"
    spares = {"y": "activation"}
    batched = True

    def canon(*, dilations: Levels, channels: LevelChannels = None, stride: Pair = 1, groups: Channels = 1,
              activation: Activation = None, for_norm: bool = False):
        return dict(activation=activation, dilations=dilations, channels=channels, stride=stride, groups=groups,
                    for_norm=for_norm)

    def shape(x, w, b, *, activation, for_norm, **levels):
        y_shape = CoConvDesc.fprop(x.shape, w.shape, **levels).y_shape
        if b is not None and b.shape != y_shape[3:]:
            raise ShapeError(message("coconv2d_bias_act", f"b has shape {b.shape}, w has {y_shape[3]} filters",
                                     f"pass a bias of shape {y_shape[3:]}, or None"))
        return y_shape

    def vjp(g, s, needs, *, activation, for_norm, **levels):
        if activation == "relu":
            g = relu_grad(g, s.y)
        return *_gradients(g, s, needs, **levels), bias_grad(g, dtype=s.b_dtype) if needs[2] else None


def _gradients(g: Tensor, s: Any, needs: Sequence[bool], **levels: Any) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of x and w."""
    return gradients(g, lambda: coconv2d_dgrad(g, s.w, hw=s.x_shape[1:3], **levels), lambda: coconv2d_wgrad(
        s.last("x"), g, f=s.w_shape[1:3], **levels).astype(s.w_dtype), s, needs)
