"""PyTorch twins of the models that are not in benchmarks/torch_models.py: the same names, PyTorch's own layers."""

import torch
import torch.nn.functional as F
from torch import nn


def norm(channels):
    return nn.BatchNorm2d(channels)


def conv(channels_in, channels, size, stride=1, groups=1):
    return nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False)


class Pad(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.stride, self.width = stride, (channels - channels_in) // 2

    def forward(self, x):
        return F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.width, self.width))


class Projection(nn.Sequential):
    def __init__(self, channels_in, channels, stride):
        super().__init__(conv(channels_in, channels, 1, stride), norm(channels))


class Basic(nn.Module):
    def __init__(self, channels_in, channels, stride, groups, shortcut):
        super().__init__()
        self.conv1, self.bn1 = conv(channels_in, channels, 3, stride), norm(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3), norm(channels)
        self.shortcut = shortcut

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    def __init__(self, channels_in, channels, stride, groups, shortcut):
        super().__init__()
        inner = channels * groups
        self.conv1, self.bn1 = conv(channels_in, inner, 1), norm(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride, groups), norm(inner)
        self.conv3, self.bn3 = conv(inner, 4 * channels, 1), norm(4 * channels)
        self.shortcut = shortcut

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True)))
        return F.relu(y + self.shortcut(x), inplace=True)


class Residual(nn.Module):
    def __init__(self, block, counts, channels, shortcut=Projection, groups=1):
        super().__init__()
        expansion = 4 if block is Bottleneck else 1
        self.conv1, self.bn1 = conv(3, channels, 3), norm(channels)
        self.stages, channels_in = [], channels
        for k, count in enumerate(counts):
            width, made = channels << k, []
            for j in range(count):
                stride, out = 2 if k and not j else 1, width * expansion
                same = stride == 1 and channels_in == out
                made.append(block(channels_in, width, stride, groups,
                                  nn.Identity() if same else shortcut(channels_in, out, stride)))
                channels_in = out
            self.stages.append(f"layer{k + 1}")
            setattr(self, self.stages[-1], nn.Sequential(*made))
        self.linear = nn.Linear(channels_in, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.linear(x.mean((2, 3)))


class WideBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.bn1, self.conv1 = norm(channels_in), conv(channels_in, channels, 3, stride)
        self.bn2, self.conv2 = norm(channels), conv(channels, channels, 3)
        same = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if same else nn.Sequential(conv(channels_in, channels, 1, stride))

    def forward(self, x):
        y = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(y), inplace=True)) + self.shortcut(x)


class WideResNet(nn.Module):
    def __init__(self, blocks=4, widen=10):
        super().__init__()
        self.conv1, channels_in = conv(3, 16, 3), 16
        for k in range(3):
            channels, made = (16 << k) * widen, []
            for j in range(blocks):
                made.append(WideBlock(channels_in, channels, 2 if k and not j else 1))
                channels_in = channels
            setattr(self, f"layer{k + 1}", nn.Sequential(*made))
        self.bn1, self.linear = norm(channels_in), nn.Linear(channels_in, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.linear(F.relu(self.bn1(x), inplace=True).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1, self.conv1 = norm(channels), conv(channels, 4 * growth, 1)
        self.norm2, self.conv2 = norm(4 * growth), conv(4 * growth, growth, 3)

    def forward(self, x):
        y = self.conv1(F.relu(self.norm1(x), inplace=True))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y), inplace=True))], 1)


