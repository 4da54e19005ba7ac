"""Pools of volumes; the equations stand at ops.max_pool3d and ops.avg_pool3d."""

from __future__ import annotations

from typing import Any

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count
from alpha.core.tensor import Tensor
from alpha.nn.module import Module
from alpha.nn.volumes.conv import three
from alpha.ops.volumes import Padding3, Triple


class _Pool3d(Module):
    kernel_size: tuple[int, int, int]

    def _set_window(self, kernel_size: Any, stride: Any, padding: Any) -> None:
        self.kernel_size, self.padding = three(kernel_size), three(padding)
        self.stride = self.kernel_size if stride is None else three(stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool3d(_Pool3d):
    """Largest element of each window of volumes.

    Args:
        kernel_size: int, or (depth, height, width).
        stride: likewise; default kernel_size.
        padding: likewise; at most half of kernel_size. Padding never wins.
        dilation: likewise; between the elements of a window.
        return_indices: whether a call returns (y, index).
        ceil_mode: whether a window that begins in the volume and ends behind it counts.
    Shape: x (N, D, H, W, C) -> y (N, OD, OH, OW, C): see alpha.ops.max_pool3d.
    """

    @checked
    def __init__(self, kernel_size: Triple, stride: Triple | None = None, padding: Padding3 = 0, dilation: Triple = 1,
                 return_indices: bool = False, ceil_mode: bool = False) -> None:
        self._set_window(kernel_size, stride, padding)
        self.dilation, self.return_indices, self.ceil_mode = three(dilation), return_indices, ceil_mode

    def forward(self, x: Tensor) -> Any:
        return ops.max_pool3d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                              self.return_indices)


class AvgPool3d(_Pool3d):
    """Mean of each window of volumes.

    Args:
        kernel_size, stride, padding, ceil_mode: see MaxPool3d.
        count_include_pad: whether padding counts as zeros in the mean.
        divisor_override: divisor of sums; None: the number of elements.
    Shape: as MaxPool3d.
    """

    @checked
    def __init__(self, kernel_size: Triple, stride: Triple | None = None, padding: Padding3 = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Count | None = None
                 ) -> None:
        self._set_window(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return ops.avg_pool3d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
                              self.divisor_override)


class AdaptiveAvgPool3d(Module):
    """Mean of output_size windows that cover volumes evenly: int, or (OD, OH, OW).

    Shape: x (N, D, H, W, C) -> y (N, OD, OH, OW, C).
    """

    @checked
    def __init__(self, output_size: Triple) -> None:
        self.output_size = three(output_size)

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_avg_pool3d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool3d(AdaptiveAvgPool3d):
    """Largest element of output_size windows that cover volumes evenly.  Args and shape: as AdaptiveAvgPool3d."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_max_pool3d(x, self.output_size)
