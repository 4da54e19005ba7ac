"""Softmax and log_softmax along an axis on the GPU: see softmax.cu."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from alpha.core.op import Op
from alpha.cuda.ops.reduce import row_width
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.walk import THREADS, per_piece, pieces_of
from alpha.ops import activation as ops
from alpha.ops.conv_desc import ceil_div


@lru_cache(maxsize=1024)
def _plan(shape: tuple[int, ...], axis: int, dtype: str) -> tuple[tuple[str, bool], int, tuple[int, int, int, int]]:
    """Returns which kernel it is, its blocks, and the rows along an axis, as softmax.cu takes them."""
    axis %= len(shape)
    outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1:])
    kind, lanes = pieces_of(n, dtype) if inner == 1 else ((dtype, False), 1)
    width = row_width(n // lanes) if inner == 1 else 1
    return kind, ceil_div(outer * inner, THREADS // width), (outer * inner, n, inner, width)


def _bind(op: Op) -> None:
    kernels = per_piece("softmax.cu", op.name, "ptr a, ptr b, ptr y, i64 rows, i64 n, i64 inner, i32 width")

    @op.impl("cuda")
    def run(a: Array, b: Array | None = None, *, axis: int) -> Array:
        kind, blocks, rows = _plan(a.shape, axis, a.dtype)
        y = empty(a.shape, a.dtype)
        kernels[kind](blocks, a, b, y, *rows)
        return y


for _op in (ops.softmax, ops.log_softmax, ops.softmax_grad, ops.log_softmax_grad):
    _bind(_op)
