"""Pooling: the largest or the mean element of a window, and what takes gradients (or values) back to the input.

Each op and its gradient are a linear pair, so each is the other's gradient too: scatter and gather by index for the
maximum, `avg_pool2d_backward` and `avg_pool2d` for the mean. Padding is never stored: a window is trimmed to the input.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.kinds import Padding
from alpha.core.inputs.kinds import Pair as IntOrPair
from alpha.core.op import Spec, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.conv_desc import Axis, Pair, Shape, axis_of, ceil_div, check_axis

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


def _window(kernel_size: Pair, stride: Pair | None, padding: Pair, **others: Any) -> dict[str, Any]:
    return dict(kernel_size=kernel_size, stride=kernel_size if stride is None else stride, padding=padding, **others)


@lru_cache(maxsize=1024)
def pool_axes(where: str, x_shape: Shape, kernel_size: Pair, stride: Pair, padding: Pair) -> tuple[Axis, Axis]:
    """Returns the geometry of a pool along H and along W.  Raises ShapeError in the name of op `where`."""
    check_image(where, "x", x_shape)
    if min(kernel_size) < 1 or min(stride) < 1:
        raise ShapeError(message(where, f"kernel_size {kernel_size} and stride {stride} must be at least 1",
                                 "correct the argument that is out of range"))
    if min(padding) < 0 or any(2 * p > k for p, k in zip(padding, kernel_size)):
        raise ShapeError(message(where, f"padding {padding} is not between 0 and half of kernel_size {kernel_size}",
                                 "use less padding, or a larger kernel_size: a window must meet the input"))
    axes = []
    for name, i, k, s, p in zip("HW", x_shape[1:3], kernel_size, stride, padding):
        o = Axis.output_size(i, k, s, p, 1)
        if o < 1:
            fix = "use a smaller kernel_size, or a larger map"
            if x_shape[2] == x_shape[3]:
                fix += "; if x is NCHW, alpha uses NHWC: x.permute(0, 2, 3, 1)"
            raise ShapeError(message(where, f"a window of {k} does not fit into {i} + 2*{p} inputs along {name}", fix,
                                     x=f"{x_shape} NHWC"))
        check_axis(where, name, i, o, k)
        axes.append(axis_of(i, o, k, s, p, 1))
    return axes[0], axes[1]


def adaptive_windows(i: int, o: int) -> list[Pair]:
    """Returns the o windows [begin, end) that cover i inputs evenly; they overlap where o does not divide i."""
    return [(k * i // o, ceil_div((k + 1) * i, o)) for k in range(o)]


def check_image(where: str, name: str, shape: Shape) -> None:
    if len(shape) != 4 or 0 in shape[1:]:
        raise ShapeError(message(where, f"{name} has shape {shape}, 4 non-empty axes are needed (N H W C)",
                                 f"reshape {name}; a single image needs a leading axis of 1"))


def _pooled_shape(where: str, x_shape: Shape, kernel_size: Pair, stride: Pair, padding: Pair) -> Shape:
    h, w = pool_axes(where, x_shape, kernel_size, stride, padding)
    return x_shape[0], h.o, w.o, x_shape[3]


def _unpooled_shape(where: str, g_shape: Shape, hw: Pair, **window: Pair) -> Shape:
    """Returns the shape of the input that pools to g_shape."""
    check_image(where, "g", g_shape)
    x_shape = g_shape[0], *hw, g_shape[-1]
    if (pooled := _pooled_shape(where, x_shape, **window)) != g_shape:
        raise ShapeError(message(where, f"g has shape {g_shape}, this geometry gives {pooled}",
                                 "pass the gradient of the output of the same pool"))
    return x_shape


def _adaptive_shape(where: str, x_shape: Shape, output_size: Pair) -> Shape:
    check_image(where, "x", x_shape)
    check_axis(where, "H or W", *output_size)
    return x_shape[0], *output_size, x_shape[3]


@public(layer="MaxPool2d", keeps_channels=True)
@op
class max_pool2d:
    """Largest element of each window.

        y[n, oh, ow, c] = max_{kh, kw} x[n, oh*stride - padding + kh, ow*stride - padding + kw, c],   inside of x only

    The first of equal elements, row by row, is the one that receives the gradient.  NaN is larger than any number.
    `max_pool2d.full(...)` returns (y, index).
    Args:
        x: input.  Shape (N, IH, IW, C), NHWC; float.
        kernel_size: int, or pair (height, width); in pixels.
        stride: int or pair; default kernel_size.
        padding: int or pair, at most half of kernel_size.
    Returns:
        y of shape (N, OH, OW, C), OH = floor((IH + 2*padding - kernel_size) / stride) + 1; index, int32, of shape y:
        the position ih*IW + iw of each maximum, for max_unpool2d.
    Raises:
        ShapeError: x is no image batch, padding exceeds half of kernel_size, or the window does not fit.
    """

    args, saves, outs, returns, cheap = "x", "index", "y index", "y", True
    batched = True

    def canon(*, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: Padding = 0):
        return _window(kernel_size, stride, padding)

    def shape(x, **window):
        y_shape = _pooled_shape("max_pool2d", x.shape, **window)
        return [y_shape, Spec(y_shape, "int32")]

    def vjp_x(g, s, **window):
        token = _trusted.set(True)      # the index is of this op's own making
        try:
            return max_pool2d_backward(g, s.index, hw=s.x_shape[1:3], **window)
        finally:
            _trusted.reset(token)


@op
class max_pool2d_backward:
    """Gradient of max_pool2d: adds each element of g to the position that its window took the maximum from.

    Args:
        g: gradient of the output.  Shape (N, OH, OW, C), NHWC; float.
        index: the second output of max_pool2d.full with the same window.  Shape of g; int32.
        hw: (IH, IW) of the pooled input.
        kernel_size, stride, padding: those of the pool.
    Returns:
        dx of shape (N, IH, IW, C).
    Raises:
        ShapeError: the shapes of g and index differ, (IH, IW) does not pool to (OH, OW), or, on the CPU, an index lies
            outside of its window.  (On a GPU such an element of g goes nowhere.)
        DTypeError: index is not int32.
    """

    args, saves, mixed = "g index", "index", "index"
    batched = by_value = True   # places that are none are refused

    def canon(*, hw: IntOrPair, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: Padding = 0):
        return _window(kernel_size, stride, padding, hw=hw)

    def shape(g, index, *, hw, **window):
        check_index("max_pool2d_backward", g.shape, index, "int32")
        x_shape = _unpooled_shape("max_pool2d_backward", g.shape, hw, **window)
        if index.device == "cpu" and not _trusted.get():
            _check_windows("max_pool2d_backward", index.numpy(), pool_axes("max_pool2d_backward", x_shape, **window))
        return x_shape

    def vjp_g(g, s, **attrs):
        return pool_gather(g, s.index)


@public(functional=True, layer="AdaptiveMaxPool2d", keeps_channels=True)
@op
class adaptive_max_pool2d:
    """Largest element of each of OH x OW windows that cover x evenly: window k of o spans [k*I//o, ceil((k+1)*I/o)).

    Args:
        x: input.  Shape (N, IH, IW, C), NHWC; float.
        output_size: int, or pair (OH, OW).
    Returns:
        y of shape (N, OH, OW, C); `.full` adds the index, see max_pool2d.
    Raises:
        ShapeError: x is no image batch, or output_size is below 1.
    """

    args, saves, outs, returns, cheap = "x", "index", "y index", "y", True
    batched = True

    def shape(x, *, output_size: IntOrPair):
        y_shape = _adaptive_shape("adaptive_max_pool2d", x.shape, output_size)
        return [y_shape, Spec(y_shape, "int32")]

    def vjp_x(g, s, *, output_size):
        return pool_scatter(g, s.index, hw=s.x_shape[1:3])


@op
class pool_scatter:
    """Adds each element of x to the position of its image that index names, 0 elsewhere.

    The gradient of an adaptive maximum, and max_unpool2d; max_pool2d knows more about its index and has its own.
    Args:
        x: values.  Shape (N, OH, OW, C), NHWC; float.
        index: positions ih*IW + iw.  Shape of x; integer.
        hw: (IH, IW) of the result.
    Returns:
        y of shape (N, IH, IW, C); 0 where no index points.  On a GPU the maps (n, c) of an index out of range are NaN.
    Raises:
        ShapeError: the shapes of x and index differ, or, on the CPU, an index is outside [0, IH * IW).
        DTypeError: index is not of an integer dtype.
    """

    args, saves, mixed = "x index", "index", "index"
    batched = True

    def shape(x, index, *, hw: IntOrPair):
        check_image("pool_scatter", "x", x.shape)
        check_index("pool_scatter", x.shape, index)
        return x.shape[0], *hw, x.shape[3]

    def vjp_x(g, s, *, hw):
        return pool_gather(g, s.index)


@op
class pool_gather:
    """Reads for each index the element of x at that position of its image: the gradient of pool_scatter.

    Args:
        x: values.  Shape (N, IH, IW, C), NHWC; float.
        index: positions ih*IW + iw.  Shape (N, OH, OW, C); integer.
    Returns:
        y of the shape of index.  On a GPU an index out of range reads NaN.
    Raises:
        ShapeError: batch or channels of x and index differ, or, on the CPU, an index is outside [0, IH * IW).
        DTypeError: index is not of an integer dtype.
    """

    args, saves, mixed = "x index", "index", "index"
    batched = True

    def shape(x, index):
        check_image("pool_gather", "x", x.shape)
        check_image("pool_gather", "index", index.shape)
        check_index("pool_gather", (x.shape[0], *index.shape[1:3], x.shape[3]), index)
        return index.shape

    def vjp_x(g, s):
        return pool_scatter(g, s.index, hw=s.x_shape[1:3])


def check_index(where: str, expected: Shape, index: Tensor, *dtypes: str) -> None:
    if index.shape != expected:
        raise ShapeError(message(where, f"index has shape {index.shape}, {expected} is needed",
                                 "pass the index of the max_pool2d.full call that made the values"))
    dtypes = dtypes or ("int32", "int64")
    if index.dtype not in dtypes:
        raise DTypeError(message(where, f"index has dtype {index.dtype}, {' or '.join(dtypes)} is needed",
                                 "pass the index of max_pool2d.full"))


def _check_windows(where: str, index: np.ndarray, axes: tuple[Axis, Axis]) -> None:
    """Raises ShapeError unless each index names a position inside of its own window."""
    h, w = axes
    rows, columns = (np.array([[a.input_of(o, taps[0]), a.input_of(o, taps[1] - 1)] for o in range(a.o)
                               for taps in [a.fprop_taps(o)]]) for a in axes)
    row, column = np.divmod(index, w.i)
    fits = (rows[:, :1, None] <= row) & (row <= rows[:, 1:, None]) & (columns[:, :1] <= column) & (
        column <= columns[:, 1:])
    if fits.all():
        return
    bad = int(np.argmin(fits))
    if not 0 <= index.flat[bad] < h.i * w.i:
        raise index_error(where, int(index.flat[bad]), bad, (h.i, w.i))
    raise ShapeError(message(where, f"index {index.flat[bad]} at position {bad} is outside of its window",
                             "pass the index of max_pool2d.full with the same window", map=(h.i, w.i)))


def index_error(where: str, index: int, position: int, hw: Pair) -> ShapeError:
    """Returns the error for an index that is outside of a map of hw, found by an implementation."""
    return ShapeError(message(where, f"index {index} at position {position} is outside [0, {hw[0] * hw[1]})",
                              "pass the index of max_pool2d.full as it is, and the height and width of what was pooled",
                              map=hw))


@public(layer="AvgPool2d", keeps_channels=True)
@op
class avg_pool2d:
    """Mean of each window.

        y[n, oh, ow, c] = 1/count * sum_{kh, kw} x[n, oh*stride - padding + kh, ow*stride - padding + kw, c]

    Args:
        x: input.  Shape (N, IH, IW, C), NHWC; float.
        kernel_size, stride, padding: see max_pool2d.
        count_include_pad: whether count is that of the whole window, or of its elements inside of x.
    Returns:
        y of shape (N, OH, OW, C).
    Raises:
        ShapeError: see max_pool2d.
    """

    args, cheap = "x", True
    batched, named = True, "count_include_pad"

    def canon(*, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: Padding = 0,
              count_include_pad: bool = True):
        return _window(kernel_size, stride, padding, count_include_pad=count_include_pad)

    def shape(x, *, count_include_pad, **window):
        return _pooled_shape("avg_pool2d", x.shape, **window)

    def vjp_x(g, s, **attrs):
        return avg_pool2d_backward(g, hw=s.x_shape[1:3], **attrs)


@op
class avg_pool2d_backward:
    """Gradient of avg_pool2d: spreads each element evenly over its window.

    Args:
        g: gradient of the output.  Shape (N, OH, OW, C), NHWC; float.
        hw: (IH, IW) of the pooled input.
        kernel_size, stride, padding, count_include_pad: those of the pool.
    Returns:
        dx of shape (N, IH, IW, C).
    Raises:
        ShapeError: (IH, IW) does not pool to (OH, OW).
    """

    args = "g"
    batched = True

    def canon(*, hw: IntOrPair, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: Padding = 0,
              count_include_pad: bool = True):
        return _window(kernel_size, stride, padding, hw=hw, count_include_pad=count_include_pad)

    def shape(g, *, hw, count_include_pad, **window):
        return _unpooled_shape("avg_pool2d_backward", g.shape, hw, **window)

    def vjp_g(g, s, *, hw, **attrs):
        return avg_pool2d(g, **attrs)


@public(functional=True, layer="AdaptiveAvgPool2d", keeps_channels=True)
@op
class adaptive_avg_pool2d:
    """Mean of each of OH x OW windows that cover x evenly: window k of o spans [k*I//o, ceil((k+1)*I/o)).

    Args:
        x: input.  Shape (N, IH, IW, C), NHWC; float.
        output_size: int, or pair (OH, OW); 1 is global average pooling.
    Returns:
        y of shape (N, OH, OW, C).
    Raises:
        ShapeError: x is no image batch, or output_size is below 1.
    """

    args, cheap = "x", True
    batched = True

    def shape(x, *, output_size: IntOrPair):
        return _adaptive_shape("adaptive_avg_pool2d", x.shape, output_size)

    def vjp_x(g, s, *, output_size):
        return adaptive_avg_pool2d_backward(g, hw=s.x_shape[1:3])


@op
class adaptive_avg_pool2d_backward:
    """Gradient of adaptive_avg_pool2d: spreads each element evenly over its window.

    Args:
        g: gradient of the output.  Shape (N, OH, OW, C), NHWC; float.
        hw: (IH, IW) of the pooled input.
    Returns:
        dx of shape (N, IH, IW, C).
    Raises:
        ShapeError: g is no image batch.
    """

    args = "g"
    batched = True

    def shape(g, *, hw: IntOrPair):
        check_image("adaptive_avg_pool2d_backward", "g", g.shape)
        return g.shape[0], *hw, g.shape[3]

    def vjp_g(g, s, *, hw):
        return adaptive_avg_pool2d(g, output_size=s.g_shape[1:3])
