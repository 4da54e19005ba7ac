"""Elements that a key names: slices, masks, index arrays, assignment; and parts, copies and triangles of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import DTypeError, ShapeError, message, shown
from alpha.core.graph import grad_enabled, no_grad
from alpha.core.inplace import update
from alpha.core.inplace.kin import own
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.dtypes import DType
from alpha.core.inputs.ints import as_int, has_bool
from alpha.core.inputs.kinds import Axis, Channels, Size
from alpha.core.inputs.sizes import check_host
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.checks import on_host, slice_bounds
from alpha.ops.create import arange, zeros
from alpha.ops.elementwise import clone, where
from alpha.ops.index import to_axis
from alpha.ops.pool import pool_gather
from alpha.ops.reduce import Shape, normal_axis
from alpha.ops.shape import Range, reshape, slice_axes, split, stack, take


@public()
@checked
def getitem(x: Tensor, key: Any) -> Tensor:
    """y = x[key].

    Args:
        x: any shape, any dtype.
        key: ints, slices (also with a step, also a negative one), ... and None, as in NumPy; lists, arrays and tensors
            of integers (an index may occur more than once) or of bool, one that picks along the first axes, or several
            beside one another and beside slices; ints beside them are taken first, as in PyTorch. The host looks at
            arrays: a GPU is waited for where they are on it.
    Returns:
        A new tensor; it shares its elements with x where they are contiguous there.
    Raises:
        ShapeError: an index is out of range, or there are more than axes.
        DTypeError: the key has floats.
    """
    if isinstance(key, (Tensor, np.ndarray, list)):
        return _rows(x, key)
    if not isinstance(key, tuple):
        key = (key,)
    for k in key:
        if isinstance(k, (Tensor, np.ndarray, list)):
            return by_arrays(x, key)
    ranges, shape = _ranges(x.shape, key)
    return slice_axes(x, tuple(ranges), shape)  # tuples that were seen before are not read anew


def _rows(x: Tensor, key: Tensor | np.ndarray | list) -> Tensor:
    """Returns x[key] for one array: of integers, or a mask of the first axes."""
    try:
        host = on_host(key)
    except ValueError as error:
        raise ShapeError(message("getitem", "the lists of the key are of unequal lengths", "pass one list of ints, or "
                                 "one array of them")) from error
    if host.dtype == bool:
        if host.shape != x.shape[:host.ndim]:
            raise ShapeError(message("getitem", f"the mask has shape {host.shape}, x has {x.shape}",
                                     "pass a mask of the first axes of x"))
        return take(reshape(x, (host.size, *x.shape[host.ndim:])), tensor(np.flatnonzero(host), "int64", x.device))
    if host.dtype.kind not in "iu":
        raise DTypeError(message("getitem", f"the key is dtype {host.dtype}, integers or bool are needed",
                                 'convert it: index.astype("int64"); or compare: x[x > 0]'))
    n = x.shape[0] if x.ndim else 0
    bad = (host < -n) | (host >= n)
    if bad.any():
        raise ShapeError(message("getitem", f"index {host[bad][0]} is out of range for axis 0 of length {n}",
                                 f"use indices from {-n} to {n - 1}" if n else "index a tensor with elements",
                                 x=x.shape))
    return take(x, tensor(np.where(host < 0, host + n, host), "int64", x.device))


def _ranges(sizes: Shape, key: tuple[Any, ...]) -> tuple[list[Range], Shape]:
    """Returns what a key of ints, slices, ... and None takes from each axis, and the shape of the result."""
    named = sum([k is not None and k is not Ellipsis for k in key])
    if named > len(sizes) or sum([k is Ellipsis for k in key]) > 1:
        raise ShapeError(message("getitem", f"{named} indices for a tensor of {len(sizes)} axes",
                                 "use one index for each axis, and ... once", x=sizes))
    ranges: list[Range] = []
    shape: list[int] = []
    for k in (*key, Ellipsis) if Ellipsis not in key else key:
        n = sizes[len(ranges)] if len(ranges) < len(sizes) else 0
        if k is None:
            shape.append(1)
        elif k is Ellipsis:
            rest = sizes[len(ranges):len(ranges) + len(sizes) - named]
            ranges += [(0, m, 1) for m in rest]
            shape += rest
        elif isinstance(k, slice):
            start, stop, step = slice_bounds(k, n)
            ranges.append((start, len(range(start, stop, step)), step))
            shape.append(ranges[-1][1])
        else:
            ranges.append((_position(k, n, sizes, len(ranges)), 1, 1))
    return ranges, tuple(shape)


def _position(k: Any, n: int, sizes: Shape, axis: int) -> int:
    if (place := as_int(k)) is None:
        raise DTypeError(message("getitem", f"the key {shown(k)} is no index", "use ints, slices, ... and None",
                                 x=sizes))
    if not -n <= place < n:
        raise ShapeError(message("getitem", f"index {place} is out of range for axis {axis} of length {n}",
                                 f"use an index from {-n} to {n - 1}" if n else "index an axis with elements", x=sizes))
    return place % n


# ---- masks and several index arrays ----------------------------------------------------------------------------------


def nonzero_places(x: Tensor) -> list[np.ndarray]:
    elements = x.detach().numpy()
    return list(np.nonzero(elements)) if elements.ndim else []


@public(top=True, method=True)
@checked
def nonzero(x: Tensor, as_tuple: bool = False) -> Any:
    """Returns the indices of the elements that are not 0, int64 of shape (count, axes); as_tuple: a tensor per axis.

    The host looks at the elements, so a GPU is waited for.
    """
    if as_tuple and not x.ndim:
        x = reshape(x, (1,))
    places = [tensor(p, "int64", x.device) for p in nonzero_places(x)]
    return tuple(places) if as_tuple else stack(places, 1) if places else zeros((int(bool(x)), 0), "int64", x.device)


@public(top=True, method=True)
@checked
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """y = the elements of x where mask holds, in order: x[mask], of one axis.  The host looks at the mask.

    x and mask are repeated to one shape.  Raises ShapeError if they do not broadcast.
    """
    if x.shape != mask.shape:
        try:
            shape = np.broadcast_shapes(x.shape, mask.shape)
        except ValueError:
            raise ShapeError(message("masked_select", f"the mask has shape {mask.shape}, x has {x.shape}",
                                     "pass shapes that broadcast")) from None
        x, mask = x.expand(shape), mask.expand(shape)
    return getitem(x, mask)


def by_arrays(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """Returns x[key] for a key with masks or index arrays beside other keys: numbers first, then NumPy's rules."""
    places = _numbered(x, key)
    if x.dtype not in FLOAT_DTYPES or not places.size:
        return take(reshape(x, (-1,)), tensor(places, "int64", x.device))
    picked = pool_gather(reshape(x, (1, -1, 1, 1)), tensor(places.reshape(1, -1, 1, 1), "int64", x.device))
    return reshape(picked, places.shape)


