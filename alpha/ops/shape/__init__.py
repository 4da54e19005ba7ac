"""Ops that move elements and change none: reshape, permute, slices, concatenation, padding, broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.dtypes import check_value
from alpha.core.inputs.kinds import (
    AllAxes,
    Axes,
    Axis,
    Channels,
    NewShape,
    Number,
    Ranges,
    ShapeLike,
    Size,
    Sizes,
    Widths,
)
from alpha.core.op import op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.core.views import View
from alpha.ops.checks import check_ranges, check_rows
from alpha.ops.reduce import normal_axes, normal_axis, sum_to

Range = tuple[int, int, int]  # first index, number of indices, step


@public(top=True)
@op
class reshape:
    """The same elements, in row-major order, under another shape.

    Args:
        x: any shape, any dtype.
        shape: int or ints; one of them may be -1: whatever is left.
    Returns:
        A tensor that shares its elements with x.
    Raises:
        ShapeError: the shapes have different numbers of elements, or there is more than one -1.
    """

    args, dtypes, gives, cheap = "x", "any", View, True

    def shape(x, *, shape: NewShape):
        size = prod(x.shape)
        if -1 not in shape:
            if prod(shape) == size and all(n >= 0 for n in shape):
                return shape
        else:
            known = -prod(shape)
            if known > 0 and size % known == 0 and shape.count(-1) == 1 and all(n >= -1 for n in shape):
                return tuple([size // known if n == -1 else n for n in shape])
        raise ShapeError(message("reshape", f"{size} elements of shape {x.shape} do not fit into shape {shape}",
                                 "choose sizes whose product is the number of elements, at most one of them -1"))

    def vjp_x(g, s, *, shape):
        return reshape(g, s.x_shape)


@public(top=True)
@op
class permute:
    """y = x with its axes in another order: axis k of y is axis axes[k] of x.

    Args:
        x: any shape, any dtype.
        axes: every axis of x once; negative ones count from the end.
    Raises:
        ShapeError: an axis is missing, named twice, or does not exist.
    """

    args, dtypes, gives, cheap = "x", "any", View, True

    def shape(x, *, axes: AllAxes):
        if len(normal_axes(axes, x.ndim, "permute")) != x.ndim:
            raise ShapeError(message("permute", f"{len(axes)} axes are named, x has {x.ndim}", "name each axis once",
                                     x=x.shape, axes=axes))
        return tuple([x.shape[k] for k in axes])

    def vjp_x(g, s, *, axes):
        order = [k % len(axes) for k in axes]
        return permute(g, [order.index(k) for k in range(len(axes))])


@public(top=True, method="transpose swapaxes")
@checked
def transpose(x: Tensor, a: Axis = -2, b: Axis = -1) -> Tensor:
    """Swaps two axes.  See permute."""
    axes = list(range(x.ndim))
    a, b = normal_axis(a, x.ndim, "transpose"), normal_axis(b, x.ndim, "transpose")
    axes[a], axes[b] = b, a
    return permute(x, axes)


@public(top=True)
@op
class flip:
    """y = x with the order of its elements reversed along the axes (None, int or ints).  See sum for errors."""

    args, dtypes, cheap = "x", "any", True

    def shape(x, *, axis: Axes = None):
        normal_axes(axis, x.ndim, "flip")
        return x.shape

    def vjp_x(g, s, *, axis):
        return flip(g, axis)


@public()
@op
class expand:
    """y = x repeated along its axes of length 1 (and along new leading axes) until it has a shape: broadcasting.

    Args:
        x: any shape, any dtype.
        shape: ints; -1 keeps the size of an axis of x.
    Raises:
        ShapeError: an axis of x is neither 1 nor the size that is asked for.
    """

    args, dtypes, gives, cheap = "x", "any", View, True

    def shape(x, *, shape: NewShape):
        new = len(shape) - x.ndim
        sizes = tuple([x.shape[k - new] if n == -1 and k >= new else n for k, n in enumerate(shape)])
        if new < 0 or not all(m == n or (m == 1 and n >= 0) for m, n in zip(x.shape, sizes[new:])) \
                or any(n < 0 for n in sizes[:new]):
            raise ShapeError(message("expand", f"shape {x.shape} cannot be repeated to {shape}",
                                     "only axes of length 1 can be repeated; new axes come first"))
        return sizes

    def vjp_x(g, s, *, shape):
        return sum_to(g, s.x_shape)


@public(top="concat cat")
@op
class concat:
    """y = the tensors one after the other along an axis.

    Args:
        xs: list of tensors of one dtype, whose shapes differ at most along the axis.
        axis: int.
    Raises:
        ShapeError: there is no tensor, the axis does not exist, or the shapes differ elsewhere.
    """

    args, dtypes, cheap, follows = "*xs", "any", True, True

    def shape(xs, *, axis: Axis = 0):
        first = xs[0].shape
        k = normal_axis(axis, len(first), "concat")
        for number, x in enumerate(xs):
            if x.shape[:k] + x.shape[k + 1:] != first[:k] + first[k + 1:] or x.ndim != len(first):
                fix = f"make all sizes but those of axis {axis} equal"
                if k == 1 and x.ndim == len(first) in (3, 4) and x.shape[:-1] == first[:-1]:
                    fix = f"channels are last here: concat(xs, axis={len(first) - 1}) joins the channels of maps"
                raise ShapeError(message("concat", f"tensor 0 has shape {first}, tensor {number} has {x.shape}, and "
                                         f"axis is {axis}", fix))
        return (*first[:k], sum([x.shape[k] for x in xs]), *first[k + 1:])

    def vjp_xs(g, s, *, axis):
        return _parts(g, [shape[axis] for shape in s.xs_shape], normal_axis(axis, g.ndim, "concat"), in_place=True)


@public(top=True)
@checked
def stack(xs: Sequence[Tensor], axis: Axis = 0) -> Tensor:
    """Joins tensors of one shape along a new axis.  See concat."""
    if not xs:
        raise ShapeError(message("stack", "there is no tensor", "pass at least one"))
    if len({x.shape for x in xs}) > 1:
        raise ShapeError(message("stack", f"the tensors have shapes {', '.join([str(x.shape) for x in xs])}",
                                 "pass tensors of one shape, or use concat"))
    return concat([unsqueeze(x, axis) for x in xs], axis)


@public(top=True, method=True)
@checked
def split(x: Tensor, size: Channels | Sizes, axis: Axis = 0) -> list[Tensor]:
    """Cuts a tensor into parts along an axis; `concat` puts them together again.

    Args:
        x: any shape, any dtype.
        size: elements per part along the axis, the last part may have fewer; or a list with the size of each part.
        axis: int.
    Raises:
        ShapeError: the size is below 1, or the sizes do not add up to that of the axis.
    An axis of length 0 has one part, which is empty.
    """
    axis = normal_axis(axis, x.ndim, "split")
    n = x.shape[axis]
    if isinstance(size, int):
        sizes = [size] * (n // size) + ([n % size] if n % size or not n else [])
    else:
        sizes = list(size)
        if sum(sizes) != n:
            raise ShapeError(message("split", f"the sizes {sizes} add up to {sum(sizes)}, axis {axis} has {n}",
                                     "pass sizes of at least 0 that add up to the axis", x=x.shape))
    return _parts(x, sizes, axis)


def _parts(x: Tensor, sizes: Sequence[int], axis: int, in_place: bool = False) -> list[Tensor]:
    """Returns the parts that x has along an axis; in_place: as of slice_axes."""
    whole, starts = [(0, m, 1) for m in x.shape], [sum(sizes[:k]) for k in range(len(sizes))]
    return [slice_axes(x, (*whole[:axis], (start, count, 1), *whole[axis + 1:]), in_place=in_place)
            for start, count in zip(starts, sizes)]


@op
class pad:
    """y = x with a border of a constant value.

    Args:
        x: any shape, any dtype.
        widths: (before, after) for each axis; in elements, at least 0.
        value: of the border.
    Raises:
        ShapeError: there is not one pair for each axis, or a width is negative.
    """

    args, dtypes, cheap = "x", "any", True

    def shape(x, *, widths: Widths, value: Number = 0):
        check_value("pad", value, x.dtype)
        if len(widths) != x.ndim:
            raise ShapeError(message("pad", f"widths {widths} do not fit {x.ndim} axes",
                                     "pass one pair (before, after) of at least 0 for each axis", x=x.shape))
        return tuple([before + n + after for n, (before, after) in zip(x.shape, widths)])

    def vjp_x(g, s, *, widths, value):
        return slice_axes(g, tuple([(before, n, 1) for n, (before, _) in zip(s.x_shape, widths)]))


@public(top=True, method=True)
@checked
def flatten(x: Tensor, start: Axis = 0, end: Axis = -1) -> Tensor:
    """Makes the axes from start to end one axis.  See reshape."""
    if x.ndim == 0:
        return reshape(x, (1,))
    start, end = normal_axis(start, x.ndim, "flatten"), normal_axis(end, x.ndim, "flatten")
    return reshape(x, x.shape[:start] + (prod(x.shape[start:end + 1]),) + x.shape[end + 1:])


@public(top=True, method=True)
@checked
def squeeze(x: Tensor, axis: Axes = None) -> Tensor:
    """Removes axes of length 1: those named, or all.  Raises ShapeError if one named is longer."""
    axes = normal_axes(axis, x.ndim, "squeeze")
    if axis is not None and any(x.shape[k] != 1 for k in axes):
        raise ShapeError(message("squeeze", f"axis {axis} of shape {x.shape} is not of length 1",
                                 "name axes of length 1"))
    return reshape(x, [n for k, n in enumerate(x.shape) if n != 1 or k not in axes])


@public(top=True, method=True)
@checked
def unsqueeze(x: Tensor, axis: Axis) -> Tensor:
    """Inserts an axis of length 1, which will be axis `axis` of the result."""
    k = normal_axis(axis, x.ndim + 1, "unsqueeze")
    return reshape(x, (*x.shape[:k], 1, *x.shape[k:]))


@op
class slice_axes:
    """y = every step-th element of x along each axis, under a shape that may lack and add axes of length 1.

    Args:
        x: any shape, any dtype.
        ranges: (first index, number of indices, step) for each axis, within it; the step may be negative.
        shape: of y; None keeps all axes.
        in_place: whether a reader of y may read x instead, which is kept until then: for gradients.
    """

    args, adds, dtypes, gives, cheap = "x", "x", "any", View, True

    def canon(*, ranges: Ranges, shape: ShapeLike | None = None, in_place: bool = False):
        return dict(ranges=ranges, shape=tuple([count for _, count, _ in ranges]) if shape is None else shape,
                    in_place=in_place)

    def shape(x, *, ranges, shape, in_place):
        check_ranges("slice_axes", x.shape, ranges, shape)
        return shape

    def vjp_x(g, s, *, ranges, shape, in_place):
        if s.there is not None and g.device == "cpu":
            return slice_axes_grad_add(g, s.there, ranges, in_place=True)
        dx = slice_axes_grad(g, ranges, s.x_shape)  # on a GPU the sum is one pass with what reads it
        return dx if s.there is None else s.there + dx


@op
class slice_axes_grad:
    """Gradient of slice_axes: zeros of x's shape with g in the places that were read."""

    args = "g"

    def shape(g, *, ranges: Ranges, shape: ShapeLike):
        check_ranges("slice_axes_grad", shape, ranges, g.shape)
        return shape

    def vjp_g(g, s, *, ranges, shape):
        return slice_axes(g, ranges, s.g_shape)


