"""Pools of any window: dilated, with one window more (ceil_mode), with another divisor; and maxima put back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Channels, Padding, Pair
from alpha.core.op import announced
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops import shape as moves
from alpha.ops.image import check_maps
from alpha.ops.index import index_select
from alpha.ops.pool import avg_pool2d, check_image, check_index, max_pool2d, pool_gather, pool_scatter
from alpha.ops.reduce import argmax
from alpha.ops.shape import stack, take


def _ceil_extra(n: int, k: int, s: int, p: int, d: int) -> int:
    """Returns how many rows a map lacks for the last window of ceil_mode, which begins in the map or before it."""
    reach = d * (k - 1) + 1
    count = -(-(n + 2 * p - reach) // s) + 1
    if (count - 1) * s >= n + p:
        count -= 1
    return max(0, (count - 1) * s + reach - (n + 2 * p))


class _Taps:
    """Which rows of a map the windows along one axis read: places[o, k] is the row of tap k of window o.

    A tap outside of the map reads the first row inside of its window again: of equal elements the first wins, so that
    a maximum is never found there, and no value stands for the padding.
    """

    def __init__(self, n: int, kernel: int, stride: int, padding: int, dilation: int, extra: int) -> None:
        windows = (n + 2 * padding + extra - dilation * (kernel - 1) - 1) // stride + 1
        places = np.arange(max(0, windows))[:, None] * stride - padding + np.arange(kernel) * dilation
        self.inside = (places >= 0) & (places < n)
        first = np.take_along_axis(places, self.inside.argmax(1)[:, None], 1)
        self.places, self.stride = np.where(self.inside, places, first), stride

    def read(self, x: Tensor, axis: int, k: int) -> Tensor:
        """Returns the rows of x along an axis that tap k of each window reads."""
        rows = self.places[:, k]
        if not self.inside[:, k].all():
            return index_select(x, axis, rows)
        return x[(slice(None),) * axis + (slice(int(rows[0]), int(rows[-1]) + 1, self.stride),)]


@public()
@checked
@announced
def max_pool_windows(x: Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0,
                     dilation: Pair = 1, ceil_mode: bool = False) -> tuple[Tensor, Tensor]:
    """Returns (y, index) of a max_pool2d with dilated windows, or one more where the map does not divide: ceil_mode.

    Args, shapes and errors: see max_pool2d. The index counts in x: ih*IW + iw.
    """
    _, h, w, _ = check_maps("max_pool2d", x)
    stride = kernel_size if stride is None else stride
    far = [_ceil_extra(m, k, s, p, d) if ceil_mode else 0
           for m, k, s, p, d in zip((h, w), kernel_size, stride, padding, dilation)]
    if dilation == (1, 1) and far == [0, 0]:
        return max_pool2d.full(x, kernel_size=kernel_size, stride=stride, padding=padding)
    if any(2 * p > k for p, k in zip(padding, kernel_size)):
        raise ShapeError(message("max_pool2d", f"padding {padding} exceeds half of kernel_size {kernel_size}",
                                 "use less padding, or a larger kernel_size: a window must meet the input"))
    taps = [_Taps(*axis) for axis in zip((h, w), kernel_size, stride, padding, dilation, far)]
    if not all(len(t.places) for t in taps):
        raise ShapeError(message("max_pool2d", f"a window of {kernel_size}, dilation {dilation}, does not fit into "
                                 f"{x.shape}", "use a smaller kernel_size, or a larger map"))
    if not all(t.inside.any(1).all() for t in taps):
        raise ShapeError(message("max_pool2d", f"a window of kernel_size {kernel_size}, dilation {dilation} lies "
                                 "in the padding alone", "use less padding, or less dilation", x=x.shape))
    rows = [taps[0].read(x.detach(), 1, i) for i in range(kernel_size[0])]
    best = argmax(stack([taps[1].read(row, 2, j) for row in rows for j in range(kernel_size[1])], 0), 0)
    # positions[oh, ow, i * FW + j], read at the element that won
    positions = (taps[0].places * w)[:, None, :, None] + taps[1].places[:, None, :]
    first = np.arange(0, positions.size, prod(kernel_size)).reshape(1, *positions.shape[:2], 1)
    index = take(tensor(positions.ravel(), "int64", x.device), best + tensor(first, "int64", x.device))
    return pool_gather(x, index), index.astype("int32")


def unpooled_size(hw: Sequence[int], kernel_size: Pair, stride: Pair, padding: Pair) -> Pair:
    """Returns the height and width of the smallest map that pools to one of hw."""
    h, w = [(o - 1) * s - 2 * p + k for o, s, p, k in zip(hw, stride, padding, kernel_size)]
    return h, w


@public()
@checked
def avg_pool_windows(x: Tensor, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0,
                     ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Channels | None = None
                     ) -> Tensor:
    """avg_pool2d with one window more where the map does not divide (ceil_mode), or sums over a number of one's own.

    Args, shapes and errors: see avg_pool2d.
    """
    _, h, w, _ = check_maps("avg_pool2d", x)
    stride = kernel_size if stride is None else stride
    far = [_ceil_extra(m, k, s, p, 1) if ceil_mode else 0
           for m, k, s, p in zip((h, w), kernel_size, stride, padding)]
    if far == [0, 0] and divisor_override is None:
        return avg_pool2d(x, kernel_size, stride, padding, count_include_pad=count_include_pad)
    whole = moves.pad(x, ((0, 0), *[(p, p + e) for p, e in zip(padding, far)], (0, 0)))
    y = avg_pool2d(whole, kernel_size, stride)
    counts = []
    for m, k, s, p, o in zip((h, w), kernel_size, stride, padding, y.shape[1:3]):
        first = np.arange(o) * s - p
        edge = p if count_include_pad else 0
        counts.append(np.minimum(first + k, m + edge) - np.maximum(first, -edge))
    count = np.full((1, 1, 1, 1), divisor_override) if divisor_override else (
        counts[0][:, None] * counts[1]).reshape(1, *y.shape[1:3], 1)
    return y * tensor(prod(kernel_size) / count, y.dtype, y.device)


@public()
@checked
def max_unpool2d(x: Tensor, index: Tensor, *, output_hw: Pair) -> Tensor:
    """Puts each element of x back where its maximum came from; all else is 0.

    Where windows overlapped, elements that came from one position are added up.
    Args:
        x: values.  Shape (N, OH, OW, C), NHWC; float.
        index: the second output of max_pool2d.full or adaptive_max_pool2d.full.  Shape of x; integer.
        output_hw: (IH, IW) of the result, or an int for both.
    Returns:
        y of shape (N, IH, IW, C).
    Raises:
        ShapeError: the shapes of x and index differ, or an index lies outside of IH * IW.
        DTypeError: index is not of an integer dtype.
    """
    where, hw, positions = "max_unpool2d", output_hw, index.numpy()
    check_image(where, "x", x.shape)
    check_index(where, x.shape, index)
    low, high = int(np.min(positions)), int(np.max(positions))
    if low < 0 or high >= hw[0] * hw[1]:
        raise ShapeError(message(where, f"index ranges from {low} to {high}, the output has positions 0 to "
                                 f"{hw[0] * hw[1] - 1}", "pass the height and width of the pooled input as output_hw",
                                 output_hw=hw))
    return pool_scatter(x, index, hw=hw)
