"""The CUDA backend: tensors in PyCUDA memory pools, every op as kernels of our own.

Importing it binds the implementations; the device is touched when the first tensor asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from alpha.core.config import config
from alpha.core.device import HALF_DTYPES, get_backend
from alpha.core.errors import AlphaError
from alpha.core.table import settle
from alpha.core.versions import History
from alpha.cuda import families, lazy  # noqa: F401  the former binds the implementations
from alpha.cuda.ops.pointwise import convert, filled
from alpha.cuda.ops.pointwise.chain import joined
from alpha.cuda.ops.reduce import has_nan
from alpha.cuda.ops.update import by_rule
from alpha.cuda.runtime import backlog, memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, free_cached
from alpha.cuda.runtime.recording import Recording
from alpha.cuda.runtime.report import memory_summary
from alpha.interop import twins

__all__ = ["BACKEND", "Array", "context", "free_cached", "is_available", "memory_summary", "synchronize"]

# Streams of other libraries that need no waiting: the legacy default stream (None, 1), which orders itself with ours,
# and -1, by which a consumer says that it has waited.
ORDERED = (None, 1, -1)


class CudaBackend:
    """See alpha.core.device.Backend; arrays are alpha.cuda.runtime.memory.Array."""

    name = "cuda"
    dtypes = frozenset(memory.ITEMSIZE)

    def check(self, device: str) -> None:
        context.start(int(device.partition(":")[2] or context.index or 0))
        memory.start()

    def prepare(self) -> None:
        """Kernels are loaded as they are needed."""

    def by_equation(self, op: Any) -> None:
        if op.rule:
            by_rule(op)
        else:
            joined(op, None)

    def from_numpy(self, a: np.ndarray, device: str) -> Array:
        if memory.recorder:
            raise memory.recorder.refusal("a tensor is made from host data")
        return memory.upload(a)

    def to_numpy(self, x: Array) -> np.ndarray:
        if x.dtype == "bfloat16":  # NumPy has none: the values come as float32
            x = convert(x, "float32")
        return memory.download(x, x.dtype)

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
        settle()
        return memory.fetch([convert(x, "float32") if x.dtype == "bfloat16" else x for x in arrays])

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Array:
        return filled(shape, value, dtype)

    def copy_into(self, dst: Array, src: Array) -> None:
        settle()
        self.forget([dst])
        memory.copy(dst, src)

    forget = staticmethod(lazy.forget)
    array_name = "alpha.cuda.Array, as alpha.cuda.runtime.memory.empty returns"

    def accept(self, x: Any) -> Array | None:
        return x if isinstance(x, Array) else None

    def is_sole(self, t: Any) -> bool:
        if t.dtype not in HALF_DTYPES or not lazy.can_wait(t.array):
            return False
        return getrefcount(t.array) == getrefcount(t.array.block) == 2  # its holder, and the call that counts

    memory_key = staticmethod(lazy.memory_key)
    form, progress = staticmethod(lazy.form_of), staticmethod(lazy.progress)
    write_as, held = staticmethod(lazy.write_as), staticmethod(lazy.held)
    undisturbed, inferring = staticmethod(lazy.undisturbed), staticmethod(lazy.inferring)
    flops_per_byte = 60.0

    def memory_limit(self) -> int:
        return config.cuda_memory_mib << 20 or context.nbytes

    def history(self, x: Array) -> History | None:
        return None if x.derived is None else x.derived.history

    def histories(self, arrays: Sequence[Array]) -> list[History]:
        result = []
        for x in arrays:
            derived = x.derived if x.derived is not None else x.derive()
            if derived.history is None:
                derived.history = History()
            result.append(derived.history)
        return result

    def has_nan(self, x: Array) -> bool:
        return has_nan(lazy.peek(x))

    def synchronize(self) -> None:
        settle()
        context.synchronize()

    def mark(self) -> Any:
        settle()
        return context.driver.Event().record(context.stream)

    record = Recording

    def recorder(self) -> Any:
        return memory.recorder

    def memory_stats(self) -> dict[str, int]:
        settle()
        pool = memory.pool
        return {"live": pool.live, "cached": pool.cached, "peak": pool.peak}

    def reset_peak_memory(self) -> None:
        settle()
        memory.pool.peak = memory.pool.live

    alignment = 16

    def dlpack_device(self) -> tuple[int, int]:
        return 2, context.index or 0

    def address(self, x: Array) -> int:
        self.forget([x])
        backlog.close()
        x.derive().visible = True  # a program that knows the address may write
        return x.ptr

    wrap = staticmethod(memory.wrap)

    def stream_handle(self) -> int:
        backlog.close()
        return context.stream.handle

    def give_to(self, stream: int | None) -> None:
        if stream not in ORDERED and stream != context.stream.handle:
            context.synchronize()  # PyCUDA cannot make a stream wait that is not its own

    def wait_for(self, stream: int) -> None:
        if stream not in ORDERED and stream != context.stream.handle:
            context.synchronize(others=True)


BACKEND = CudaBackend()


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.cuda", name, twins.CUDA, sys.modules[__name__])


def is_available() -> bool:
    """Returns whether a GPU can be used: PyCUDA, a driver and a device are there.  Starts the device."""
    try:
        get_backend("cuda")
    except AlphaError:
        return False
    return True


def synchronize() -> None:
    """Waits until the device has done all that it was given."""
    get_backend("cuda").synchronize()