@op
class slice_axes_grad_add:
    """dx + onto, dx as of slice_axes_grad: how the CPU adds up gradients of several parts of a tensor.

    Args:
        g: gradient of a part, any shape that has its elements.
        onto: what is added, of the shape of the whole.
        ranges: of the part, see slice_axes.
        in_place: whether the memory of onto may become that of the result; then nobody may read onto any more.
    """

    args = "g onto"

    def shape(g, onto, *, ranges: Ranges, in_place: bool = False):
        check_ranges("slice_axes_grad_add", onto.shape, ranges, g.shape)
        return onto.shape

    def vjp_g(g, s, *, ranges, in_place):
        return slice_axes(g, ranges, s.g_shape)

    def vjp_onto(g, s, *, ranges, in_place):
        return g


@op
class take:
    """y[i, ...] = x[index[i], ...], along the first axis.

    Args:
        x: shape (rows, ...), any dtype.
        index: int64, any shape; from 0 to rows - 1 (see getitem, which checks it). Out of range the CPU raises
            ShapeError; a GPU gives NaN, or of integers and bools the nearest row.
    Returns:
        y of shape (*index.shape, ...).
    """

    args, saves, mixed, dtypes = "x index", "index", "index", "any"

    def shape(x, index):
        if not x.ndim or not x.shape[0] >= (index.size > 0):
            raise ShapeError(message("take", f"x of shape {x.shape} has no rows", "pass an x with elements"))
        check_rows("take", index)
        return index.shape + x.shape[1:]

    def vjp_x(g, s):
        return take_grad(g, s.index, s.x_shape[0])


@op
class take_grad:
    """Gradient of take: dx[r, ...] = sum of g[i, ...] over the i with index[i] = r."""

    args, saves, mixed = "g index", "index", "index"

    def shape(g, index, *, rows: Size):
        check_rows("take_grad", index)
        if g.shape[:index.ndim] != index.shape:
            raise ShapeError(message("take_grad", f"g has shape {g.shape}, index {index.shape}",
                                     "pass the gradient of take's output"))
        return (rows, *g.shape[index.ndim:])

    def vjp_g(g, s, *, rows):
        return take(g, s.index)
