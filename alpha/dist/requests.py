"""Collectives of MPI on NumPy arrays: non-blocking, in a fixed order of sums, waited for without burning a core.

A sum is made of two collectives that move bytes, so the order of its terms is the ranks', whatever the MPI
library, its version or the network:

    every rank gets its piece of the array from all ranks   (all-to-all)
    adds the pieces, rank 0's first
    and gives the sum to all                                (all-gather)

Each rank sends and receives 2 (n - 1) / n of the array, as a ring does. Float16 travels as it is, and is added in
float32.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

SMALL = 1 << 14     # bytes: below, each rank gets all arrays at once, which is one collective and not two
SPINS = 200         # looks at a request before the process sleeps in between
NAP_S = 5e-5        # ranks may be more than cores

Steps = Generator[Any, None, np.ndarray]    # yields requests of MPI, returns the result

REDUCE: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class Pending:
    """A collective on its way; `wait()` returns its result.  Pendings of one Queue end in the order of their start."""

    def __init__(self, queue: Queue, steps: Steps) -> None:
        self._queue, self._steps = queue, steps
        self._result: np.ndarray | None = None
        self.done = False
        self._request = self._next()

    def _next(self) -> Any:
        try:
            return next(self._steps)
        except StopIteration as end:
            self._result, self.done = end.value, True
            return None

    def advance(self) -> bool:
        """Goes on as far as messages have arrived, and tells whether that is the end."""
        while not self.done and self._request.Test():
            self._request = self._next()
        return self.done

    def wait(self) -> np.ndarray:
        """Returns the result, as soon as it is there."""
        self._queue.until(self)
        assert self._result is not None
        return self._result


class Queue:
    """Collectives of one communicator of MPI, which all ranks start in the same order.

    A collective of two parts starts the second when the first has arrived. So that this happens in one order on all
    ranks, only the oldest collective goes on to its second part, in a communicator of its own.
    Args:
        comm: of mpi4py.
        check: called now and then while the process waits; an error that it raises ends the wait.
    """

    def __init__(self, comm: Any, check: Callable[[], None] = lambda: None) -> None:
        self._first, self._second = comm.Dup(), comm.Dup()
        self.rank, self.size, self._check = comm.rank, comm.size, check
        self._waiting: deque[Pending] = deque()
        self.started = 0        # collectives so far

    def begin(self, steps: Steps) -> Pending:
        """Starts a collective."""
        self.started += 1
        pending = Pending(self, steps)
        if not pending.done:
            self._waiting.append(pending)
        return pending

    def poll(self) -> None:
        """Lets collectives go on, which MPI does only while it is called."""
        while self._waiting and self._waiting[0].advance():
            self._waiting.popleft()

    def until(self, pending: Pending) -> None:
        """Returns once a collective has ended."""
        spins = 0
        self.poll()
        while not pending.done:
            spins += 1
            if spins > SPINS:
                time.sleep(NAP_S)
                if spins % 64 == 0:
                    self._check()
            self.poll()

    # ---- collectives -------------------------------------------------------------------------------------------------

    def all_gather(self, a: np.ndarray) -> Pending:
        """The arrays of all ranks, of one shape and dtype.  Result: shape (size, *a.shape)."""
        return self.begin(self._all_gather(np.ascontiguousarray(a)))

    def _all_gather(self, a: np.ndarray) -> Steps:
        out = np.empty((self.size, *a.shape), a.dtype)
        yield self._first.Iallgather(as_bytes(a), as_bytes(out))
        return out

    def all_reduce(self, a: np.ndarray, op: str = "sum") -> Pending:
        """The sum (max, min, prod) of the arrays of all ranks, in the order of the ranks.  Result: shape of a."""
        return self.begin(self._all_reduce(np.ascontiguousarray(a), op))

    def _all_reduce(self, a: np.ndarray, op: str) -> Steps:
        if a.nbytes <= SMALL:
            everything = np.empty((self.size, *a.shape), a.dtype)
            yield self._first.Iallgather(as_bytes(a), as_bytes(everything))
            return reduced(everything, op)
        piece = -(-a.size // self.size)
        flat = np.zeros(self.size * piece, a.dtype)
        flat[:a.size] = a.reshape(-1)
        mine = np.empty((self.size, piece), a.dtype)
        yield self._first.Ialltoall(as_bytes(flat), as_bytes(mine))
        part = reduced(mine, op)
        yield self._second.Iallgather(as_bytes(part), as_bytes(flat))
        return flat[:a.size].reshape(a.shape)

    def reduce_scatter(self, a: np.ndarray, op: str = "sum") -> Pending:
        """This rank's part of the sum.  a: shape (size * k, ...).  Result: shape (k, ...)."""
        return self.begin(self._reduce_scatter(np.ascontiguousarray(a), op))

    def _reduce_scatter(self, a: np.ndarray, op: str) -> Steps:
        mine = np.empty((self.size, a.shape[0] // self.size, *a.shape[1:]), a.dtype)
        yield self._first.Ialltoall(as_bytes(a), as_bytes(mine))
        return reduced(mine, op)

    def broadcast(self, a: np.ndarray, root: int) -> Pending:
        """The array of rank `root`.  Result: shape of a, which all ranks know."""
        return self.begin(self._broadcast(a, root))

    def _broadcast(self, a: np.ndarray, root: int) -> Steps:
        out = np.array(a, order="C")
        yield self._first.Ibcast(as_bytes(out), root)
        return out

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Returns the bytes of each rank, of any lengths."""
        lengths = self.all_gather(np.array([len(data)], np.int64)).wait().reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[:len(data)] = np.frombuffer(data, np.uint8)
        rows = self.all_gather(padded).wait()
        return [row[:n].tobytes() for row, n in zip(rows, lengths)]


def as_bytes(a: np.ndarray) -> np.ndarray:
    """Returns a view of the bytes of a contiguous array: MPI moves them, and knows no 16-bit floats."""
    return a.reshape(-1).view(np.uint8)


def reduced(rows: np.ndarray, op: str) -> np.ndarray:
    """Returns rows[0] + rows[1] + ..., in that order; float16 is added in float32 and rounded once."""
    combine = REDUCE[op]
    total = rows[0].astype(np.float32) if rows.dtype == np.float16 else rows[0].copy()
    for row in rows[1:]:
        combine(total, row, out=total)
    return total.astype(rows.dtype, copy=False)
