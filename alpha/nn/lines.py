"""Convolution and pools along one axis: x (N, L, C), channels last.  Each is the layer of two axes with one row."""

from __future__ import annotations

from typing import Any

from alpha import ops
from alpha.core.errors import ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import BorderMode, Channels, LinePadding, Size
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.nn.conv import Conv2d, ConvTranspose2d
from alpha.nn.module import Module, Parameter
from alpha.nn.pool import AvgPool2d, MaxPool2d


def _as_maps(layer: Module, x: Tensor) -> Tensor:
    """Returns (N, L, C) as (N, 1, L, C)."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        raise ShapeError(message(type(layer).__name__, f"x is {shown(x)}, 3 axes are needed (N L C)",
                                 "reshape x; PyTorch's (N, C, L) is x.transpose(1, 2)"))
    return x.reshape(x.shape[0], 1, *x.shape[1:])


def _as_lines(y: Tensor) -> Tensor:
    return y.reshape(y.shape[0], *y.shape[2:])


class Conv1d(Conv2d):
    """Convolution along one axis: y[n, l, oc] = sum of x[n, l*stride - padding + f*dilation, ic] * w[oc, f, ic] + bias.

    Args: as Conv2d, ints for kernel_size, stride, padding and dilation.
    Shape: x (N, L, in_channels) -> y (N, OL, out_channels).
    Parameters: weight (out_channels, F, in_channels / groups); bias (out_channels,). They start as in Conv2d.
    """

    torch_space = 1

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: Channels, stride: Channels = 1,
                 padding: LinePadding = 0, dilation: Channels = 1, groups: Channels = 1, bias: bool = True,
                 padding_mode: BorderMode = "zeros") -> None:
        sides = padding if isinstance(padding, str) else (0, padding)
        super().__init__(in_channels, out_channels, (1, kernel_size), (1, stride), sides, (1, dilation), groups, bias,
                         padding_mode)
        w = self.weight.detach()
        self.weight = Parameter(w.reshape(w.shape[0], *w.shape[2:]))

    def forward(self, x: Tensor, activation: str | None = None, for_norm: bool = False) -> Tensor:
        """Returns activation(conv(x, weight) + bias); activation is None or "relu"."""
        maps = _as_maps(self, x)
        if self.border != ((0, 0), (0, 0)):
            maps = self._bordered(maps)
        w: Tensor = self.weight     # which may be computed each time that it is read
        w = w.reshape(w.shape[0], 1, *w.shape[1:])
        return _as_lines(ops.conv2d_bias_act(maps, w, self.bias, activation=activation, **self.geometry))

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        n, length, _ = x_shape
        whole = length + sum(self.border[1]) + 2 * self.padding[1] - self.dilation[1] * (self.kernel_size[1] - 1) - 1
        count = n * (whole // self.stride[1] + 1) * self.weight.numel()
        return count, count


class ConvTranspose1d(ConvTranspose2d):
    """Transposed convolution along one axis: the gradient of a Conv1d used forward.

    Args: as ConvTranspose2d, ints for kernel_size, stride, padding, output_padding and dilation.
    Shape: x (N, L, in_channels) -> y (N, OL, out_channels).
    Parameters: weight (in_channels, F, out_channels / groups); bias (out_channels,). They start as ConvTranspose2d's.
    """

    torch_space = 1

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: Channels, stride: Channels = 1,
                 padding: Size = 0, output_padding: Size = 0, groups: Channels = 1, bias: bool = True,
                 dilation: Channels = 1) -> None:
        super().__init__(in_channels, out_channels, (1, kernel_size), (1, stride), (0, padding), (0, output_padding),
                         groups, bias, (1, dilation))
        w = self.weight.detach()
        self.weight = Parameter(w.reshape(w.shape[0], *w.shape[2:]))

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv_transpose1d(to_storage_dtype(x), self.weight, self.bias, self.stride[1], self.padding[1],
                                    self.output_padding[1], self.groups, self.dilation[1])

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        count = x_shape[0] * x_shape[1] * self.weight.numel()
        return count, count


class MaxPool1d(MaxPool2d):
    """Largest element of each window along one axis.

    Args: as MaxPool2d, with ints.
    Shape: x (N, L, C) -> y (N, OL, C), and with return_indices the positions of y in L.
    """

    @checked
    def __init__(self, kernel_size: Channels, stride: Channels | None = None, padding: Size = 0,
                 dilation: Channels = 1, return_indices: bool = False, ceil_mode: bool = False) -> None:
        super().__init__((1, kernel_size), None if stride is None else (1, stride), (0, padding), (1, dilation),
                         return_indices, ceil_mode)

    def forward(self, x: Tensor) -> Any:
        y = super().forward(_as_maps(self, x))
        return tuple(map(_as_lines, y)) if self.return_indices else _as_lines(y)


class AvgPool1d(AvgPool2d):
    """Mean of each window along one axis.

    Args: as AvgPool2d, with ints.
    Shape: x (N, L, C) -> y (N, OL, C).
    """

    @checked
    def __init__(self, kernel_size: Channels, stride: Channels | None = None, padding: Size = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True) -> None:
        super().__init__((1, kernel_size), None if stride is None else (1, stride), (0, padding), ceil_mode,
                         count_include_pad)

    def forward(self, x: Tensor) -> Tensor:
        return _as_lines(super().forward(_as_maps(self, x)))


class AdaptiveAvgPool1d(Module):
    """Mean of output_size windows that cover the line evenly.  Shape: x (N, L, C) -> y (N, output_size, C)."""

    @checked
    def __init__(self, output_size: Channels) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return _as_lines(ops.adaptive_avg_pool2d(_as_maps(self, x), (1, self.output_size)))

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(AdaptiveAvgPool1d):
    """Largest element of output_size windows that cover the line evenly.  Shape: as AdaptiveAvgPool1d."""

    def forward(self, x: Tensor) -> Tensor:
        return _as_lines(ops.adaptive_max_pool2d(_as_maps(self, x), (1, self.output_size)))
