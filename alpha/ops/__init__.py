"""Every op of alpha, by family: arithmetic on Tensors, with gradients.

A family's file or folder defines its ops (docstring, shape rule, gradients); `alpha/<backend>/<the same name>`
implements them. Names that end in `_grad` or `_backward` are the fused gradients. `alpha.core.op.registry` has every
op. `@public` at a definition says under which names it is offered; `python -m tools.names` writes the lists below, and
the typed signatures of __init__.pyi.
"""

import sys

from alpha.core.methods import CALLS, Methods
from alpha.core.table import TABLE
from alpha.interop import twins

# names: ops, written by python -m tools.names
from alpha.ops.activation import (
    elu, gelu, gelu_tanh, hardswish, leaky_relu, log_softmax, relu, relu6, relu_grad, sigmoid, silu, softmax, softplus,
    tanh,
)
from alpha.ops.activation.functions import (
    celu, glu, gumbel_softmax, hardshrink, hardsigmoid, hardtanh, logsigmoid, mish, prelu, selu, softmin, softshrink,
    softsign, tanhshrink, threshold,
)
from alpha.ops.attention import scaled_dot_product_attention
from alpha.ops.augment import augment_images, mix_images, transform_images
from alpha.ops.coconv import coconv2d, coconv2d_bias_act, coconv2d_dgrad, coconv2d_wgrad
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_dgrad_add, conv2d_wgrad, conv_transpose2d
from alpha.ops.conv_pool import conv2d_relu_pool
from alpha.ops.create import (
    arange, from_numpy, full, full_like, linspace, ones, ones_like, rand, rand_like, randint, randn, randn_like,
    randperm, zeros, zeros_like,
)
from alpha.ops.distance import cdist, cosine_similarity, pairwise_distance
from alpha.ops.draws import bernoulli, multinomial
from alpha.ops.dropout import dropout
from alpha.ops.elementwise import (
    abs, add, cast, clone, div, eq, erf, exp, ge, gt, le, log, lt, maximum, minimum, mul, ne, neg, pow, sign, sqrt, sub,
    to_device, where,
)
from alpha.ops.elementwise.curves import (
    acos, addcdiv, addcmul, asin, atan, atan2, cos, cosh, erfc, exp2, expm1, fmod, hypot, lerp, log1p, log2, log10,
    logit, nan_to_num, reciprocal, rsqrt, sin, sinh, square, tan,
)
from alpha.ops.elementwise.limits import clip
from alpha.ops.elementwise.rounding import ceil, floor, floor_divide, remainder, round, trunc
from alpha.ops.image import channel_shuffle, interpolate, pad, pixel_shuffle, pixel_unshuffle
from alpha.ops.image.patches import fold, unfold
from alpha.ops.image.sampling import affine_grid, grid_sample
from alpha.ops.index import (
    argsort, cumprod, cumsum, gather, index_select, moveaxis, one_hot, scatter, scatter_add, sort, take_along_axis,
    topk,
)
from alpha.ops.index.order import bincount, median, quantile, unique
from alpha.ops.index.pick import (
    chunk, eye, getitem, masked_select, nonzero, setitem, tile, tril, triu, unbind, unflatten,
)
from alpha.ops.index.places import embedding, index_add, meshgrid, scatter_reduce
from alpha.ops.logic import (
    all, allclose, any, equal, isclose, isfinite, isinf, isnan, logical_and, logical_not, logical_or, logical_xor,
    masked_fill,
)
from alpha.ops.loss import bce_loss, bce_with_logits_loss, cross_entropy, kl_div, nll_loss
from alpha.ops.loss.ctc import ctc_loss
from alpha.ops.loss.differences import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from alpha.ops.loss.imbalance import dice_loss, focal_loss
from alpha.ops.loss.pairs import (
    cosine_embedding_loss, gaussian_nll_loss, hinge_embedding_loss, margin_ranking_loss, multi_margin_loss,
    poisson_nll_loss, soft_margin_loss, triplet_margin_loss,
)
from alpha.ops.matmul import linear, matmul
from alpha.ops.matmul.products import addmm, baddbmm, bmm, dot, einsum, mm, mv, outer
from alpha.ops.norm import batch_norm, group_norm, layer_norm
from alpha.ops.norm.functions import local_response_norm, rms_norm
from alpha.ops.pool import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d
from alpha.ops.pool.windows import avg_pool_windows, max_pool_windows, max_unpool2d
from alpha.ops.reduce import argmax, max, mean, min, std, sum, sum_to, var, vector_norm
from alpha.ops.shape import concat, expand, flatten, flip, permute, reshape, split, squeeze, stack, transpose, unsqueeze
from alpha.ops.shape.axes import (
    argmin, broadcast_to, count_nonzero, diag, diagonal, diff, dstack, hstack, logsumexp, narrow, prod,
    repeat_interleave, roll, select, take_along_dim, tensor_split, trace, vstack,
)
from alpha.ops.update import (
    adam_step, adamax_step, adamod_step, ema_step, loss_scale_step, radam_step, rmsprop_step, sgd_step, sums_of_squares,
)
from alpha.ops.volumes import (
    adaptive_avg_pool3d, adaptive_max_pool3d, avg_pool3d, conv3d, conv_transpose1d, conv_transpose3d, max_pool3d,
)

