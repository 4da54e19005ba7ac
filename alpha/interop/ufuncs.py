"""NumPy's functions of elements, called on tensors: np.sin(x) is x.sin(), 2.0 * x with a number of NumPy is x * 2.0."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from alpha.core.errors import ArgumentError, message
from alpha.core.methods import CALLS, Methods
from alpha.core.table import TABLE, provides

COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
OPERATORS: dict[str, Any] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "equal": operator.eq, "not_equal": operator.ne, "bitwise_and": operator.and_, "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor, "invert": operator.invert}
NAMES = {"power": "pow", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq",
         "not_equal": "ne", "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor",
         "invert": "logical_not", "rint": "round"}


@provides("ufunc")
def called(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Returns the result of the op of the name of `ufunc`.  Raises ArgumentError where there is none.

    Of an array of NumPy and a tensor neither follows the other: the op refuses the array.
    """
    name = ufunc.__name__
    op = TABLE.get(CALLS.get(NAMES.get(name, name), ""))
    if op is None or method != "__call__" or settings:
        given = ", ".join([*([] if method == "__call__" else [method]), *[f"{key}=" for key in settings]])
        raise ArgumentError(message(f"np.{name}", f"it is called with a tensor{f' and {given}' if given else ''}",
                                    f"hand it an array, np.{name}(x.numpy()), or write it with alpha.ops"))
    numbers = (np.generic, np.ndarray) if name in COMPARISONS else np.generic   # np.float32(1) < x comes as an array
    values = [v.item() if isinstance(v, numbers) and not v.shape else v for v in inputs]
    if name in OPERATORS and all(isinstance(v, (Methods, int, float)) for v in values):
        return OPERATORS[name](*values)
    return op(*values)
