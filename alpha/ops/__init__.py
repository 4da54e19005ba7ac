"""Every op of alpha, by family: arithmetic on Tensors, with gradients.

A family's file defines its ops (docstring, shape rule, gradients); `alpha/<backend>/<the same file name>` implements
them. Names that end in `_grad` or `_backward` are the fused gradients; `alpha.op.registry` has every op.
__init__.pyi has the typed signatures, and a test holds the two together.
"""

import sys

from alpha.methods import twins
from alpha.ops.activation import (
    elu, gelu, gelu_tanh, hardswish, leaky_relu, log_softmax, relu, relu6, relu_grad, sigmoid, silu, softmax, softplus,
    tanh,
)
from alpha.ops.augment import augment_images
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.conv import (
    conv2d,
    conv2d_bias_act,
    conv2d_dgrad,
    conv2d_dgrad_add,
    conv2d_wgrad,
    conv_transpose2d,
)
from alpha.ops.conv_pool import conv2d_relu_pool
from alpha.ops.create import (
    arange, from_numpy, full, full_like, linspace, ones, ones_like, rand, rand_like, randint, randn, randn_like,
    randperm, zeros, zeros_like,
)
from alpha.ops.dropout import dropout
from alpha.ops.elementwise import (
    abs, add, cast, clip, div, eq, erf, exp, ge, gt, le, log, lt, maximum, minimum, mul, ne, neg, pow, sign, sqrt, sub,
    to_device, where,
)
from alpha.ops.composed.einsum import bmm, dot, einsum, mm, mv, outer
from alpha.ops.composed.image import (
    avg_pool_windows, channel_shuffle, embedding, interpolate, local_response_norm, max_pool_windows, pad,
    pixel_shuffle, pixel_unshuffle,
)
from alpha.ops.index import (
    argsort, cumsum, gather, index_select, moveaxis, one_hot, scatter, scatter_add, sort, take_along_axis, topk,
)
from alpha.ops.logic import (
    all, allclose, any, argmin, ceil, clone, cos, equal, floor, floor_divide, isfinite, isinf, isnan, log2, log10,
    logical_and, logical_not, logical_or, logical_xor, logsumexp, masked_fill, reciprocal, remainder, round, rsqrt, sin,
    square, trunc,
)
from alpha.ops.loss import (
    bce_loss, bce_with_logits_loss, cross_entropy, huber_loss, kl_div, l1_loss, mse_loss, nll_loss, smooth_l1_loss,
)
from alpha.ops.matmul import linear, matmul
from alpha.ops.norm import batch_norm, group_norm, layer_norm
from alpha.ops.composed.pick import (
    chunk, eye, getitem, masked_select, nonzero, setitem, tile, tril, triu, unbind, unflatten,
)
from alpha.ops.pool import (
    adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d, max_unpool2d,
)
from alpha.ops.reduce import argmax, max, mean, min, std, sum, sum_to, var, vector_norm
from alpha.ops.shape import (
    concat, expand, flatten, flip, permute, reshape, split, squeeze, stack, transpose, unsqueeze,
)
from alpha.ops.update import (
    adam_step, adamax_step, adamod_step, ema_step, loss_scale_step, radam_step, rmsprop_step, sgd_step, sums_of_squares,
)
from alpha.methods import CALLS, OPS, Methods

__all__ = [
    "abs",
    "adam_step",
    "adamax_step",
    "adamod_step",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "add",
    "all",
    "allclose",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "augment_images",
    "avg_pool2d",
    "avg_pool_windows",
    "batch_norm",
    "bce_loss",
    "bce_with_logits_loss",
    "bmm",
    "cast",
    "ceil",
    "channel_shuffle",
    "chunk",
    "clip",
    "clone",
    "coconv2d",
    "coconv2d_bias_act",
    "coconv2d_dgrad",
    "coconv2d_wgrad",
    "concat",
    "conv2d",
    "conv2d_bias_act",
    "conv2d_dgrad",
    "conv2d_dgrad_add",
    "conv2d_relu_pool",
    "conv2d_wgrad",
    "conv_transpose2d",
    "cos",
    "cross_entropy",
    "cumsum",
    "div",
    "dot",
    "dropout",
    "einsum",
    "elu",
    "ema_step",
    "embedding",
    "eq",
    "equal",
    "erf",
    "exp",
    "expand",
    "eye",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "from_numpy",
    "full",
    "full_like",
    "gather",
    "ge",
    "gelu",
    "gelu_tanh",
    "getitem",
    "group_norm",
    "gt",
    "hardswish",
    "huber_loss",
    "index_select",
    "interpolate",
    "isfinite",
    "isinf",
    "isnan",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "le",
    "leaky_relu",
    "linear",
    "linspace",
    "local_response_norm",
    "log",
    "log2",
    "log10",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "loss_scale_step",
    "lt",
    "masked_fill",
    "masked_select",
    "matmul",
    "max",
    "max_pool2d",
    "max_pool_windows",
    "max_unpool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "moveaxis",
    "mse_loss",
    "mul",
    "mv",
    "ne",
    "neg",
    "nll_loss",
    "nonzero",
    "one_hot",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "pow",
    "radam_step",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "reciprocal",
    "relu",
    "relu6",
    "relu_grad",
    "remainder",
    "reshape",
    "rmsprop_step",
    "round",
    "rsqrt",
    "scatter",
    "scatter_add",
    "setitem",
    "sgd_step",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "sum_to",
    "sums_of_squares",
    "take_along_axis",
    "tanh",
    "tile",
    "to_device",
    "topk",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unbind",
    "unflatten",
    "unsqueeze",
    "var",
    "vector_norm",
    "where",
    "zeros",
    "zeros_like",
]

OPS.update({name: globals()[name] for name in __all__})
for _name, _called in CALLS.items():
    getattr(Methods, _name).__doc__ = OPS[_called].__doc__


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.ops", name, {**twins.TENSOR, **twins.TOP}, sys.modules[__name__])
