"""Attention on a GPU's tensor cores: one kernel forward, two for the gradients; see attention.cu.

float32 is multiplied as TF32, in the mode fp32 by three products of its two halves, and 16 bits as they are. Before
sm_80 tensor cores multiply float16 alone, and FMA units the others (fragments.cuh).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from alpha.core.precision import Precision
from alpha.cuda.conv.first_layer.mma.stem_mma import MODES
from alpha.cuda.conv.planner import precision_of
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import ASYNC, OLDEST, context
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.attention import attention, attention_grad
from alpha.ops.attention.desc import AttentionDesc, describe
from alpha.ops.conv_desc import ceil_div
from alpha.random import STREAMS

Shape = tuple[int, ...]
SHAPE = struct.Struct("@8i20q3fi")   # AttentionShape of attention.cuh
NUMBERS = f"block[{SHAPE.size}] shape, u64 seed, u32 stream, u64 offset, ptr from"
HEADS = (32, 64, 128, 256)     # widths that tiles have
_MODES = {mode.name: mode for mode in MODES}


class Tile(NamedTuple):
    """Rows of a block, of which a warp has 16; columns that meet them at a time; columns of the result; buffers."""

    rows: int
    columns: int
    span: int
    stages: int

    @property
    def threads(self) -> int:
        return 2 * self.rows

    def shared(self, head: int, itemsize: int, row_tiles: int) -> int:
        return (row_tiles * self.rows + 2 * self.stages * self.columns) * head * itemsize


# By bytes of an element and width of a head. Shared memory is at most 96 KiB, which every GPU from sm_80 on has. SMALL
# has the tiles in place of those that take more than the 64 KiB of a GPU before sm_80, by whether they go forward.
FORWARD = {(2, 32): Tile(64, 64, 32, 2), (2, 64): Tile(64, 64, 64, 2), (2, 128): Tile(64, 32, 128, 2),
           (2, 256): Tile(64, 32, 128, 2), (4, 32): Tile(64, 32, 32, 2), (4, 64): Tile(64, 32, 64, 2),
           (4, 128): Tile(64, 32, 64, 2), (4, 256): Tile(32, 32, 64, 1)}
BACKWARD = {(2, 32): Tile(64, 64, 32, 2), (2, 64): Tile(64, 32, 64, 2), (2, 128): Tile(64, 32, 64, 2),
            (2, 256): Tile(64, 32, 64, 1), (4, 32): Tile(64, 32, 32, 2), (4, 64): Tile(64, 32, 32, 2),
            (4, 128): Tile(64, 32, 32, 1), (4, 256): Tile(16, 32, 32, 1)}
SMALL = {(True, 2, 256): Tile(64, 32, 128, 1), (True, 4, 128): Tile(64, 32, 64, 1),
         (True, 4, 256): Tile(32, 16, 64, 1), (False, 2, 256): Tile(32, 32, 64, 1),
         (False, 4, 128): Tile(32, 32, 32, 1), (False, 4, 256): Tile(16, 16, 32, 1)}
POINTERS = {"attention_forward": "q k v mask y lse", "attention_dq": "g q k v mask y lse delta dq",
            "attention_dkv": "g q k v mask lse delta dk dv"}


def kernel(entry: str, mode: Precision, head: int) -> tuple[Kernel, Tile]:
    """Returns one of the three kernels of heads of a width, and its tile, on this process's device."""
    return _kernel(entry, mode, head, context.staged)


@lru_cache(maxsize=256)
def _kernel(entry: str, mode: Precision, head: int, small: bool) -> tuple[Kernel, Tile]:
    forward, itemsize = entry == "attention_forward", ITEMSIZE[mode.dtype]
    tile = (FORWARD if forward else BACKWARD)[itemsize, head]
    of_old = small and (forward, itemsize, head) in SMALL
    if of_old:
        tile = SMALL[forward, itemsize, head]
    defines = {"ELEMENT": C_TYPES[mode.dtype], "PRODUCTS": mode.multiplications, "HEAD": head, "TILE_ROWS": tile.rows,
               "TILE_COLUMNS": tile.columns, "SPAN": tile.span, "STAGES": tile.stages, "MIN_BLOCKS": 1,
               "GRADIENTS": int(not forward)}
    args = ", ".join([f"ptr {name}" for name in POINTERS[entry].split()] + [NUMBERS])
    return Kernel("attention.cu", entry, args, threads=tile.threads,
                  shared=tile.shared(head, itemsize, 1 if forward else 2), defines=defines,
                  needs=OLDEST if small or (forward, itemsize, head) not in SMALL else ASYNC,
                  before=ASYNC if of_old else None), tile


