"""Blocks in which arrays that wait are left as they are, for checks, and for results that are made again; and those in
which more of them wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

lock = threading.RLock()  # of all that waits; reentrant: what a pass reads may be waiting, too
_peeked: list[Any] | None = None  # what `peek` has made, while it runs: under the lock


@contextmanager
def _open(block: ContextVar[bool]) -> Iterator[None]:
    token = block.set(True)
    try:
        yield
    finally:
        block.reset(token)


# As Backend.inferring and Backend.undisturbed; and whether such a block is open
_inferring, _undisturbed = ContextVar("inferring", default=False), ContextVar("undisturbed", default=False)
inferring, is_inferring = partial(_open, _inferring), _inferring.get
undisturbed, is_undisturbed = partial(_open, _undisturbed), _undisturbed.get


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
