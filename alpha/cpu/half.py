"""float16 on the CPU: computed in float32, and rounded once.

Gradients of float16 overflow as a matter of course, which is what loss scaling is for: there are no warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

Array = np.ndarray
_FLOAT32 = np.dtype(np.float32)


def quiet(run: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function leave infinities and NaNs in its result without a warning."""
    @wraps(run)
    def silenced(*args: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*args, **attrs)
    return silenced


def in_float32(rounded: bool = True) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Makes an implementation that computes in the dtype of its arrays fit for float16.

    Args:
        rounded: whether the result is to be float16 again, unless the attribute `dtype` names another one.
    Returns:
        A decorator; what it returns takes float16 arrays, among which there may be float32 ones, and `dtype`.
    """
    def decorate(run: Callable[..., Array]) -> Callable[..., Array]:
        @quiet
        def half(*arrays: Array | None, dtype: str | None, **attrs: Any) -> Array:
            y = run(*[a if a is None else a.astype(np.float32, copy=False) for a in arrays], **attrs)
            return y.astype(dtype or (np.float16 if rounded else np.float32), copy=False)

        @wraps(run)
        def widened(*arrays: Array | None, dtype: str | None = None, **attrs: Any) -> Array:
            for a in arrays:
                if a is not None and a.dtype is not _FLOAT32 and a.dtype.char == "e":
                    return half(*arrays, dtype=dtype, **attrs)
            return run(*arrays, **attrs)
        return widened
    return decorate
