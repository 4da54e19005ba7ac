"""`import alpha.nn.functional as F`: the ops under the names of torch.nn.functional, for channels last."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

from alpha import ops
from alpha.core.errors import ConfigError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import (
    Approximation,
    Channels,
    ConvPadding,
    Finite,
    LinePadding,
    Padding,
    Pair,
    Positive,
    ShapeLike,
    Share,
    Size,
)
from alpha.core.tensor import Tensor
from alpha.interop import twins
from alpha.ops import avg_pool_windows, conv2d_bias_act, max_pool_windows, ones
from alpha.ops import avg_pool2d as _avg_pool2d
from alpha.ops import batch_norm as _batch_norm
from alpha.ops import celu as _celu
from alpha.ops import conv_transpose2d as _conv_transpose2d
from alpha.ops import dropout as _dropout
from alpha.ops import elu as _elu
from alpha.ops import embedding as _embedding
from alpha.ops import gelu as _gelu
from alpha.ops import gelu_tanh as _gelu_tanh
from alpha.ops import group_norm as _group_norm
from alpha.ops import hardtanh as _hardtanh
from alpha.ops import layer_norm as _layer_norm
from alpha.ops import leaky_relu as _leaky_relu
from alpha.ops import max_pool2d as _max_pool2d
from alpha.ops import max_unpool2d as _max_unpool2d
from alpha.ops import rms_norm as _rms_norm
from alpha.ops import threshold as _threshold
from alpha.ops import vector_norm as _vector_norm
from alpha.ops.conv import named_padding
from alpha.ops.pool.windows import unpooled_size

# names: functions, written by python -m tools.names
from alpha.ops import (
    adaptive_avg_pool2d, adaptive_avg_pool3d, adaptive_max_pool2d, adaptive_max_pool3d, affine_grid, avg_pool3d, conv3d,
    conv_transpose1d, conv_transpose3d, cosine_embedding_loss, cosine_similarity, cross_entropy, ctc_loss, dice_loss,
    focal_loss, fold, gaussian_nll_loss, glu, grid_sample, gumbel_softmax, hardshrink, hinge_embedding_loss, huber_loss,
    interpolate, kl_div, l1_loss, linear, local_response_norm, log_softmax, logsigmoid, margin_ranking_loss, max_pool3d,
    mse_loss, multi_margin_loss, nll_loss, one_hot, pad, pairwise_distance, pixel_shuffle, pixel_unshuffle,
    poisson_nll_loss, prelu, scaled_dot_product_attention, sigmoid, smooth_l1_loss, soft_margin_loss, softmax, softmin,
    softplus, softshrink, softsign, tanh, tanhshrink, triplet_margin_loss, unfold,
)
from alpha.ops import bce_loss as binary_cross_entropy, bce_with_logits_loss as binary_cross_entropy_with_logits

__all__ = [
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid",
    "avg_pool3d", "binary_cross_entropy", "binary_cross_entropy_with_logits", "conv3d", "conv_transpose1d",
    "conv_transpose3d", "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "ctc_loss", "dice_loss",
    "focal_loss", "fold", "gaussian_nll_loss", "glu", "grid_sample", "gumbel_softmax", "hardshrink", "hardsigmoid",
    "hardswish", "hinge_embedding_loss", "huber_loss", "interpolate", "kl_div", "l1_loss", "linear",
    "local_response_norm", "log_softmax", "logsigmoid", "margin_ranking_loss", "max_pool3d", "mish", "mse_loss",
    "multi_margin_loss", "nll_loss", "one_hot", "pad", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle",
    "poisson_nll_loss", "prelu", "relu", "relu6", "scaled_dot_product_attention", "selu", "sigmoid", "silu",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh",
    "tanhshrink", "triplet_margin_loss", "unfold",
]
# end of names
__all__ += [     # what is defined below
    "adaptive_avg_pool1d", "adaptive_max_pool1d", "avg_pool1d", "avg_pool2d", "batch_norm", "celu", "conv1d", "conv2d",
    "conv_transpose2d", "drop_path", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "embedding", "gelu",
    "group_norm", "hardtanh", "instance_norm", "layer_norm", "leaky_relu", "max_pool1d", "max_pool2d", "max_unpool2d",
    "normalize", "rms_norm", "threshold",
]


@checked
def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: ConvPadding = 0,
           dilation: Pair = 1, groups: Channels = 1) -> Tensor:
    """y = conv2d(x, weight) + bias: x (N, H, W, C), weight (OC, FH, FW, C / groups); padding as of nn.Conv2d.

    See alpha.ops.conv2d.
    """
    if isinstance(padding, str):
        sides = named_padding("conv2d", padding, weight.shape[1:3], stride, dilation)  # type: ignore[arg-type]
        padding = (sides[0][0], sides[1][0])
        if any(far > near for near, far in sides):
            x = pad(x, ((0, 0), *[(0, far - near) for near, far in sides], (0, 0)))
    return conv2d_bias_act(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


@checked
def conv_transpose2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Padding = 0,
                     output_padding: Padding = 0, groups: Channels = 1, dilation: Pair = 1) -> Tensor:
    """y = conv_transpose2d(x, weight) + bias: x (N, H, W, C), weight (C, FH, FW, OC / groups); groups before dilation.

    See alpha.ops.conv_transpose2d.
    """
    y = _conv_transpose2d(x, weight, stride, padding, output_padding, dilation, groups)
    return y if bias is None else y + bias


def _with_inplace(function: Any) -> Callable[..., Tensor]:
    """Returns an activation that takes PyTorch's `inplace` too, and has no use for it: x stays as it is."""
    def call(x: Tensor, inplace: bool = False) -> Tensor:
        return function(x)
    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = function.__doc__
    return checked(call)


