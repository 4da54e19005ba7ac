"""Activations on the GPU: see activation.cu."""

from __future__ import annotations

from alpha.cuda.lazy import split_view
from alpha.cuda.ops.pointwise import THREADS, blocks, elementwise
from alpha.cuda.ops.pointwise.chain import waiting
from alpha.cuda.ops.pointwise.equations import MAPPED
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops import activation as ops

SOURCE = "activation.cu"
PACKETS = 4  # that a thread of a kernel on planes takes

for _op in MAPPED:
    if _op is not ops.relu_grad:
        elementwise(_op, SOURCE, " ".join(_op.equation.args), **dict.fromkeys(_op.equation.attrs, "f32"))

_RELU_GRAD = per_dtype(SOURCE, "relu_grad", "ptr g, f32 g_number, ptr y, f32 y_number, ptr dx, i64 n", threads=THREADS)
_RELU_GRAD_PLANES = Kernel("planes.cu", "planes_relu_grad", "ptr g, ptr y, ptr header, ptr dx, i64 size",
                           threads=THREADS)


def _relu_grad(g: Array, y: Array) -> Array:
    dx = empty(y.shape, y.dtype)
    _RELU_GRAD[y.dtype](blocks(y.size, ITEMSIZE[y.dtype]), g, 0, y, 0, dx, y.size)
    return dx


_waiting = waiting(ops.relu_grad, _relu_grad)


@ops.relu_grad.impl("cuda")
def relu_grad_cuda(g: Array, y: Array) -> Array:
    held, header = split_view(y)
    if not header:
        return _waiting(g, y)
    dx = empty(y.shape, y.dtype)
    _RELU_GRAD_PLANES(blocks(y.size, ITEMSIZE[y.dtype], PACKETS), g, held, header, dx, y.size)
    return dx
