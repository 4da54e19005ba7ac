"""Dropout on the GPU, with the mask that the CPU makes of the same (seed, offset): see dropout.cu."""

from __future__ import annotations

from alpha.cuda.ops.pointwise import THREADS, blocks, filled
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.kernel import per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.dropout import keyed_dropout
from alpha.random import STREAMS

_DROPOUT = per_dtype("dropout.cu", "keyed_dropout",
                     "ptr x, ptr y, i64 n, f32 p, f32 factor, u64 seed, u32 stream, u64 offset, ptr from",
                     threads=THREADS)


@keyed_dropout.impl("cuda")
def keyed_dropout_cuda(x: Array, *, p: float, seed: int, offset: int) -> Array:
    if p == 1:
        return filled(x.shape, 0, x.dtype)
    y, begin = empty(x.shape, x.dtype), None
    if memory.recorder:
        offset, begin = memory.recorder.random(offset, x.size)
    _DROPOUT[x.dtype](blocks(x.size, ITEMSIZE[x.dtype], 1), x, y, x.size, p, 1 / (1 - p), seed, STREAMS["dropout"],
                      offset, begin)
    return y
