"""Attention on the CPU: the compiled kernel for float32 and float16, else NumPy, whose scores are in memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from alpha.cpu import native
from alpha.cpu.attention import reference
from alpha.cpu.half import quiet
from alpha.cpu.memory import empty
from alpha.ops.attention import attention, attention_grad
from alpha.ops.attention.desc import AttentionDesc, describe
from alpha.random import STREAMS

Array = np.ndarray
Results = tuple[Array, ...]
ITEM = 4    # bytes of a float32


def _widened(a: Array | None) -> Array | None:
    return a.astype(np.float32) if a is not None and a.dtype == np.float16 else a


@attention.impl("cpu")
@quiet
def attention_cpu(q: Array, k: Array | None, v: Array | None, mask: Array | None, *, heads: int, batch_first: bool,
                  **how: Any) -> Results:
    desc = describe(q.shape, k if k is None else k.shape, v if v is None else v.shape, heads, batch_first)
    operands = [_widened(a) for a in (q, k, v, mask)]
    run = of_attention if _compiled(*operands) else reference.forward
    y, lse = run(desc, *operands, **how)
    return y.astype(q.dtype, copy=False), lse


@attention_grad.impl("cpu")
@quiet
def attention_grad_cpu(g: Array, q: Array, k: Array | None, v: Array | None, mask: Array | None, y: Array, lse: Array,
                       *, heads: int, batch_first: bool, **how: Any) -> Results:
    desc = describe(q.shape, k if k is None else k.shape, v if v is None else v.shape, heads, batch_first)
    operands = [_widened(a) for a in (g, q, k, v, mask, y)]
    run = of_gradients if _compiled(*operands) else reference.gradients
    return tuple([d.astype(q.dtype, copy=False) for d in run(desc, *operands, lse, **how)])


def _compiled(*operands: Array | None) -> bool:
    return native.usable(*[a for a in operands if a is not None and a.dtype != np.bool_])


@lru_cache(maxsize=1024)
def _shape(desc: AttentionDesc, causal: bool, mask: tuple[int, ...]) -> Array:
    """Returns what kernels/attention/attention.cpp reads of a call; mask: strides in elements, or nothing."""
    places = (step for place in (desc.q, desc.k, desc.v, desc.y) for step in place[1:])
    return np.array([*desc[:6], causal, *places, *(mask or (0, 0, 0, 0))], np.int64)


def _mask(desc: AttentionDesc, mask: Array | None) -> tuple[tuple[int, ...], Any, Any]:
    """Returns strides of a mask over the scores, and its address as one of bools and as one of floats."""
    if mask is None:
        return (), None, None
    strides = tuple([step // mask.itemsize for step in np.broadcast_to(mask, desc.scores).strides])
    address = native.ptr(mask)
    return (strides, address, None) if mask.dtype == np.bool_ else (strides, None, address)


def _parts(desc: AttentionDesc, q: Array, k: Array | None, v: Array | None) -> list[int]:
    """Returns the addresses of the first query, key and value."""
    k = q if k is None else k
    v = k if v is None else v
    return [native.ptr(a).value + ITEM * place.first for a, place in zip((q, k, v), (desc.q, desc.k, desc.v))]


def _numbers(scale: float, p: float, seed: int, offset: int) -> tuple[float | int, ...]:
    return scale, p, 0.0 if p == 1 else 1 / (1 - p), seed, STREAMS["dropout"], offset


def of_attention(desc: AttentionDesc, q: Array, k: Array | None, v: Array | None, mask: Array | None, *, causal: bool,
                 **numbers: Any) -> Results:
    """Returns y and lse by the compiled kernel; operands are contiguous float32, but for a mask of bools."""
    y, lse = empty(desc.y_shape, q.dtype), empty(desc.scores[:3], q.dtype)
    strides, *masks = _mask(desc, mask)
    native.loaded().attention_fwd(native.table_ptr(_shape(desc, causal, strides)), *_parts(desc, q, k, v), *masks,
                                  native.ptr(y), native.ptr(lse), *_numbers(**numbers))
    return y, lse


def of_gradients(desc: AttentionDesc, g: Array, q: Array, k: Array | None, v: Array | None, mask: Array | None,
                 y: Array, lse: Array, *, causal: bool, **numbers: Any) -> Results:
    """Returns dq, dk and dv by the compiled kernel, without elements where k or v is None."""
    dq, *others = (empty((0,) if a is None else a.shape, g.dtype) for a in (q, k, v))
    given = [None if a is None else d for a, d in zip((k, v), others)]
    strides, *masks = _mask(desc, mask)
    native.loaded().attention_bwd(native.table_ptr(_shape(desc, causal, strides)), native.ptr(g),
                                  *_parts(desc, q, k, v), *masks, native.ptr(y), native.ptr(lse),
                                  *_parts(desc, dq, *given), *_numbers(**numbers))
    return dq, *others
