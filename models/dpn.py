"""Dual path networks: a residual path and a dense path of channels, side by side."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model

INNER, RESIDUAL, GROUPS = (96, 192, 384, 768), (256, 512, 1024, 2048), 32


class DualPathBlock(nn.Module):
    """y = relu of (residual channels of x plus f(x)'s, dense channels of x, new dense channels of f(x)).

    f is 1x1, 3x3 in 32 groups, and 1x1, with batch norms.

    Args:
        in_channels: channels of x.
        inner: channels of the 3x3 convolution.
        residual, dense: channels of y that are added, and that are new.
        stride: of the 3x3 convolution.
        first: whether x first goes through a 1x1 convolution to residual + dense channels.
    """

    def __init__(self, in_channels: int, inner: int, residual: int, dense: int, stride: int, first: bool) -> None:
        self.residual = residual
        self.conv1 = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=GROUPS, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, residual + dense, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(residual + dense)
        self.shortcut = nn.Sequential(*[nn.Conv2d(in_channels, residual + dense, 1, stride=stride, bias=False),
                                        nn.BatchNorm2d(residual + dense)] if first else [])

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x), activation="relu")), activation="relu")
        y, x, d = self.bn3(self.conv3(y)), self.shortcut(x), self.residual
        return ops.relu(ops.concat([x[..., :d] + y[..., :d], x[..., d:], y[..., d:]], axis=-1))


class DPN(nn.Module):
    """A 3x3 convolution, four stages of dual path blocks (each but the first halves the map), average pool, linear.

    Args:
        blocks: number of blocks per stage.
        dense: new dense channels per block of each stage.
        num_classes: size of the output.
    """

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

    def __init__(self, blocks: tuple[int, ...], dense: tuple[int, ...], num_classes: int) -> None:
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        before = 64
        for stage, count in enumerate(blocks):
            made = []
            for k in range(count):
                made.append(DualPathBlock(before, INNER[stage], RESIDUAL[stage], dense[stage],
                                          2 if k == 0 and stage > 0 else 1, k == 0))
                before = RESIDUAL[stage] + (k + 2) * dense[stage]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.linear = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x), activation="relu")
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def dpn26(num_classes: int) -> DPN:
    """DPN-26 (Chen et al., arXiv 1707.01629): two blocks per stage, for 32x32 images.
    11,574,842 parameters with 10 classes.
    """
    return DPN((2, 2, 2, 2), (16, 32, 24, 128), num_classes)


@register_model
def dpn92(num_classes: int) -> DPN:
    """DPN-92 (Chen et al., arXiv 1707.01629) for 32x32 images.
    34,236,634 parameters with 10 classes.
    """
    return DPN((3, 4, 20, 3), (16, 32, 24, 128), num_classes)