def _numbered(x: Tensor, key: tuple[Any, ...]) -> np.ndarray:
    """Returns which elements of x, counted in its order, a key means."""
    numbers = np.arange(prod(x.shape)).reshape(x.shape)
    try:
        host = tuple([on_host(k) if isinstance(k, (Tensor, list)) else k for k in key])
    except ValueError:  # NumPy's for lists of parts that differ in shape
        raise DTypeError(message("getitem", f"the key {shown(key)} has a list whose parts differ in shape", "use lists "
                                 "of equal lengths, or a tuple with an array for each axis", x=x.shape)) from None
    for k in host:
        if has_bool(k) or not (isinstance(k, (slice, np.ndarray)) or k in (None, Ellipsis) or as_int(k) is not None):
            raise DTypeError(message("getitem", f"the key {shown(k)} is no index", "use ints, slices, ..., None, masks "
                                     "and arrays of ints", x=x.shape))
        if isinstance(k, np.ndarray) and k.dtype.kind not in "iub":
            raise DTypeError(message("getitem", f"the key has dtype {k.dtype}, integers or bool are needed",
                                     'convert it: index.astype("int64")'))
    try:
        if any(isinstance(k, np.ndarray) for k in host):
            numbers, host = _numbers_first(numbers, host)
        return numbers[host]
    except (IndexError, OverflowError) as error:
        raise ShapeError(message("getitem", f"the key does not fit: {error}", "use indices within the axes, and masks "
                                 "of their lengths", x=x.shape)) from None
    except (TypeError, ValueError) as error:
        raise DTypeError(message("getitem", f"the key has {error}", "use slices of ints, with no step of 0",
                                 x=x.shape)) from None


def _numbers_first(numbers: np.ndarray, key: tuple[Any, ...]) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Returns what the numbers of a key with arrays leave, and the other keys: as in PyTorch, not as in NumPy."""
    first: list[Any] = []
    rest = []
    for k in key:
        number = as_int(k.item() if isinstance(k, np.ndarray) and not k.ndim and k.dtype != bool else k)
        if number is not None:
            first.append(number)
            continue
        rest.append(k)
        if k is not None:
            axes = k.ndim if isinstance(k, np.ndarray) and k.dtype == bool else 1
            first += [k] if k is Ellipsis else [slice(None)] * axes
    return numbers[tuple(first)], tuple(rest)


INSTEAD = "where(mask, value, t), t.masked_fill(mask, v) or t.scatter(...)"


@public()
@checked
def setitem(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value, in place; the whole of x is written.  In a graph x becomes a result, with gradients of both.

    Args:
        x: a tensor that owns its elements; in a graph no leaf that requires a gradient.
        key: as in getitem; a bool tensor of x's shape with a number or a tensor does not wait for a GPU.
        value: number, array or tensor that broadcasts to x[key], cast to the dtype of x. Its elements have the
            gradients of their places, what they replace has none.
    Raises:
        GraphError: while the graph is recorded x is a leaf that requires a gradient, or shares elements; or x is a part
            of another tensor.
        ShapeError: value does not broadcast to x[key].
    """
    if not isinstance(value, Tensor):
        value = tensor(value, x.dtype, x.device)
    if grad_enabled() and (x.requires_grad or value.requires_grad):
        value = value.to(x.device).astype(x.dtype)
        update(x, "x[key] =", lambda old, new: _assigned(old, key, new), value, INSTEAD)
        return
    with no_grad():
        made = _assigned(x.detach(), key, value.detach().to(x.device).astype(x.dtype))
        if made is not None:
            x.copy_(made)


