"""Slices: a batch is cut into as many parts on any number of ranks, so that a step has the same bits on all of them.

    slices = Slices(8)                      # on 1, 2, 4 or 8 ranks
    results = slices.run(part_of_step, len(x))      # part_of_step(first, last) for each slice of this rank
    total = slices.tree_sum([g for _, g in results])

Each slice is computed as if it were a batch of its own: kernels are chosen for its size. Sums over slices follow one
binary tree, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), of which each rank has a branch.

A slice runs in a thread of its own, and only one thread runs at a time: from one exchange (SyncBatchNorm) to the next,
slice after slice. So the slices of a rank meet at an exchange as ranks do, and the order of all else is fixed.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from alpha import ops, random
from alpha.core.errors import ConfigError, GraphError, message
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count
from alpha.core.tensor import Tensor
from alpha.dist.communicator import Communicator
from alpha.dist.joining import world


class _Here(threading.local):
    """The slice that a thread computes."""

    slice: _Slice | None = None


_here = _Here()


class _Abandoned(BaseException):
    """Ends a slice of which another one has failed."""


class Slices:
    """The slices of a batch, of which each rank computes as many.

    Args:
        count: slices of a batch, a power of two of at least the number of ranks.
        comm: default the communicator of `init`; its size is a power of two.
    Raises:
        ConfigError: count or the number of ranks is no power of two, or there are more ranks than slices.
    """

    @checked
    def __init__(self, count: Count, comm: Communicator | None = None) -> None:
        self.comm = comm if comm is not None else world()
        size = self.comm.size
        if count & (count - 1) or size & (size - 1) or size > count:
            raise ConfigError(message("Slices", f"{count} slices on {size} ranks: both are to be powers of two, with at "
                                      "least one slice for each rank", "use 1, 2, 4 or 8 ranks for 8 slices"))
        self.count, self.local = count, count // size
        self._slices = [_Slice(self, self.comm.rank * self.local + k) for k in range(self.local)]

    def bounds(self, rows: int, k: int) -> tuple[int, int]:
        """Returns the rows of a batch in slice k: from the first number to before the second."""
        return k * rows // self.count, (k + 1) * rows // self.count

    def run(self, function: Callable[[int, int], Any], rows: int) -> list[Any]:
        """Returns function(first, last) for each slice of this rank, in their order.

        Args:
            function: computes the rows first to before last of a batch; its random numbers belong to these rows.
            rows: of the whole batch, at least one for each slice.
        Raises:
            ConfigError: there are fewer rows than slices.
            GraphError: the slices do not meet: they exchange different numbers of times.
        """
        if rows < self.count:
            raise ConfigError(message("Slices", f"a batch has {rows} rows, there are {self.count} slices",
                                      "use a larger batch, and drop a last batch that is smaller"))
        start = random.get_state()
        for s in self._slices:
            s.begin(function, self.bounds(rows, s.number), rows, start)
        while True:
            for s in self._slices:
                s.go_on()
            failed = next((s.error for s in self._slices if s.error is not None), None)
            if failed is not None or len({s.offered is None for s in self._slices}) > 1:
                for s in self._slices:
                    s.abandon()
                if failed is not None:
                    raise failed
                raise GraphError(message("Slices", "some slices have ended and others exchange statistics",
                                         "let the function do the same for each slice"))
            if self._slices[0].offered is None:
                return [s.result for s in self._slices]
            self._exchange()

    def _exchange(self) -> None:
        own = ops.stack([s.offered for s in self._slices])      # type: ignore[misc]
        rows = self.comm.all_gather(own).reshape((self.count, *own.shape[1:]))
        for s in self._slices:
            s.offered, s.received = None, rows

    def tree_sum(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the sum over all slices of all ranks, along the tree.  parts: one tensor per slice of this rank."""
        with no_grad():
            own = _branch(list(parts))
            rows = self.comm.all_gather(own)
            return _branch([rows[k].clone() for k in range(self.comm.size)])


class _Slice:
    """A thread that computes one slice, whenever it is told to go on."""

    def __init__(self, slices: Slices, number: int) -> None:
        self.slices, self.number = slices, number
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._running = False

    def begin(self, function: Callable[[int, int], Any], bounds: tuple[int, int], rows: int,
              state: tuple[int, int]) -> None:
        self.offered: Tensor | None = None
        self.received: Tensor | None = None
        self.error: BaseException | None = None
        self.result: Any = None
        self._state, self._abandoned, self._running = state, False, True
        context = contextvars.copy_context()    # the caller's precision, settings and gradient mode
        self._work = lambda: context.run(self._computed, function, bounds, rows)
        if self._thread is None:    # kept for the next step: it has threads of the CPU kernels of its own
            self._thread = threading.Thread(target=self._serve, name=f"alpha-slice-{self.number}", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        _here.slice = self
        while True:
            self._go.acquire()
            try:
                self.result = self._work()
            except _Abandoned:
                pass
            except BaseException as error:  # raised by `run`, in the caller's thread
                self.error = error
            self._running = False
            del self._work
            self._back.release()

    def _computed(self, function: Callable[[int, int], Any], bounds: tuple[int, int], rows: int) -> Any:
        with random.part(*bounds, rows):
            return function(*bounds)

    def go_on(self) -> None:
        """Lets the thread run to its next exchange, or to the end."""
        random.set_state(*self._state)
        self._go.release()
        self._back.acquire()
        self._state = random.get_state()

    def exchange(self, row: Tensor) -> Tensor:
        """Offers a row, and returns the rows of all slices; called in the thread."""
        self.offered = row
        self._back.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned
        rows = self.received
        assert rows is not None
        return rows

    def abandon(self) -> None:
        """Ends the function where it is."""
        self._abandoned = True
        if self._running:
            self._go.release()
            self._back.acquire()


def _branch(parts: list[Tensor]) -> Tensor:
    """Returns the sum of a power of two of tensors along a binary tree."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]


def joins() -> bool:
    """Tells whether a batch has other parts than this thread's."""
    return _here.slice is not None or world().size > 1


def leads() -> bool:
    """Tells whether this thread computes the first part of its rank: it changes the state that the parts share."""
    s = _here.slice
    return s is None or s.number % s.slices.local == 0


def exchanged(row: Tensor) -> Tensor:
    """Returns the rows of all parts of the batch, in their order.  row: shape (L,).  Returns: shape (parts, L)."""
    if _here.slice is not None:
        return _here.slice.exchange(row)
    return world().all_gather(row)
