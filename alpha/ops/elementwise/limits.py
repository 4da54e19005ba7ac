"""Elements kept between limits, which may be tensors: clip."""

from __future__ import annotations

from typing import Any

from alpha.core.errors import DTypeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.elementwise import clip as clip_by_numbers
from alpha.ops.elementwise import gt, lt, where

Operand = Any   # a tensor or a number, which clip looks at


@public(top="clip clamp", method="clip clamp")
@checked
def clip(x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """y = x limited to [low, high]; a limit may be None.  The gradient is g inside, limits included, and 0 outside.

    Args:
        x: any shape; float or integer.
        low, high: a number, or a tensor of the dtype of x that broadcasts with it; at least one of them. Where an
            element is limited by a tensor, that has the gradient. Where a tensor low is above high, y is high.
    Raises:
        DTypeError: a limit is a fraction and x has integers, or a tensor of another dtype.
        ConfigError: low is above high, both being numbers, or both are None.  ShapeError: the shapes do not broadcast.
    NaN stays NaN, and its gradient is 0.
    """
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return clip_by_numbers(x, low, high)
    y = x
    for name, limit, beyond in (("low", low, lt), ("high", high, gt)):
        if isinstance(limit, Tensor):
            if limit.dtype != x.dtype:
                raise DTypeError(message("clip", f"{name} has dtype {limit.dtype}, x has {x.dtype}",
                                         f"convert it: {name}.astype(x.dtype)"))
            y = where(beyond(y, limit), limit, y)
        elif limit is not None:
            y = clip_by_numbers(y, limit if name == "low" else None, limit if name == "high" else None)
    return y
