"""Softmax and log_softmax along an axis on the GPU: see softmax.cu."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.op import Op
from alpha.ops import activation as ops

THREADS = 256
SHORT = 1024   # elements up to which a warp takes a row, else a block
PACKET = 16    # bytes


@lru_cache(maxsize=4096)
def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Returns (outer, n, inner): the sizes before, of, and behind the axis."""
    axis %= len(shape)
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1:])


def _bind(op: Op) -> None:
    short, long, columns = {}, {}, {}
    for dtype in ("float32", "bfloat16", "float16"):
        entry, args = f"{op.name}_rows_{dtype}", "ptr a, ptr b, ptr y, i64 rows, i64 n, i32 aligned"
        short[dtype] = Kernel("softmax.cu", entry, args, threads=(32, THREADS // 32))
        long[dtype] = Kernel("softmax.cu", entry, args, threads=THREADS)
        columns[dtype] = Kernel("softmax.cu", f"{op.name}_columns_{dtype}",
                                "ptr a, ptr b, ptr y, i64 columns, i64 n, i64 inner", threads=THREADS)

    @op.impl("cuda")
    def run(a: Array, b: Array | None = None, *, axis: int) -> Array:
        outer, n, inner = _split(a.shape, axis)
        y = empty(a.shape, a.dtype)
        if inner != 1:
            columns[a.dtype](-(-outer * inner // THREADS), a, b, y, outer * inner, n, inner)
        elif n <= SHORT:
            short[a.dtype](-(-outer * 32 // THREADS), a, b, y, outer, n, n * ITEMSIZE[a.dtype] % PACKET == 0)
        else:
            long[a.dtype](outer, a, b, y, outer, n, n * ITEMSIZE[a.dtype] % PACKET == 0)
        return y


for _op in (ops.softmax, ops.log_softmax, ops.softmax_grad, ops.log_softmax_grad):
    _bind(_op)