__all__ = [
    "abs", "acos", "adam_step", "adamax_step", "adamod_step", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "add", "addcdiv", "addcmul", "addmm", "affine_grid", "all",
    "allclose", "any", "arange", "argmax", "argmin", "argsort", "asin", "atan", "atan2", "augment_images", "avg_pool2d",
    "avg_pool3d", "avg_pool_windows", "baddbmm", "batch_norm", "bce_loss", "bce_with_logits_loss", "bernoulli",
    "bincount", "bmm", "broadcast_to", "cast", "cdist", "ceil", "celu", "channel_shuffle", "chunk", "clip", "clone",
    "coconv2d", "coconv2d_bias_act", "coconv2d_dgrad", "coconv2d_wgrad", "concat", "conv2d", "conv2d_bias_act",
    "conv2d_dgrad", "conv2d_dgrad_add", "conv2d_relu_pool", "conv2d_wgrad", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "cos", "cosh", "cosine_embedding_loss", "cosine_similarity",
    "count_nonzero", "cross_entropy", "ctc_loss", "cumprod", "cumsum", "diag", "diagonal", "dice_loss", "diff", "div",
    "dot", "dropout", "dstack", "einsum", "elu", "ema_step", "embedding", "eq", "equal", "erf", "erfc", "exp", "exp2",
    "expand", "expm1", "eye", "flatten", "flip", "floor", "floor_divide", "fmod", "focal_loss", "fold", "from_numpy",
    "full", "full_like", "gather", "gaussian_nll_loss", "ge", "gelu", "gelu_tanh", "getitem", "glu", "grid_sample",
    "group_norm", "gt", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hinge_embedding_loss",
    "hstack", "huber_loss", "hypot", "index_add", "index_select", "interpolate", "isclose", "isfinite", "isinf",
    "isnan", "kl_div", "l1_loss", "layer_norm", "le", "leaky_relu", "lerp", "linear", "linspace", "local_response_norm",
    "log", "log1p", "log2", "log10", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "logit",
    "logsigmoid", "logsumexp", "loss_scale_step", "lt", "margin_ranking_loss", "masked_fill", "masked_select", "matmul",
    "max", "max_pool2d", "max_pool3d", "max_pool_windows", "max_unpool2d", "maximum", "mean", "median", "meshgrid",
    "min", "minimum", "mish", "mix_images", "mm", "moveaxis", "mse_loss", "mul", "multi_margin_loss", "multinomial",
    "mv", "nan_to_num", "narrow", "ne", "neg", "nll_loss", "nonzero", "one_hot", "ones", "ones_like", "outer", "pad",
    "pairwise_distance", "permute", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "pow", "prelu", "prod",
    "quantile", "radam_step", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "reciprocal", "relu",
    "relu6", "relu_grad", "remainder", "repeat_interleave", "reshape", "rms_norm", "rmsprop_step", "roll", "round",
    "rsqrt", "scaled_dot_product_attention", "scatter", "scatter_add", "scatter_reduce", "select", "selu", "setitem",
    "sgd_step", "sigmoid", "sign", "silu", "sin", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin",
    "softplus", "softshrink", "softsign", "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "sub", "sum",
    "sum_to", "sums_of_squares", "take_along_axis", "take_along_dim", "tan", "tanh", "tanhshrink", "tensor_split",
    "threshold", "tile", "to_device", "topk", "trace", "transform_images", "transpose", "tril", "triplet_margin_loss",
    "triu", "trunc", "unbind", "unflatten", "unfold", "unique", "unsqueeze", "var", "vector_norm", "vstack", "where",
    "zeros", "zeros_like",
]
# end of names

for _name, _called in CALLS.items():
    getattr(Methods, _name).__doc__ = TABLE[_called].__doc__


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.ops", name, {**twins.TENSOR, **twins.TOP}, sys.modules[__name__])
