"""Imports every family of implementations, which binds them to their ops."""

from alpha.cuda import (
    activation,
    augment,
    concat,
    conv,
    dropout,
    elementwise,
    loss,
    matmul,
    norm,
    pool,
    reduce,
    sample_norm,
    shape,
    softmax,
    update,
)

__all__ = ["activation", "augment", "concat", "conv", "dropout", "elementwise", "loss", "matmul", "norm", "pool",
           "reduce", "sample_norm", "shape", "softmax", "update"]
