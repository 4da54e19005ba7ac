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
from alpha.capture import capture
from alpha.checkpoint.state import load, save
from alpha.config import config
from alpha.gradcheck import gradcheck
from alpha.graph import no_grad as inference_mode
from alpha.graph import detect_anomaly, enable_grad, grad, grad_enabled, no_grad
from alpha.inference import inference
from alpha.nn.summary import summary
from alpha.methods import twins
from alpha.methods.names import DTYPES
from alpha.methods.names import Device as device
from alpha.op import Spec, op
from alpha.ops import concat as cat
from alpha.ops import clip as clamp
from alpha.ops import vector_norm as norm
from alpha.ops import (  # noqa: F401
    abs, all, allclose, any, arange, argmax, argmin, argsort, bmm, ceil, chunk, clip, clone, concat, cos, cumsum, dot,
    einsum, equal, erf, exp, eye, flatten, flip, floor, from_numpy, full, full_like, gather, index_select, isfinite,
    isinf, isnan, linspace, log, log10, log2, logical_and, logical_not, logical_or, logical_xor, logsumexp,
    masked_select, matmul, max, maximum, mean, min, minimum, mm, moveaxis, nonzero, one_hot, ones, ones_like, outer,
    permute, pow, rand, rand_like, randint, randn, randn_like, randperm, relu, reshape, round, rsqrt, scatter,
    scatter_add, sigmoid, sign, sin, softmax, sort, split, sqrt, square, squeeze, stack, std, sum, tanh, tile, topk,
    transpose, tril, triu, unbind, unsqueeze, var, where, zeros, zeros_like,
)
from alpha.ops.function import Function
from alpha.precision import precision
from alpha.profiler import profiler
from alpha.random import manual_seed
from alpha.recompute import recompute, recompute_summary
from alpha.tensor import Tensor, from_dlpack, tensor

__version__ = "0.1.0"

bfloat16, bool_, float16, float32, float64, int32, int64, uint8 = DTYPES.values()

__all__ = [     # without the names that Python has itself: alpha.sum, alpha.max, ...
    "Function", "Spec", "Tensor", "allclose", "arange", "argmax", "argmin", "argsort", "bfloat16", "bmm", "bool_",
    "capture", "cat", "ceil", "checkpoint", "chunk", "clamp", "clip", "clone", "concat", "config", "cos", "cumsum",
    "detect_anomaly", "device", "dot", "einsum", "enable_grad", "equal", "erf", "exp", "eye", "flatten", "flip",
    "float16", "float32", "float64", "floor", "from_dlpack", "from_numpy", "full", "full_like", "gather", "grad",
    "grad_enabled", "gradcheck", "index_select", "inference", "inference_mode", "int32", "int64", "isfinite", "isinf",
    "isnan", "linspace", "load", "log", "log2", "log10", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logsumexp", "manual_seed", "masked_select", "matmul", "maximum", "mean", "minimum", "mm", "moveaxis", "nn",
    "no_grad", "nonzero", "norm", "one_hot", "ones", "ones_like", "op", "ops", "optim", "outer", "permute", "precision",
    "profiler", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "recompute", "recompute_summary",
    "relu", "reshape", "rsqrt", "save", "scatter", "scatter_add", "sigmoid", "sign", "sin", "softmax", "sort", "split",
    "sqrt", "square", "squeeze", "stack", "std", "summary", "tanh", "tensor", "tile", "topk", "transpose", "tril",
    "triu", "uint8", "unbind", "unsqueeze", "var", "where", "zeros", "zeros_like",
]


sys.meta_path.append(twins.Imports())   # type: ignore[arg-type]


def __getattr__(name: str) -> object:
    if name in ("cuda", "data", "onnx", "testing", "training"):     # imported when they are asked for
        return import_module(f"alpha.{name}")
    raise twins.missing("alpha", name, {**twins.TENSOR, **twins.TOP}, sys.modules[__name__])
