"""Pooling layers; the equations stand at the ops of the same names (alpha.ops.pool)."""

from __future__ import annotations

from typing import Any

from alpha import ops
from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Padding, Pair
from alpha.core.tensor import Tensor
from alpha.nn.module import Module
from alpha.ops.conv import as_pair
from alpha.ops.pool.windows import unpooled_size


class MaxPool2d(Module):
    """Largest element of each window.

    Args:
        kernel_size: int, or pair (height, width).
        stride: int, or pair; default kernel_size.
        padding: int, or pair; at most half of kernel_size. Padding never wins.
        dilation: int, or pair; pixels between the elements of a window, more than 1 costs memory.
        return_indices: whether a call returns (y, index), for alpha.ops.max_unpool2d.
        ceil_mode: whether a window that begins in the map and ends behind it counts.
    Shape: x (N, IH, IW, C) -> y (N, OH, OW, C), OH = floor((IH + 2*padding - kernel_size) / stride) + 1.
    """

    dilation: tuple[int, int] = (1, 1)
    return_indices = ceil_mode = False

    @checked
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0, dilation: Pair = 1,
                 return_indices: bool = False, ceil_mode: bool = False) -> None:
        self._set_window(kernel_size, stride, padding)
        self.dilation, self.return_indices, self.ceil_mode = as_pair(dilation), return_indices, ceil_mode

    def _set_window(self, kernel_size: Pair, stride: Pair | None, padding: Padding) -> None:
        self.kernel_size, self.padding = as_pair(kernel_size), as_pair(padding)
        self.stride = self.kernel_size if stride is None else as_pair(stride)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size)):
            raise ShapeError(message(type(self).__name__, f"padding {self.padding} exceeds half of kernel_size "
                                     f"{self.kernel_size}", "use less padding, or a larger kernel_size"))

    @property
    def is_plain(self) -> bool:
        """Whether ops.max_pool2d computes it."""
        return self.dilation == (1, 1) and not self.return_indices and not self.ceil_mode

    def forward(self, x: Tensor) -> Any:
        if self.is_plain:
            return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding)
        pooled = ops.max_pool_windows(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return pooled if self.return_indices else pooled[0]

    def extra_repr(self) -> str:
        text = f"kernel_size={self.kernel_size}, stride={self.stride}"
        for name, default in (("padding", (0, 0)), ("dilation", (1, 1)), ("ceil_mode", False)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class MaxUnpool2d(Module):
    """Puts elements back where their maxima came from; all else is 0.  See alpha.ops.max_unpool2d.

    Args:
        kernel_size, stride, padding: as of the MaxPool2d(..., return_indices=True) that made values and index.
    Shape: values and index (N, OH, OW, C) -> y (N, IH, IW, C), with IH, IW the smallest that pool so, or output_size.
    """

    @checked
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0) -> None:
        self.kernel_size, self.padding = as_pair(kernel_size), as_pair(padding)
        self.stride = self.kernel_size if stride is None else as_pair(stride)

    @checked
    def forward(self, x: Tensor, index: Tensor, output_size: Pair | None = None) -> Tensor:
        hw = output_size or unpooled_size(x.shape[1:3], self.kernel_size, self.stride, self.padding)
        return ops.max_unpool2d(x, index, output_hw=hw)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}"


class AvgPool2d(MaxPool2d):
    """Mean of each window.

    Args:
        kernel_size, stride, padding: see MaxPool2d.
        ceil_mode: whether a window that begins in the map and ends behind it counts.
        count_include_pad: whether padding counts as zeros in the mean.
        divisor_override: divisor of sums; None: the number of elements.
    Shape: as MaxPool2d.
    """

    @checked
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Padding = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Count | None = None
                 ) -> None:
        self._set_window(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        if not self.ceil_mode and self.divisor_override is None:
            return ops.avg_pool2d(x, self.kernel_size, self.stride, self.padding,
                                  count_include_pad=self.count_include_pad)
        return ops.avg_pool_windows(x, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                                    self.count_include_pad, self.divisor_override)


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
