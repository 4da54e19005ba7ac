"""Convolutional networks for 32x32 images that alpha does not ship, as a user writes them: one class a network.

Twins in PyTorch stand in torch_convs.py, under the same names.
"""

from __future__ import annotations

from alpha import Tensor, nn, ops


def unit(in_channels: int, channels: int, size: int | tuple[int, int], stride: int = 1, groups: int = 1
         ) -> nn.Sequential:
    """Convolution that keeps the map at stride 1, batch norm, ReLU."""
    height, width = (size, size) if isinstance(size, int) else size
    return nn.Sequential(nn.Conv2d(in_channels, channels, (height, width), stride, (height // 2, width // 2),
                                   groups=groups, bias=False), nn.BatchNorm2d(channels), nn.ReLU())


def pooled(x: Tensor) -> Tensor:
    """Mean over each map: (N, H, W, C) -> (N, C)."""
    return x.mean(axis=(1, 2))


class AllConv(nn.Module):
    """Strided convolutions in the place of pools (Springenberg et al., arXiv 1412.6806)."""

    def __init__(self) -> None:
        plan = ((3, 96, 1), (96, 96, 1), (96, 96, 2), (96, 192, 1), (192, 192, 1), (192, 192, 2), (192, 192, 1))
        self.body = nn.Sequential(*[unit(i, o, 3, stride) for i, o, stride in plan], unit(192, 192, 1))
        self.head = nn.Conv2d(192, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return pooled(self.head(self.body(x)))


class NetworkInNetwork(nn.Module):
    """Wide filters, each followed by two layers of one pixel (Lin et al., arXiv 1312.4400)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(unit(3, 192, 5), unit(192, 160, 1), unit(160, 96, 1), nn.MaxPool2d(3, 2, 1),
                                  unit(96, 192, 5), unit(192, 192, 1), unit(192, 192, 1), nn.AvgPool2d(2),
                                  unit(192, 192, 3), unit(192, 192, 1))
        self.head = nn.Conv2d(192, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return pooled(self.head(self.body(x)))


class Fire(nn.Module):
    """A squeeze to few channels, then 1x1 and 3x3 side by side."""

    def __init__(self, in_channels: int, squeezed: int, channels: int) -> None:
        self.squeeze = unit(in_channels, squeezed, 1)
        self.one, self.three = unit(squeezed, channels, 1), unit(squeezed, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return ops.concat([self.one(x), self.three(x)], axis=-1)


class SqueezeNet(nn.Module):
    """Fire modules (Iandola et al., arXiv 1602.07360)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(unit(3, 96, 3), nn.MaxPool2d(2), Fire(96, 16, 64), Fire(128, 16, 64),
                                  Fire(128, 32, 128), nn.MaxPool2d(2), Fire(256, 32, 128), Fire(256, 48, 192),
                                  Fire(384, 48, 192), Fire(384, 64, 256), nn.MaxPool2d(2), Fire(512, 64, 256))
        self.head = nn.Conv2d(512, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return pooled(self.head(self.body(x)))


class Factorized(nn.Module):
    """Branches of 1x1, of 1x7 and 7x1, of two of each, and of a pool."""

    def __init__(self, in_channels: int, inner: int) -> None:
        self.one = unit(in_channels, 64, 1)
        self.seven = nn.Sequential(unit(in_channels, inner, 1), unit(inner, inner, (1, 7)), unit(inner, 64, (7, 1)))
        self.twice = nn.Sequential(unit(in_channels, inner, 1), unit(inner, inner, (7, 1)), unit(inner, inner, (1, 7)),
                                   unit(inner, inner, (7, 1)), unit(inner, 64, (1, 7)))
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(in_channels, 64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return ops.concat([self.one(x), self.seven(x), self.twice(x), self.pool(x)], axis=-1)


class InceptionV3(nn.Module):
    """Blocks of factorized convolutions at 16x16 and 8x8 (Szegedy et al., arXiv 1512.00567)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(unit(3, 64, 3), unit(64, 128, 3, 2), Factorized(128, 48), Factorized(256, 64),
                                  unit(256, 256, 3, 2), Factorized(256, 64), Factorized(256, 80))
        self.head = nn.Linear(256, 10, flattened=(1, 1, 256))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


class RepBlock(nn.Module):
    """Sum of a 3x3 and a 1x1 convolution and of the input, each with a norm."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.three = nn.Sequential(nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels))
        self.one = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        self.same = nn.BatchNorm2d(channels) if stride == 1 and in_channels == channels else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.three(x) + self.one(x)
        return ops.relu(y + self.same(x) if self.same is not None else y)


class RepVGG(nn.Module):
    """Plain at inference, three branches a layer in training (Ding et al., arXiv 2101.03697)."""

    def __init__(self) -> None:
        blocks, before = [], 3
        for channels, count in ((48, 1), (48, 2), (96, 4), (192, 8), (512, 1)):
            for k in range(count):
                blocks.append(RepBlock(before, channels, 2 if k == 0 and before > 3 and channels > 48 else 1))
                before = channels
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


class Ghost(nn.Module):
    """Half of the channels by 1x1, the other half from them by a depthwise 3x3."""

    def __init__(self, in_channels: int, channels: int, active: bool) -> None:
        half, end = channels // 2, [nn.ReLU()] if active else []
        self.primary = nn.Sequential(nn.Conv2d(in_channels, half, 1, bias=False), nn.BatchNorm2d(half), *end)
        self.cheap = nn.Sequential(nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half),
                                   *end)

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(x)
        return ops.concat([x, self.cheap(x)], axis=-1)


class GhostBlock(nn.Module):
    """Ghost modules around a strided depthwise convolution, beside a shortcut."""

    def __init__(self, in_channels: int, inner: int, channels: int, stride: int) -> None:
        middle = [nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner)]
        self.body = nn.Sequential(Ghost(in_channels, inner, True), *(middle if stride > 1 else []),
                                  nn.SqueezeExcite(inner, inner // 4), Ghost(inner, channels, False))
        self.shortcut = None if stride == 1 and in_channels == channels else nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + (x if self.shortcut is None else self.shortcut(x))


class GhostNet(nn.Module):
    """Channels from cheap operations (Han et al., arXiv 1911.11907)."""

    def __init__(self) -> None:
        plan = ((16, 48, 24, 2), (24, 72, 24, 1), (24, 72, 40, 2), (40, 120, 40, 1), (40, 240, 80, 2), (80, 184, 80, 1),
                (80, 480, 112, 1))
        self.body = nn.Sequential(unit(3, 16, 3), *[GhostBlock(*item) for item in plan], unit(112, 480, 1))
        self.head = nn.Linear(480, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


class Res2Block(nn.Module):
    """A bottleneck whose 3x3 works on four slices, each with the result of the one before added."""

    def __init__(self, in_channels: int, width: int, channels: int, stride: int) -> None:
        self.first = unit(in_channels, 4 * width, 1, stride)
        self.convs = nn.ModuleList([unit(width, width, 3) for _ in range(3)])
        self.last = nn.Sequential(nn.Conv2d(4 * width, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        first, *slices = ops.chunk(self.first(x), 4, axis=-1)
        parts, y = [first], slices[0]
        for k, conv in enumerate(self.convs):
            y = conv(y if k == 0 else y + slices[k])
            parts.append(y)
        return ops.relu(self.last(ops.concat(parts, axis=-1)) + self.shortcut(x))


class Res2Net(nn.Module):
    """Scales within a block (Gao et al., arXiv 1904.01169)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(unit(3, 64, 3), Res2Block(64, 26, 256, 1), Res2Block(256, 26, 256, 1),
                                  Res2Block(256, 52, 512, 2), Res2Block(512, 52, 512, 1), Res2Block(512, 104, 1024, 2))
        self.head = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


class PyramidBlock(nn.Module):
    """Norms around two convolutions, no ReLU at the end; the shortcut is pooled, and filled up with zeros."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.body = nn.Sequential(nn.BatchNorm2d(in_channels),
                                  nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
                                  nn.BatchNorm2d(channels))
        self.pool, self.more = nn.AvgPool2d(2) if stride > 1 else nn.Identity(), channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + ops.pad(self.pool(x), ((0, 0), (0, 0), (0, 0), (0, self.more)))


class PyramidNet(nn.Module):
    """Channels that grow with every block (Han et al., arXiv 1610.02915): 18 blocks, 84 channels more."""

    def __init__(self) -> None:
        widths = [16 + round(84 * (k + 1) / 18) for k in range(18)]
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), *[
            PyramidBlock(before, channels, 2 if k in (6, 12) else 1)
            for k, (before, channels) in enumerate(zip([16, *widths], widths))], nn.BatchNorm2d(100), nn.ReLU())
        self.head = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


def separable(in_channels: int, channels: int, size: int = 3, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """ReLU, depthwise convolution, 1x1, batch norm."""
    return [nn.ReLU(), nn.Conv2d(in_channels, in_channels, size, stride, dilation * (size // 2), dilation,
                                 groups=in_channels, bias=False),
            nn.Conv2d(in_channels, channels, 1, bias=False), nn.BatchNorm2d(channels)]


class XceptionBlock(nn.Module):
    """Two separable convolutions and a pool, beside a strided 1x1."""

    def __init__(self, in_channels: int, channels: int) -> None:
        self.body = nn.Sequential(*separable(in_channels, channels), *separable(channels, channels),
                                  nn.MaxPool2d(3, 2, 1))
        self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, 2, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shortcut(x)


class Xception(nn.Module):
    """Separable convolutions (Chollet, arXiv 1610.02357)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(unit(3, 32, 3), unit(32, 64, 3), XceptionBlock(64, 128), XceptionBlock(128, 256),
                                  *separable(256, 256), *separable(256, 256), *separable(256, 512), nn.ReLU())
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


class Cell(nn.Module):
    """A searched cell: separable, dilated and pooled edges between four nodes, which are joined."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.enter = nn.Sequential(nn.ReLU(), nn.Conv2d(in_channels, channels, 1, stride, bias=False),
                                   nn.BatchNorm2d(channels))
        self.a, self.b = (nn.Sequential(*separable(channels, channels, size)) for size in (3, 5))
        self.c, self.d = (nn.Sequential(*separable(channels, channels, size, 1, 2)) for size in (3, 5))
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        one = self.a(x) + self.b(x)
        two = self.c(one) + x
        three = self.d(x) + self.pool(one)
        four = self.pool(two) + three
        return ops.concat([one, two, three, four], axis=-1)


class Cells(nn.Module):
    """Cells as a search finds them (Liu et al., arXiv 1806.09055), eight in three stages."""

    def __init__(self) -> None:
        cells, before = [], 48
        for k, channels in enumerate((16, 16, 32, 32, 32, 64, 64, 64)):
            cells.append(Cell(before, channels, 2 if k in (2, 5) else 1))
            before = 4 * channels
        self.body = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), *cells)
        self.head = nn.Linear(before, 10, flattened=(1, 1, before))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


class CBAMBlock(nn.Module):
    """A residual block whose result is weighted by channel, then by pixel."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.body = nn.Sequential(unit(in_channels, channels, 3, stride),
                                  nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.mlp = nn.Sequential(nn.Linear(channels, channels // 8), nn.ReLU(), nn.Linear(channels // 8, channels))
        self.place = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        weights = self.mlp(pooled(y)) + self.mlp(ops.max(y, axis=(1, 2)))
        y = y * ops.sigmoid(weights).reshape(-1, 1, 1, y.shape[-1])
        seen = ops.concat([y.mean(axis=-1, keepdims=True), ops.max(y, axis=-1, keepdims=True)], axis=-1)
        return ops.relu(y * ops.sigmoid(self.place(seen)) + self.shortcut(x))


class CBAMNet(nn.Module):
    """Attention to channels and pixels (Woo et al., arXiv 1807.06521)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(unit(3, 32, 3), CBAMBlock(32, 32, 1), CBAMBlock(32, 64, 2), CBAMBlock(64, 128, 2),
                                  CBAMBlock(128, 256, 2))
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pooled(self.body(x)))


NETWORKS = {"allconv": AllConv, "nin": NetworkInNetwork, "squeezenet": SqueezeNet, "inceptionv3": InceptionV3,
            "repvgg": RepVGG, "ghostnet": GhostNet, "res2net": Res2Net, "pyramidnet": PyramidNet, "xception": Xception,
            "cells": Cells, "cbam": CBAMNet}
