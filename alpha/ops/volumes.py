"""Maps of three axes (N, D, H, W, C), composed of convolutions and pools of two; and conv_transpose1d.

A tap of a filter along the depth is a convolution of the layers that it reads: layers of padding are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Union

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Channels, Pair_, Refused, Size, Whole
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops import shape as moves
from alpha.ops.conv import conv2d, conv_transpose2d
from alpha.ops.conv_desc import ceil_div
from alpha.ops.index import gather
from alpha.ops.pool import adaptive_avg_pool2d, adaptive_max_pool2d
from alpha.ops.pool.windows import avg_pool_windows, max_pool_windows
from alpha.ops.shape import reshape, slice_axes, slice_axes_grad


class Triple_(Pair_):
    """(depth, height, width) of an int for all or of three, each at least `low`."""

    stub, fix = "IntOrTriple", "pass {name}=k for all axes, or {name}=(depth, height, width)"

    def __init__(self, low: int) -> None:
        super().__init__(low)
        self.text = f"an int or three ints of at least {low}"

    def read(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            if len(value) != 3:
                raise Refused(ShapeError)
            return tuple([self.one.read(n) for n in value])
        return (self.one.read(value),) * 3


Ints3 = Union[int, tuple[int, int, int]]
Triple = Annotated[Ints3, Triple_(1)]
Padding3 = Annotated[Ints3, Triple_(0)]
Stride1 = Annotated[int, Whole(1, ShapeError)]


def check_volume(where: str, x: Tensor) -> tuple[int, ...]:
    """Returns the shape of x.  Raises ShapeError in the name of `where` unless x has 5 axes, none of a map empty."""
    if x.ndim != 5 or 0 in x.shape[1:]:
        raise ShapeError(message(where, f"x has shape {x.shape}, 5 axes with elements are needed (N D H W C)",
                                 "reshape x; PyTorch's (N, C, D, H, W) is x.permute(0, 2, 3, 4, 1)"))
    return x.shape


def _check_filters(where: str, x: Tensor, weight: Tensor, channels: int, groups: int) -> None:
    if weight.ndim != 5 or 0 in weight.shape or channels != x.shape[-1] or x.shape[-1] % groups or \
            weight.shape[0] % groups:
        raise ShapeError(message(where, f"weight has shape {weight.shape}, x {x.shape}, with {groups} groups",
                                 "pass filters (OC, FD, FH, FW, C / groups), of a transposed convolution "
                                 "(C, FD, FH, FW, OC / groups)"))


def _layers(x: Tensor, first: int, count: int, step: int) -> Tensor:
    """Returns some layers of volumes as maps (N * count, H, W, C)."""
    n, _, h, w, c = x.shape
    part = slice_axes(x, ((0, n, 1), (first, count, step), (0, h, 1), (0, w, 1), (0, c, 1)))
    return reshape(part, (n * count, h, w, c))


def _reach(n: int, f: int, o: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """Returns the first of o layers whose tap f reads one of n layers, and how many do."""
    first = max(0, ceil_div(padding - f * dilation, stride))
    last = min(o - 1, (n - 1 + padding - f * dilation) // stride)
    return first, max(0, last - first + 1)


@public(functional=True)
@checked
def conv3d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Triple = 1, padding: Padding3 = 0,
           dilation: Triple = 1, groups: Channels = 1) -> Tensor:
    """y = x * weight (cross-correlation) + bias, over three axes.

        y[n, od, oh, ow, oc] = sum of x[n, od*stride - padding + fd*dilation, ..., ic] * weight[oc, fd, fh, fw, ic]
    Args:
        x: shape (N, D, H, W, C), channels last; float.
        weight: filters.  Shape (OC, FD, FH, FW, C / groups); dtype of x, or float32 where that has 16 bits.
        bias: shape (OC,), or None.
        stride, padding, dilation: int, or (depth, height, width).
        groups: number of channel groups; it divides both channel counts.
    Returns:
        y of shape (N, OD, OH, OW, OC), OD = floor((D + 2*padding - dilation*(FD - 1) - 1) / stride) + 1.
    Raises:
        ShapeError: the shapes do not fit, or y would be empty.
    It is a conv2d for each of the FD layers of the filters; their results are added up in order.
    """
    n, d, *_ = check_volume("conv3d", x)
    _check_filters("conv3d", x, weight, weight.shape[-1] * groups if weight.ndim else 0, groups)
    depth, flat = weight.shape[1], dict(stride=stride[1:], padding=padding[1:], dilation=dilation[1:],  # type: ignore
                                        groups=groups)
    s, p, t = (v[0] for v in (stride, padding, dilation))  # type: ignore[index]
    o = (d + 2 * p - t * (depth - 1) - 1) // s + 1
    if o < 1:
        raise ShapeError(message("conv3d", f"a filter of {depth} layers does not fit into {d} + 2*{p}",
                                 "use a smaller filter, or more padding", x=x.shape, weight=weight.shape))
    reaches = [(f, *_reach(d, f, o, s, p, t)) for f in range(depth)]
    y: Tensor | None = None
    for f, first, count in [r for r in reaches if r[2]] or [(0, 0, 0)]:
        part = conv2d(_layers(x, first * s - p + f * t if count else 0, count, s), weight[:, f], **flat)
        part = reshape(part, (n, count, *part.shape[1:]))
        if count < o:
            part = moves.pad(part, ((0, 0), (first, o - first - count), (0, 0), (0, 0), (0, 0)))
        y = part if y is None else y + part
    assert y is not None    # a filter has a layer
    return y if bias is None else (y.astype(bias.dtype) + bias).astype(y.dtype)


@public(functional=True)
@checked
def conv_transpose3d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Triple = 1,
                     padding: Padding3 = 0, output_padding: Padding3 = 0, groups: Channels = 1, dilation: Triple = 1
                     ) -> Tensor:
    """Transposed convolution over three axes: the gradient of conv3d used forward.

    Args:
        x: shape (N, D, H, W, C), channels last; float.
        weight: shape (C, FD, FH, FW, OC / groups): that of the convolution from y to x.
        bias: shape (OC,), or None.
        stride, padding, output_padding, groups, dilation: see conv_transpose2d, with (depth, height, width).
    Returns:
        y of shape (N, OD, OH, OW, OC), OD = (D - 1)*stride - 2*padding + dilation*(FD - 1) + 1 + output_padding.
    Raises:
        ShapeError: the shapes do not fit, output_padding is below neither stride nor dilation, or y would be empty.
    """
    n, d, *_ = check_volume("conv_transpose3d", x)
    _check_filters("conv_transpose3d", x, weight, weight.shape[0] if weight.ndim else 0, groups)
    s, p, e, t = (v[0] for v in (stride, padding, output_padding, dilation))  # type: ignore[index]
    depth, flat = weight.shape[1], dict(stride=stride[1:], padding=padding[1:],  # type: ignore[index]
                                        output_padding=output_padding[1:], dilation=dilation[1:],  # type: ignore[index]
                                        groups=groups)
    o = (d - 1) * s - 2 * p + t * (depth - 1) + 1 + e
    if o < 1 or e >= max(s, t):
        raise ShapeError(message("conv_transpose3d", f"y would have {o} layers, with output_padding {e}", "use less "
                                 "padding, and an output_padding below the stride or the dilation", x=x.shape))
    y: Tensor | None = None
    reaches = [(f, *_reach(o, f, d, s, p, t)) for f in range(depth)]
    for f, first, count in [r for r in reaches if r[2]] or [(0, 0, 0)]:
        part = conv_transpose2d(_layers(x, first, count, 1), weight[:, f], **flat)
        _, h, w, c = part.shape
        part = reshape(part, (n, count, h, w, c))
        ranges = ((0, n, 1), (first * s - p + f * t if count else 0, count, s), (0, h, 1), (0, w, 1), (0, c, 1))
        part = slice_axes_grad(part, ranges=ranges, shape=(n, o, h, w, c))
        y = part if y is None else y + part
    assert y is not None    # a filter has a layer
    return y if bias is None else (y.astype(bias.dtype) + bias).astype(y.dtype)


@public(functional=True)
@checked
def conv_transpose1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Stride1 = 1, padding: Size = 0,
                     output_padding: Size = 0, groups: Channels = 1, dilation: Stride1 = 1) -> Tensor:
    """Transposed convolution along one axis: that of maps of one row.

    Args:
        x: shape (N, L, C), channels last; float.
        weight: shape (C, F, OC / groups).
        bias: shape (OC,), or None.
        stride, padding, output_padding, groups, dilation: see conv_transpose2d.
    Returns:
        y of shape (N, OL, OC), OL = (L - 1)*stride - 2*padding + dilation*(F - 1) + 1 + output_padding.
    Raises:
        ShapeError: x or weight has not three axes; otherwise as conv_transpose2d.
    """
    if x.ndim != 3 or weight.ndim != 3:
        raise ShapeError(message("conv_transpose1d", f"x has {x.ndim} axes and weight {weight.ndim}, both need 3",
                                 "pass x (N, L, C) and weight (C, F, OC / groups)", x=x.shape, weight=weight.shape))
    rows, filters = reshape(x, (x.shape[0], 1, *x.shape[1:])), reshape(weight, (weight.shape[0], 1, *weight.shape[1:]))
    y = conv_transpose2d(rows, filters, (1, stride), (0, padding), (0, output_padding), (1, dilation), groups)
    y = reshape(y, (y.shape[0], *y.shape[2:]))
    return y if bias is None else (y.astype(bias.dtype) + bias).astype(y.dtype)


# ---- pools -----------------------------------------------------------------------------------------------------------


def _in_turn(x: Tensor, flat: Callable[[Tensor], Tensor], deep: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns a pool along height and width, then along the depth."""
    n, d, h, w, c = x.shape
    y = flat(reshape(x, (n * d, h, w, c)))
    oh, ow = y.shape[1:3]
    y = deep(reshape(y, (n, d, oh * ow, c)))
    return reshape(y, (n, y.shape[1], oh, ow, c))


