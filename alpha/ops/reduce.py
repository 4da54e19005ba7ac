"""Reductions over axes: sum, mean, var, max, min, argmax, and sum_to, the gradient of broadcasting.

All take `axis`: None (every axis), an int, or a tuple of ints, and `keepdims`. The names are NumPy's, so this module
shadows some builtins: it calls none of them.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from alpha.core.device import HALF_DTYPES
from alpha.core.errors import DTypeError, ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.dtypes import DTypeOrNone
from alpha.core.inputs.ints import as_int
from alpha.core.inputs.kinds import Axes, Axis, Order, ShapeLike, Size
from alpha.core.op import Spec, grad_enabled, op
from alpha.core.table import TABLE, public
from alpha.core.tensor import Tensor
from alpha.core.views import Extremes, Spread

Shape = tuple[int, ...]

_cached = lru_cache(maxsize=1024)  # a training step asks about the same few shapes again and again


def accumulation_dtype(dtype: str) -> str:
    """Returns the dtype in which sums over numbers of `dtype` are made and kept: float32 for those of 16 bits."""
    return "float32" if dtype in HALF_DTYPES else dtype


def widened(x: Tensor) -> Tensor:
    """Returns x in the dtype in which sums over it are made: float32 where it has 16 bits."""
    return x.astype(accumulation_dtype(x.dtype))


def check_sum_dtype(where: str, dtype: str | None, *terms: str) -> None:
    """Refuses a dtype for sums that is neither that of the terms nor the one they are made in.  Raises DTypeError."""
    if dtype is not None and dtype not in terms and dtype not in map(accumulation_dtype, terms):
        found = " and ".join(sorted(set(terms)))
        raise DTypeError(message(where, f"sums of {found} cannot be had in {dtype}", "pass dtype=None, or "
                                 "dtype=\"float32\" for sums of float16 or bfloat16; or convert the result"))


def normal_axis(axis: Any, ndim: int, where: str) -> int:
    """Returns an axis counted from the front.  Raises ShapeError if a tensor of `ndim` axes has no such axis."""
    k = as_int(axis)
    if k is None:
        raise ShapeError(message(where, f"axis is {shown(axis)}, an int is needed", "pass axis=k"))
    if not -ndim <= k < ndim:
        raise ShapeError(message(where, f"axis {k} does not exist in a tensor of {ndim} axes",
                                 f"choose an axis from {-ndim} to {ndim - 1}" if ndim else "reshape the tensor first"))
    return k + ndim if k < 0 else k


@_cached
def normal_axes(axis: Axes, ndim: int, where: str) -> Shape:
    """Returns axes counted from the front, ascending; all of them for None.

    Raises ShapeError for an axis that does not exist or is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, tuple):
        return (normal_axis(axis, ndim, where),)
    axes = tuple(sorted([normal_axis(k, ndim, where) for k in axis]))
    if len(set(axes)) < len(axes):
        raise ShapeError(message(where, f"axis {tuple(axis)} names an axis of {ndim} twice", "name each axis once"))
    return axes


@_cached
def reduced_shape(shape: Shape, axis: Axes, keepdims: bool, where: str) -> Shape:
    """Returns the shape that is left when `axis` is reduced."""
    axes = normal_axes(axis, len(shape), where)
    if keepdims:
        return tuple([1 if k in axes else n for k, n in enumerate(shape)])
    return tuple([n for k, n in enumerate(shape) if k not in axes])


@_cached
def reduced_count(shape: Shape, axis: Axes, where: str) -> int:
    """Returns how many elements meet in one result."""
    return prod([shape[k] for k in normal_axes(axis, len(shape), where)])


@_cached
def repeated_axes(whole: Shape, shape: Shape) -> Shape:
    """Returns the axes of `whole` along which a tensor of `shape` was repeated to get there, new ones included."""
    new = len(whole) - len(shape)
    if new < 0 or not all(m in (1, n) for m, n in zip(shape, whole[new:])):
        raise ShapeError(message("sum_to", f"shape {shape} does not broadcast to {whole}",
                                 "pass the shape of the tensor that was broadcast"))
    return (*range(new), *[k + new for k, m in enumerate(shape) if m != whole[k + new]])


def _spread_back(g: Tensor, shape: Shape, axis: Axes, keepdims: bool) -> Tensor:
    """Repeats the gradient of a result for every element that went into it."""
    few = _keep(g, shape, axis, keepdims)
    if g.device == "cpu" and few.shape != shape and not grad_enabled():
        return Spread(few, shape)
    return few.expand(shape)


def _keep(y: Tensor, shape: Shape, axis: Axes, keepdims: bool) -> Tensor:
    """Gives a result its reduced axes back, of length 1."""
    return y if keepdims else y.reshape(reduced_shape(shape, axis, True, "reshape"))


def _refuse_empty(shape: Shape, axis: Axes, where: str) -> None:
    if reduced_count(shape, axis, where) == 0:
        raise ShapeError(message(where, f"axis {axis} of shape {shape} holds no element",
                                 "pass a tensor with elements"))


