"""What is repeated: kernels in a row as one call into C++, and calls of the host between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from alpha.cpu import memory, native
from alpha.cpu.library import WIDTH, entry

Array = np.ndarray
Step = Callable[[], Any]


class Launch(NamedTuple):
    """A call of a compiled kernel, its arguments as words of a step (alpha.cpu.library)."""

    kernel: str
    words: tuple[int, ...]


class HostCall:
    """A call of an op's implementation between arrays whose places are known.

    Attributes:
        outs: where the results go. The implementation gets their memory where it asks for such arrays.
        ahead: of random numbers, how many come before those of this call in a repetition; None: it draws none.
    """

    def __init__(self, run: Callable[..., Any], arrays: Sequence[Any], attrs: dict[str, Any], outs: Sequence[Array],
                 ahead: int | None) -> None:
        self.run, self.arrays, self.attrs, self.outs, self.ahead = run, arrays, attrs, outs, ahead

    def __call__(self) -> None:
        here = memory.here
        offered = [*self.outs]

        def instead(shape: tuple[int, ...], dtype: Any) -> Array | None:
            for k, a in enumerate(offered):
                if a.shape == shape and a.dtype == dtype:
                    return offered.pop(k)
            return None

        here.instead = instead
        try:
            result = self.run(*self.arrays, **self.attrs)
        finally:
            here.instead = None
        if self.outs:
            _store(self.outs, result if isinstance(result, (tuple, list)) else (result,))


def _store(outs: Sequence[Array], results: Sequence[Any]) -> None:
    """Puts results where they belong, but for those that are there."""
    moved = [(to, np.asarray(r)) for to, r in zip(outs, results)]
    moved = [(to, r) for to, r in moved if to.size and not (
        native.ptr(to).value == native.ptr(r).value and r.size == to.size and r.flags.c_contiguous)]
    if len(moved) > 1:  # one may lie where another one belongs
        moved = [(to, r.copy()) for to, r in moved]
    for to, r in moved:
        np.copyto(to, r, casting="unsafe")


def joined(steps: Sequence[Any], library: Any) -> tuple[list[Step], list[Array]]:
    """Returns steps that do the same, kernels in a row as one, and the tables that they point to."""
    found: list[Step] = []
    tables: list[Array] = []
    for launches, run in groupby(steps, lambda step: isinstance(step, Launch)):
        if not launches:
            found += run
            continue
        part = [*run]
        words = np.zeros((len(part), WIDTH), np.int64)
        for row, step in zip(words, part):
            row[0] = ctypes.cast(getattr(library, entry(step.kernel)), ctypes.c_void_p).value
            row[1:1 + len(step.words)] = step.words
        tables.append(words)
        found.append(partial(library.run_steps, words.ctypes.data, len(part)))
    return found, tables
