"""alpha: a small tensor and autograd framework whose convolutions skip every padded zero.

    import alpha
    x = alpha.tensor([[1.0, 2.0]], requires_grad=True)
    (x * x).sum().backward()
    x.grad                      # tensor([[2., 4.]])

Importing alpha touches no GPU, no file and no network.
"""

import sys
from importlib import import_module

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "alpha":  # the program, no library
    import _signal  # built in: an interrupt finds no moment before it
    import os
    _signal.signal(_signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    from alpha import start
    start.quiet()

from alpha import checkpoint, nn, ops, optim
from alpha import errors as errors
from alpha.capture import capture
from alpha.checkpoint.state import load, save
from alpha.core.config import config
from alpha.gradcheck import gradcheck
from alpha.core.graph import no_grad as inference_mode
from alpha.core.graph import detect_anomaly, enable_grad, grad, grad_enabled, no_grad
from alpha.inference import inference
from alpha.interop.pytorch import from_torch, to_torch
from alpha.nn.summary import summary
from alpha.interop import twins
from alpha.core.names import DTYPES
from alpha.core.names import Device as device
from alpha.core.op import Spec, op
# names: imports, written by python -m tools.names
from alpha.ops import clip as clamp, concat as cat, vector_norm as norm
from alpha.ops import (  # noqa: F401
    abs, acos, addcdiv, addcmul, addmm, all, allclose, any, arange, argmax, argmin, argsort, asin, atan, atan2, baddbmm,
    bernoulli, bincount, bmm, broadcast_to, cdist, ceil, chunk, clip, clone, concat, cos, cosh, count_nonzero, cumprod,
    cumsum, diag, diagonal, diff, dot, dstack, einsum, equal, erf, erfc, exp, exp2, expm1, eye, flatten, flip, floor,
    floor_divide, fmod, from_numpy, full, full_like, gather, hstack, hypot, index_add, index_select, isclose, isfinite,
    isinf, isnan, lerp, linspace, log, log1p, log2, log10, logical_and, logical_not, logical_or, logical_xor, logit,
    logsumexp, masked_fill, masked_select, matmul, max, maximum, mean, median, meshgrid, min, minimum, mm, moveaxis,
    multinomial, mv, nan_to_num, narrow, nonzero, one_hot, ones, ones_like, outer, permute, pow, prod, quantile, rand,
    rand_like, randint, randn, randn_like, randperm, reciprocal, relu, remainder, repeat_interleave, reshape, roll,
    round, rsqrt, scatter, scatter_add, scatter_reduce, select, sigmoid, sign, sin, sinh, softmax, sort, split, sqrt,
    square, squeeze, stack, std, sum, take_along_dim, tan, tanh, tensor_split, tile, topk, trace, transpose, tril, triu,
    trunc, unbind, unflatten, unique, unsqueeze, var, vstack, where, zeros, zeros_like,
)
# end of names
from alpha.ops.function import Function
from alpha.core.precision import precision
from alpha.profiler import profiler
from alpha.random import manual_seed
from alpha.recompute import recompute, recompute_summary
from alpha.core.tensor import Tensor, from_dlpack, tensor
from alpha.core import follow as _follow, inplace as _inplace  # noqa: F401  # called by methods of Tensor
from alpha.interop import copies as _copies, dlpack as _dlpack, ufuncs as _ufuncs  # noqa: F401

__version__ = "0.1.0"

bfloat16, bool_, float16, float32, float64, int32, int64, uint8 = DTYPES.values()

__all__ = [
    "Function", "Spec", "Tensor", "bfloat16", "bool_", "capture", "checkpoint", "config", "detect_anomaly", "device",
    "enable_grad", "float16", "float32", "float64", "from_dlpack", "from_torch", "grad", "grad_enabled", "gradcheck",
    "inference", "inference_mode", "int32", "int64", "load", "manual_seed", "nn", "no_grad", "op", "ops", "optim",
    "precision", "profiler", "recompute", "recompute_summary", "save", "summary", "tensor", "to_torch", "uint8",
]
# Of the ops, without the names that Python has itself: alpha.sum, alpha.max, ...
# names: all, written by python -m tools.names
__all__ += [
    "acos", "addcdiv", "addcmul", "addmm", "allclose", "arange", "argmax", "argmin", "argsort", "asin", "atan", "atan2",
    "baddbmm", "bernoulli", "bincount", "bmm", "broadcast_to", "cat", "cdist", "ceil", "chunk", "clamp", "clip",
    "clone", "concat", "cos", "cosh", "count_nonzero", "cumprod", "cumsum", "diag", "diagonal", "diff", "dot", "dstack",
    "einsum", "equal", "erf", "erfc", "exp", "exp2", "expm1", "eye", "flatten", "flip", "floor", "floor_divide", "fmod",
    "from_numpy", "full", "full_like", "gather", "hstack", "hypot", "index_add", "index_select", "isclose", "isfinite",
    "isinf", "isnan", "lerp", "linspace", "log", "log1p", "log2", "log10", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "logsumexp", "masked_fill", "masked_select", "matmul", "maximum", "mean", "median",
    "meshgrid", "minimum", "mm", "moveaxis", "multinomial", "mv", "nan_to_num", "narrow", "nonzero", "norm", "one_hot",
    "ones", "ones_like", "outer", "permute", "prod", "quantile", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "reciprocal", "relu", "remainder", "repeat_interleave", "reshape", "roll", "rsqrt", "scatter",
    "scatter_add", "scatter_reduce", "select", "sigmoid", "sign", "sin", "sinh", "softmax", "sort", "split", "sqrt",
    "square", "squeeze", "stack", "std", "take_along_dim", "tan", "tanh", "tensor_split", "tile", "topk", "trace",
    "transpose", "tril", "triu", "trunc", "unbind", "unflatten", "unique", "unsqueeze", "var", "vstack", "where",
    "zeros", "zeros_like",
]
# end of names


sys.meta_path.append(twins.Imports())   # type: ignore[arg-type]


def __getattr__(name: str) -> object:
    if name in ("cuda", "data", "dist", "func", "linalg", "models", "onnx", "testing", "training"):     # when asked for
        return import_module(f"alpha.{name}")
    raise twins.missing("alpha", name, {**twins.TENSOR, **twins.TOP}, sys.modules[__name__])
