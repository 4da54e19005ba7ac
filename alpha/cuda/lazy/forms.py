"""In which form an array is read, so that one that is made again gives the same bits (alpha.recompute)."""

from __future__ import annotations

from copy import copy
from typing import Any

from alpha.cuda.lazy.deferred import Deferred
from alpha.cuda.runtime.memory import Array


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
