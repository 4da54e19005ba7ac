"""Activations on the GPU: see activation.cu."""

from __future__ import annotations

from alpha.cuda.lazy import split_view
from alpha.cuda.ops.pointwise import THREADS, blocks, elementwise, elementwise_alone
from alpha.cuda.ops.pointwise.chain import joined
from alpha.cuda.ops.pointwise.equations import MAPPED
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops import activation as ops

SOURCE = "activation.cu"
PACKETS = 4  # that a thread of a kernel on planes takes

for _op in MAPPED:
    if _op is not ops.relu_grad:
        elementwise(_op, SOURCE, " ".join(_op.equation.args), **dict.fromkeys(_op.equation.attrs, "f32"))

_RELU_GRAD_PLANES = Kernel("planes.cu", "planes_relu_grad", "ptr g, ptr y, ptr header, ptr dx, i64 size",
                           threads=THREADS)


_relu_grad = elementwise_alone(ops.relu_grad, SOURCE, "g y")


def relu_grad_cuda(g: Array, y: Array) -> Array:
    held, header = split_view(y)
    if not header:
        return _relu_grad(g, y)
    dx = empty(y.shape, y.dtype)
    _RELU_GRAD_PLANES(blocks(y.size, ITEMSIZE[y.dtype], PACKETS), g, held, header, dx, y.size)
    return dx


joined(ops.relu_grad, relu_grad_cuda)