# names: inplace, written by python -m tools.names
hardsigmoid, hardswish, mish, relu, relu6, selu, silu = map(_with_inplace, (
    ops.hardsigmoid, ops.hardswish, ops.mish, ops.relu, ops.relu6, ops.selu, ops.silu,
))
# end of names


@checked
def gelu(x: Tensor, approximate: Approximation = "none") -> Tensor:
    """y = x * P(x); exact, or approximate="tanh".  See alpha.ops.gelu."""
    return _gelu(x) if approximate == "none" else _gelu_tanh(x)


@checked
def dropout(x: Tensor, p: Share = 0.5, training: bool = True) -> Tensor:
    """y = x / (1 - p), or 0 with probability p.  See alpha.ops.dropout."""
    return _dropout(x, p, training=training)


@checked
def embedding(index: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """y = weight[index].  See alpha.ops.embedding."""
    return _embedding(index, weight, padding_idx)


@checked
def max_pool2d(x: Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0, dilation: Pair = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """Largest element of each window, and with return_indices where it was.  See alpha.nn.MaxPool2d."""
    if dilation == (1, 1) and not ceil_mode and not return_indices:
        return _max_pool2d(x, kernel_size, stride, padding)
    pooled = max_pool_windows(x, kernel_size, stride, padding, dilation, ceil_mode)
    return pooled if return_indices else pooled[0]


@checked
def max_unpool2d(x: Tensor, index: Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0,
                 output_size: Pair | None = None) -> Tensor:
    """Puts maxima back where they came from; all else is 0.  See alpha.nn.MaxUnpool2d."""
    smallest = unpooled_size(x.shape[1:3], kernel_size, kernel_size if stride is None else stride, padding)
    return _max_unpool2d(x, index, output_hw=output_size or smallest)


@checked
def avg_pool2d(x: Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: Channels | None = None) -> Tensor:
    """Mean of each window.  See alpha.nn.AvgPool2d."""
    if not ceil_mode and divisor_override is None:
        return _avg_pool2d(x, kernel_size, stride, padding, count_include_pad=count_include_pad)
    return avg_pool_windows(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@checked
def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """y = x / max(norm of x along an axis, eps).  See alpha.norm."""
    return x / _vector_norm(x, p, axis, True).clip(eps, None)


@checked
def dropout1d(x: Tensor, p: Share = 0.5, training: bool = True) -> Tensor:
    """y = x / (1 - p), or 0 for whole channels of a sample with probability p.  See alpha.nn.Dropout2d."""
    if not training or p == 0 or x.ndim < 2:
        return _dropout(x, p, training=training)
    return x * _dropout(ones((x.shape[0], *[1] * (x.ndim - 2), x.shape[-1]), x.dtype, x.device), p)


dropout2d = dropout3d = dropout1d


@checked
def drop_path(x: Tensor, p: Share = 0.5, training: bool = True, scale_by_keep: bool = True) -> Tensor:
    """y = x / (1 - p), or 0 for whole samples with probability p.  See alpha.nn.DropPath."""
    if not training or p == 0:
        return x
    kept = _dropout(ones((x.shape[0], *[1] * (x.ndim - 1)), x.dtype, x.device), p)
    return x * (kept if scale_by_keep else kept * (1.0 - p))


# ---- norms: arguments in PyTorch's order -----------------------------------------------------------------------------


@checked
def batch_norm(x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
               weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
               momentum: Share = 0.1, eps: Positive = 1e-5) -> Tensor:
    """y = (x - mean) / sqrt(var + eps) * weight + bias of each channel, the last axis.  See alpha.ops.batch_norm."""
    return _batch_norm(x, weight, bias, running_mean, running_var, training=training, momentum=momentum, eps=eps)


def _whole(where: str, x: Tensor, normalized_shape: Any) -> int:
    """Returns how many axes are normalised.  Raises ShapeError unless the last ones of x have these sizes."""
    sizes = tuple(normalized_shape)
    if not sizes or x.shape[-len(sizes):] != sizes:
        raise ShapeError(message(where, f"x has shape {x.shape}, normalized_shape is {sizes}",
                                 "pass the sizes of the last axes of x"))
    return len(sizes)


@checked
def layer_norm(x: Tensor, normalized_shape: ShapeLike, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: Positive = 1e-5) -> Tensor:
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes.  See alpha.ops.layer_norm."""
    return _layer_norm(x, weight, bias, normalized_ndim=_whole("layer_norm", x, normalized_shape), eps=eps)


@checked
def rms_norm(x: Tensor, normalized_shape: ShapeLike, weight: Tensor | None = None, eps: Positive | None = None
             ) -> Tensor:
    """y = x / sqrt(mean of x^2 + eps) * weight over the last axes.  See alpha.ops.rms_norm."""
    return _rms_norm(x, weight, normalized_ndim=_whole("rms_norm", x, normalized_shape), eps=eps)


@checked
def group_norm(x: Tensor, num_groups: Channels, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: Positive = 1e-5) -> Tensor:
    """y = (x - mean) / sqrt(var + eps) * weight + bias over pixels and groups of channels.  See alpha.ops.group_norm.
    """
    return _group_norm(x, weight, bias, groups=num_groups, eps=eps)


@checked
def instance_norm(x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
                  weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
                  momentum: Share = 0.1, eps: Positive = 1e-5) -> Tensor:
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the pixels of each channel of each sample.

    Args:
        x: shape (N, ..., C), channels last, of at least two pixels; float.
        running_mean, running_var: shape (C,); use_input_stats=False normalises with them, not the pixels'.
        momentum: 0.1: no running statistics move here.
    Raises:
        ConfigError: momentum is another one.
        ShapeError: x has one pixel, or running statistics are given with use_input_stats, or not given without.
    """
    if momentum != 0.1:
        raise ConfigError(message("instance_norm", f"momentum={momentum} has no effect: no statistics move here",
                                  "leave momentum out, or use batch_norm"))
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        raise ShapeError(message("instance_norm", "running statistics are given, which do not move here",
                                 "leave them out, or pass use_input_stats=False", x=x.shape))
    if x.ndim < 3 or prod(x.shape[1:-1]) == 1:
        raise ShapeError(message("instance_norm", f"x of shape {x.shape} has 1 pixel in a sample, so y would be 0",
                                 "pass maps (N, H, W, C) of at least 2 pixels"))
    return _group_norm(x, weight, bias, groups=x.shape[-1], eps=eps)


# ---- along lines: x (N, L, C), each the function of maps of one row --------------------------------------------------


def _row(where: str, x: Tensor) -> Tensor:
    if x.ndim != 3:
        raise ShapeError(message(where, f"x has {x.ndim} axes, 3 are needed (N L C)",
                                 "reshape x; PyTorch's (N, C, L) is x.transpose(1, 2)", x=x.shape))
    return x.reshape(x.shape[0], 1, *x.shape[1:])


def _line(y: Tensor) -> Tensor:
    return y.reshape(y.shape[0], *y.shape[2:])


@checked
def conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Channels = 1, padding: LinePadding = 0,
           dilation: Channels = 1, groups: Channels = 1) -> Tensor:
    """y = conv1d(x, weight) + bias: x (N, L, C), weight (OC, F, C / groups).  See conv2d."""
    if weight.ndim != 3:
        raise ShapeError(message("conv1d", f"weight has {weight.ndim} axes, 3 are needed (OC F IC)",
                                 "PyTorch's (OC, IC, F) is weight.transpose(1, 2)", weight=weight.shape))
    row = weight.reshape(weight.shape[0], 1, *weight.shape[1:])
    sides = padding if isinstance(padding, str) else (0, padding)
    return _line(conv2d(_row("conv1d", x), row, bias, (1, stride), sides, (1, dilation), groups))


@checked
def max_pool1d(x: Tensor, kernel_size: Channels, stride: Channels | None = None, padding: Size = 0,
               dilation: Channels = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """Largest element of each window of a line, and with return_indices where it was.  See alpha.nn.MaxPool1d."""
    y = max_pool2d(_row("max_pool1d", x), (1, kernel_size), None if stride is None else (1, stride), (0, padding),
                   (1, dilation), ceil_mode, return_indices)
    return (_line(y[0]), _line(y[1])) if return_indices else _line(y)


@checked
def avg_pool1d(x: Tensor, kernel_size: Channels, stride: Channels | None = None, padding: Size = 0,
               ceil_mode: bool = False, count_include_pad: bool = True) -> Tensor:
    """Mean of each window of a line.  See alpha.nn.AvgPool1d."""
    return _line(avg_pool2d(_row("avg_pool1d", x), (1, kernel_size), None if stride is None else (1, stride),
                            (0, padding), ceil_mode, count_include_pad))


@checked
def adaptive_avg_pool1d(x: Tensor, output_size: Channels) -> Tensor:
    """Mean of output_size windows that cover a line evenly."""
    return _line(adaptive_avg_pool2d(_row("adaptive_avg_pool1d", x), (1, output_size)))


@checked
def adaptive_max_pool1d(x: Tensor, output_size: Channels) -> Tensor:
    """Largest element of output_size windows that cover a line evenly."""
    return _line(adaptive_max_pool2d(_row("adaptive_max_pool1d", x), (1, output_size)))


# ---- with numbers, and `inplace`, which is taken: x stays as it is ---------------------------------------------------


@checked
def hardtanh(x: Tensor, min_val: Finite = -1.0, max_val: Finite = 1.0, inplace: bool = False) -> Tensor:
    """y = x limited to [min_val, max_val].  See alpha.ops.hardtanh."""
    return _hardtanh(x, min_val, max_val)


@checked
def celu(x: Tensor, alpha: Positive = 1.0, inplace: bool = False) -> Tensor:
    """y = x where x > 0, else alpha * (e^(x / alpha) - 1).  See alpha.ops.celu."""
    return _celu(x, alpha)


@checked
def threshold(x: Tensor, threshold: Finite, value: Finite, inplace: bool = False) -> Tensor:
    """y = x where x > threshold, else value.  See alpha.ops.threshold."""
    return _threshold(x, threshold, value)


@checked
def elu(x: Tensor, alpha: Finite = 1.0, inplace: bool = False) -> Tensor:
    """y = x where x > 0, else alpha * (e^x - 1).  See alpha.ops.elu."""
    return _elu(x, alpha)


@checked
def leaky_relu(x: Tensor, slope: Finite = 0.01, inplace: bool = False) -> Tensor:
    """y = x where x > 0, else slope * x.  See alpha.ops.leaky_relu."""
    return _leaky_relu(x, slope)


def __getattr__(name: str) -> object:
    table = {**twins.NN, **twins.TOP, **twins.FUNCTIONAL}
    raise twins.missing("alpha.nn.functional", name, table, sys.modules[__name__])
