"""Results that have no larger elements than what they are made of: pools, joined arrays, and functions that shrink.

A bound of the operands is one of the result, so that it may wait for its first reader, as they do (deferred.py), and be
written as planes without being measured. The pass that writes it hands the question on: it has operands that wait
written in its own form, and reads those that consist of planes as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpha.cuda.lazy.deferred import Memory, bound_of, can_wait, flush_gradients, reserve
from alpha.cuda.lazy.operands import planes_are_read
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, Shape

MOST_OPERANDS = 8  # that planes_bound has room for

_BOUND = Kernel("planes.cu", "planes_bound", "ptr header, ptr a, ptr b, ptr c, ptr d, ptr e, ptr f, ptr g, ptr h",
                threads=1)


def reserve_for(shape: Shape, xs: Sequence[Array], flush: bool = True) -> Memory | None:
    """Returns memory for a result, with a bound of the operands in its header; None where the result may not wait.

    flush: has gradients that wait written before, see `flush_gradients`.
    Raises:
        OutOfMemoryError
    """
    if not 0 < len(xs) <= MOST_OPERANDS or not planes_are_read() or not can_wait(*xs):
        return None
    if flush:
        flush_gradients()
    bounds = [bound_of(x) if x.size and x.shape[-1] % 8 == 0 else None for x in xs]
    if None in bounds:
        return None
    memory = reserve(shape)
    _BOUND(1, memory.scale, *bounds, *[None] * (MOST_OPERANDS - len(bounds)))
    return memory
