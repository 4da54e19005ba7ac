"""What is in device memory: a table, and the largest live tensors with the ops that made them."""

from __future__ import annotations

import gc
from typing import Any

from alpha.core.config import config
from alpha.core.graph import Node
from alpha.core.tensor import Tensor
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, mib
from alpha.recompute.recipe import count

LARGEST = 8  # tensors that are named
_held: Any = Tensor.__dict__["array"].__get__   # as it is: a layer's result that waits is not computed for a report


def largest_tensors() -> list[tuple[int, str]]:
    """Returns (bytes, description) of the largest live arrays: shape, dtype, and the op that made each."""
    holders: dict[int, tuple[Array, str]] = {}  # by block: to ask a deferred array for its address would write it
    for thing in gc.get_objects():
        if type(thing) is Node:
            for data in thing.saved or ():
                if issubclass(type(data), Array):
                    holders.setdefault(id(data.block), (data, f"saved by {thing.op.name}"))
        elif issubclass(type(thing), Tensor) and issubclass(type(data := _held(thing)), Array):
            origin = f"made by {thing._node[0].op.name}" if thing._node else "a leaf, or without a graph"
            holders[id(data.block)] = (data, origin)
    found = []
    for data, origin in holders.values():
        found.append((data.nbytes, f"{data.shape} {data.dtype}, {origin}"))
        found += [(made.nbytes, f"{data.shape} {name}, derived from the tensor {origin}")
                  for name, made in (data.derived or {}).items()]
    return sorted(found, reverse=True)[:LARGEST]


def memory_summary() -> str:
    """Returns a table: live, cached and peak bytes of the pool, free bytes of the device, what was made again since
    `recompute_summary` was last reset, the largest tensors.
    """
    if memory.pool is None:
        return "no CUDA tensor was made in this process"
    if not context.here.entered:
        context.enter()
    free, total = context.driver.mem_get_info()
    limit = f"{config.cuda_memory_mib} MiB" if config.cuda_memory_mib else "none"
    pool = memory.pool
    rows = [("live", mib(pool.live)), ("cached", mib(pool.cached)), ("peak", mib(pool.peak)), ("limit", limit),
            ("free on the device", mib(free)), ("total on the device", mib(total))]
    rows += [("kept for backward, while others are made again", mib(count.kept)), ("not kept", mib(count.planned)),
             (f"made again, in {count.times} calls", mib(count.made))] if count.planned else []
    rows += [(what, mib(size)) for size, what in largest_tensors()]
    width = max(len(name) for name, _ in rows)
    return "\n".join([f"memory of {context.name}"] + [f"  {name:{width}}  {value:>14}" for name, value in rows])


memory.largest = largest_tensors
