"""The small network of airbench, made for fast training on CIFAR-10."""

from __future__ import annotations

from alpha import nn
from alpha.tensor import Tensor
from models import register_model

SCALE = 1 / 9   # of what the linear layer reads


class ConvGroup(nn.Module):
    """Two 3x3 convolutions, each with a norm and GELU; a 2x2 max pool behind the first one."""

    def __init__(self, in_channels: int, channels: int) -> None:
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.activ = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activ(self.norm1(self.pool(self.conv1(x))))
        return self.activ(self.norm2(self.conv2(x, for_norm=self.training)))


@register_model
def airbench94(num_classes: int) -> nn.Sequential:
    """The network of airbench94 (Jordan, arXiv 2404.00498), all of whose parameters are trained here.
    1,972,792 parameters with 10 classes.
    """
    return nn.Sequential(nn.Conv2d(3, 24, 2), nn.GELU(), ConvGroup(24, 64), ConvGroup(64, 256), ConvGroup(256, 256),
                         nn.MaxPool2d(3), nn.Flatten(), nn.Lambda(scaled), nn.Linear(256, num_classes, bias=False))


def scaled(x: Tensor) -> Tensor:
    return x * SCALE
