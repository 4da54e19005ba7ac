"""PyTorch twins of the contextual networks, in either public form of their levels.  No code of models/."""

import torch
import torch.nn.functional as F
from torch import nn

SHARES = {1: (8,), 2: (4, 4), 3: (4, 2, 2), 4: (2, 2, 2, 2)}  # of the output channels, in eighths


class Levels(nn.Module):
    """A convolution per level and their concatenation.  form: name of the first one."""

    def __init__(self, inputs, channels, stride, levels, form="conv2_1"):
        super().__init__()
        convs = [nn.Conv2d(inputs, channels * share // 8, 3, stride, d, d, bias=False)
                 for d, share in enumerate(SHARES[levels], 1)]
        if form == "conv2_1":
            self.names = [f"conv2_{k}" for k in range(1, levels + 1)]
            for name, conv in zip(self.names, convs):
                setattr(self, name, conv)
        else:
            self.names = [f"coconv_levels.{k}" for k in range(levels)]
            self.coconv_levels = nn.ModuleList(convs)

    def forward(self, x):
        return torch.cat([self.get_submodule(name)(x) for name in self.names], 1)


def conv3x3(inputs, channels, stride, levels, form):
    if levels == 1 and form == "conv2_1":
        return nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
    return Levels(inputs, channels, stride, levels, form)


class Block(nn.Module):
    """A basic block or a bottleneck.  last: the last norm is behind the addition."""

    def __init__(self, inputs, width, stride, levels, form, bottleneck, last, added):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv3x3(width, width, stride, levels, form), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        else:
            self.conv1, self.bn1 = conv3x3(inputs, width, stride, levels, form), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv3x3(width, width, 1, levels, form), nn.BatchNorm2d(width)
        self.bottleneck, self.last, self.added = bottleneck, last, None
        if stride > 1 or inputs != outputs:
            self.added = added
            setattr(self, added, nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                               nn.BatchNorm2d(outputs)))

    def forward(self, x):
        y, kept = F.relu(self.bn1(self.conv1(x)), inplace=True), x
        if self.bottleneck:
            y = self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True))
        else:
            y = self.conv2(y)
        norm = self.bn3 if self.bottleneck else self.bn2
        if self.added:
            kept = getattr(self, self.added)(x)
        return F.relu(norm(y + kept) if self.last else norm(y) + kept, inplace=True)


class CoResNet(nn.Module):
    """imagenet: the authors' network, with their stem, names and last norms; else that for 32x32 images."""

    def __init__(self, blocks, bottleneck=True, num_classes=10, imagenet=False, form="conv2_1"):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False) if imagenet else nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1, inputs = nn.BatchNorm2d(64), 64
        for stage, count in enumerate(blocks):
            width, made = 64 << stage, []
            for k in range(count):
                made.append(Block(inputs, width, 2 if stage and not k else 1, 4 - stage, form, bottleneck,
                                  imagenet and k == count - 1, "downsample" if imagenet else "shortcut"))
                inputs = 4 * width if bottleneck else width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.head = "fc" if imagenet else "linear"
        self.imagenet = imagenet
        setattr(self, self.head, nn.Linear(inputs, num_classes))

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.imagenet:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return getattr(self, self.head)(x.mean((2, 3)))


def coresnet18():
    return CoResNet((2, 2, 2, 2), bottleneck=False)


def coresnet50():
    return CoResNet((3, 4, 6, 3))
