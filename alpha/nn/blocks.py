"""Parts of blocks: squeeze and excitation, dropped paths, and a head whose classes keep a margin between them."""

from __future__ import annotations

import math
from typing import Annotated

from alpha import ops
from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Choice, Count, Positive, Real, Share
from alpha.core.tensor import Tensor
from alpha.nn import init
from alpha.nn.conv import Conv2d
from alpha.nn.functional import drop_path, normalize
from alpha.nn.module import Module, Parameter

SqueezeActivation = Annotated[str, Choice("relu", "silu", "gelu")]
Gate = Annotated[str, Choice("sigmoid", "hardsigmoid")]
Margin = Annotated[float, Real("a number in [0, pi)", lambda v: 0 <= v < math.pi)]


class SqueezeExcite(Module):
    """y = x * gate(fc2(activation(fc1(mean of x over its pixels)))): channels weighted by the whole map.

    Args:
        channels: of x and y.
        squeeze_channels: between the two layers; None: channels / 16, at least 1.
        activation: "relu", "silu" or "gelu".
        gate: "sigmoid" or "hardsigmoid".
    Shape: x (N, H, W, channels) -> y of the same shape.
    Parameters: fc1 and fc2, convolutions of one pixel with biases, as torchvision's SqueezeExcitation has them.
    Source: Hu et al., arXiv 1709.01507.
    """

    @checked
    def __init__(self, channels: Count, squeeze_channels: Count | None = None, activation: SqueezeActivation = "relu",
                 gate: Gate = "sigmoid") -> None:
        self.channels = channels
        self.squeeze_channels = max(1, channels // 16) if squeeze_channels is None else squeeze_channels
        self.activation, self.gate = activation, gate
        self.fc1 = Conv2d(channels, self.squeeze_channels, 1)
        self.fc2 = Conv2d(self.squeeze_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise ShapeError(message("SqueezeExcite", f"x has {x.ndim} axes, 4 are needed (N H W C)", "reshape x",
                                     x=x.shape))
        squeezed = self.fc1(ops.adaptive_avg_pool2d(x, 1))
        scale = self.fc2(getattr(ops, self.activation)(squeezed))
        return x * (ops.sigmoid(scale) if self.gate == "sigmoid" else ops.hardsigmoid(scale))

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.squeeze_channels}, activation={self.activation!r}, gate={self.gate!r}"


class DropPath(Module):
    """In training, whole samples are 0 with probability p: x + drop_path(block(x)) skips the block for them.

    Args:
        p: probability of a zero, in [0, 1].
        scale_by_keep: whether the samples that stay are divided by 1 - p.
    Shape: x (N, ...) -> y of the same shape; in inference y = x.
    Source: Huang et al., arXiv 1603.09382.
    """

    @checked
    def __init__(self, p: Share = 0.0, scale_by_keep: bool = True) -> None:
        self.p, self.scale_by_keep = p, scale_by_keep

    def forward(self, x: Tensor) -> Tensor:
        return drop_path(x, self.p, self.training, self.scale_by_keep)

    def extra_repr(self) -> str:
        return f"p={self.p}" + ("" if self.scale_by_keep else ", scale_by_keep=False")


class ArcFace(Module):
    """Logits of classes by angle, with a margin that the right class has to be nearer by: then cross entropy.

        logits[n, c] = scale * cos(t),  t the angle between x[n] and weight[c];  of the label cos(t + margin),
        or, where t + margin is above pi, cos(t) - sin(margin) * margin, which goes on falling
    Args:
        in_features: size of x.
        classes: their number.
        scale: above 0.
        margin: in radians, in [0, pi).
    Shape: x (N, in_features), labels (N,) int32 or int64 -> logits (N, classes); without labels no margin is added.
    Parameters: weight (classes, in_features); it starts as xavier_uniform_ makes it.
    Source: Deng et al., arXiv 1801.07698.
    """

    @checked
    def __init__(self, in_features: Count, classes: Count, scale: Positive = 64.0, margin: Margin = 0.5) -> None:
        self.in_features, self.classes, self.scale, self.margin = in_features, classes, scale, margin
        self.weight = init.xavier_uniform_(Parameter(ops.zeros((classes, in_features))))

    @checked
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Returns the logits.  Raises ShapeError where x or the labels do not fit."""
        if x.ndim != 2 or x.shape[1] != self.in_features or (labels is not None and labels.shape != x.shape[:1]):
            raise ShapeError(message("ArcFace", f"x has shape {x.shape}, labels {labels and labels.shape}", "pass x of "
                                     f"shape (N, {self.in_features}), and labels of shape (N,)"))
        cosine = ops.linear(normalize(x), normalize(self.weight))
        if labels is None or not self.margin:
            return cosine * self.scale
        cosine = cosine.clip(-1.0, 1.0)
        sine = ((1.0 - cosine * cosine).clip(1e-12, None)).sqrt()
        moved = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        moved = ops.where(cosine > math.cos(math.pi - self.margin), moved,
                          cosine - math.sin(self.margin) * self.margin)
        right = ops.one_hot(labels, self.classes) > 0
        return ops.where(right, moved, cosine) * self.scale

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.classes}, scale={self.scale}, margin={self.margin}"
