"""Softmax and log_softmax along an axis on the GPU: see softmax.cu."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from alpha.cuda.runtime.kernel import per_dtype
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.walk import LANES, THREADS, ceil_div
from alpha.op import Op
from alpha.ops import activation as ops

SHORT = 1024   # elements up to which a warp takes a row, else a block


@lru_cache(maxsize=4096)
def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Returns (outer, n, inner): the sizes before, of, and behind the axis."""
    axis %= len(shape)
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1:])


def _bind(op: Op) -> None:
    short, long = (per_dtype("softmax.cu", f"{op.name}_rows", "ptr a, ptr b, ptr y, i64 rows, i64 n, i32 aligned",
                             threads=threads) for threads in ((32, THREADS // 32), THREADS))
    columns = per_dtype("softmax.cu", f"{op.name}_columns", "ptr a, ptr b, ptr y, i64 columns, i64 n, i64 inner")

    @op.impl("cuda")
    def run(a: Array, b: Array | None = None, *, axis: int) -> Array:
        outer, n, inner = _split(a.shape, axis)
        y = empty(a.shape, a.dtype)
        if inner != 1:
            columns[a.dtype](ceil_div(outer * inner, THREADS), a, b, y, outer * inner, n, inner)
        elif n <= SHORT:
            short[a.dtype](ceil_div(outer * 32, THREADS), a, b, y, outer, n, n % LANES[a.dtype] == 0)
        else:
            long[a.dtype](outer, a, b, y, outer, n, n % LANES[a.dtype] == 0)
        return y


for _op in (ops.softmax, ops.log_softmax, ops.softmax_grad, ops.log_softmax_grad):
    _bind(_op)
