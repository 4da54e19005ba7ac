"""Dropout on the GPU, with the mask that the CPU makes of the same (seed, offset): see dropout.cu."""

from __future__ import annotations

from functools import partial

from alpha.cuda.ops.pointwise import blocks, filled
from alpha.cuda.ops.pointwise.chain import Numbers, may_wait, wait
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.kernel import per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.fuse.chain import Function, Leaf
from alpha.fuse.places import UNIFORM
from alpha.ops.dropout import keyed_dropout
from alpha.random import STREAMS

_DROPOUT = per_dtype("dropout.cu", "keyed_dropout",
                     "ptr x, ptr y, i64 n, f32 p, f32 factor, u64 seed, u32 stream, u64 offset, ptr from")
_KEPT = Function("dropout_of", "EQUATION float dropout_of(float x, float u, float p, float factor) "
                 "{ return u >= p ? __fmul_rn(x, factor) : 0; }")


@keyed_dropout.impl("cuda")
def keyed_dropout_cuda(x: Array, *, p: float, seed: int, offset: int) -> Array:
    if p == 1:
        return filled(x.shape, 0, x.dtype)
    begin = None
    if memory.recorder:
        offset, begin = memory.recorder.random(offset, x.size)
    numbers = Numbers((seed, STREAMS["dropout"], offset, begin))
    y = None
    if may_wait(x.size):
        y = wait(_KEPT, (x, Leaf(numbers, UNIFORM)), (p, 1 / (1 - p)), x.dtype, x.shape, partial(_alone, p=p))
    return _alone(x, numbers, p=p) if y is None else y


def _alone(x: Array, numbers: Numbers, p: float) -> Array:
    y = empty(x.shape, x.dtype)
    _DROPOUT[x.dtype](blocks(x.size, ITEMSIZE[x.dtype], 1), x, y, x.size, p, 1 / (1 - p), *numbers.arguments)
    return y
