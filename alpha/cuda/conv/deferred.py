"""Results of convolutions with a relu that wait for their reader (lazy/deferred.py).

A convolution behind them, or behind a pool of them, gets planes, which the kernel itself writes: nobody measures and
splits what it has stored. Everyone else gets float32, bit for bit as ever. What bounds y is known before its elements,
from what bounds x, and from the filters: conv_bound.cu.

Only where there is a relu: else batch norm comes next, as a rule, which has no use for planes. And only by kernels that
write planes, those of conv/wgmma: on other devices, for images of 3 channels and with channels that are no multiples
of 8 float32 is written at once.

A step of AlexNet at batch 512 moves some 150 MB less so, by count: 12 bytes for each element that is not measured and
split in the forward pass, 8 in the gradient of filters, 2 in that of the relu. It has 9 passes less, and 13 launches
more that end at once or read filters. Where float32 is read in the end, behind the last pool, the bound was in vain.
Measured on an H100: 1.697 ms, and 1.708 with float32 at once; in tf32 1.243 and 1.250.
"""

from __future__ import annotations

from functools import lru_cache
from functools import partial as partial_of

import numpy as np

from alpha.cuda.conv.planner import Plan
from alpha.cuda.lazy.deferred import Deferred, Memory, can_wait, defer, reserve
from alpha.cuda.lazy.operand import bounds
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, upload
from alpha.graph import grad_enabled

_BOUND = Kernel("conv_bound.cu", "conv_bound", "ptr w, ptr b, ptr bounds, i32 count, ptr unmeasured, ptr header, "
                "ptr found, i32 filters, i32 length")


def with_relu(plan: Plan, x: Array, w: Array, b: Array | None) -> Deferred | None:
    """Returns relu(conv2d(x, w) + b), which waits; None where it may not.

    Where no gradient is recorded x is not kept for one: then y does not hold it for longer than until something else
    needs memory (`flush_gradients`).

    Raises:
        OutOfMemoryError
    """
    y_shape = plan.desc.y_shape
    if not plan.planes_launch or not x.size or not can_wait(x, w, b):
        return None
    memory = reserve(y_shape)
    bits, unmeasured = bounds(x, plan.chosen.reads)
    _BOUND(y_shape[-1], w, b, bits, bits.size, unmeasured, memory.scale, _found(), y_shape[-1], w.size // y_shape[-1])
    return defer(memory, (x, w, b), partial_of(_write, plan, x, w, b), hurries=not grad_enabled())


def _write(plan: Plan, x: Array, w: Array, b: Array | None, memory: Memory, planes: bool) -> None:
    """Writes y as planes, or its elements; as elements too where planes turn out not to hold it."""
    if planes and plan.planes_launch:
        plan.planes_launch(x, w, b, memory, True)
    else:
        plan.launch(x, w, b, memory.elements, True)


@lru_cache(maxsize=1)
def _found() -> Array:
    """Returns what the blocks of a launch meet in; it leaves that as it finds it."""
    return upload(np.zeros(2, np.int32))
