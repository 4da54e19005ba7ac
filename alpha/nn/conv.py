"""Convolution layers: parameters, and calls of the ops in alpha.ops.conv."""

from __future__ import annotations

import math
from typing import Any

from alpha import ops
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import BorderMode, Channels, ConvPadding, Padding
from alpha.core.inputs.kinds import Pair as IntOrPair
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.fuse.follow import later
from alpha.nn import init
from alpha.nn.module import Module, Parameter
from alpha.ops.algorithms.names import ConvAlgorithm
from alpha.ops.conv import as_pair, check_output_padding, named_padding
from alpha.ops.conv_desc import Axis, ConvDesc

_NO_BORDER: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))


class _Conv(Module):
    """What convolution and transposed convolution share: settings, and PyTorch's default initialisation.

    `wide` and `narrow` are the channels of the larger and of the smaller map: those of x and y for a convolution, of y
    and x for a transposed one. The weight is (narrow, FH, FW, wide / groups).
    """

    torch_channels_first = ("weight",)
    in_channels: int
    out_channels: int
    padding_mode: str

    def __init__(self, wide: int, narrow: int, kernel_size: IntOrPair, stride: IntOrPair, padding: IntOrPair,
                 dilation: IntOrPair, groups: int, bias: bool, algorithm: str | None) -> None:
        self.groups, self.algorithm = groups, algorithm
        self.kernel_size, self.stride = as_pair(kernel_size), as_pair(stride)
        self.padding, self.dilation = as_pair(padding), as_pair(dilation)
        weight_shape = (narrow, *self.kernel_size, wide // groups)
        # The smallest map that the filter fits into: settings that are wrong are refused here, not in the first call.
        smallest = [max(Axis.transposed_size(1, f, 1, 0, d), 1) for f, d in zip(self.kernel_size, self.dilation)]
        ConvDesc.fprop((1, *smallest, wide), weight_shape, **self.geometry)
        self.weight = init.kaiming_uniform_(Parameter(ops.zeros(weight_shape)), a=math.sqrt(5.0))
        bound = 1.0 / math.sqrt(init.fans(weight_shape)[0])
        self.bias = init.uniform_(Parameter(ops.zeros((self.out_channels,))), -bound, bound) if bias else None

    @property
    def geometry(self) -> dict[str, Any]:
        """The attributes of the convolution ops: stride, padding, dilation, groups."""
        return dict(stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        for name, default in (("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1), ("algorithm", None)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)!r}"
        if getattr(self, "padding_mode", "zeros") != "zeros":
            text += f", padding_mode={self.padding_mode!r}"
        return text + (", bias=False" if self.bias is None else "")


class Conv2d(_Conv):
    """Convolution: y = conv2d(x, weight) + bias.

    Args:
        in_channels, out_channels: channels of x and y.
        kernel_size, stride, padding, dilation: int, or pair (height, width); in pixels. padding may be "same", with
            stride 1: y has the size of x; or "valid": none.
        groups: number of channel groups; it divides both channel counts. groups=in_channels is depthwise.
        bias: whether there is one.
        algorithm: see alpha.ops.conv2d; gradients take it as a preference.
        padding_mode: "zeros", which are skipped; "reflect", "replicate" or "circular", which are stored: see ops.pad.
    Shape: x (N, IH, IW, in_channels) -> y (N, OH, OW, out_channels), NHWC; see alpha.ops.conv2d for OH and OW.
    Parameters: weight (out_channels, FH, FW, in_channels / groups), OHWI; bias (out_channels,). Both start as
        U[-b, b), b = 1 / sqrt(fan_in), fan_in = FH * FW * in_channels / groups, as in PyTorch.
    Raises:
        ShapeError: a setting is out of range, or groups does not divide the channels.
        ConfigError: the algorithm is unknown; or, when the layer is called, does not serve it.
    """

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: IntOrPair, stride: IntOrPair = 1,
                 padding: ConvPadding = 0, dilation: IntOrPair = 1, groups: Channels = 1, bias: bool = True,
                 padding_mode: BorderMode = "zeros", *, algorithm: ConvAlgorithm = None) -> None:
        self.in_channels, self.out_channels = in_channels, out_channels
        self.padding_mode, self.border = padding_mode, _NO_BORDER
        if padding_mode != "zeros" and padding in (0, (0, 0), "valid") and as_pair(kernel_size) != (1, 1):
            raise ConfigError(message(type(self).__name__, f"padding_mode={padding_mode!r} has no effect with "
                                      f"padding={padding!r}", 'pass padding=1, say, or padding="same"'))
        if isinstance(padding, str):
            sides = named_padding(type(self).__name__, padding, as_pair(kernel_size), as_pair(stride),
                                  as_pair(dilation))
            if padding_mode != "zeros":
                self.border, padding = sides, 0
            else:
                padding = sides[0][0], sides[1][0]
                self.border = tuple([(0, far - near) for near, far in sides])
        elif padding_mode != "zeros":
            self.border, padding = tuple([(p, p) for p in as_pair(padding)]), 0
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, algorithm)

    def _bordered(self, x: Tensor) -> Tensor:
        """Returns the map with what is stored of its border."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return ops.pad(x, ((0, 0), *self.border, (0, 0)), mode=mode)

    def forward(self, x: Tensor, activation: str | None = None, for_norm: bool = False) -> Tensor:
        """Returns activation(conv2d(x, weight) + bias).

        Args:
            activation: None or "relu".
            for_norm: whether a batch norm in training reads the result, `bn(conv(x, for_norm=self.training))`: then a
                GPU counts while it stores what that would read the map for.  Sequential says so by itself.
        """
        x = to_storage_dtype(x)
        if self.border != _NO_BORDER:
            x = self._bordered(x)
        if self.bias is None and activation is None:
            return later(ops.conv2d, x, self.weight, algorithm=self.algorithm, for_norm=for_norm, **self.geometry)
        return later(ops.conv2d_bias_act, x, self.weight, self.bias, activation=activation, for_norm=for_norm,
                     algorithm=self.algorithm, **self.geometry)

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        n, h, w, c = x_shape
        (top, bottom), (left, right) = self.border
        desc = ConvDesc.fprop((n, h + top + bottom, w + left + right, c), self.weight.shape, **self.geometry)
        return desc.nominal_flops // 2, desc.useful_flops // 2


class ConvTranspose2d(_Conv):
    """Transposed convolution: y = conv_transpose2d(x, weight) + bias, the gradient of a Conv2d used forward.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, algorithm: see
            Conv2d.
        output_padding: int, or pair; rows and columns added to the far end of y, fewer than the stride or the dilation.
    Shape: x (N, IH, IW, in_channels) -> y (N, OH, OW, out_channels), NHWC,
        OH = (IH - 1) * stride - 2 * padding + dilation * (FH - 1) + 1 + output_padding.
    Parameters: weight (in_channels, FH, FW, out_channels / groups); bias (out_channels,). Both start as U[-b, b),
        b = 1 / sqrt(FH * FW * out_channels / groups), as in PyTorch.
    Raises:
        ShapeError: a setting is out of range, or groups does not divide the channels.
    """

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: IntOrPair, stride: IntOrPair = 1,
                 padding: Padding = 0, output_padding: Padding = 0, groups: Channels = 1, bias: bool = True,
                 dilation: IntOrPair = 1, *, algorithm: ConvAlgorithm = None) -> None:
        self.in_channels, self.out_channels = in_channels, out_channels
        super().__init__(out_channels, in_channels, kernel_size, stride, padding, dilation, groups, bias, algorithm)
        self.output_padding = as_pair(output_padding)
        check_output_padding("ConvTranspose2d", self.output_padding, self.stride, self.dilation)

    def forward(self, x: Tensor) -> Tensor:
        y = ops.conv_transpose2d(to_storage_dtype(x), self.weight, output_padding=self.output_padding,
                                 algorithm=self.algorithm, **self.geometry)
        if self.bias is None:
            return y
        return (y.astype(self.bias.dtype) + self.bias).astype(y.dtype)  # the bias's gradient is summed in its own dtype

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        sizes = [Axis.transposed_size(i, f, s, p, d) + min(extra, s - 1) for i, f, s, p, d, extra in zip(
            x_shape[1:3], self.kernel_size, self.stride, self.padding, self.dilation, self.output_padding)]
        desc = ConvDesc.dgrad(x_shape, self.weight.shape, (sizes[0], sizes[1]), **self.geometry)
        return desc.nominal_flops // 2, desc.useful_flops // 2
