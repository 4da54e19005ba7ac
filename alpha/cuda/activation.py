"""Activations on the GPU: see kernels/activation.cu."""

from __future__ import annotations

from alpha.cuda.elementwise import elementwise
from alpha.ops import activation as ops

SOURCE = "activation.cu"

for _op in (ops.relu, ops.relu6, ops.sigmoid, ops.tanh, ops.silu, ops.gelu, ops.softplus, ops.hardswish):
    elementwise(_op, SOURCE, "x")
for _op in (ops.relu_grad, ops.relu6_grad, ops.sigmoid_grad, ops.tanh_grad):
    elementwise(_op, SOURCE, "g y")
for _op in (ops.silu_grad, ops.gelu_grad, ops.softplus_grad, ops.hardswish_grad):
    elementwise(_op, SOURCE, "g x")
elementwise(ops.leaky_relu, SOURCE, "x", slope="f32")
elementwise(ops.leaky_relu_grad, SOURCE, "g x", slope="f32")
elementwise(ops.elu, SOURCE, "x", alpha="f32")
elementwise(ops.elu_grad, SOURCE, "g x", alpha="f32")
