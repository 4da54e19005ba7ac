"""Who is billed for the time that ALPHA_DEBUG=2 prints: the op that asked for the work, whenever it is done.

A backend may do the last part of an op when its result is read, within another op. That time is billed to the first,
in a line of its own, and not to the second.

And who else is told of calls and launches: the watchers of alpha.profiler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Watcher(Protocol):
    """Who is told of the calls of ops, of backward passes, and of launches on a GPU."""

    def around(self, op: Any, args: Sequence[Any], device: str, implementation: Callable[..., Any]
               ) -> Callable[..., Any]:
        """Returns the function that a call of an op runs in place of its implementation, with the same results."""

    def recorded(self, node: Any) -> None:
        """Is told of the node of the call that has just run."""

    def backward(self, node: Any) -> AbstractContextManager[None]:
        """Surrounds the part of a backward pass that one node stands for."""

    def launched(self, kernel: str, begin: Any, end: Any) -> None:
        """Is told of a launch, and of the marks before and after it in the stream of work (Backend.mark)."""


watchers: list[Watcher] = []    # the last one is told


class Trace:
    """A call of an op that is timed: how it is printed, and the seconds within it that others are billed for."""

    def __init__(self, text: str) -> None:
        self.text, self.others = text, 0.0


running: ContextVar[Trace | None] = ContextVar("alpha.core.trace", default=None)


@contextmanager
def timed(trace: Trace, synchronize: Callable[[], None], note: str = "") -> Iterator[None]:
    """For a block of work: prints one line with its time, less the time billed to others in the meantime."""
    outer, others = running.get(), trace.others
    token, begin = running.set(trace), time.perf_counter()
    try:
        yield
        synchronize()
    finally:
        running.reset(token)
    spent = time.perf_counter() - begin
    print(f"alpha: {trace.text} {(spent - trace.others + others) * 1e3:.3f} ms{note}", file=sys.stderr)
    if outer is not None:
        outer.others += spent


@contextmanager
def late(trace: Trace | None, synchronize: Callable[[], None]) -> Iterator[None]:
    """For work that a traced op left for later: bills it, unless it is that op which runs."""
    now = running.get()
    if trace is None or trace is now:
        yield
        return
    synchronize()  # earlier launches are not its work
    with timed(trace, synchronize, f" later, for {now.text.partition('(')[0] if now else 'a reader'}"):
        yield