@public(top=True, method=True)
@op
class sum:
    """y = sum of x over the axes.

    Args:
        x: any shape, any dtype.
        axis: None, int or tuple of ints.
        keepdims: keep the reduced axes, of length 1.
        dtype: "float32" leaves sums of float16 or bfloat16, which are made in float32, unrounded; None rounds them.
    Returns:
        The dtype of x unless dtype says otherwise, or int64 for integers and bool. Sums of positive numbers err by
        3e-7 at most, however many there are, in an order that follows from the shape.
    Raises:
        ShapeError: an axis does not exist or is named twice.
        DTypeError: such sums cannot be had in dtype.
    """

    args, dtypes = "x", "any"

    def shape(x, *, axis: Axes = None, keepdims: bool = False, dtype: DTypeOrNone = None):
        y_shape = reduced_shape(x.shape, axis, keepdims, "sum")
        summed = x.dtype if x.is_floating_point else "int64"
        check_sum_dtype("sum", dtype, summed)
        return Spec(y_shape, dtype or summed)

    def vjp_x(g, s, *, axis, keepdims, dtype):
        return _spread_back(g.astype(s.x_dtype), s.x_shape, axis, keepdims)


@op
class bias_grad:
    """Gradient of a bias: sums of g, that of what it was added to, over all axes but the last.

    A batch norm that made g knows its sums, which are 0 but for rounding: a GPU then does not read g for them.

    Args:
        g: shape (..., C); float.
        dtype: as of sum.
    Raises:
        DTypeError: as sum.
    """

    args = "g"

    def shape(g, *, dtype: DTypeOrNone = None):
        check_sum_dtype("bias_grad", dtype, g.dtype)
        return Spec(g.shape[-1:], dtype or g.dtype)

    def vjp_g(g, s, *, dtype):
        return g.astype(s.g_dtype).expand(s.g_shape)


@public(top=True, method=True)
@op
class mean:
    """y = sum of x over the axes, divided by the number of elements; NaN where there is none.  See sum; float only."""

    args = "x"

    def shape(x, *, axis: Axes = None, keepdims: bool = False):
        return reduced_shape(x.shape, axis, keepdims, "mean")

    def vjp_x(g, s, *, axis, keepdims):
        return _spread_back(g / reduced_count(s.x_shape, axis, "mean"), s.x_shape, axis, keepdims)


@public(top=True, method=True)
@op
class var:
    """y = sum((x - mean(x))^2) / (count - correction) over the axes.

    Two passes, so that a large mean costs no digits. A constant x has variance 0 and gradient 0; the square root has an
    infinite slope there, so a standard deviation adds a small number first: sqrt(var(x) + eps).
    Args:
        x: any shape; float.
        axis, keepdims: see sum.
        correction: 0 for the biased variance, 1 for the unbiased one.
    Raises:
        ShapeError: there are no more elements than `correction`, or an axis does not exist.
    """

    args, saves = "x", "x"
    named = "keepdims correction"   # PyTorch's third argument by position is `unbiased`

    def shape(x, *, axis: Axes = None, keepdims: bool = False, correction: Size = 0):
        count = reduced_count(x.shape, axis, "var")
        if count <= correction:
            raise ShapeError(message("var", f"{count} elements per variance, correction {correction} needs more",
                                     "pass correction=0, or more elements", x=x.shape, axis=axis))
        return reduced_shape(x.shape, axis, keepdims, "var")

    def vjp_x(g, s, *, axis, keepdims, correction):
        scale = 2 / (reduced_count(s.x_shape, axis, "var") - correction)
        return (s.x - s.x.mean(axis, True)) * _keep(g * scale, s.x_shape, axis, keepdims)


def _extremum_vjp(g: Tensor, s: Any, axis: Axes, keepdims: bool) -> Tensor:
    """Ties share the gradient evenly."""
    chosen = (s.x == _keep(s.y, s.x_shape, axis, keepdims)).astype(g.dtype)
    return chosen * (_keep(g, s.x_shape, axis, keepdims) / chosen.sum(axis, True))


@public(top=True, method="max amax")
@op
class max:
    """y = largest x over the axes; NaN wins.  Ties share the gradient evenly.  Values alone: argmax has the indices.

    Args:
        x: any shape; float or integer.
        axis, keepdims: see sum.
    Raises:
        ShapeError: there is no element to choose from, or an axis does not exist.
    """

    args, saves, dtypes, gives = "x", "x y", "number", Extremes

    def shape(x, *, axis: Axes = None, keepdims: bool = False):
        _refuse_empty(x.shape, axis, "max")
        return reduced_shape(x.shape, axis, keepdims, "max")

    def vjp_x(g, s, *, axis, keepdims):
        return _extremum_vjp(g, s, axis, keepdims)


@public(top=True, method="min amin")
@op
class min:
    """y = smallest x over the axes; NaN wins.  Ties share the gradient evenly.  See max."""

    args, saves, dtypes, gives = "x", "x y", "number", Extremes

    def shape(x, *, axis: Axes = None, keepdims: bool = False):
        _refuse_empty(x.shape, axis, "min")
        return reduced_shape(x.shape, axis, keepdims, "min")

    def vjp_x(g, s, *, axis, keepdims):
        return _extremum_vjp(g, s, axis, keepdims)


