"""Convolution layers of volumes; the equations stand at ops.conv3d and ops.conv_transpose3d."""

from __future__ import annotations

import math
from typing import Annotated, Any

from alpha import ops
from alpha.core.errors import ConfigError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import BorderMode, Channels, Choice, Either
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.nn import init
from alpha.nn.module import Module, Parameter
from alpha.ops.volumes import Padding3, Triple, Triple_

VolumePadding = Annotated[Any, Either([Triple_(0), Choice("same", "valid")],
                                      'pass {name}=1, {name}=(0, 1, 1) or {name}="same"')]
Sizes = tuple[int, int, int]


def three(value: Any) -> Sizes:
    """Returns an int for each axis."""
    found: Sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,) * 3  # type: ignore[assignment]
    return found


class _Volumes(Module):
    """Base of both convolutions: settings, and PyTorch's default initialisation."""

    torch_channels_first, torch_space = ("weight",), 3

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, dilation: Any, groups: int,
                 bias: bool, transposed: bool) -> None:
        if in_channels % groups or out_channels % groups:
            raise ShapeError(message(type(self).__name__, f"groups={groups} does not divide the channels {in_channels} "
                                     f"and {out_channels}", "choose a number of groups that divides both"))
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = three(kernel_size), three(stride), three(dilation)
        first, last = (in_channels, out_channels) if transposed else (out_channels, in_channels)
        shape = (first, *self.kernel_size, last // groups)
        self.weight = init.kaiming_uniform_(Parameter(ops.zeros(shape)), a=math.sqrt(5.0))
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        self.bias = init.uniform_(Parameter(ops.zeros((out_channels,))), -bound, bound) if bias else None

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        for name, default in (("padding", (0, 0, 0)), ("padding_mode", "zeros"), ("output_padding", (0, 0, 0)),
                              ("dilation", (1, 1, 1)), ("groups", 1)):
            if getattr(self, name, default) != default:
                text += f", {name}={getattr(self, name)!r}"
        return text + (", bias=False" if self.bias is None else "")


class Conv3d(_Volumes):
    """Convolution of volumes: y = conv3d(x, weight) + bias.

    Args:
        in_channels, out_channels: channels of x and y.
        kernel_size, stride, padding, dilation: int, or (depth, height, width). padding may be "same", with stride 1, or
            "valid": none.
        groups: number of channel groups; it divides both channel counts.
        bias: whether there is one.
        padding_mode: "zeros", of which layers are skipped; "reflect", "replicate" or "circular": see ops.pad.
    Shape: x (N, D, H, W, in_channels) -> y (N, OD, OH, OW, out_channels); see alpha.ops.conv3d.
    Parameters: weight (out_channels, FD, FH, FW, in_channels / groups); bias (out_channels,). Both start as U[-b, b),
        b = 1 / sqrt(fan_in), as in PyTorch.
    Raises:
        ShapeError: a setting is out of range, or groups does not divide the channels.
        ConfigError: padding="same" with a stride, or a padding_mode without padding.
    """

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: Triple, stride: Triple = 1,
                 padding: VolumePadding = 0, dilation: Triple = 1, groups: Channels = 1, bias: bool = True,
                 padding_mode: BorderMode = "zeros") -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, dilation, groups, bias, False)
        if padding == "same" and self.stride != (1, 1, 1):
            raise ConfigError(message("Conv3d", f'padding="same" with stride {self.stride}: y would be smaller',
                                      "pass padding=kernel_size // 2, or stride=1"))
        total = [d * (k - 1) if padding == "same" else 0 for k, d in zip(self.kernel_size, self.dilation)]
        near = [t // 2 for t in total] if isinstance(padding, str) else list(three(padding))
        self.border = tuple([(0, t % 2) for t in total])    # the part that "same" has more behind: stored
        self.padding, self.padding_mode = three(near), padding_mode
        if padding_mode != "zeros":
            self.border = tuple([(n, n + extra) for n, (_, extra) in zip(near, self.border)])
            self.padding = (0, 0, 0)
            if not any(map(sum, self.border)) and self.kernel_size != (1, 1, 1):
                raise ConfigError(message("Conv3d", f"padding_mode={padding_mode!r} has no effect with "
                                          f"padding={padding!r}", 'pass padding=1, say, or padding="same"'))

    def forward(self, x: Tensor) -> Tensor:
        x = to_storage_dtype(x)
        if any(map(sum, self.border)):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x = ops.pad(x, ((0, 0), *self.border, (0, 0)), mode=mode)
        return ops.conv3d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        count = x_shape[0] * self.weight.numel()
        for n, b, p, k, d, s in zip(x_shape[1:4], self.border, self.padding, self.kernel_size, self.dilation,
                                    self.stride):
            count *= (n + sum(b) + 2 * p - d * (k - 1) - 1) // s + 1
        return count, count


class ConvTranspose3d(_Volumes):
    """Transposed convolution of volumes: y = conv_transpose3d(x, weight) + bias.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: see Conv3d.
        output_padding: int, or (depth, height, width); added to the far ends of y, below the stride or the dilation.
    Shape: x (N, D, H, W, in_channels) -> y (N, OD, OH, OW, out_channels); see alpha.ops.conv_transpose3d.
    Parameters: weight (in_channels, FD, FH, FW, out_channels / groups); bias (out_channels,).
    Raises:
        ShapeError: a setting is out of range, or groups does not divide the channels.
    """

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: Triple, stride: Triple = 1,
                 padding: Padding3 = 0, output_padding: Padding3 = 0, groups: Channels = 1, bias: bool = True,
                 dilation: Triple = 1) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, dilation, groups, bias, True)
        self.padding, self.output_padding = three(padding), three(output_padding)
        if any(e >= max(s, d) for e, s, d in zip(self.output_padding, self.stride, self.dilation)):
            raise ShapeError(message("ConvTranspose3d", f"output_padding {self.output_padding} is below neither stride "
                                     f"{self.stride} nor dilation {self.dilation}", "choose a smaller output_padding"))

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv_transpose3d(to_storage_dtype(x), self.weight, self.bias, self.stride, self.padding,
                                    self.output_padding, self.groups, self.dilation)

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        count = math.prod(x_shape[:4]) * self.weight.numel()
        return count, count
