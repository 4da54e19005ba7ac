"""The CPU backend: NumPy implementations of every op (the oracle), and compiled kernels of the same algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from sys import getrefcount
from typing import Any
from weakref import ref

import numpy as np

from alpha.core.table import settle
from alpha.core.versions import History
from alpha.cpu import memory

_histories: dict[int, tuple[ref[np.ndarray], History]] = {}  # by the id of the array that has the memory


READ = "a tensor is read back to the host"


def _refuse(what: str) -> None:
    """Raises AlphaError while a function is recorded: what is done now would not be repeated."""
    if memory.here.recorder is not None:
        raise memory.here.recorder.refusal(what)


class CpuBackend:
    """See alpha.core.device.Backend; arrays are np.ndarray."""

    name = "cpu"
    dtypes = frozenset({"float16", "float32", "float64", "int32", "int64", "uint8", "bool"})

    def check(self, device: str) -> None:
        """The CPU is always there."""

    def prepare(self) -> None:
        from alpha.cpu.native import library
        library()

    def by_equation(self, op: Any) -> None:
        from alpha.cpu.pointwise import by_equation
        from alpha.cpu.update import by_rule
        (by_rule if op.rule else by_equation)(op)

    def from_numpy(self, a: np.ndarray, device: str) -> np.ndarray:
        _refuse("a tensor is made from host data")
        out = memory.empty_like(a)
        out[...] = a
        return out

    def to_numpy(self, x: np.ndarray) -> np.ndarray:
        _refuse(READ)
        return x.copy()

    def fetch(self, arrays: Sequence[np.ndarray]) -> Callable[[], list[np.ndarray]]:
        settle()
        _refuse(READ)
        copies = [x.copy() for x in arrays]
        return lambda: copies

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> np.ndarray:
        out = memory.empty(shape, dtype)
        if memory.here.recorder is not None and type(out) is np.ndarray:
            memory.here.recorder.run(np.ndarray.fill, out, value)
        else:
            out.fill(value)
        return out

    def copy_into(self, dst: np.ndarray, src: np.ndarray) -> None:
        settle()
        if memory.here.recorder is not None:
            memory.here.recorder.run(np.copyto, dst, src)
        else:
            dst[...] = src

    def forget(self, arrays: Sequence[np.ndarray]) -> None:
        """Nothing is derived from arrays."""

    array_name = "numpy.ndarray"

    def accept(self, x: Any) -> np.ndarray | None:
        if not isinstance(x, (np.ndarray, np.generic)):
            return None
        found = np.asarray(x, order="C")
        return found if found.flags.writeable else found.copy()

    def is_sole(self, t: Any) -> bool:
        # two references: of the holder, and of the call that counts; a view's base is the array that has the memory
        return (t.array.flags.c_contiguous and t.array.flags.writeable and getrefcount(t.array) == 2
                and (t.array.base is None or getrefcount(t.array.base) == 2)
                and (type(t.array.base) is not np.ndarray or t.array.base.base is None
                     or (isinstance(t.array.base.base, memory.Owner) and getrefcount(t.array.base.base) == 2))
                and isinstance(t.array.base, (type(None), np.ndarray, memory.Owner)))

    def memory(self, x: np.ndarray) -> np.ndarray:
        base = x.base
        while base is not None:
            if isinstance(base, memoryview):
                base = base.obj
            if not isinstance(base, np.ndarray):
                break
            x, base = base, base.base
        return x

    def memory_key(self, x: np.ndarray) -> int:
        return id(x if x.base is None else self.memory(x))

    def form(self, x: np.ndarray) -> None:
        return None

    def held(self, x: np.ndarray) -> np.ndarray:
        return x

    def write_as(self, x: np.ndarray, form: str) -> None:
        """Arrays have elements."""

    undisturbed = nullcontext
    flops_per_byte = 20.0

    def memory_limit(self) -> int:
        return memory.host_nbytes()

    def history(self, x: np.ndarray) -> History | None:
        found = _histories.get(id(self.memory(x)))
        return found and found[1]

    def histories(self, arrays: Sequence[np.ndarray]) -> list[History]:
        result = []
        for x in arrays:
            if x.base is not None:
                x = self.memory(x)
            found = _histories.get(id(x))
            if found is None:
                gone = partial(_histories.pop, id(x))
                found = _histories[id(x)] = (ref(x, gone), History())  # `pop` takes the reference for its default
            result.append(found[1])
        return result

    def has_nan(self, x: np.ndarray) -> bool:
        _refuse(READ)
        with np.errstate(all="ignore"):
            return bool(np.isnan(np.sum(x, dtype=np.float64)) and np.isnan(x).any())  # inf - inf is NaN: look closer

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back, but that a call may not have begun."""
        settle()

    def mark(self) -> None:
        """The clock of the host will do."""
        settle()

    def memory_stats(self) -> dict[str, int]:
        settle()
        return {"live": memory.pool.live, "cached": memory.pool.cached, "peak": memory.pool.peak}

    def reset_peak_memory(self) -> None:
        settle()
        memory.pool.peak = memory.pool.live

    def record(self, function: Callable[[list[np.ndarray]], list[np.ndarray]], inputs: Sequence[np.ndarray],
               forget: Callable[[], None]) -> Any:
        from alpha.cpu.recording import Recording
        return Recording(function, inputs, forget)

    def recorder(self) -> Any:
        return memory.here.recorder

    @contextmanager
    def inferring(self) -> Iterator[None]:
        """What was there before a recording stays as it is: weights are prepared once."""
        if memory.here.recorder is not None:
            memory.here.recorder.constants = True
        yield

    alignment = 1

    def dlpack_device(self) -> tuple[int, int]:
        return 1, 0

    def address(self, x: np.ndarray) -> int:
        return x.__array_interface__["data"][0]

    def wrap(self, address: int, shape: tuple[int, ...], dtype: str, owner: Any) -> np.ndarray:
        return np.asarray(memory.Borrowed(address, shape, dtype, owner)) if address else np.empty(shape, dtype)

    def stream_handle(self) -> None:
        return None

    def give_to(self, stream: int | None) -> None:
        """There are no streams: what was computed is there."""

    wait_for = give_to


BACKEND = CpuBackend()

from alpha.cpu import families  # noqa: E402,F401  binds the implementations
