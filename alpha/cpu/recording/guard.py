"""Arrays whose elements NumPy may not read or write: an implementation's arguments while it is recorded.

Then calls of compiled kernels are noted, not made, so there are no elements yet. To ask for a shape, or for a view, is
fine. Whatever else NumPy would do raises Looked, and the recorder notes the whole implementation as one call.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

Array = np.ndarray
# What is known without elements
ATTRIBUTES = frozenset({"shape", "dtype", "ndim", "size", "flags", "strides", "nbytes", "itemsize", "base", "T",
                        "reshape", "transpose", "swapaxes", "astype", "__class__", "__len__", "__getitem__"})


class Looked(BaseException):
    """An implementation reads or writes elements while it is recorded.  No Exception, which it might catch."""


def _refuse(*args: Any, **named: Any) -> NoReturn:
    raise Looked


class Guarded(np.ndarray):
    """See the header."""

    def __getattribute__(self, name: str) -> Any:
        if name not in ATTRIBUTES:
            raise Looked
        return np.ndarray.__getattribute__(self, name)

    def __getitem__(self, key: Any) -> Any:
        for part in key if isinstance(key, tuple) else (key,):
            if part is not None and part is not Ellipsis and type(part) not in (int, slice):
                raise Looked    # an array of indices, say: NumPy would copy elements
        return _view(self, np.ndarray.__getitem__(self, key))

    def reshape(self, *shape: Any, **named: Any) -> Any:
        return _view(self, np.ndarray.reshape(self, *shape, **named))

    def astype(self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: bool = True,
               copy: bool = True) -> Any:
        if copy or np.dtype(dtype) != self.dtype:
            raise Looked
        return self

    __array_ufunc__ = __array_function__ = __setitem__ = __delitem__ = _refuse
    __bool__ = __int__ = __float__ = __complex__ = __index__ = __contains__ = _refuse
    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = __repr__ = __str__ = __format__ = _refuse


def _view(whole: Array, part: Any) -> Any:
    """Returns a part of an array.  Raises Looked where it is a copy, or an element."""
    if not isinstance(part, np.ndarray) or memory(part) is not memory(whole):
        raise Looked
    return part


def memory(x: Array) -> Any:
    """Returns the owner of an array's elements: another array, or the owner of a block."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x if x.base is None else x.base


def plain(x: Array) -> Array:
    """Returns a guarded array without its guard: another look at the same elements."""
    return np.ndarray.view(x, np.ndarray)
