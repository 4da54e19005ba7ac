"""Imports every family of implementations, which binds them to their ops."""

from alpha.cpu import (
    activation,
    attention,
    augment,
    coconv,
    conv,
    dropout,
    elementwise,
    linalg,
    loss,
    matmul,
    norm,
    pool,
    reduce,
    shape,
    update,
)

__all__ = ["activation", "attention", "augment", "coconv", "conv", "dropout", "elementwise", "linalg", "loss", "matmul",
           "norm", "pool", "reduce", "shape", "update"]
