"""GoogLeNet for 32x32 images."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model


def unit(in_channels: int, out_channels: int, kernel_size: int) -> list[nn.Module]:
    """A convolution that keeps the map's size, batch norm and ReLU."""
    return [nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2), nn.BatchNorm2d(out_channels),
            nn.ReLU()]


class Inception(nn.Module):
    """Four branches side by side: 1x1; 1x1, 3x3; 1x1, 3x3, 3x3 (for 5x5); max pool, 1x1.

    Args:
        in_channels: channels of x.
        n1: channels of the 1x1 branch.
        n3_reduce, n3: channels of the 3x3 branch, after its 1x1 and in the end.
        n5_reduce, n5: channels of the 5x5 branch, after its 1x1 and in the end.
        pool: channels of the pool branch.
    Shape: x (N, H, W, in_channels) -> y (N, H, W, n1 + n3 + n5 + pool).
    """

    def __init__(self, in_channels: int, n1: int, n3_reduce: int, n3: int, n5_reduce: int, n5: int, pool: int) -> None:
        self.b1 = nn.Sequential(*unit(in_channels, n1, 1))
        self.b2 = nn.Sequential(*unit(in_channels, n3_reduce, 1), *unit(n3_reduce, n3, 3))
        self.b3 = nn.Sequential(*unit(in_channels, n5_reduce, 1), *unit(n5_reduce, n5, 3), *unit(n5, n5, 3))
        self.b4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *unit(in_channels, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return ops.concat([self.b1(x), self.b2(x), self.b3(x), self.b4(x)], axis=-1)


class GoogLeNet(nn.Module):
    """A 3x3 stem, nine inception blocks at 32x32, 16x16 and 8x8, average pool, linear; no auxiliary classifiers."""

    def __init__(self, num_classes: int) -> None:
        self.pre_layers = nn.Sequential(*unit(3, 192, 3))
        self.a3 = Inception(192, 64, 96, 128, 16, 32, 32)
        self.b3 = Inception(256, 128, 128, 192, 32, 96, 64)
        self.a4 = Inception(480, 192, 96, 208, 16, 48, 64)
        self.b4 = Inception(512, 160, 112, 224, 24, 64, 64)
        self.c4 = Inception(512, 128, 128, 256, 24, 64, 64)
        self.d4 = Inception(512, 112, 144, 288, 32, 64, 64)
        self.e4 = Inception(528, 256, 160, 320, 32, 128, 128)
        self.a5 = Inception(832, 256, 160, 320, 32, 128, 128)
        self.b5 = Inception(832, 384, 192, 384, 48, 128, 128)
        self.linear = nn.Linear(1024, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b3(self.a3(self.pre_layers(x)))
        x = ops.max_pool2d(x, 3, stride=2, padding=1)
        x = self.e4(self.d4(self.c4(self.b4(self.a4(x)))))
        x = ops.max_pool2d(x, 3, stride=2, padding=1)
        x = self.b5(self.a5(x))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def googlenet(num_classes: int) -> GoogLeNet:
    """GoogLeNet (Szegedy et al., arXiv 1409.4842) with batch norm, 5x5 filters as two of 3x3, and no first pools.
    6,166,250 parameters with 10 classes.
    """
    return GoogLeNet(num_classes)
