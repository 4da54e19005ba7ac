"""PyTorch twins of the families that benchmarks/torch_networks.py has not: the same names, PyTorch's own layers."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def conv(channels_in, channels, size, stride=1, groups=1):
    return nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False)


def unit(channels_in, channels, size):
    return [conv(channels_in, channels, size), nn.BatchNorm2d(channels), nn.ReLU()]


class Classifier(nn.Module):
    """Layers by name, one after the other, then the mean over the map and a linear layer."""

    def __init__(self, channels, **layers):
        super().__init__()
        self.order = list(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.linear = nn.Linear(channels, 10)

    def forward(self, x):
        for name in self.order:
            x = getattr(self, name)(x)
            if name == "bn1":
                x = F.relu(x)
        return self.linear(x.mean((2, 3)))


def stages(make, blocks, channels_in, wide):
    """layer1, layer2, ...: make(channels in, stage, stride, number) per block; the first has stride 2 but in layer1."""
    layers = {}
    for stage, count in enumerate(blocks):
        made = []
        for k in range(count):
            made.append(make(channels_in, stage, 2 if k == 0 and stage else 1, k))
            channels_in = wide(stage, k)
        layers[f"layer{stage + 1}"] = nn.Sequential(*made)
    return layers


class PreAct(nn.Module):
    def __init__(self, channels_in, channels, stride, gated):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels_in), conv(channels_in, channels, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv(channels, channels, 3)
        if stride > 1 or channels_in != channels:
            self.shortcut = nn.Sequential(conv(channels_in, channels, 1, stride))
        if gated:
            self.fc1, self.fc2 = nn.Conv2d(channels, channels // 16, 1), nn.Conv2d(channels // 16, channels, 1)

    def forward(self, x):
        a = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(a))))
        if hasattr(self, "fc1"):
            y = y * torch.sigmoid(self.fc2(F.relu(self.fc1(y.mean((2, 3), keepdim=True)))))
        return y + (self.shortcut(a) if hasattr(self, "shortcut") else x)


def preact(gated):
    first = {"conv1": conv(3, 64, 3), **({"bn1": nn.BatchNorm2d(64)} if gated else {})}
    return Classifier(512, **first, **stages(lambda c, stage, stride, k: PreAct(c, 64 << stage, stride, gated),
                                             (2, 2, 2, 2), 64, lambda stage, k: 64 << stage))


class Separable(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(channels_in, channels_in, 3, stride, channels_in), nn.BatchNorm2d(channels_in)
        self.conv2, self.bn2 = conv(channels_in, channels, 1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def mobilenet():
    sizes = [32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    blocks = [Separable(a, b, 2 if b > a > 32 else 1) for a, b in pairwise(sizes)]
    return Classifier(1024, conv1=conv(3, 32, 3), bn1=nn.BatchNorm2d(32), layers=nn.Sequential(*blocks))


class Shuffled(nn.Module):
    def __init__(self, channels_in, channels, stride, first):
        super().__init__()
        inner, groups, self.stride = channels // 4, 1 if first else 2, stride
        self.conv1, self.bn1 = conv(channels_in, inner, 1, 1, groups), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride, inner), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, channels, 1, 1, 2), nn.BatchNorm2d(channels)
        self.shuffle = nn.ChannelShuffle(groups)

    def forward(self, x):
        y = self.shuffle(F.relu(self.bn1(self.conv1(x))))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + x if self.stride == 1 else torch.cat([y, F.avg_pool2d(x, 3, 2, 1)], 1))


def shufflenet():
    layers, before = {}, 24
    for stage, (wide, count) in enumerate(((200, 4), (400, 8), (800, 4)), 1):
        blocks = [Shuffled(before, wide - before, 2, stage == 1)]
        blocks += [Shuffled(wide, wide, 1, False) for _ in range(count - 1)]
        layers[f"layer{stage}"], before = nn.Sequential(*blocks), wide
    return Classifier(800, conv1=conv(3, 24, 1), bn1=nn.BatchNorm2d(24), **layers)


class DualPath(nn.Module):
    def __init__(self, channels_in, inner, residual, dense, stride, first):
        super().__init__()
        self.d, wide = residual, residual + dense
        self.conv1, self.bn1 = conv(channels_in, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride, 32), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, wide, 1), nn.BatchNorm2d(wide)
        self.shortcut = nn.Sequential(*([conv(channels_in, wide, 1, stride), nn.BatchNorm2d(wide)] if first else []))

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        y, x, d = self.bn3(self.conv3(y)), self.shortcut(x), self.d
        return F.relu(torch.cat([x[:, :d] + y[:, :d], x[:, d:], y[:, d:]], 1))


def dpn26():
    dense = (16, 32, 24, 128)
    layers = stages(lambda c, stage, stride, k: DualPath(c, 96 << stage, 256 << stage, dense[stage], stride, k == 0),
                    (2, 2, 2, 2), 64, lambda stage, k: (256 << stage) + (k + 2) * dense[stage])
    return Classifier(2048 + 3 * 128, conv1=conv(3, 64, 3), bn1=nn.BatchNorm2d(64), **layers)


class NarrowGroups(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(channels_in, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3, stride, 32), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = conv(channels, 2 * channels, 1), nn.BatchNorm2d(2 * channels)
        same = stride == 1 and channels_in == 2 * channels
        self.shortcut = nn.Sequential(*([] if same else [conv(channels_in, 2 * channels, 1, stride),
                                                         nn.BatchNorm2d(2 * channels)]))

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnext29_32x4d():
    layers = stages(lambda c, stage, stride, k: NarrowGroups(c, 128 << stage, stride), (3, 3, 3), 64,
                    lambda stage, k: 256 << stage)
    return Classifier(1024, conv1=conv(3, 64, 1), bn1=nn.BatchNorm2d(64), **layers)


class Basic(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(channels_in, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3), nn.BatchNorm2d(channels)
        same = stride == 1 and channels_in == channels
        self.shortcut = nn.Sequential(*([] if same else [conv(channels_in, channels, 1, stride),
                                                         nn.BatchNorm2d(channels)]))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class Root(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.conv, self.bn = conv(channels_in, channels, 1), nn.BatchNorm2d(channels)

    def forward(self, *xs):
        return F.relu(self.bn(self.conv(torch.cat(xs, 1))))


class Tree(nn.Module):
    def __init__(self, channels_in, channels, level, stride):
        super().__init__()
        self.level = level
        if level == 1:
            self.root = Root(2 * channels, channels)
            self.left_node = Basic(channels_in, channels, stride)
        else:
            self.root = Root((level + 2) * channels, channels)
            self.level_1, self.prev_root = Tree(channels_in, channels, 1, stride), Basic(channels_in, channels, stride)
            self.left_node = Basic(channels, channels, 1)
        self.right_node = Basic(channels, channels, 1)

    def forward(self, x):
        joined = []
        if self.level == 2:
            joined = [self.prev_root(x), x := self.level_1(x)]
        left = self.left_node(x)
        return self.root(*joined, left, self.right_node(left))


def dla():
    return Classifier(512, base=nn.Sequential(*unit(3, 16, 3)), layer1=nn.Sequential(*unit(16, 16, 3)),
                      layer2=nn.Sequential(*unit(16, 32, 3)), layer3=Tree(32, 64, 1, 1), layer4=Tree(64, 128, 2, 2),
                      layer5=Tree(128, 256, 2, 2), layer6=Tree(256, 512, 1, 2))


class Up(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels_in, channels_in // 2, 2, 2)
        self.conv = nn.Sequential(*unit(channels_in, channels, 3), *unit(channels, channels, 3))

    def forward(self, x, skip):
        x = self.up(x)
        h, w = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        return self.conv(torch.cat([skip, F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))], 1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.outc = nn.Sequential(*unit(3, 64, 3), *unit(64, 64, 3)), nn.Conv2d(64, 10, 1)
        for k in range(4):
            c = 64 << k
            down = nn.Sequential(*unit(c, 2 * c, 3), *unit(2 * c, 2 * c, 3))
            self.add_module(f"down{k + 1}", nn.Sequential(nn.MaxPool2d(2), down))
            self.add_module(f"up{4 - k}", Up(2 * c, c))

    def forward(self, x):
        maps = [self.inc(x)]
        for k in range(1, 5):
            maps.append(getattr(self, f"down{k}")(maps[-1]))
        x = maps.pop()
        for k in range(1, 5):
            x = getattr(self, f"up{k}")(x, maps.pop())
        return self.outc(x)


TWINS = {"preact_resnet18": lambda: preact(False), "senet18": lambda: preact(True), "mobilenet": mobilenet,
         "shufflenet_g2": shufflenet, "dpn26": dpn26, "dla": dla, "resnext29_32x4d": resnext29_32x4d, "unet": UNet}
