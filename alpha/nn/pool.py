"""Pooling layers; the equations stand at the ops of the same names (alpha.ops.pool)."""

from __future__ import annotations

from alpha import ops
from alpha.nn.module import Module
from alpha.ops.conv import pair
from alpha.ops.conv_desc import Pair
from alpha.tensor import Tensor


class MaxPool2d(Module):
    """Largest element of each window.

    Args:
        kernel_size: int, or pair (height, width).
        stride: int, or pair; default kernel_size.
        padding: int, or pair; at most half of kernel_size. Padding never wins.
    Shape: x (N, IH, IW, C) -> y (N, OH, OW, C), OH = floor((IH + 2*padding - kernel_size) / stride) + 1.
    """

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0) -> None:
        where = type(self).__name__
        self.kernel_size = pair(kernel_size, "kernel_size", where)
        self.stride = self.kernel_size if stride is None else pair(stride, "stride", where)
        self.padding = pair(padding, "padding", where)

    def forward(self, x: Tensor) -> Tensor:
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}" + (
            f", padding={self.padding}" if self.padding != (0, 0) else "")


class AvgPool2d(MaxPool2d):
    """Mean of each window.

    Args:
        kernel_size, stride, padding: see MaxPool2d.
        count_include_pad: whether padding counts as zeros in the mean.
    Shape: as MaxPool2d.
    """

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
                 count_include_pad: bool = True) -> None:
        super().__init__(kernel_size, stride, padding)
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return ops.avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.count_include_pad)


class AdaptiveAvgPool2d(Module):
    """Mean of output_size windows that cover the map evenly.

    Args:
        output_size: int, or pair (OH, OW).
    Shape: x (N, IH, IW, C) -> y (N, OH, OW, C).
    """

    def __init__(self, output_size: int | Pair) -> None:
        self.output_size = pair(output_size, "output_size", type(self).__name__)

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """Largest element of output_size windows that cover the map evenly.  Args and shape: as AdaptiveAvgPool2d."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_max_pool2d(x, self.output_size)
