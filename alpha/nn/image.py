"""Layers over maps that have no parameters, and the table of an embedding; the equations stand at the ops."""

from __future__ import annotations

from typing import Any

from alpha import ops
from alpha.core.errors import ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Channels, Count, Finite, Number, Padding, Pair, ResizeMode, Scales, Sides
from alpha.core.tensor import Tensor
from alpha.nn import init
from alpha.nn.module import Module, Parameter
from alpha.ops.conv import as_pair


class Upsample(Module):
    """Maps in another size: see alpha.ops.interpolate.

    Args:
        size: (OH, OW), or an int for all axes; or
        scale_factor: number or numbers above 0.
        mode: "nearest", "nearest-exact", "bilinear", "bicubic" or "area".
        align_corners: whether the outermost pixels of x and y lie on each other.
    Shape: x (N, H, W, C) -> y (N, OH, OW, C).
    """

    @checked
    def __init__(self, size: Pair | None = None, scale_factor: Scales = None, mode: ResizeMode = "nearest",
                 align_corners: bool | None = None) -> None:
        if (size is None) == (scale_factor is None):
            raise ShapeError(message("Upsample", f"size is {shown(size)}, scale_factor {shown(scale_factor)}",
                                     "pass one of the two"))
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return ops.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)

    def extra_repr(self) -> str:
        to = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"{to}, mode={self.mode!r}"


class PixelShuffle(Module):
    """Channels become pixels.  Shape: x (N, H, W, C * r^2) -> y (N, H * r, W * r, C), r = upscale_factor."""

    @checked
    def __init__(self, upscale_factor: Channels) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return ops.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels become channels.  Shape: x (N, H * r, W * r, C) -> y (N, H, W, C * r^2), r = downscale_factor."""

    @checked
    def __init__(self, downscale_factor: Channels) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return ops.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of groups in turn.  Shape: x (..., C) -> y of the same shape; groups divides C."""

    @checked
    def __init__(self, groups: Channels) -> None:
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return ops.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class LocalResponseNorm(Module):
    """y = x / (k + alpha / size * sum of x^2 over `size` neighbouring channels)^beta.  Shape: (..., C), as it is."""

    @checked
    def __init__(self, size: Channels, alpha: Finite = 1e-4, beta: Finite = 0.75, k: Finite = 1.0) -> None:
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return ops.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class ReflectionPad2d(Module):
    """A border that mirrors the map, without its edge.

    Args:
        padding: int for all sides, or (left, right, top, bottom).
    Shape: x (N, H, W, C) -> y (N, H + top + bottom, W + left + right, C).
    """

    mode = "reflect"
    value: float = 0

    @checked
    def __init__(self, padding: Sides) -> None:
        self._set_padding(padding)

    def _set_padding(self, padding: Any) -> None:
        self.padding = padding if isinstance(padding, tuple) else (padding,) * 4

    def forward(self, x: Tensor) -> Tensor:
        return ops.pad(x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ReplicationPad2d(ReflectionPad2d):
    """A border of the edge again.  Args and shape: as ReflectionPad2d."""

    mode = "replicate"


class CircularPad2d(ReflectionPad2d):
    """A border of the far side of the map.  Args and shape: as ReflectionPad2d."""

    mode = "circular"


class ConstantPad2d(ReflectionPad2d):
    """A border of one value.  Args: padding, shape: as ReflectionPad2d; value: a number."""

    mode = "constant"

    @checked
    def __init__(self, padding: Sides, value: Number) -> None:
        self._set_padding(padding)
        self.value = value


class ZeroPad2d(ReflectionPad2d):
    """A border of zeros.  Args and shape: as ReflectionPad2d; Conv2d(padding=...) does not store them."""

    mode = "constant"


class Unfold(Module):
    """Windows of a map as rows.

    Args:
        kernel_size, dilation, padding, stride: int, or pair (height, width).
    Shape: x (N, H, W, C) -> y (N, OH * OW, FH * FW * C): see alpha.ops.unfold.
    """

    @checked
    def __init__(self, kernel_size: Pair, dilation: Pair = 1, padding: Padding = 0, stride: Pair = 1) -> None:
        self.window = (as_pair(kernel_size), as_pair(dilation), as_pair(padding), as_pair(stride))

    def forward(self, x: Tensor) -> Tensor:
        return ops.unfold(x, *self.window)

    def extra_repr(self) -> str:
        return ", ".join([f"{name}={n}" for name, n in zip(("kernel_size", "dilation", "padding", "stride"),
                                                           self.window)])


class Fold(Unfold):
    """Rows as sums of windows: the gradient of Unfold.

    Args:
        output_size: (H, W) of y, or an int for both.
        kernel_size, dilation, padding, stride: see Unfold.
    Shape: x (N, OH * OW, FH * FW * C) -> y (N, H, W, C): see alpha.ops.fold.
    """

    @checked
    def __init__(self, output_size: Pair, kernel_size: Pair, dilation: Pair = 1, padding: Padding = 0, stride: Pair = 1
                 ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = as_pair(output_size)

    def forward(self, x: Tensor) -> Tensor:
        return ops.fold(x, self.output_size, *self.window)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class Embedding(Module):
    """y = weight[index]: a table of vectors, one for each number.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: numbers in a row.
        padding_idx: a row that starts as 0 and stays as it is; None: there is none.
    Shape: index (...), int32 or int64 -> y (..., embedding_dim).
    Parameters: weight (num_embeddings, embedding_dim), which starts as N(0, 1).
    """

    @checked
    def __init__(self, num_embeddings: Count, embedding_dim: Count, padding_idx: int | None = None) -> None:
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ShapeError(message("Embedding", f"padding_idx is {padding_idx}, there are {num_embeddings} rows",
                                     f"choose one from {-num_embeddings} to {num_embeddings - 1}"))
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        start = init.normal_(ops.zeros((num_embeddings, embedding_dim)))
        if padding_idx is not None:
            start[padding_idx] = 0
        self.weight = Parameter(start)

    def forward(self, index: Tensor) -> Tensor:
        return ops.embedding(index, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
