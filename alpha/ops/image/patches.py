"""Windows of maps as rows, and rows as sums of windows: unfold and fold, each the other's gradient."""

from __future__ import annotations

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Padding, Pair
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.elementwise import add
from alpha.ops.reduce import Shape
from alpha.ops.shape import Range, pad, reshape, slice_axes, slice_axes_grad, stack


def _windows(where: str, hw: Pair, kernel_size: Pair, dilation: Pair, padding: Pair, stride: Pair
             ) -> tuple[Pair, list[tuple[Range, Range]]]:
    """Returns how many windows there are along height and width, and which pixels of the padded map each tap reads."""
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1
             for n, k, d, p, s in zip(hw, kernel_size, dilation, padding, stride)]
    if min(sizes) < 1:
        raise ShapeError(message(where, f"a window of {kernel_size}, dilation {dilation}, does not fit into a map of "
                                 f"{hw} with padding {padding}", "use a smaller kernel_size, or a larger map"))
    taps = [((i * dilation[0], sizes[0], stride[0]), (j * dilation[1], sizes[1], stride[1]))
            for i in range(kernel_size[0]) for j in range(kernel_size[1])]
    return (sizes[0], sizes[1]), taps


@public(functional=True)
@checked
def unfold(x: Tensor, kernel_size: Pair, dilation: Pair = 1, padding: Padding = 0, stride: Pair = 1) -> Tensor:
    """y[n, oh*OW + ow, (i*FW + j)*C + c] = x[n, oh*stride - padding + i*dilation, ..., c]: the windows, one in a row.

    A convolution is unfold(x, ...) @ w.reshape(OC, -1).T, the filters being (OC, FH, FW, C).
    Args:
        x: shape (N, H, W, C), NHWC; any dtype.
        kernel_size, dilation, padding, stride: int, or pair (height, width).
    Returns:
        y of shape (N, OH * OW, FH * FW * C); PyTorch's is (N, C * FH * FW, OH * OW).
    Raises:
        ShapeError: x is no batch of maps, or no window fits into it.
    """
    if x.ndim != 4:
        raise ShapeError(message("unfold", f"x has {x.ndim} axes, 4 are needed (N H W C)", "reshape x", x=x.shape))
    n, h, w, c = x.shape
    (oh, ow), taps = _windows("unfold", (h, w), kernel_size, dilation, padding, stride)
    if any(padding):
        x = pad(x, ((0, 0), *[(p, p) for p in padding], (0, 0)))
    parts = [slice_axes(x, ((0, n, 1), *tap, (0, c, 1))) for tap in taps]
    return reshape(stack(parts, 3), (n, oh * ow, len(taps) * c))


@public(functional=True)
@checked
def fold(x: Tensor, output_size: Pair, kernel_size: Pair, dilation: Pair = 1, padding: Padding = 0, stride: Pair = 1
         ) -> Tensor:
    """y = a map in which each row of x is added where its window lies: the gradient of unfold.

    Args:
        x: shape (N, OH * OW, FH * FW * C), rows as those of unfold; float.
        output_size: (H, W) of y, or an int for both.
        kernel_size, dilation, padding, stride: see unfold.
    Returns:
        y of shape (N, H, W, C).
    Raises:
        ShapeError: x is not of that shape, or no window fits into the map.
    """
    (oh, ow), taps = _windows("fold", output_size, kernel_size, dilation, padding, stride)
    if x.ndim != 3 or x.shape[1] != oh * ow or x.shape[2] % len(taps):
        raise ShapeError(message("fold", f"x has shape {x.shape}, (N, {oh * ow}, {len(taps)} * C) is needed",
                                 "pass rows as unfold makes them of such a map", output_size=output_size))
    n, c = x.shape[0], x.shape[2] // len(taps)
    whole: Shape = (n, *[m + 2 * p for m, p in zip(output_size, padding)], c)
    rows = reshape(x, (n, oh, ow, len(taps), c))
    y: Tensor | None = None
    for k, tap in enumerate(taps):
        mine = slice_axes(rows, ((0, n, 1), (0, oh, 1), (0, ow, 1), (k, 1, 1), (0, c, 1)), (n, oh, ow, c))
        laid = slice_axes_grad(mine, ranges=((0, n, 1), *tap, (0, c, 1)), shape=whole)
        y = laid if y is None else add(y, laid)
    assert y is not None    # a kernel has a tap
    return slice_axes(y, ((0, n, 1), *[(p, m, 1) for p, m in zip(padding, output_size)], (0, c, 1)))