class Transition(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.conv = norm(channels), conv(channels, channels // 2, 1)

    def forward(self, x):
        return F.avg_pool2d(self.conv(F.relu(self.norm(x), inplace=True)), 2)


class DenseNet(nn.Module):
    def __init__(self, counts, growth):
        super().__init__()
        channels = 2 * growth
        self.features = nn.Sequential()
        self.features.add_module("conv0", conv(3, channels, 3))
        for k, count in enumerate(counts, 1):
            block = nn.Sequential()
            for j in range(count):
                block.add_module(f"denselayer{j + 1}", DenseLayer(channels, growth))
                channels += growth
            self.features.add_module(f"denseblock{k}", block)
            if k < len(counts):
                self.features.add_module(f"transition{k}", Transition(channels))
                channels //= 2
        self.features.add_module("norm5", norm(channels))
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x):
        return self.classifier(F.relu(self.features(x), inplace=True).mean((2, 3)))


def unit(channels_in, channels, size, stride=1, groups=1):
    return nn.Sequential(conv(channels_in, channels, size, stride, groups), norm(channels), nn.ReLU6(inplace=True))


class Inverted(nn.Module):
    def __init__(self, channels_in, channels, stride, expand):
        super().__init__()
        wide = channels_in * expand
        self.conv = nn.Sequential(*[unit(channels_in, wide, 1)] * (expand > 1), unit(wide, wide, 3, stride, wide),
                                  conv(wide, channels, 1), norm(channels))
        self.added = stride == 1 and channels_in == channels

    def forward(self, x):
        return x + self.conv(x) if self.added else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        parts, channels_in = [unit(3, 32, 3)], 32
        for expand, channels, count, stride in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2),
                                                (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
            for j in range(count):
                parts.append(Inverted(channels_in, channels, 1 if j else stride, expand))
                channels_in = channels
        self.features = nn.Sequential(*parts, unit(channels_in, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(1280, 10))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class ChannelsNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.block = nn.ModuleDict({
            "0": nn.Conv2d(channels, channels, 7, 1, 3, groups=channels), "2": nn.LayerNorm(channels, eps=1e-6),
            "3": nn.Linear(channels, 4 * channels), "5": nn.Linear(4 * channels, channels)})
        self.layer_scale = nn.Parameter(torch.full((channels, 1, 1), 1e-6))

    def forward(self, x):
        y = self.block["2"](self.block["0"](x).permute(0, 2, 3, 1))
        y = self.block["5"](F.gelu(self.block["3"](y))).permute(0, 3, 1, 2)
        return x + self.layer_scale * y


class ConvNeXt(nn.Module):
    def __init__(self, channels=(96, 192, 384, 768), counts=(3, 3, 9, 3)):
        super().__init__()
        parts = [nn.Sequential(nn.Conv2d(3, channels[0], 2, 2), ChannelsNorm(channels[0], eps=1e-6))]
        for k, (c, count) in enumerate(zip(channels, counts)):
            if k:
                before = channels[k - 1]
                parts.append(nn.Sequential(ChannelsNorm(before, eps=1e-6), nn.Conv2d(before, c, 2, 2)))
            parts.append(nn.Sequential(*[ConvNeXtBlock(c) for _ in range(count)]))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.LayerNorm(channels[-1], eps=1e-6), nn.Identity(),
                                        nn.Linear(channels[-1], 10))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class Group(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.conv1, self.norm1 = conv(channels_in, channels, 3), norm(channels)
        self.conv2, self.norm2 = conv(channels, channels, 3), norm(channels)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Scaled(nn.Module):
    def forward(self, x):
        return x / 9


def airbench94():
    return nn.Sequential(nn.Conv2d(3, 24, 2), nn.GELU(), Group(24, 64), Group(64, 256), Group(256, 256),
                         nn.MaxPool2d(3), nn.Flatten(), Scaled(), nn.Linear(256, 10, bias=False))


TWINS = {"resnet20": lambda: Residual(Basic, (3, 3, 3), 16, Pad),
         "resnet56": lambda: Residual(Basic, (9, 9, 9), 16, Pad),
         "resnet50": lambda: Residual(Bottleneck, (3, 4, 6, 3), 64),
         "resnext29_8x64d": lambda: Residual(Bottleneck, (3, 3, 3), 64, groups=8), "wrn28_10": WideResNet,
         "densenet100_12": lambda: DenseNet((16, 16, 16), 12), "densenet121": lambda: DenseNet((6, 12, 24, 16), 32),
         "mobilenetv2": MobileNetV2, "convnext_tiny": ConvNeXt, "airbench94": airbench94}
