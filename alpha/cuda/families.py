"""Imports every family of implementations, which binds them to their ops."""

from alpha.cuda import conv
from alpha.cuda.conv import coconv, pooled
from alpha.cuda.ops import (
    attention,
    augment,
    dropout,
    loss,
    matmul,
    norm,
    pointwise,
    pool,
    reduce,
    shape,
    softmax,
    update,
)
from alpha.cuda.ops.norm import sample_norm
from alpha.cuda.ops.pointwise import equations
from alpha.cuda.ops.shape import concat

__all__ = ["attention", "augment", "coconv", "concat", "conv", "dropout", "equations", "loss", "matmul", "norm",
           "pointwise", "pool", "pooled", "reduce", "sample_norm", "shape", "softmax", "update"]
