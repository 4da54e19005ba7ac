"""Convolution and its two gradients: three ops that are closed under differentiation, and what is made of them.

The sums of conv2d, conv2d_dgrad and conv2d_wgrad run over the same products, each op holding another of the three
tensors still; so the gradient of any of the three is a pair of the other two, to any order.

`algorithm` names the way to compute: alpha.ops.algorithms has the family, docs/explanation/algorithms.md teaches it.
An algorithm that a call names is used or refused; gradients take the name as a preference.

Filters and bias may be float32 where the maps are float16 or bfloat16; sums are made in float32 in any case, and the
gradient of the filters, a sum over the whole batch, is not rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from alpha.core.device import HALF_DTYPES, get_backend
from alpha.core.errors import ConfigError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Activation, Channels, Padding, Pair
from alpha.core.op import Spec, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import relu_grad
from alpha.ops.algorithms.names import ConvAlgorithm, conv_request
from alpha.ops.conv_desc import Axis, ConvDesc, Shape
from alpha.ops.reduce import accumulation_dtype, bias_grad
from alpha.ops.shape import pad
from alpha.plan import AUTO


def product_flops(size: int, x: Tensor, w: Tensor, *others: Any) -> float:
    """Returns the operations of a product with w, whose first axis is that of the outputs, for `size` elements of y."""
    return 2.0 * size * w.size / max(1, w.shape[0])


@public()
@op
class conv2d:
    """Convolution (cross-correlation), ConvV2: no product with a padded zero is made.

        y[n, oh, ow, oc] = sum_{fh, fw, ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic]

    where ih = oh*stride - padding + fh*dilation, and iw likewise.
    With groups > 1, output channel oc reads the IC / groups input channels of its group only.
    Args:
        x: input.  Shape (N, IH, IW, IC), NHWC; float.
        w: filters.  Shape (OC, FH, FW, IC / groups), OHWI; dtype of x, or float32 where that has 16 bits.
        stride, padding, dilation: int, or pair (height, width); in pixels.
        groups: number of channel groups; it divides IC and OC.  groups=IC is a depthwise convolution.
        algorithm: "direct", "im2col", "winograd", "fft", "strassen" or "sparse", which is then used or refused; "auto":
            the fastest by estimate that keeps the precision's promise; None: what ALPHA_CONV_ALGORITHM prefers, or
            auto.
        for_norm: whether a batch norm in training is to read y: then a GPU counts the statistics that it begins with
            while it stores y, where that costs less than reading y once more.
    Returns:
        y of shape (N, OH, OW, OC), OH = floor((IH + 2*padding - dilation*(FH - 1) - 1) / stride) + 1.
    Raises:
        ShapeError: the channels or groups differ, or the filter does not fit into the padded input.
        ConfigError: the algorithm is unknown, or does not serve this convolution.
    Source: arXiv 2306.15951, ConvV2, Algorithm 1B.  Differs: dilation and groups.
    """

    args, saves, adds, parameters, flops = "x w", "x w", "x", "w", product_flops
    batched = True
    presets = {"algorithm": conv_request}

    def canon(*, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: Channels = 1,
              algorithm: ConvAlgorithm = None, for_norm: bool = False):
        return dict(stride=stride, padding=padding, dilation=dilation, groups=groups,
                    algorithm=algorithm or AUTO, for_norm=for_norm)

    def shape(x, w, *, algorithm, for_norm, **geometry):
        return ConvDesc.fprop(x.shape, w.shape, **geometry).y_shape

    def vjp(g, s, needs, *, algorithm, for_norm, **geometry):
        return _gradients(g, s, needs, algorithm=algorithm.inherited, **geometry)


@public()
@op
class conv2d_dgrad:
    """Gradient of conv2d with respect to its input (dgrad), by kernel splitting.

        dx[n, ih, iw, ic] = sum_{fh, fw, oc} g[n, oh, ow, oc] * w[oc, fh, fw, ic]

    where ih = oh*stride - padding + fh*dilation, and iw likewise.

    Args:
        g: gradient of the output.  Shape (N, OH, OW, OC), NHWC; float.
        w: filters.  Shape (OC, FH, FW, IC / groups), OHWI; dtype of g, or float32 where that has 16 bits.
        hw: (IH, IW) of the input, which g and the geometry leave open where stride > 1.
        stride, padding, dilation, groups: those of the convolution.
        algorithm: as in conv2d.
    Returns:
        dx of shape (N, IH, IW, IC).
    Raises:
        ShapeError: OC of g and w differ, or (IH, IW) cannot produce (OH, OW).
        ConfigError: as in conv2d.
    Source: arXiv 2306.15951, KS-deconv-V2, Algorithm 2B.  Differs: the split-kernel size is ceil((F - y) / stride), an
        input may have no tap at all, dilation and groups; the kernels of a class are cut out when they are needed.
    """

    args, saves, parameters = "g w", "g w", "w"
    batched = True
    presets = {"algorithm": conv_request}

    def canon(*, hw: Pair, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: Channels = 1,
              algorithm: ConvAlgorithm = None):
        return dict(hw=hw, stride=stride, padding=padding, dilation=dilation, groups=groups,
                    algorithm=algorithm or AUTO)

    def shape(g, w, *, hw, algorithm, **geometry):
        return ConvDesc.dgrad(g.shape, w.shape, hw, **geometry).x_shape

    def vjp_g(g, s, *, hw, algorithm, **geometry):
        return conv2d(g, s.w, algorithm=algorithm.inherited, **geometry)

    def vjp_w(g, s, *, hw, algorithm, **geometry):
        return conv2d_wgrad(g, s.g, f=s.w_shape[1:3], algorithm=algorithm.inherited,
                            **geometry).astype(s.w_dtype)


@public()
@op
class conv2d_dgrad_add:
    """dx + onto in one pass, dx as of conv2d_dgrad: how gradients of a map that several ops read are added up.

    Args:
        g, w, hw, stride, padding, dilation, groups, algorithm: see conv2d_dgrad.
        onto: what is added.  Shape (N, IH, IW, IC), dtype of g.
        in_place: whether the memory of onto may become that of the result; then nobody may read onto any more.
    Returns:
        dx + onto of shape (N, IH, IW, IC), with the bits of the two ops.
    Raises:
        ShapeError, ConfigError: as conv2d_dgrad, or onto has another shape than dx.
    """

    args, saves, parameters = "g w onto", "g w", "w"
    batched = True
    presets = {"algorithm": conv_request}

    def canon(*, hw: Pair, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: Channels = 1,
              algorithm: ConvAlgorithm = None, in_place: bool = False):
        return dict(hw=hw, stride=stride, padding=padding, dilation=dilation, groups=groups,
                    algorithm=algorithm or AUTO, in_place=in_place)

    def shape(g, w, onto, *, hw, algorithm, in_place, **geometry):
        x_shape = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry).x_shape
        if onto.shape != x_shape:
            raise ShapeError(message("conv2d_dgrad_add", f"onto has shape {onto.shape}, dx has {x_shape}",
                                     "pass what dx is to be added to", g=g.shape, w=w.shape))
        return x_shape

    def vjp_g(g, s, *, hw, algorithm, in_place, **geometry):
        return conv2d(g, s.w, algorithm=algorithm.inherited, **geometry)

    def vjp_w(g, s, *, hw, algorithm, in_place, **geometry):
        return conv2d_wgrad(g, s.g, f=s.w_shape[1:3], algorithm=algorithm.inherited,
                            **geometry).astype(s.w_dtype)

    def vjp_onto(g, s, **attrs):
        return g


def gradients(g: Tensor, dx: Callable[[], Tensor], dw: Callable[[], Tensor], s: Any, needs: Sequence[bool]
              ) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of x and w, where they are needed, for one of the output.

    That one may wait to be written: what it is made of goes before x is made again. That of w comes first where x is
    the larger one: x goes with its last reader, so that it is not there beside its gradient, which is as large. Else
    that of x does: neither is there beside what is computed for the gradient of w.
    """
    if g.dtype in HALF_DTYPES:
        get_backend(g.device).write_as(g.array, "elements")
    if prod(s.x_shape) < prod(s.w_shape):
        return dx() if needs[0] else None, dw() if needs[1] else None
    found = dw() if needs[1] else None
    return dx() if needs[0] else None, found


