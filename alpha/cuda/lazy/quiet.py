"""Blocks in which arrays that wait are left as they are, for checks, and for results that are made again; and those in
which more of them wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

lock = threading.RLock()  # of all that waits; reentrant: what a pass reads may be waiting, too
_undisturbed = 0          # blocks of `undisturbed` that are open
_peeked: list[Any] | None = None  # what `peek` has made, while it runs: under the lock
_inferring: ContextVar[bool] = ContextVar("inferring", default=False)
is_inferring = _inferring.get  # whether a block of `inferring` is open


@contextmanager
def inferring() -> Iterator[None]:
    """As Backend.inferring."""
    token = _inferring.set(True)
    try:
        yield
    finally:
        _inferring.reset(token)


@contextmanager
def undisturbed() -> Iterator[None]:
    """For a block that makes earlier results again: gradients go on waiting, and get the form that they had without."""
    global _undisturbed
    with lock:
        _undisturbed += 1
    try:
        yield
    finally:
        with lock:
            _undisturbed -= 1


def is_undisturbed() -> bool:
    """Tells whether such a block is open."""
    return _undisturbed > 0


@contextmanager
def peeking() -> Iterator[list[Any]]:
    """For a block in which nothing is written where it belongs; what it makes is held until the outermost one ends."""
    global _peeked
    outermost = _peeked is None
    _peeked = [] if _peeked is None else _peeked
    try:
        yield _peeked
    finally:
        if outermost:
            _peeked = None


def is_peeking() -> bool:
    """Tells whether such a block is open."""
    return _peeked is not None
