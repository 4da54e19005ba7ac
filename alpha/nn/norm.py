"""Normalisation layers; the equations stand at the ops of the same names (alpha.ops.norm)."""

from __future__ import annotations

from math import prod

from alpha import ops
from alpha.core.errors import ConfigError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Positive, ShapeLike, Share
from alpha.core.tensor import Tensor
from alpha.fuse.follow import later
from alpha.nn.module import Module, Parameter
from alpha.ops.norm import norm_call


def _refuse_other_sizes(layer: Module, x: Tensor, *sizes: int) -> None:
    """Raises ShapeError for x that the layer was not made for: without a weight nobody else would notice."""
    if isinstance(x, Tensor) and x.shape[-len(sizes):] != sizes:
        raise ShapeError(message(type(layer).__name__, f"x has shape {x.shape}, the layer was made for x of shape "
                                 f"(..., {', '.join(map(str, sizes))})", "make it for the channels of x, which are "
                                 "last: (N, H, W, C)"))


class BatchNorm2d(Module):
    """Batch normalisation over all axes but the last, with what often follows it in the same pass over memory.

        y = activation((x - mean) / sqrt(var + eps) * weight + bias + residual)

    In training mean and var are those of the batch, and running_mean and running_var move towards them; in inference
    they are the running ones.
    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: weight of the batch in the running statistics: running = (1 - momentum) * running + momentum * batch;
            None: they are the mean of all batches so far, which the buffer num_batches_tracked counts. The host reads
            the count, so a GPU is waited for.
        affine: whether there are weight and bias.
        track_running_stats: False: the statistics are those of the batch in inference, too.
    Shape: x (N, H, W, C) -> y of the same shape.
    Parameters: weight (C,), starts as 1; bias (C,), starts as 0.
    Buffers: running_mean (C,), starts as 0; running_var (C,), unbiased, starts as 1.
    Raises:
        ConfigError: a setting is out of range.
    Source: Ioffe and Szegedy, arXiv 1502.03167.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor

    @checked
    def __init__(self, num_features: Count, eps: Positive = 1e-5, momentum: Share | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = Parameter(ops.ones((num_features,))) if affine else None
        self.bias = Parameter(ops.zeros((num_features,))) if affine else None
        self.register_buffer("running_mean", ops.zeros((num_features,)) if track_running_stats else None)
        self.register_buffer("running_var", ops.ones((num_features,)) if track_running_stats else None)
        if momentum is None:
            self.register_buffer("num_batches_tracked", ops.zeros((), "int64"))

    def _weight_of_batch(self) -> float:
        """Returns the momentum of this call; of a mean of all batches, counts it."""
        if self.momentum is not None or self.running_mean is None or not self.training:
            return 0.1 if self.momentum is None else self.momentum
        count = int(self.num_batches_tracked.item()) + 1
        self.num_batches_tracked.fill_(count)
        return 1.0 / count

    def forward(self, x: Tensor, residual: Tensor | None = None, activation: str | None = None) -> Tensor:
        """Returns activation(norm(x) + residual); activation is None or "relu"."""
        if self.weight is None and self.running_mean is None:
            _refuse_other_sizes(self, x, self.num_features)
        op, args, attrs = norm_call(x, self.weight, self.bias, self.running_mean, self.running_var, residual,
                                    training=self.training or self.running_mean is None,
                                    momentum=self._weight_of_batch(), eps=self.eps, activation=activation)
        return later(op, *args, **attrs)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(BatchNorm2d):
    """BatchNorm2d by its other name: x (N, C), or (N, L, C), channels last."""


class BatchNorm3d(BatchNorm2d):
    """BatchNorm2d by its other name: x (N, D, H, W, C), channels last."""


class LayerNorm(Module):
    """Normalisation of each sample over its last axes.

    Args:
        normalized_shape: sizes of those axes; an int for one axis.
        eps: added to the variance.
        affine: whether there are weight and bias.
        bias: whether there is a bias, too.
    Shape: x (..., *normalized_shape) -> y of the same shape.
    Parameters: weight, bias of shape normalized_shape; they start as 1 and 0.
    Raises:
        ConfigError: a size is below 1, or eps is not above 0.
    Source: Ba, Kiros and Hinton, arXiv 1607.06450.
    """

    @checked
    def __init__(self, normalized_shape: ShapeLike, eps: Positive = 1e-5, affine: bool = True, bias: bool = True
                 ) -> None:
        self.eps = eps
        self._set_weight(normalized_shape, affine)
        self.bias = Parameter(ops.zeros(self.normalized_shape)) if affine and bias else None

    def _set_weight(self, normalized_shape: ShapeLike, affine: bool) -> None:
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if not all(self.normalized_shape) or not self.normalized_shape:
            raise ConfigError(message(type(self).__name__, f"normalized_shape={normalized_shape}: there must be at "
                                      "least one size, and each be at least 1", "pass the sizes of the last axes of x"))
        self.weight = Parameter(ops.ones(self.normalized_shape)) if affine else None
        if len(self.normalized_shape) == 3:     # a map: (H, W, C) here, (C, H, W) in PyTorch
            self.torch_channels_first = ("weight", "bias")

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            _refuse_other_sizes(self, x, *self.normalized_shape)
        return ops.layer_norm(x, self.weight, self.bias, normalized_ndim=len(self.normalized_shape), eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class LayerNorm2d(LayerNorm):
    """Normalisation of each pixel over its channels: LayerNorm of maps, by the name of networks with channels first.

    Args:
        num_channels: channels C.
        eps: added to the variance.
        affine: whether there are weight and bias.
    Shape: x (N, H, W, C) -> y of the same shape.
    Parameters: weight (C,), bias (C,); they start as 1 and 0.
    Raises:
        ShapeError: x is no batch of maps.
    """

    @checked
    def __init__(self, num_channels: Count, eps: Positive = 1e-6, affine: bool = True) -> None:
        super().__init__(num_channels, eps, affine)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ShapeError(message("LayerNorm2d", f"x has {x.ndim} axes, 4 are needed (N H W C)",
                                     "reshape x, or use LayerNorm", x=x.shape))
        return super().forward(x)


class RMSNorm(LayerNorm):
    """Each sample by the root of its mean square over the last axes.

    Args:
        normalized_shape: sizes of those axes; an int for one axis.
        eps: added to the mean; None: the distance of 1 to the next float32.
        affine: whether there is a weight.
    Shape: x (..., *normalized_shape) -> y of the same shape.
    Parameters: weight of shape normalized_shape; it starts as 1.
    Raises:
        ConfigError: a size is below 1, or eps is not above 0.
    Source: Zhang and Sennrich, arXiv 1910.07467.
    """

    @checked
    def __init__(self, normalized_shape: ShapeLike, eps: Positive | None = None, affine: bool = True) -> None:
        self.eps = eps      # type: ignore[assignment]
        self._set_weight(normalized_shape, affine)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            _refuse_other_sizes(self, x, *self.normalized_shape)
        return ops.rms_norm(x, self.weight, normalized_ndim=len(self.normalized_shape), eps=self.eps)


class GroupNorm(Module):
    """Normalisation of each sample over its pixels and a group of channels.

    Args:
        num_groups: number of groups; it divides num_channels.
        num_channels: channels C.
        eps: added to the variance.
        affine: whether there are weight and bias.
    Shape: x (N, H, W, C) -> y of the same shape.
    Parameters: weight (C,), bias (C,); they start as 1 and 0.
    Raises:
        ConfigError: num_groups does not divide num_channels, or a setting is out of range.
    Source: Wu and He, arXiv 1803.08494.
    """

    @checked
    def __init__(self, num_groups: Count, num_channels: Count, eps: Positive = 1e-5, affine: bool = True) -> None:
        if num_channels % num_groups:
            raise ConfigError(message("GroupNorm", f"num_groups={num_groups} does not divide "
                                      f"num_channels={num_channels}", "choose a number of groups that does"))
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = Parameter(ops.ones((num_channels,))) if affine else None
        self.bias = Parameter(ops.zeros((num_channels,))) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            _refuse_other_sizes(self, x, self.num_channels)
        return ops.group_norm(x, self.weight, self.bias, groups=self.num_groups, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class InstanceNorm2d(Module):
    """Normalisation of each channel of each sample over its pixels.

    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: 0.1: there are no running statistics, on which another value would act.
        affine: whether there are weight and bias.
    Shape: x (N, H, W, C) -> y of the same shape.
    Parameters: weight (C,), bias (C,); they start as 1 and 0.
    Raises:
        ConfigError: momentum is another one.
        ShapeError: x has other channels, or one pixel, of which nothing would be left.
    Source: Ulyanov et al., arXiv 1607.08022.
    """

    @checked
    def __init__(self, num_features: Count, eps: Positive = 1e-5, momentum: Share = 0.1, affine: bool = False) -> None:
        if momentum != 0.1:
            raise ConfigError(message(type(self).__name__, f"momentum={momentum} has no effect: the layer keeps no "
                                      "running statistics", "leave momentum out, or use BatchNorm2d"))
        self.num_features, self.eps = num_features, eps
        self.weight = Parameter(ops.ones((num_features,))) if affine else None
        self.bias = Parameter(ops.zeros((num_features,))) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            _refuse_other_sizes(self, x, self.num_features)
        if isinstance(x, Tensor) and x.ndim > 2 and prod(x.shape[1:-1]) == 1:
            raise ShapeError(message(type(self).__name__, f"x of shape {x.shape} has 1 pixel in a sample, so y would "
                                     "be 0",
                                     "pass maps (N, H, W, C) of at least 2 pixels"))
        return ops.group_norm(x, self.weight, self.bias, groups=self.num_features, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}" + ("" if self.weight is None else ", affine=True")


class InstanceNorm1d(InstanceNorm2d):
    """InstanceNorm2d by its other name: x (N, L, C), channels last."""


class InstanceNorm3d(InstanceNorm2d):
    """InstanceNorm2d by its other name: x (N, D, H, W, C), channels last."""
