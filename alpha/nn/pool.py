"""Pooling layers; the equations stand at the ops of the same names (alpha.ops.pool)."""

from __future__ import annotations

from alpha import ops
from alpha.errors import ShapeError, message
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Padding, Pair
from alpha.nn.module import Module
from alpha.ops.conv import as_pair
from alpha.tensor import Tensor


class MaxPool2d(Module):
    """Largest element of each window.

    Args:
        kernel_size: int, or pair (height, width).
        stride: int, or pair; default kernel_size.
        padding: int, or pair; at most half of kernel_size. Padding never wins.
    Shape: x (N, IH, IW, C) -> y (N, OH, OW, C), OH = floor((IH + 2*padding - kernel_size) / stride) + 1.
    """

    @checked
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0) -> None:
        self.kernel_size, self.padding = as_pair(kernel_size), as_pair(padding)
        self.stride = self.kernel_size if stride is None else as_pair(stride)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size)):
            raise ShapeError(message(type(self).__name__, f"padding {self.padding} exceeds half of kernel_size "
                                     f"{self.kernel_size}", "use less padding, or a larger kernel_size"))

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

    @checked
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0,
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

    @checked
    def __init__(self, output_size: Pair) -> None:
        self.output_size = as_pair(output_size)

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """Largest element of output_size windows that cover the map evenly.  Args and shape: as AdaptiveAvgPool2d."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_max_pool2d(x, self.output_size)
