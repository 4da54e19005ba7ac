"""Every op of alpha, by family: arithmetic on Tensors, with gradients.

A family's file defines its ops (docstring, shape rule, gradients); `alpha/<backend>/<the same file name>` implements
them. Names that end in `_grad` or `_backward` are the fused gradients; `alpha.op.registry` has every op.
__init__.pyi has the typed signatures, and a test holds the two together.
"""

from alpha.ops.activation import (
    elu, gelu, hardswish, leaky_relu, log_softmax, relu, relu6, relu_grad, sigmoid, silu, softmax, softplus, tanh,
)
from alpha.ops.augment import augment_images
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_wgrad, conv_transpose2d
from alpha.ops.create import (
    arange, full, full_like, ones, ones_like, rand, rand_like, randn, randn_like, zeros, zeros_like,
)
from alpha.ops.dropout import dropout
from alpha.ops.elementwise import (
    abs, add, cast, clip, div, eq, erf, exp, ge, gt, le, log, lt, maximum, minimum, mul, ne, neg, pow, sign, sqrt, sub,
    to_device, where,
)
from alpha.ops.loss import (
    bce_loss, bce_with_logits_loss, cross_entropy, l1_loss, mse_loss, nll_loss, smooth_l1_loss,
)
from alpha.ops.matmul import linear, matmul
from alpha.ops.norm import batch_norm, group_norm, layer_norm
from alpha.ops.pool import (
    adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d, max_unpool2d,
)
from alpha.ops.reduce import argmax, max, mean, min, sum, sum_to, var
from alpha.ops.shape import (
    concat, expand, flatten, flip, getitem, pad, permute, reshape, split, squeeze, stack, transpose, unsqueeze,
)
from alpha.ops.update import (
    adam_step, adamax_step, adamod_step, ema_step, loss_scale_step, radam_step, rmsprop_step, sgd_step, sums_of_squares,
)
from alpha.tensor import OPS

__all__ = [
    "abs", "adam_step", "adamax_step", "adamod_step", "adaptive_avg_pool2d", "adaptive_max_pool2d", "add", "arange",
    "argmax", "augment_images", "avg_pool2d", "batch_norm", "bce_loss", "bce_with_logits_loss", "cast", "clip",
    "coconv2d", "coconv2d_bias_act", "coconv2d_dgrad", "coconv2d_wgrad", "concat", "conv2d", "conv2d_bias_act",
    "conv2d_dgrad", "conv2d_wgrad", "conv_transpose2d", "cross_entropy", "div", "dropout", "elu", "ema_step", "eq",
    "erf", "exp", "expand", "flatten", "flip", "full", "full_like", "ge", "gelu", "getitem", "group_norm", "gt",
    "hardswish", "l1_loss", "layer_norm", "le", "leaky_relu", "linear", "log", "log_softmax", "loss_scale_step", "lt",
    "matmul", "max", "max_pool2d", "max_unpool2d", "maximum", "mean", "min", "minimum", "mse_loss", "mul", "ne", "neg",
    "nll_loss", "ones", "ones_like", "pad", "permute", "pow", "radam_step", "rand", "rand_like", "randn", "randn_like",
    "relu", "relu6", "relu_grad", "reshape", "rmsprop_step", "sgd_step", "sigmoid", "sign", "silu", "smooth_l1_loss",
    "softmax", "softplus", "split", "sqrt", "squeeze", "stack", "sub", "sum", "sum_to", "sums_of_squares", "tanh",
    "to_device", "transpose", "unsqueeze", "var", "where", "zeros", "zeros_like",
]

OPS.update({name: globals()[name] for name in __all__})