def _gradients(g: Tensor, s: Any, needs: Sequence[bool], **attrs: Any) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of x and w of a call of conv2d."""
    return gradients(g, lambda: _dgrad(g, s, **attrs), lambda: conv2d_wgrad(
        s.last("x"), g, f=s.w_shape[1:3], **attrs).astype(s.w_dtype), s, needs)


def _dgrad(g: Tensor, s: Any, **attrs: Any) -> Tensor:
    """Returns the gradient with respect to x of a call of conv2d, with what is there of it already."""
    if s.there is None:
        return conv2d_dgrad(g, s.w, hw=s.x_shape[1:3], **attrs)
    return conv2d_dgrad_add(g, s.w, s.there, hw=s.x_shape[1:3], in_place=True, **attrs)


@public()
@op
class conv2d_wgrad:
    """Gradient of conv2d with respect to its filters (wgrad), by leaping over the input in steps of the stride.

        dw[oc, fh, fw, ic] = sum_{n, oh, ow} g[n, oh, ow, oc] * x[n, ih, iw, ic]

    where ih = oh*stride - padding + fh*dilation, and iw likewise.

    Args:
        x: input of the convolution.  Shape (N, IH, IW, IC), NHWC; float.
        g: gradient of the output.  Shape (N, OH, OW, OC), NHWC; dtype of x.
        f: (FH, FW) of the filters, which x, g and the geometry leave open where stride > 1.
        stride, padding, dilation, groups: those of the convolution.
        algorithm: as in conv2d.
    Returns:
        dw of shape (OC, FH, FW, IC / groups); float32 where x and g have 16 bits, else of their dtype.
    Raises:
        ShapeError: the batches of x and g differ, or (FH, FW) cannot produce (OH, OW).
        ConfigError: as in conv2d.
    Source: arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B.  Differs: the first output is a ceiling; dilation and groups.
    """

    args, saves = "x g", "x g"
    batched = True
    presets = {"algorithm": conv_request}

    def canon(*, f: Pair, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: Channels = 1,
              algorithm: ConvAlgorithm = None):
        return dict(f=f, stride=stride, padding=padding, dilation=dilation, groups=groups,
                    algorithm=algorithm or AUTO)

    def shape(x, g, *, f, algorithm, **geometry):
        return Spec(ConvDesc.wgrad(x.shape, g.shape, f, **geometry).w_shape, accumulation_dtype(x.dtype))

    def vjp_x(g, s, *, f, algorithm, **geometry):
        return conv2d_dgrad(s.g, g, hw=s.x_shape[1:3], algorithm=algorithm.inherited, **geometry)

    def vjp_g(g, s, *, f, algorithm, **geometry):
        return conv2d(s.x, g, algorithm=algorithm.inherited, **geometry)


@public()
@op
class conv2d_bias_act:
    """Convolution, bias and activation in one pass over y.

        y = activation(conv2d(x, w) + b)

    Args:
        x, w, stride, padding, dilation, groups, algorithm, for_norm: see conv2d.
        b: bias.  Shape (OC,), dtype of w; or None.
        activation: None or "relu".
    Returns:
        y of shape (N, OH, OW, OC).
    Raises:
        ConfigError: as in conv2d.
        ShapeError: as conv2d, or b does not have shape (OC,), or the activation is unknown.
    """

    args, saves, adds, parameters, flops = "x w b?", "x w y", "x", "w b", product_flops
    batched = True
    spares = {"y": "activation"}
    presets = {"algorithm": conv_request}

    def canon(*, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: Channels = 1,
              activation: Activation = None, algorithm: ConvAlgorithm = None, for_norm: bool = False):
        return dict(activation=activation, stride=stride, padding=padding, dilation=dilation, groups=groups,
                    algorithm=algorithm or AUTO, for_norm=for_norm)

    def shape(x, w, b, *, activation, algorithm, for_norm, **geometry):
        y_shape = ConvDesc.fprop(x.shape, w.shape, **geometry).y_shape
        if b is not None and b.shape != y_shape[3:]:
            raise ShapeError(message("conv2d_bias_act", f"b has shape {b.shape}, w has {y_shape[3]} filters",
                                     f"pass a bias of shape {y_shape[3:]}, or None"))
        return y_shape

    def vjp(g, s, needs, *, activation, algorithm, for_norm, **geometry):
        if activation == "relu":
            g = relu_grad(g, s.y)
        return (*_gradients(g, s, needs, algorithm=algorithm.inherited, **geometry),
                bias_grad(g, dtype=s.b_dtype) if needs[2] else None)


@public()
@checked
def conv_transpose2d(x: Tensor, w: Tensor, stride: Pair = 1, padding: Padding = 0, output_padding: Padding = 0,
                     dilation: Pair = 1, groups: Channels = 1, algorithm: ConvAlgorithm = None) -> Tensor:
    """Transposed convolution: conv2d_dgrad used forward, so that no inserted zero is multiplied.

        y[n, oh, ow, oc] = sum_{fh, fw, ic} x[n, ih, iw, ic] * w[ic, fh, fw, oc]

    where oh = ih*stride - padding + fh*dilation, and ow likewise.

    Args:
        x: input.  Shape (N, IH, IW, IC), NHWC; float.
        w: filters.  Shape (IC, FH, FW, OC / groups): those of the convolution from y to x; dtype of x, or float32
            where that has 16 bits.
        stride, padding, dilation: int, or pair (height, width); in pixels.
        output_padding: rows and columns added to the far end of y, fewer than the stride or than the dilation: which
            of the sizes that conv2d maps to (IH, IW) is meant, or, from the stride on, with rows that no x reaches.
        groups: number of channel groups; it divides IC and OC.
        algorithm: as in conv2d, for the gradient that this is.
    Returns:
        y of shape (N, OH, OW, OC), OH = (IH - 1)*stride - 2*padding + dilation*(FH - 1) + 1 + output_padding.
    Raises:
        ShapeError: the channels differ, output_padding is below neither stride nor dilation, or y would be empty.
    Source: arXiv 2306.15951, KS-deconv-V2, Algorithm 2B; see conv2d_dgrad.
    """
    where = "conv_transpose2d"
    geometry = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    check_output_padding(where, output_padding, stride, dilation)
    _check_transposed(x.shape, w.shape)
    axes = zip(x.shape[1:3], w.shape[1:3], stride, padding, dilation)
    h, wide = (Axis.transposed_size(*axis) + e for axis, e in zip(axes, output_padding))
    if min(h, wide) < 1:
        raise ShapeError(message(where, f"the output would have height and width {h, wide}", "use less padding",
                                 x=f"{x.shape} NHWC", w=f"{w.shape} OHWI", **geometry))
    if all(e < s for e, s in zip(output_padding, stride)):
        return conv2d_dgrad(x, w, hw=(h, wide), algorithm=algorithm, **geometry)
    # No convolution maps (h, wide) to (IH, IW): the map without padding is made, then lengthened and cut.
    whole = [Axis.transposed_size(i, f, s, 0, d) for i, f, s, d in zip(x.shape[1:3], w.shape[1:3], stride, dilation)]
    y = conv2d_dgrad(x, w, hw=tuple(whole), algorithm=algorithm, **{**geometry, "padding": (0, 0)})
    far = [max(0, p + n - m) for p, n, m in zip(padding, (h, wide), whole)]
    return pad(y, ((0, 0), (0, far[0]), (0, far[1]), (0, 0)))[:, padding[0]:padding[0] + h,
                                                              padding[1]:padding[1] + wide]


def as_pair(value: Any) -> tuple[int, int]:
    """Returns (height, width) of an int for both or of a pair, for arguments that were checked."""
    return value if isinstance(value, tuple) else (value, value)


def named_padding(where: str, name: str, kernel_size: Sequence[int], stride: tuple[int, int], dilation: tuple[int, int]
                  ) -> tuple[tuple[int, int], ...]:
    """Returns how wide the border before and after the rows and the columns is that "same" or "valid" stands for.

    Raises ConfigError for "same" with a stride. Of an even kernel there is one more on the far side.
    """
    if name == "same" and stride != (1, 1):
        raise ConfigError(message(where, f'padding="same" with stride {stride}: y would be smaller',
                                  "pass padding=kernel_size // 2, or stride=1"))
    total = [d * (k - 1) if name == "same" else 0 for k, d in zip(kernel_size, dilation)]
    return tuple([(t // 2, t - t // 2) for t in total])


def check_output_padding(where: str, extra: Pair, stride: Pair, dilation: Pair) -> None:
    """Raises ShapeError unless output_padding is below the stride or the dilation along both axes."""
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
        raise ShapeError(message(where, f"output_padding {extra} is below neither stride {stride} nor dilation "
                                 f"{dilation}", "choose an output_padding below the larger of the two along each axis"))


def _check_transposed(x_shape: Shape, w_shape: Shape) -> None:
    """Says in terms of conv_transpose2d what conv2d_dgrad would say of g and w."""
    where, shown = "conv_transpose2d", {"x": f"{x_shape} NHWC", "w": f"{w_shape} (IC, FH, FW, OC/groups)"}
    if len(x_shape) != 4 or len(w_shape) != 4:
        raise ShapeError(message(where, f"x has {len(x_shape)} axes and w {len(w_shape)}, both need 4",
                                 "reshape; a single image needs a leading axis of 1", **shown))
    if x_shape[3] != w_shape[0]:
        fix = f"make in_channels of the layer {x_shape[3]}, or pass an x with {w_shape[0]} channels"
        if x_shape[1] == w_shape[0]:
            fix = "x looks like NCHW; alpha uses NHWC: x.permute(0, 2, 3, 1)"
        raise ShapeError(message(where, f"x has {x_shape[3]} channels, w expects {w_shape[0]}", fix, **shown))
