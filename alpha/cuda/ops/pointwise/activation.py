"""Activations on the GPU: see activation.cu."""

from __future__ import annotations

from alpha.cuda.lazy import split_view
from alpha.cuda.ops.pointwise import THREADS, blocks, elementwise
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops import activation as ops

SOURCE = "activation.cu"
PACKETS = 4  # that a thread of a kernel on planes takes

for _op in (ops.relu, ops.relu6, ops.sigmoid, ops.tanh, ops.silu, ops.gelu, ops.softplus, ops.hardswish):
    elementwise(_op, SOURCE, "x")
for _op in (ops.relu6_grad, ops.sigmoid_grad, ops.tanh_grad):
    elementwise(_op, SOURCE, "g y")
for _op in (ops.silu_grad, ops.gelu_grad, ops.softplus_grad, ops.hardswish_grad):
    elementwise(_op, SOURCE, "g x")
elementwise(ops.leaky_relu, SOURCE, "x", slope="f32")
elementwise(ops.leaky_relu_grad, SOURCE, "g x", slope="f32")
elementwise(ops.elu, SOURCE, "x", alpha="f32")
elementwise(ops.elu_grad, SOURCE, "g x", alpha="f32")

_RELU_GRAD = per_dtype(SOURCE, "relu_grad", "ptr g, f32 g_number, ptr y, f32 y_number, ptr dx, i64 n", threads=THREADS)
_RELU_GRAD_PLANES = Kernel("planes.cu", "planes_relu_grad", "ptr g, ptr y, ptr header, ptr dx, i64 size",
                           threads=THREADS)


@ops.relu_grad.impl("cuda")
def relu_grad_cuda(g: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype)
    held, header = split_view(y)
    if header:
        _RELU_GRAD_PLANES(blocks(y.size, ITEMSIZE[y.dtype], PACKETS), g, held, header, dx, y.size)
    else:
        _RELU_GRAD[y.dtype](blocks(y.size, ITEMSIZE[y.dtype]), g, 0, y, 0, dx, y.size)
    return dx
