"""Logic of bool tensors, and questions whose answers are bools: what is NaN or infinite, close, or equal.

The names are NumPy's and PyTorch's, so this module shadows the builtins all and any: it calls neither.
"""

from __future__ import annotations

from math import inf
from typing import Any

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import DTypeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axes, NonNegative, Number
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.elementwise import (
    abs,
    eq,
    lt,
    ne,
)
from alpha.ops.elementwise import where as select
from alpha.ops.reduce import sum as add_up


def _logical(where: str, value: Any) -> Any:
    """Returns an operand of logic; raises DTypeError unless it is a bool tensor or a bool."""
    if (isinstance(value, Tensor) and value.dtype == "bool") or isinstance(value, bool):
        return value
    found = f"a tensor of dtype {value.dtype}" if isinstance(value, Tensor) else shown(value)
    raise DTypeError(message(where, f"an operand is {found}, bool tensors are needed",
                             "compare first: (x > 0) & (y > 0); bits of integers have no ops"))


@public(top=True, method=True, onnx="And")
@checked
def logical_and(a: Tensor, b: Any, *, where: str = "logical_and") -> Tensor:
    """y = a & b, of bool tensors that broadcast, or a bool tensor and a bool.  Raises DTypeError for others."""
    if not isinstance(b, Tensor):
        return mask_by(where, a, b, True)
    return select(_logical(where, a), _logical(where, b), False)


@public(top=True, method=True, onnx="Or")
@checked
def logical_or(a: Tensor, b: Any, *, where: str = "logical_or") -> Tensor:
    """y = a | b, of bool tensors that broadcast, or a bool tensor and a bool.  Raises DTypeError for others."""
    if not isinstance(b, Tensor):
        return mask_by(where, a, b, False)
    return select(_logical(where, a), True, _logical(where, b))


def mask_by(where: str, a: Tensor, b: Any, neutral: bool) -> Tensor:
    """Returns a where b is neutral, else b everywhere."""
    same = eq(_logical(where, a), True)
    return same if _logical(where, b) is neutral else ne(same, same) if neutral else eq(same, same)


@public(top=True, method=True, onnx="Xor")
@checked
def logical_xor(a: Tensor, b: Any, *, where: str = "logical_xor") -> Tensor:
    """y = a ^ b, of bool tensors that broadcast, or a bool tensor and a bool.  Raises DTypeError for others."""
    return ne(_logical(where, a), _logical(where, b))


@public(top=True, method=True, onnx="Not")
@checked
def logical_not(x: Tensor, *, where: str = "logical_not") -> Tensor:
    """y = not x, of a bool tensor.  Raises DTypeError for another."""
    return eq(_logical(where, x), False)


@public(top=True, method=True)
@checked
def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = whether any x is not 0, over the axes; bool.  See sum."""
    return ne(add_up(ne(x, 0), axis, keepdims), 0)


@public(top=True, method=True)
@checked
def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = whether no x is 0, over the axes; bool.  See sum."""
    return eq(add_up(eq(x, 0), axis, keepdims), 0)


@public(top=True, method=True)
@checked
def isnan(x: Tensor) -> Tensor:
    """y = whether x is NaN; bool."""
    return ne(x, x)


@public(top=True, method=True)
@checked
def isinf(x: Tensor) -> Tensor:
    """y = whether x is infinite; bool."""
    return eq(abs(x), inf) if x.dtype in FLOAT_DTYPES else ne(x, x)


@public(top=True, method=True)
@checked
def isfinite(x: Tensor) -> Tensor:
    """y = whether x is neither NaN nor infinite; bool."""
    return lt(abs(x), inf) if x.dtype in FLOAT_DTYPES else eq(x, x)


@public(top=True, method=True)
@checked
def masked_fill(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """y = value where mask holds, else x; mask is a bool tensor that broadcasts.  See where."""
    return select(mask, value, x)


@public(top=True, method=True)
@checked
def isclose(a: Tensor, b: Tensor, rtol: NonNegative = 1e-5, atol: NonNegative = 1e-8, equal_nan: bool = False
            ) -> Tensor:
    """y = whether |a - b| <= atol + rtol * |b|, or both are the same infinity; bool.  They broadcast.

    Args:
        rtol, atol: at least 0.
        equal_nan: whether two NaNs are close.
    """
    a, b = a.detach(), b.detach()
    if a.dtype not in FLOAT_DTYPES:
        a, b = a.astype("float32"), b.astype("float32")
    near = logical_or(logical_and(abs(a - b) <= abs(b) * rtol + atol, isfinite(b)), eq(a, b))
    return logical_or(near, logical_and(isnan(a), isnan(b))) if equal_nan else near


@public(top=True, method=True)
@checked
def allclose(a: Tensor, b: Tensor, rtol: NonNegative = 1e-5, atol: NonNegative = 1e-8, equal_nan: bool = False) -> bool:
    """Returns whether |a - b| <= atol + rtol * |b| everywhere; NaN equals NaN only where equal_nan says so."""
    return bool(all(isclose(a, b, rtol, atol, equal_nan)))


@public(top=True, method=True)
@checked
def equal(a: Tensor, b: Tensor) -> bool:
    """Returns whether a and b have one shape and the same elements."""
    return a.shape == b.shape and bool(all(eq(a, b)))