@public(functional=True)
@checked
def max_pool3d(x: Tensor, kernel_size: Triple, stride: Triple | None = None, padding: Padding3 = 0,
               dilation: Triple = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """Largest element of each window of volumes; with return_indices also where it was, as (d*H + h)*W + w.

    Args:
        x: shape (N, D, H, W, C), channels last; float.
        kernel_size, stride, padding, dilation: int, or (depth, height, width); stride None: kernel_size.
        ceil_mode: whether a window that begins in the volume and ends behind it counts.
        return_indices: whether the result is (y, index), int32.
    Returns:
        y of shape (N, OD, OH, OW, C): see max_pool2d.
    Raises:
        ShapeError: x is no batch of volumes, or no window fits.
    """
    n, d, h, w, c = check_volume("max_pool3d", x)
    k, s, p, t = kernel_size, kernel_size if stride is None else stride, padding, dilation
    y, flat = max_pool_windows(reshape(x, (n * d, h, w, c)), k[1:], s[1:], p[1:], t[1:], ceil_mode)  # type: ignore
    oh, ow = y.shape[1:3]
    y, deep = max_pool_windows(reshape(y, (n, d, oh * ow, c)), (k[0], 1), (s[0], 1), (p[0], 0), (t[0], 1),  # type: ignore
                               ceil_mode)
    shape = (n, y.shape[1], oh, ow, c)
    if not return_indices:
        return reshape(y, shape)
    rows = reshape(deep, (n, -1, c)).astype("int64")    # of (D, OH, OW)
    within = gather(reshape(flat, (n, d * oh * ow, c)).astype("int64"), 1, rows)
    index = rows // (oh * ow) * (h * w) + within
    return reshape(y, shape), reshape(index.astype("int32"), shape)


@public(functional=True)
@checked
def avg_pool3d(x: Tensor, kernel_size: Triple, stride: Triple | None = None, padding: Padding3 = 0,
               ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Channels | None = None
               ) -> Tensor:
    """Mean of each window of volumes.

    Args:
        x: shape (N, D, H, W, C), channels last; float.
        kernel_size, stride, padding: int, or (depth, height, width); stride None: kernel_size.
        ceil_mode, count_include_pad, divisor_override: see alpha.nn.AvgPool2d.
    Returns:
        y of shape (N, OD, OH, OW, C): see avg_pool2d.
    Raises:
        ShapeError: x is no batch of volumes, or no window fits.
    """
    check_volume("avg_pool3d", x)
    k, p, s = kernel_size, padding, kernel_size if stride is None else stride
    first = None if divisor_override is None else 1
    return _in_turn(
        x, lambda m: avg_pool_windows(m, k[1:], s[1:], p[1:], ceil_mode, count_include_pad, first),  # type: ignore
        lambda m: avg_pool_windows(m, (k[0], 1), (s[0], 1), (p[0], 0), ceil_mode, count_include_pad,  # type: ignore
                                   divisor_override))


@public(functional=True)
@checked
def adaptive_avg_pool3d(x: Tensor, output_size: Triple) -> Tensor:
    """Mean of windows that cover volumes (N, D, H, W, C) evenly: output_size (OD, OH, OW), or an int for all axes."""
    check_volume("adaptive_avg_pool3d", x)
    hw = output_size[1:]  # type: ignore[index]
    return _in_turn(x, lambda m: adaptive_avg_pool2d(m, hw),
                    lambda m: adaptive_avg_pool2d(m, (output_size[0], m.shape[2])))  # type: ignore[index]


@public(functional=True)
@checked
def adaptive_max_pool3d(x: Tensor, output_size: Triple) -> Tensor:
    """Largest element of windows that cover volumes (N, D, H, W, C) evenly.  See adaptive_avg_pool3d."""
    check_volume("adaptive_max_pool3d", x)
    hw = output_size[1:]  # type: ignore[index]
    return _in_turn(x, lambda m: adaptive_max_pool2d(m, hw),
                    lambda m: adaptive_max_pool2d(m, (output_size[0], m.shape[2])))  # type: ignore[index]
