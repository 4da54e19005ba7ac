"""From the items of any data set to the arrays of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha.core.errors import DataError, message, shown
from alpha.data.pictures import is_picture, pixels, upright

AS_THEY_ARE = frozenset(map(np.dtype, ("uint8", "float32", "int64")))   # dtypes that batches have


def as_array(value: Any) -> np.ndarray:
    """Returns an image, a number or an array as NumPy's, in alpha's layout and dtypes.

    Pictures of Pillow and arrays are (H, W, C) or (H, W). Tensors of PyTorch with three axes are (C, H, W) by its
    habit, and turned. float64 becomes float32, integers except uint8 become int64.
    Raises:
        DataError: an integer is too large for int64.
    """
    if type(value) is np.ndarray and value.dtype in AS_THEY_ARE and value.ndim:
        return value
    a = np.asarray(upright(value) if is_picture(value) else value)
    if a.ndim == 3 and is_of_torch(value):
        a = np.ascontiguousarray(np.moveaxis(a, 0, -1))
    return a if a.dtype == np.uint8 and a.ndim else in_dtype_of_batches(a)


def is_of_torch(value: Any) -> bool:
    """Tells whether a value is a tensor of PyTorch, whose images have channels first."""
    return type(value).__module__.partition(".")[0] in ("torch", "torchvision")


def in_dtype_of_batches(a: np.ndarray) -> np.ndarray:
    """Returns integers as int64, floats of more than 32 bits as float32, in the machine's order of bytes.

    Raises:
        DataError: an integer is too large for int64.
    """
    if a.dtype.kind in "iu":
        if a.dtype.kind == "u" and a.dtype.itemsize == 8 and a.size and a.max() > np.iinfo(np.int64).max:
            raise DataError(message("DataLoader", f"an integer is {a.max()}, the largest of int64 is "
                                    f"{np.iinfo(np.int64).max}", "number labels from 0", data=shown(a)))
        return a.astype(np.int64, copy=False)
    if a.dtype.kind == "f":
        return a.astype(np.float32 if a.dtype.itemsize > 4 else a.dtype.newbyteorder("="), copy=False)
    return a


def remedy(dtype: np.dtype[Any]) -> str:
    """Returns the help for elements that are no numbers."""
    if dtype.kind in "USO":
        return "number the classes from 0: classes, numbers = np.unique(names, return_inverse=True)"
    return "convert them to numbers"


def fetched(where: str, data: Any, index: int) -> Sequence[Any]:
    """Returns one item, a tuple or a list.  Raises DataError, with the item's number, for any error."""
    try:
        found = data[index]
    except Exception as error:
        raise DataError(message(where, f"item {index} of {type(data).__name__} failed: {type(error).__name__}: {error}",
                                f"look at data[{index}]")) from error
    if not isinstance(found, (tuple, list)) or not found:
        raise DataError(message(where, f"item {index} is {shown(found)}", "return (sample, target) from __getitem__"))
    if type(found[0]) is not np.ndarray and is_picture(found[0]):
        try:
            return (pixels(found[0]), *found[1:])
        except Exception as error:      # a damaged file fails in many ways
            raise DataError(message(where, f"the picture of item {index} cannot be used: {error}",
                                    "return an array of it from __getitem__: np.asarray(picture, np.float32) / 65535 "
                                    "for 16 bits, say")) from error
    return found


def as_arrays(where: str, found: Sequence[Any], index: int) -> tuple[np.ndarray, ...]:
    """Returns the parts of an item as arrays.  Raises DataError for a part that is none."""
    return tuple([as_numbers(where, part, k, index) for k, part in enumerate(found)])


def as_numbers(where: str, part: Any, k: int, index: int) -> np.ndarray:
    """Returns part k of an item as an array.  Raises DataError for a part that is none."""
    try:
        a = as_array(part)
    except DataError:
        raise
    except Exception as error:  # lists of unequal lengths, tensors of others that need a gradient, ...
        raise DataError(message(where, f"part {k} of item {index} is {shown(part)}, of which no array can be made: "
                                f"{' '.join(str(error).split())}", "return an array or a number from __getitem__"
                                )) from error
    if a.dtype not in AS_THEY_ARE and a.dtype.kind not in "biuf":
        fix = ("return the number of the class from __getitem__: classes.index(name)" if k and a.dtype.kind in "US" else
               "convert it in __getitem__ or in `transform`")
        raise DataError(message(where, f"part {k} of item {index} is {shown(part)}, an array or a number is needed",
                                fix))
    return a


def stacked(where: str, data: Any, index: Sequence[int]) -> list[np.ndarray]:
    """Returns the items of these numbers, part by part, each stacked.  Raises DataError where shapes differ."""
    return stack(where, [fetched(where, data, int(k)) for k in index], index)


def stack(where: str, items: Sequence[Sequence[Any]], index: Any) -> list[np.ndarray]:
    """Returns the parts of items, each stacked.  Raises DataError where they differ."""
    if len({len(found) for found in items}) == 1:
        columns = [_column(column) for column in zip(*items)]
        if all(column is not None for column in columns):
            return columns  # type: ignore[return-value]
    return _stack(where, [as_arrays(where, found, k) for k, found in zip(index, items)], index)


def _column(values: Sequence[Any]) -> np.ndarray | None:
    """Returns one part of all items, where it is of the kinds that most data sets have; else None.

    As threads take turns at Python, the fewer steps each item takes, the better.
    """
    first = values[0]
    kind = type(first)
    if set(map(type, values)) != {kind}:
        return None
    if kind is int or kind is np.int64:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            return None
    if kind is not np.ndarray or first.dtype not in AS_THEY_ARE or not first.ndim:
        return None
    shape, dtype = first.shape, first.dtype
    if any(v.shape != shape or v.dtype != dtype for v in values):
        return None
    whole = np.empty((len(values), *shape), dtype)
    for k, v in enumerate(values):    # np.stack makes views of all of them first
        whole[k] = v
    return whole


def _stack(where: str, items: Sequence[tuple[np.ndarray, ...]], index: Any) -> list[np.ndarray]:
    """Returns the parts of items, each stacked.  Raises DataError where they differ."""
    first = [(a.shape, a.dtype) for a in items[0]]
    for k, parts in zip(index, items):
        if [(a.shape, a.dtype) for a in parts] != first:
            both = "; ".join(f"item {n}: {', '.join(f'{a.dtype} {a.shape}' for a in p)}"
                             for n, p in ((index[0], items[0]), (k, parts)))
            raise DataError(message(where, f"items differ in shape or dtype: {both}",
                                    "bring them to one size in __getitem__ or in `transform`"))
    whole = [np.empty((len(items), *shape), dtype) for shape, dtype in first]
    for k, parts in enumerate(items):
        for out, a in zip(whole, parts):
            out[k] = a
    return whole
