"""Convolution, relu and a maximum over windows in one pass, for inference: the map between them is not kept."""

from __future__ import annotations

from alpha.core.errors import GraphError, ShapeError, message
from alpha.core.graph import grad_enabled
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Padding, Pair
from alpha.core.op import op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.algorithms.names import ConvAlgorithm, conv_request
from alpha.ops.conv_desc import ConvDesc
from alpha.ops.pool import pool_axes
from alpha.plan import AUTO

WHERE = "conv2d_relu_pool"


@op
class conv_relu_pool:
    """What conv2d_relu_pool computes, without a look at gradients."""

    args, saves, parameters = "x w b?", "", "w b"
    presets = {"algorithm": conv_request}

    def canon(*, stride: Pair = 1, padding: Padding = 0, pool_kernel_size: Pair = 2, pool_stride: Pair | None = None,
              pool_padding: Padding = 0, algorithm: ConvAlgorithm = None):
        return dict(stride=stride, padding=padding, pool_kernel_size=pool_kernel_size,
                    pool_stride=pool_kernel_size if pool_stride is None else pool_stride, pool_padding=pool_padding,
                    algorithm=algorithm or AUTO)

    def shape(x, w, b, *, stride, padding, pool_kernel_size, pool_stride, pool_padding, algorithm):
        desc = ConvDesc.fprop(x.shape, w.shape, stride=stride, padding=padding, dilation=(1, 1), groups=1)
        if b is not None and b.shape != (desc.oc,):
            raise ShapeError(message(WHERE, f"b has shape {b.shape}, w has {desc.oc} filters",
                                     f"pass a bias of shape {(desc.oc,)}, or None"))
        h, wide = pool_axes(WHERE, desc.y_shape, pool_kernel_size, pool_stride, pool_padding)
        return desc.n, h.o, wide.o, desc.oc


@public()
@checked
def conv2d_relu_pool(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Pair = 1, padding: Padding = 0,
                     pool_kernel_size: Pair = 2, pool_stride: Pair | None = None, pool_padding: Padding = 0) -> Tensor:
    """max_pool2d(relu(conv2d(x, w) + b)) in one pass, for inference.

    On the CPU no index of a maximum is kept, and Winograd's convolutions make windows of 2 x 2 in their tiles, so that
    the map between is never in memory; so do large maps of 16 bits on Hopper. Elsewhere the two ops follow each other.
    Args:
        x: input.  Shape (N, IH, IW, IC), NHWC; float.
        w: filters.  Shape (OC, FH, FW, IC), OHWI; dtype of x, or float32 where that has 16 bits.
        b: bias.  Shape (OC,), dtype of w; or None.
        stride, padding: of the convolution; int, or pair (height, width).
        pool_kernel_size, pool_stride, pool_padding: of the windows, as in max_pool2d.
    Returns:
        y of shape (N, PH, PW, OC).
    Raises:
        GraphError: x, w or b requires a gradient while the graph is recorded.
        ShapeError: as conv2d_bias_act and max_pool2d.
    """
    wanting = [name for name, t in (("x", x), ("w", w), ("b", b)) if t is not None and t.requires_grad]
    if wanting and grad_enabled():
        raise GraphError(message(WHERE, f"{' and '.join(wanting)} requires a gradient, and this op has none",
                                 "call it under alpha.no_grad(), or conv2d_bias_act and max_pool2d"))
    return conv_relu_pool(x, w, b, stride, padding, pool_kernel_size, pool_stride, pool_padding)
