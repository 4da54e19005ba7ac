"""What several families of ops ask of their tensors before they compute anything."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from alpha.core.errors import DTypeError, ShapeError, message, shown
from alpha.core.inputs.ints import has_bool, no_bools
from alpha.core.tensor import Tensor

Shape = tuple[int, ...]
Range = tuple[int, int, int]  # first index, number of indices, step


def check_alike(where: str, **tensors: Tensor) -> None:
    """Refuses tensors of different shapes.  Raises ShapeError."""
    if len({t.shape for t in tensors.values()}) > 1:
        raise ShapeError(message(where, f"{' and '.join(tensors)} have shapes "
                                 f"{' and '.join([str(t.shape) for t in tensors.values()])}",
                                 "pass tensors of one shape"))


def check_target(where: str, x: Tensor, target: Tensor) -> None:
    """Refuses a target of a loss of numbers that has another shape, or integers.  Raises ShapeError, DTypeError."""
    if x.shape != target.shape:
        raise ShapeError(message(where, f"the input has shape {x.shape}, the target {target.shape}",
                                 "make the shapes equal; a loss does not broadcast"))
    if x.is_floating_point and not target.is_floating_point and target.dtype != "bool":
        raise DTypeError(message(where, f"the target has dtype {target.dtype}, the input {x.dtype}",
                                 "convert it: target.astype(x.dtype)"))


def check_weight(where: str, name: str, weight: Shape, shape: Shape) -> None:
    """Refuses a weight that does not broadcast to the shape of a loss.  Raises ShapeError."""
    if len(weight) > len(shape) or any(m not in (1, n) for m, n in zip(weight[::-1], shape[::-1])):
        raise ShapeError(message(where, f"{name} has shape {weight}, x has {shape}",
                                 f"pass a {name} that broadcasts to the shape of x"))


@lru_cache(maxsize=1024)
def check_ranges(where: str, sizes: Shape, ranges: tuple[Range, ...], shape: Shape) -> None:
    """Refuses ranges that leave a tensor of `sizes`, or that have another number of elements than `shape`."""
    for n, (first, count, step) in zip(sizes, ranges):
        if count < 0 or not step or (count and not (0 <= first < n and 0 <= first + (count - 1) * step < n)):
            break
    else:
        if len(ranges) == len(sizes) and prod([count for _, count, _ in ranges]) == prod(shape):
            return
    raise ShapeError(message(where, f"the ranges {ranges} do not fit shapes {sizes} and {shape}",
                             "pass (first, count, step) for each axis, within it"))


def check_rows(where: str, index: Tensor) -> None:
    if index.dtype not in ("int32", "int64"):
        raise DTypeError(message(where, f"index has dtype {index.dtype}, int32 or int64 is needed", "use x[index]"))


def slice_bounds(k: slice, n: int) -> tuple[int, int, int]:
    """Returns start, stop and step of a slice of an axis of n elements.  Raises DTypeError."""
    try:
        return no_bools(k).indices(n)
    except (TypeError, ValueError) as error:
        raise DTypeError(message("getitem", f"the key is {shown(k)}: {error}", "use ints, no step of 0")) from None


def on_host(key: Any) -> np.ndarray:
    """Returns a list, an array or a tensor that picks elements as an array on the host: of int64 where it is empty.

    Its dtype is object for a list of ints and bools, which is neither a mask nor indices.  Raises ValueError for lists
    of several lengths.
    """
    host = np.asarray(key.numpy() if isinstance(key, Tensor) else key)
    if isinstance(key, list) and not host.size:
        return host.astype(np.int64)
    return np.asarray(key, object) if isinstance(key, list) and host.dtype.kind in "iu" and has_bool(key) else host
