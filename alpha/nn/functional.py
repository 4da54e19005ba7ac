"""`import alpha.nn.functional as F`: the ops under the names of torch.nn.functional, for channels last."""

from __future__ import annotations

import sys
from typing import Any

from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Approximation, Channels, ConvPadding, Padding, Pair, Share
from alpha.methods import twins
from alpha.ops import (
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
    avg_pool_windows,
    conv2d_bias_act,
    cross_entropy,
    elu,
    huber_loss,
    interpolate,
    kl_div,
    l1_loss,
    leaky_relu,
    linear,
    local_response_norm,
    log_softmax,
    max_pool_windows,
    max_unpool2d,
    mse_loss,
    nll_loss,
    one_hot,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
    sigmoid,
    smooth_l1_loss,
    softmax,
    softplus,
    tanh,
)
from alpha.ops import avg_pool2d as _avg_pool2d
from alpha.ops import bce_loss as binary_cross_entropy
from alpha.ops import bce_with_logits_loss as binary_cross_entropy_with_logits
from alpha.ops import conv_transpose2d as _conv_transpose2d
from alpha.ops import dropout as _dropout
from alpha.ops import embedding as _embedding
from alpha.ops import gelu as _gelu
from alpha.ops import gelu_tanh as _gelu_tanh
from alpha.ops import hardswish as _hardswish
from alpha.ops import max_pool2d as _max_pool2d
from alpha.ops import relu as _relu
from alpha.ops import relu6 as _relu6
from alpha.ops import silu as _silu
from alpha.ops import vector_norm as _vector_norm
from alpha.ops.conv import named_padding
from alpha.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "conv2d", "conv_transpose2d", "cross_entropy", "dropout", "elu", "embedding",
    "gelu", "hardswish", "huber_loss", "interpolate", "kl_div", "l1_loss", "leaky_relu", "linear",
    "local_response_norm", "log_softmax", "max_pool2d", "max_unpool2d", "mse_loss", "nll_loss", "normalize", "one_hot",
    "pad", "pixel_shuffle", "pixel_unshuffle", "relu", "relu6", "sigmoid", "silu", "smooth_l1_loss", "softmax",
    "softplus", "tanh",
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


@checked
def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """y = max(x, 0).  inplace is taken; x stays as it is, here and below.  See alpha.ops.relu."""
    return _relu(x)


@checked
def relu6(x: Tensor, inplace: bool = False) -> Tensor:
    """y = min(max(x, 0), 6).  See alpha.ops.relu6."""
    return _relu6(x)


@checked
def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """y = x * sigmoid(x).  See alpha.ops.silu."""
    return _silu(x)


@checked
def hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    """y = x * relu6(x + 3) / 6.  See alpha.ops.hardswish."""
    return _hardswish(x)


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
def avg_pool2d(x: Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: Channels | None = None) -> Tensor:
    """Mean of each window.  See alpha.nn.AvgPool2d."""
    if not ceil_mode and divisor_override is None:
        return _avg_pool2d(x, kernel_size, stride, padding, count_include_pad)
    return avg_pool_windows(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@checked
def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """y = x / max(norm of x along an axis, eps).  See alpha.norm."""
    return x / _vector_norm(x, p, axis, True).clip(eps, None)


def __getattr__(name: str) -> object:
    table = {**twins.NN, **twins.TOP, **twins.FUNCTIONAL}
    raise twins.missing("alpha.nn.functional", name, table, sys.modules[__name__])