def _assigned(x: Tensor, key: Any, value: Tensor) -> Any:
    """Returns x with values at the places of a key; None where there are none, and no graph."""
    if isinstance(key, Tensor) and key.dtype == "bool" and key.shape == x.shape and value.ndim == 0:
        return where(key.to(x.device), value, x)
    places = _numbered(x, key if isinstance(key, tuple) else (key,))
    try:
        source = np.broadcast_to(np.arange(value.numel()).reshape(value.shape), places.shape).reshape(-1)
    except ValueError:
        raise ShapeError(message("setitem", f"value of shape {value.shape} does not fit x[key] of shape "
                                 f"{places.shape}", "pass a value that broadcasts to it", x=x.shape)) from None
    if not source.size:
        return clone(x) if grad_enabled() else None
    from_value = np.full(x.numel(), -1, np.int64)
    from_value[places.reshape(-1)] = source     # of a place that comes twice the last
    picked = take(reshape(value, (-1,)), tensor(np.maximum(from_value, 0), "int64", x.device))
    mask = tensor(from_value >= 0, "bool", x.device)
    return reshape(where(mask, picked, reshape(x, (-1,))), x.shape)


# ---- shapes ----------------------------------------------------------------------------------------------------------


@public(top=True, method=True)
@checked
def chunk(x: Tensor, chunks: Channels, axis: Axis = 0) -> list[Tensor]:
    """Cuts a tensor into `chunks` parts along an axis, the last of which may be shorter, or missing.  See split."""
    n = x.shape[normal_axis(axis, x.ndim, "chunk")]
    return split(x, -(-n // chunks) if n else [0] * chunks, axis)


@public(top=True, method=True)
@checked
def unbind(x: Tensor, axis: Axis = 0) -> tuple[Tensor, ...]:
    """Returns the slices along an axis, without it."""
    x = to_axis(x, normal_axis(axis, x.ndim, "unbind"), 0)
    return tuple([getitem(x, k) for k in range(x.shape[0])])


@public(top=True, method=True)
@checked
def unflatten(x: Tensor, axis: Axis, sizes: Sequence[int]) -> Tensor:
    """Makes several axes of one; one size may be -1.  See reshape."""
    axis = normal_axis(axis, x.ndim, "unflatten")
    left = prod(n for n in sizes if n != -1)
    known = [x.shape[axis] // max(1, left) if n == -1 else n for n in sizes]
    return reshape(x, (*x.shape[:axis], *known, *x.shape[axis + 1:]))


@public(top=True)
@checked
def tile(x: Tensor, counts: Sequence[int]) -> Tensor:
    """y = x repeated `counts` times along its axes, new leading ones included, as a whole."""
    counts = tuple(counts) if not isinstance(counts, int) else (counts,)
    if len(counts) < x.ndim or any(not isinstance(c, int) or c < 0 for c in counts):
        raise ShapeError(message("repeat", f"the counts {counts} do not fit shape {x.shape}",
                                 "pass one int of at least 0 for each axis"))
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    apart = [n for m in shape for n in (1, m)]
    wide = [n for c, m in zip(counts, shape) for n in (c, m)]
    y = reshape(reshape(x, apart).expand(wide), [c * m for c, m in zip(counts, shape)])
    return own(y) if prod(counts) > 1 else clone(y)


@public(top=True, method=True)
@checked
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """y = x on and below a diagonal of its last two axes, else 0."""
    return where(_below("tril", x, diagonal), x, 0)


@public(top=True, method=True)
@checked
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """y = x on and above a diagonal of its last two axes, else 0."""
    return where(_below("triu", x, diagonal - 1), 0, x)


def _below(where: str, x: Tensor, diagonal: int) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(message(where, f"x has {x.ndim} axes, at least 2 are needed", "pass a matrix", x=x.shape))
    rows, columns = (arange(n, device=x.device) for n in x.shape[-2:])
    return (rows.reshape(-1, 1) + diagonal >= columns).expand(x.shape)


@public(top=True)
@checked
def eye(n: Size, m: Size | None = None, dtype: DType = "float32", device: str = "cpu",
        requires_grad: bool = False) -> Tensor:
    """Returns ones on the diagonal of an (n, m) matrix of zeros; m is n if it is not given.  See full."""
    shape = n, n if m is None else m
    check_host("eye", shape, "float64")
    made = tensor(np.eye(*shape), dtype, device)
    return made.requires_grad_() if requires_grad else made
