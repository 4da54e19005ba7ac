"""Arrays that are kept in another form than their elements, which are written for the first who asks for them; and in
which form an array that waits is read, so that one that is made again gives the same bits (alpha.recompute).

An index is kept as bytes (ops/pool), a gradient as some columns of a larger one. Who knows the form reads that.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from alpha.cuda.lazy.deferred import Deferred, can_wait, waiting
from alpha.cuda.lazy.quiet import lock
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty, extent
from alpha.cuda.runtime.walk import lanes_among

Write = Callable[[Array, Array], None]  # (what is kept, elements)


class Packed(Array):
    """An array that is kept as another one.  It stands among what is waiting, too, for that may change.

    key: what `kept` means, for those who read it.
    """

    __slots__ = ("_kept", "_key", "_write")
    hurries, is_chain, is_alive, planes = False, False, True, lambda *_, **__: None

    def __init__(self, kept: Array, shape: Shape, dtype: str, key: Any, write: Write) -> None:
        self.shape, self.dtype, self.derived = shape, dtype, None
        self.size, self._write = extent(shape, dtype)[0], write
        self._kept, self._key = kept, key
        waiting[id(self)] = self

    block = property(lambda self: self._kept.block)  # type: ignore[assignment]
    ptr = property(lambda self: self.written().ptr)  # type: ignore[assignment]
    nbytes = property(lambda self: min(self._kept.nbytes, extent(self.shape, self.dtype)[1]))  # type: ignore[assignment]
    reads = property(lambda self: [] if self._key is None else [self._kept])

    def written(self) -> Array:
        with lock:
            if self._key is not None:
                made = empty(self.shape, self.dtype)
                self._write(self._kept, made)
                made.derived, self._kept, self._key = self.derive(), made, None
                waiting.pop(id(self), None)
            return self._kept

    elements = written

    def reshaped(self, shape: Shape) -> Array:
        return self.written().reshaped(shape)


def packed_form(x: Array, key: Any) -> Array | None:
    """Returns what an array is kept as; None where it has elements, which may have been changed, or means another."""
    return x._kept if x.__class__ is Packed and x._key == key else None  # type: ignore[attr-defined]


def columns(x: Array, first: int, count: int, write: Write) -> Array | None:
    """Returns `count` columns of x, to be read where they are; None where pieces as if alone do not fit there."""
    lanes = lanes_among(count, x.dtype)
    if first % lanes or x.shape[-1] % lanes or not can_wait(x):
        return None
    return Packed(x.written(), (*x.shape[:-1], count), x.dtype, range(first, first + count), write)


def rows_of(x: Any) -> tuple[Array, int]:
    """Returns an array that begins with the first row of x, and how many elements rows are apart from each other."""
    if x.__class__ is not Packed or x._key.__class__ is not range:
        return x, x.shape[-1]
    at = x._kept.ptr + x._key.start * ITEMSIZE[x.dtype]
    return Array(x.block, at, x.shape, x.dtype, x.size, x.nbytes), x._kept.shape[-1]


# ---- the form of what waits ------------------------------------------------------------------------------------------
def form_of(x: Array) -> list[str] | None:
    """Returns a list of one text, see Backend.form; None for an array that always has elements."""
    return x.derived.form if x.__class__ is Deferred else None  # type: ignore[union-attr]


def progress(x: Array) -> str | None:
    """As Backend.progress."""
    if x.__class__ is not Deferred:
        return None
    contents: Any = x.derived
    return contents.form[0] if contents.form else "elements" if contents.value.written is not None else ""


def write_as(x: Array, form: str) -> None:
    """As Backend.write_as."""
    for step in {"": (), "merged": ("planes", "elements")}.get(form, (form,)) if x.__class__ is Deferred else ():
        x.derived.planes(write=True) if step == "planes" else x.derived.elements()  # type: ignore[union-attr]


def held(x: Array) -> Array:
    """As Backend.held."""
    if (form_of(x) or [""])[0] != "planes":
        return x
    made = Deferred(x.shape, x.size, x.nbytes, copy(x.derived))  # type: ignore[arg-type]
    made.derived.form = ["planes"]
    return made


def memory_key(x: Array) -> int:
    """Returns a number that all arrays over the memory of x share as long as it lives."""
    return id(x.derived if x.__class__ is Deferred else x.block)
