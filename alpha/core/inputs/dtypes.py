"""Dtypes by name, the numbers that they hold, and the refusal of those that they do not."""

from __future__ import annotations

import sys
from math import inf
from typing import Annotated, Any, Union

import numpy as np

from alpha.core.device import DTYPES, FLOAT_DTYPES
from alpha.core.errors import DTypeError, message, shown
from alpha.core.inputs.kinds import Kind

Number = Union[int, float]

RANGES: dict[str, tuple[Number, Number]] = {  # the least and the largest finite number
    "uint8": (0, 255), "int32": (-2 ** 31, 2 ** 31 - 1), "int64": (-2 ** 63, 2 ** 63 - 1), "bool": (0, 1),
    "float16": (-65504.0, 65504.0), "bfloat16": (-3.3895313892515355e38, 3.3895313892515355e38),
    "float32": (-3.4028234663852886e38, 3.4028234663852886e38), "float64": (-sys.float_info.max, sys.float_info.max)}


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype given as a name, a NumPy dtype or a Python type.  Raises DTypeError."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        name = "" if dtype is None else np.dtype(dtype).name
    except Exception:  # any error of NumPy for a value that is no dtype
        name = ""
    if name not in DTYPES:
        fix = f"use one of {', '.join(sorted(DTYPES))}"
        if isinstance(dtype, (int, np.integer)):
            fix += "; or was a shape meant? It is one tuple: zeros((2, 3))"
        raise DTypeError(message("dtype", f"{repr(name) if name else shown(dtype)} is not a dtype of alpha", fix))
    return name


class _DType(Kind):
    """A dtype by name, as NumPy's or as Python's type, as its name."""

    stub, text = "Any", "a dtype"

    def __init__(self, none: bool = False) -> None:
        self.none = none

    def read(self, value: Any) -> str | None:
        return None if value is None and self.none else dtype_name(value)


DType = Annotated[Any, _DType()]
DTypeOrNone = Annotated[Any, _DType(none=True)]


def check_value(where: str, value: Number, dtype: str) -> None:
    """Refuses a number that a dtype does not have: out of its range, or a fraction.  Raises DTypeError."""
    low, high = RANGES[dtype]
    if dtype in FLOAT_DTYPES:
        fits = value != value or abs(value) == inf or low <= value <= high
    else:
        fits = low <= value <= high and value == int(value)
    if not fits:
        needed = "a number" if dtype in FLOAT_DTYPES else "an integer"
        raise DTypeError(message(where, f"{shown(value)} does not fit {dtype}, {needed} from {low} to {high} is needed",
                                 "pass such a number, or choose another dtype"))


def check_values(host: np.ndarray, dtype: str) -> None:
    """Refuses elements that integers of a dtype cannot hold; fractions are cut.  Raises DTypeError."""
    if host.dtype.kind not in "biuf":
        first = host.reshape(-1)[0] if host.size else host.dtype
        raise DTypeError(message("tensor", f"the elements are no numbers, the first is {shown(first)}",
                                 "pass numbers, nested lists of numbers, or an array of them"))
    if dtype in FLOAT_DTYPES or dtype == "bool" or host.dtype == dtype or not host.size:
        return
    low, high = RANGES[dtype]
    lowest, highest = host.min().item(), host.max().item()
    if not low <= lowest <= highest <= high:   # also where one is NaN
        bad = lowest if not lowest >= low else highest
        raise DTypeError(message("tensor", f"the value {bad} does not fit {dtype}, which holds {low} to {high}",
                                 "pass other values, or choose another dtype"))
