"""Deep layer aggregation: trees of residual blocks, whose roots join the outputs of all that is below."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import conv_norm, register_model
from .resnet import BasicBlock, projection


def block(in_channels: int, channels: int, stride: int) -> BasicBlock:
    """A residual block, with a projection where x and y differ in shape."""
    same = stride == 1 and in_channels == channels
    return BasicBlock(in_channels, channels, stride,
                      nn.Sequential() if same else projection(in_channels, channels, stride))


class Root(nn.Module):
    """y = relu(bn(conv(concat of the inputs))), conv is 1x1."""

    def __init__(self, in_channels: int, channels: int) -> None:
        self.conv = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, xs: list[Tensor]) -> Tensor:
        return self.bn(self.conv(ops.concat(xs, axis=-1)), activation="relu")


class Tree(nn.Module):
    """Two blocks and a root; above level 1 also a block and the smaller trees in front of them, joined by the root.

    Args:
        in_channels, channels: of x and y.
        level: of the tree, at least 1.
        stride: of the first block.
    """

    def __init__(self, in_channels: int, channels: int, level: int, stride: int) -> None:
        self.level = level
        self.root = Root((2 if level == 1 else level + 2) * channels, channels)
        if level > 1:
            for k in range(level - 1, 0, -1):
                setattr(self, f"level_{k}", Tree(in_channels, channels, k, stride))
            self.prev_root = block(in_channels, channels, stride)
        self.left_node = block(in_channels if level == 1 else channels, channels, stride if level == 1 else 1)
        self.right_node = block(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        joined = [self.prev_root(x)] if self.level > 1 else []
        for k in range(self.level - 1, 0, -1):
            x = getattr(self, f"level_{k}")(x)
            joined.append(x)
        left = self.left_node(x)
        return self.root([*joined, left, self.right_node(left)])


class DLA(nn.Module):
    """Three 3x3 convolutions, four trees (each but the first halves the map), average pool, linear.

    Args:
        num_classes: size of the output.
    """

    def __init__(self, num_classes: int) -> None:
        self.base, self.layer1, self.layer2 = (conv_norm(a, b, 3, activation=nn.ReLU)
                                               for a, b in ((3, 16), (16, 16), (16, 32)))
        self.layer3 = Tree(32, 64, 1, 1)
        self.layer4 = Tree(64, 128, 2, 2)
        self.layer5 = Tree(128, 256, 2, 2)
        self.layer6 = Tree(256, 512, 1, 2)
        self.linear = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.base(x))))
        x = self.layer6(self.layer5(self.layer4(x)))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def dla(num_classes: int) -> DLA:
    """DLA-34's trees of basic blocks (Yu et al., arXiv 1707.06484) for 32x32 images.
    16,291,386 parameters with 10 classes.
    """
    return DLA(num_classes)