@public(top=True, method=True)
@op
class argmax:
    """y = index of the largest x along an axis, the first one of equals; int64, no gradient.

    Args:
        x: any shape; float or integer.
        axis: int; None counts in the flattened tensor.
        keepdims: keep the reduced axes, of length 1.
    Raises:
        ShapeError: there is no element to choose from, or the axis does not exist.
    """

    args, dtypes = "x", "number"

    def shape(x, *, axis: Axis | None = None, keepdims: bool = False):
        if axis is not None:
            normal_axis(axis, x.ndim, "argmax")
        _refuse_empty(x.shape, axis, "argmax")
        return Spec(reduced_shape(x.shape, axis, keepdims, "argmax"), "int64")


@public()
@op
class sum_to:
    """y = x summed over the axes along which a tensor of the given shape was repeated: the gradient of broadcasting.

    Args:
        x: any shape; float.
        shape: a shape that broadcasts to that of x.
    Raises:
        ShapeError: it does not.
    """

    args = "x"

    def shape(x, *, shape: ShapeLike):
        repeated_axes(x.shape, shape)
        return shape

    def vjp_x(g, s, *, shape):
        return g.expand(s.x_shape)


def unbroadcast(g: Tensor, shape: Shape) -> Tensor:
    """Returns the gradient of a tensor of `shape` from that of its broadcast form."""
    return g if g.shape == shape else sum_to(g, shape=shape)


@public(top=True, method=True)
@checked
def std(x: Tensor, axis: Axes = None, *, keepdims: bool = False, correction: Size = 1) -> Tensor:
    """y = square root of var(x, axis, keepdims, correction), whose correction is 1 here, as in PyTorch.

    Raises ShapeError: see var.  Where x is constant y is 0, and its gradient counts as 0.
    """
    wide = widened(x)
    squares = var(wide, axis, keepdims=keepdims, correction=correction)
    if (scale := scale_beyond(wide, squares, axis, 1e-30, 40)) is None:
        return _root(squares, 0.5).astype(x.dtype)
    squares = var(wide * scale, axis, keepdims=keepdims, correction=correction)
    return (_root(squares, 0.5) / scale.reshape(squares.shape)).astype(x.dtype)


def scale_beyond(x: Tensor, squares: Tensor, axis: Axes, least: float = 0.0, power: int = 0) -> Tensor | None:
    """Returns powers of two that bring x near 2^power, or 2^-power, along the axes, where its squares are out of range.

    None where no mean of squares is infinite, or below `least`. A GPU's elements are not waited for: 1 stands there for
    what is in range, and one power of two brings all else into it.
    """
    if not x.numel():
        return None
    if x.device != "cpu":
        return _scale_on_device(x.detach(), axis, least)
    found = squares.array
    if (np.isfinite(found) & (found >= least)).all():
        return None
    largest = np.abs(x.array).max(axis if axis is None else normal_axes(axis, x.ndim, "std"), keepdims=True)
    usable = np.isfinite(largest) & (largest > 0)
    exponent = np.frexp(largest)[1]
    scale = np.ldexp(np.ones_like(largest), np.where(usable, np.where(exponent > 0, power, -power) - exponent, 0))
    return Tensor(scale, largest.shape, x.dtype, x.device)


def _scale_on_device(x: Tensor, axis: Axes, least: float) -> Tensor | None:
    """Returns 2^-80 where the largest element is beyond 2^60, 2^100 where it is below sqrt(least) / 4, else 1."""
    if x.dtype == np.float64:
        return None
    largest = TABLE["max"](abs(x), axis, keepdims=True)
    where, both, ones = TABLE["where"], TABLE["logical_and"], TABLE["ones_like"](largest)
    scale = where(both(largest > 2.0**60, largest < inf), 2.0**-80, ones)
    return where(both(largest < sqrt(least) / 4, largest > 0), 2.0**100, scale) if least else scale


def _root(x: Tensor, power: float) -> Tensor:
    """Returns x^power of x from 0 on.  At 0, where a root has no slope, its gradient counts as 0, as in PyTorch."""
    zero = x == 0
    return TABLE["where"](zero, 0.0, TABLE["where"](zero, 1.0, x) ** power)


@public(top="norm", method="norm")
@checked
def vector_norm(x: Tensor, p: Order = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = (sum of |x|^p over the axes)^(1 / p).

    Args:
        x: any shape; float.
        p: 2, any number above 0, inf (the largest |x|), or "fro" for 2.
        axis, keepdims: see sum.
    The gradient at 0 counts as 0.
    """
    if p == inf:
        return max(x.abs(), axis, keepdims)
    if p == 1:
        return sum(x.abs(), axis, keepdims)
    wide = widened(x)
    powers, root = (wide * wide, 0.5) if p in (2, "fro") else (_root(wide.abs(), p), 1 / p)
    return _root(sum(powers, axis, keepdims), root).astype(x.dtype)
