"""Convolution, relu and the maxima of 2 x 2 in one pass, in 16 bits on Hopper; everywhere else, one after the other.

A tile of conv_wgmma.cu whose rows are a box of positions has whole windows, which are pooled in shared memory, where
results pass through: the map between is neither written nor read. Slices and clusters are not pooled so.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from alpha.core.precision import PRECISIONS
from alpha.cuda.conv import conv2d_bias_act_cuda
from alpha.cuda.conv.costs import device, time_us
from alpha.cuda.conv.planner import Launch, launch_of, plan, precision_of
from alpha.cuda.conv.schedule import is_product
from alpha.cuda.conv.wgmma import BF16, FP16, TILES, Wgmma
from alpha.cuda.conv.wgmma.boxes import windowed
from alpha.cuda.lazy import flush_gradients, write_for
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.ops.pool import max_pool2d_cuda
from alpha.cuda.runtime.memory import Array, empty
from alpha.ops.conv_desc import ConvDesc, Pair
from alpha.ops.conv_pool import conv_relu_pool
from alpha.plan import AUTO, Request

POOL_BYTES = 2.5  # that a pool moves for each element of the map
HALVES = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0)}


class Pooled(Wgmma):
    """A tile that stores the maxima of 2 x 2."""

    def rejection(self, desc: ConvDesc) -> str | None:
        if refused := super().rejection(desc):
            return refused
        whole = not is_product(desc) and windowed(desc, self.tile.rows) and not self.work_list(desc).slots
        return None if whole else "no boxes of positions have whole windows, or its sums are cut"


CANDIDATES = tuple(Pooled("fprop", mode, tile, pooled=True) for mode in (BF16, FP16) for tile in TILES[mode][:2])


@lru_cache(maxsize=256)
def chosen(desc: ConvDesc, precision: str, request: Request) -> Launch | None:
    """Returns the launch (x, w, pooled y, epilogue) that takes the least time, or None where two ops take less."""
    serving = [c for c in CANDIDATES if c.reads == PRECISIONS[precision].dtype and not c.rejection(desc)
               and request.name in ("auto", "direct")]
    best = min(serving, key=lambda one: time_us(one.cost(desc)), default=None)
    pool_us = device().launch_us + POOL_BYTES * prod(desc.y_shape) / device().l2
    two_us = plan("fprop", desc, precision).options[0].time_us + pool_us
    return launch_of(best, desc, precision) if best and time_us(best.cost(desc)) <= two_us else None


@conv_relu_pool.impl("cuda")
def conv_relu_pool_cuda(x: Array, w: Array, b: Array | None, *, stride: Pair, padding: Pair, algorithm: Request = AUTO,
                        **window: Pair) -> Array:
    geometry: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": (1, 1), "groups": 1}
    window = {name[len("pool_"):]: pair for name, pair in window.items()}
    desc, precision = ConvDesc.fprop(x.shape, w.shape, **geometry), precision_of(x.dtype)
    launch = chosen(desc, precision, algorithm) if window == HALVES and precision in ("bf16", "fp16") else None
    if launch is None:
        y = conv2d_bias_act_cuda(x, w, b, activation="relu", algorithm=algorithm, **geometry)
        return max_pool2d_cuda(y, **window)[0]
    write_for(x, x.dtype)
    flush_gradients()
    y = empty((desc.n, desc.h.o // 2, desc.w.o // 2, desc.oc), x.dtype)
    launch(x, w, y, Epilogue.of(b and as_float32(b), "relu"))
    return y
