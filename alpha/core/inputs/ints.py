"""Counts, places and numbers: a bool is none of them, though Python, NumPy and PyTorch take True for 1."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

BOOLS = (bool, np.bool_)


def as_int(value: Any) -> int | None:
    """Returns an integer of any type as an int, None for other values."""
    if value.__class__ is int:
        return value    # type: ignore[no-any-return]
    if isinstance(value, (*BOOLS, type)) or not hasattr(value, "__index__"):
        return None
    try:
        return index(value)
    except TypeError:   # an array of several elements, or of none that is an integer
        return None


def is_real(value: Any) -> bool:
    """Tells whether a value is a number of Python or NumPy."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def has_bool(values: Any) -> bool:
    """Tells whether lists of numbers, or a slice, have a bool among them."""
    if isinstance(values, slice):
        values = [values.start, values.stop, values.step]
    return any(map(has_bool, values)) if isinstance(values, (list, tuple)) else isinstance(values, BOOLS)


def no_bools(k: slice) -> slice:
    """Returns a slice.  Raises TypeError for a slice with a bool, which is no place."""
    if isinstance(k.start, BOOLS) or isinstance(k.stop, BOOLS) or isinstance(k.step, BOOLS):
        raise TypeError("True and False are no places")
    return k
