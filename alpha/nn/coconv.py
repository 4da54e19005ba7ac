"""The contextual convolution layer: parameters, and calls of the ops in alpha.ops.coconv."""

from __future__ import annotations

import math
from typing import Any

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Channels, LevelChannels, Levels
from alpha.core.inputs.kinds import Pair as IntOrPair
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.fuse.follow import later
from alpha.nn import init
from alpha.nn.module import Module, Parameter
from alpha.ops.coconv_desc import CoConvDesc, check_kernel, level_channels
from alpha.ops.conv import as_pair


class CoConv2d(Module):
    """Contextual convolution: y = coconv2d(x, weight) + bias, levels of output channels with a dilation each.

    It has as many parameters and makes as many products as a Conv2d of the same kernel, and the map keeps its size.
    Args:
        in_channels, out_channels: channels of x and y.
        kernel_size: int, or pair (height, width); odd.
        stride: int, or pair (height, width).
        dilations: one int for each level.
        channels: output channels of each level, in sum out_channels; None: the usual split, see alpha.ops.coconv2d.
        groups: number of channel groups; it divides in_channels and the channels of every level.
        bias: whether there is one.
    Shape: x (N, IH, IW, in_channels) -> y (N, OH, OW, out_channels), NHWC, OH = floor((IH - 1) / stride) + 1.
    Parameters: weight (out_channels, FH, FW, in_channels / groups), OHWI, rows ordered by level; bias (out_channels,).
        Both start as in Conv2d.
    Raises:
        ShapeError: a setting is out of range, channels do not add up to out_channels, or groups does not divide them.
    Source: Duta et al., arXiv 2108.07387.
    """

    torch_channels_first = ("weight",)

    @checked
    def __init__(self, in_channels: Channels, out_channels: Channels, kernel_size: IntOrPair = 3, stride: IntOrPair = 1,
                 dilations: Levels = (1, 2, 3, 4), channels: LevelChannels = None, groups: Channels = 1,
                 bias: bool = False) -> None:
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = as_pair(kernel_size), as_pair(stride)
        check_kernel("CoConv2d", self.kernel_size)
        self.dilations = tuple(dilations)
        self.channels = level_channels("CoConv2d", out_channels, dilations, channels, groups)
        weight_shape = (out_channels, *self.kernel_size, in_channels // groups)
        CoConvDesc.fprop((1, 1, 1, in_channels), weight_shape, **self.geometry)
        self.weight = init.kaiming_uniform_(Parameter(ops.zeros(weight_shape)), a=math.sqrt(5.0))
        bound = 1.0 / math.sqrt(init.fans(weight_shape)[0])
        self.bias = init.uniform_(Parameter(ops.zeros((out_channels,))), -bound, bound) if bias else None

    @property
    def geometry(self) -> dict[str, Any]:
        """The attributes of the ops: dilations, channels, stride, groups."""
        return dict(dilations=self.dilations, channels=self.channels, stride=self.stride, groups=self.groups)

    def forward(self, x: Tensor, activation: str | None = None, for_norm: bool = False) -> Tensor:
        """Returns activation(coconv2d(x, weight) + bias); activation is None or "relu".  for_norm: see Conv2d."""
        x = to_storage_dtype(x)
        if self.bias is None and activation is None:
            return later(ops.coconv2d, x, self.weight, for_norm=for_norm, **self.geometry)
        return later(ops.coconv2d_bias_act, x, self.weight, self.bias, activation=activation, for_norm=for_norm,
                     **self.geometry)

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        desc = CoConvDesc.fprop(x_shape, self.weight.shape, **self.geometry)
        return desc.nominal_flops // 2, desc.useful_flops // 2

    def extra_repr(self) -> str:
        text = (f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
                f"dilations={self.dilations}, channels={self.channels}")
        return text + f", groups={self.groups}" * (self.groups > 1) + ", bias=True" * (self.bias is not None)