for _mode, _head, _entry, _small in product(MODES, HEADS, POINTERS, (False, True)):
    _kernel(_entry, _mode, _head, _small)    # declares its module, for those that are built ahead


@lru_cache(maxsize=1024)
def _sizes(desc: AttentionDesc, causal: bool, mask: tuple[Shape, str] | None, tiles: int, scale: float, p: float,
           aligned: bool) -> bytes:
    """Returns AttentionShape."""
    strides, kind = [0, 0, 0, 0], 0
    if mask is not None:
        shape, kind = (1,) * (4 - len(mask[0])) + mask[0], 1 if mask[1] == "bool" else 2
        strides = [0 if n == 1 else prod(shape[k + 1:]) for k, n in enumerate(shape)]
    places = [step for place in (desc.q, desc.k, desc.v, desc.y) for step in place]
    return SHAPE.pack(desc.heads, desc.rows, desc.keys, desc.width, desc.value_width, causal, kind, tiles, *places,
                      *strides, scale, p, 0.0 if p == 1 else 1 / (1 - p), aligned)


@lru_cache(maxsize=1024)
def _aligned(desc: AttentionDesc, itemsize: int) -> bool:
    """Tells whether all heads and rows begin at multiples of 16 bytes."""
    return all(step * itemsize % 16 == 0 for place in (desc.q, desc.k, desc.v, desc.y) for step in place)


class _Call:
    """What the launches of a call share."""

    def __init__(self, q: Array, k: Array | None, v: Array | None, mask: Array | None, heads: int, batch_first: bool,
                 causal: bool, scale: float, p: float, seed: int, offset: int) -> None:
        self.desc = desc = describe(q.shape, k and k.shape, v and v.shape, heads, batch_first)
        self.tensors = q, q if k is None else k, v if v is not None else q if k is None else k
        self.mask, self.mode = mask, _MODES["fp32" if precision_of(q.dtype) == "fma" else precision_of(q.dtype)]
        self.head = next(n for n in HEADS if n >= max(desc.width, desc.value_width))
        self.aligned = _aligned(desc, ITEMSIZE[q.dtype])
        self.how = causal, None if mask is None else (mask.shape, mask.dtype)
        self.scale, self.p, begin = scale, p, None
        if p and memory.recorder:
            offset, begin = memory.recorder.random(offset, prod(desc.scores))
        self.numbers = seed, STREAMS["dropout"], offset, begin

    def launch(self, entry: str, rows: int, *arrays: Any) -> None:
        run, tile = kernel(entry, self.mode, self.head)
        tiles = ceil_div(rows, tile.rows)
        run((self.desc.n * self.desc.heads * tiles, self.head // tile.span), *arrays,
            _sizes(self.desc, *self.how, tiles, self.scale, self.p, self.aligned), *self.numbers)


@attention.impl("cuda")
def attention_cuda(q: Array, k: Array | None, v: Array | None, mask: Array | None, **how: Any) -> tuple[Array, Array]:
    call = _Call(q, k, v, mask, **how)
    y, lse = empty(call.desc.y_shape, q.dtype), empty(call.desc.scores[:3], "float32")
    call.launch("attention_forward", call.desc.rows, *call.tensors, mask, y, lse)
    return y, lse


@attention_grad.impl("cuda")
def attention_grad_cuda(g: Array, q: Array, k: Array | None, v: Array | None, mask: Array | None, y: Array, lse: Array,
                        **how: Any) -> tuple[Array, ...]:
    call = _Call(q, k, v, mask, **how)
    dq, dk, dv = (empty((0,) if x is None else x.shape, q.dtype) for x in (q, k, v))
    to_k = dq if k is None else dk
    delta = empty(lse.shape, "float32")
    call.launch("attention_dq", call.desc.rows, g, *call.tensors, mask, y, lse, delta, dq)
    call.launch("attention_dkv", call.desc.keys, g, *call.tensors, mask, lse, delta, to_k,
                to_k if v is None else dv)
    return dq, dk, dv
