"""alpha: a small tensor and autograd framework whose convolutions skip every padded zero.

    import alpha
    x = alpha.tensor([[1.0, 2.0]], requires_grad=True)
    (x * x).sum().backward()
    x.grad                      # tensor([[2., 4.]])

Importing alpha touches no GPU, no file and no network.
"""

import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "alpha":  # the program, no library
    import _signal  # built in: an interrupt finds no moment before it
    import os
    _signal.signal(_signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    from alpha import start
    start.quiet()

from alpha import checkpoint, nn, ops, optim
from alpha.capture import capture
from alpha.config import config
from alpha.gradcheck import gradcheck
from alpha.graph import detect_anomaly, enable_grad, grad, grad_enabled, no_grad
from alpha.inference import inference
from alpha.nn.summary import summary
from alpha.op import Spec, op
from alpha.ops import (
    arange, full, full_like, ones, ones_like, rand, rand_like, randn, randn_like, zeros, zeros_like,
)
from alpha.ops.function import Function
from alpha.precision import precision
from alpha.random import manual_seed
from alpha.recompute import recompute, recompute_summary
from alpha.tensor import Tensor, from_dlpack, tensor

__version__ = "0.1.0"

float16, bfloat16, float32, float64 = "float16", "bfloat16", "float32", "float64"
int32, int64, uint8, bool_ = "int32", "int64", "uint8", "bool"

__all__ = [
    "Function", "Spec", "Tensor", "arange", "bfloat16", "bool_", "capture", "checkpoint", "config", "detect_anomaly",
    "enable_grad", "float16", "float32", "float64", "from_dlpack", "full", "full_like", "grad", "grad_enabled",
    "gradcheck", "inference", "int32", "int64", "manual_seed", "nn", "no_grad", "ones", "ones_like", "op", "ops",
    "optim", "precision", "rand", "rand_like", "randn", "randn_like", "recompute", "recompute_summary",
    "summary", "tensor", "uint8", "zeros", "zeros_like",
]
