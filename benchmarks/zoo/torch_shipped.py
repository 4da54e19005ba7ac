"""PyTorch twins of shipped networks whose families the other files of twins have not: torchvision's names.

No code of models/ or of torchvision.
"""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import torch_coresnet, torch_networks, torch_zoo

VGGS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU}


def unit(channels_in, channels, size, stride=1, groups=1, activation="relu"):
    """Convolution, batch norm, and an activation unless it is None."""
    layers = [nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False),
              nn.BatchNorm2d(channels)]
    return nn.Sequential(*layers, *([ACTIVATIONS[activation](inplace=True)] if activation else []))


class Gate(nn.Module):
    def __init__(self, channels, squeezed, activation="relu"):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(self.activation(self.fc1(x.mean((2, 3), keepdim=True)))))


class VGG(nn.Module):
    def __init__(self, depth, norm):
        super().__init__()
        layers, before = [], 3
        for stage, count in enumerate(VGGS[depth]):
            for _ in range(count):
                channels = min(64 << stage, 512)
                layers += [nn.Conv2d(before, channels, 3, padding=1), *([nn.BatchNorm2d(channels)] if norm else []),
                           nn.ReLU(inplace=True)]
                before = channels
            layers.append(nn.MaxPool2d(2))
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(512, 10)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class AlexNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(64, 192, 3, 1, 1), nn.ReLU(True),
            nn.MaxPool2d(2), nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(True), nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(True),
            nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(1024, 4096), nn.ReLU(True), nn.Dropout(0.5),
                                        nn.Linear(4096, 4096), nn.ReLU(True), nn.Linear(4096, 10))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class RegNetBlock(nn.Module):
    def __init__(self, channels_in, channels, stride, width, gate):
        super().__init__()
        self.f = nn.Sequential()
        self.f.add_module("a", unit(channels_in, channels, 1))
        self.f.add_module("b", unit(channels, channels, 3, stride, channels // width))
        if gate:
            self.f.add_module("se", Gate(channels, round(gate * channels_in)))
        self.f.add_module("c", unit(channels, channels, 1, activation=None))
        same = channels_in == channels and stride == 1
        self.proj = None if same else unit(channels_in, channels, 1, stride, activation=None)

    def forward(self, x):
        return F.relu((x if self.proj is None else self.proj(x)) + self.f(x), inplace=True)


class RegNet(nn.Module):
    def __init__(self, widths, depths, width, gate=0.0):
        super().__init__()
        self.stem, self.trunk_output, before = unit(3, 32, 3), nn.Sequential(), 32
        for stage, (channels, count) in enumerate(zip(widths, depths), 1):
            blocks = nn.Sequential()
            for k in range(count):
                blocks.add_module(f"block{stage}-{k}", RegNetBlock(channels if k else before, channels,
                                                                   1 if k or stage == 1 else 2, width, gate))
            self.trunk_output.add_module(f"block{stage}", blocks)
            before = channels
        self.fc = nn.Linear(before, 10)

    def forward(self, x):
        return self.fc(self.trunk_output(self.stem(x)).mean((2, 3)))


class MBConv(nn.Module):
    def __init__(self, channels_in, channels, expand, size, stride):
        super().__init__()
        wide = channels_in * expand
        first = [unit(channels_in, wide, 1, activation="silu")] if expand > 1 else []
        gate = Gate(wide, max(1, channels_in // 4), "silu")
        self.block = nn.Sequential(*first, unit(wide, wide, size, stride, wide, "silu"), gate,
                                   unit(wide, channels, 1, activation=None))
        self.added = stride == 1 and channels_in == channels

    def forward(self, x):
        return x + self.block(x) if self.added else self.block(x)


class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        parts, before = [unit(3, 32, 3, activation="silu")], 32
        for expand, size, stride, channels, count in ((1, 3, 1, 16, 1), (6, 3, 1, 24, 2), (6, 5, 2, 40, 2),
                                                      (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
                                                      (6, 3, 1, 320, 1)):
            parts.append(nn.Sequential(*(MBConv(channels if k else before, channels, expand, size, 1 if k else stride)
                                         for k in range(count))))
            before = channels
        self.features = nn.Sequential(*parts, unit(before, 1280, 1, activation="silu"))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(1280, 10))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def pointwise(channels_in, channels):
    return [nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def depthwise(channels, stride):
    return [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)]


class ShuffleUnit(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        half = channels // 2
        self.branch1 = nn.Sequential(*([] if stride == 1 else [*depthwise(channels_in, stride),
                                                               *pointwise(channels_in, half)]))
        self.branch2 = nn.Sequential(*pointwise(half if stride == 1 else channels_in, half), *depthwise(half, stride),
                                     *pointwise(half, half))
        self.split = stride == 1

    def forward(self, x):
        kept, moved = x.chunk(2, 1) if self.split else (self.branch1(x), x)
        y = torch.cat([kept, self.branch2(moved)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class ShuffleNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, before = unit(3, 24, 3), 24
        for stage, (count, channels) in enumerate(((4, 116), (8, 232), (4, 464)), 2):
            setattr(self, f"stage{stage}", nn.Sequential(*(ShuffleUnit(channels if k else before, channels,
                                                                       1 if k else 2) for k in range(count))))
            before = channels
        self.conv5, self.fc = unit(before, 1024, 1), nn.Linear(1024, 10)

    def forward(self, x):
        return self.fc(self.conv5(self.stage4(self.stage3(self.stage2(self.conv1(x))))).mean((2, 3)))


class Attention(nn.MultiheadAttention):
    """PyTorch's own layer and names, by its fused attention without the weights."""

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class EncoderBlock(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(channels, eps=1e-6), nn.LayerNorm(channels, eps=1e-6)
        self.self_attention = Attention(channels, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Dropout(0.0),
                                 nn.Linear(4 * channels, channels), nn.Dropout(0.0))

    def forward(self, x):
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, patch, channels, layers, heads):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, channels, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, (32 // patch) ** 2 + 1, channels))
        self.encoder.layers = nn.Sequential()
        for k in range(layers):
            self.encoder.layers.add_module(f"encoder_layer_{k}", EncoderBlock(channels, heads))
        self.encoder.ln = nn.LayerNorm(channels, eps=1e-6)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(channels, 10))

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.encoder.pos_embedding
        return self.heads(self.encoder.ln(self.encoder.layers(x))[:, 0])


def dpn92():
    dense = (16, 32, 24, 128)
    layers = torch_zoo.stages(lambda c, stage, stride, k: torch_zoo.DualPath(c, 96 << stage, 256 << stage, dense[stage],
                                                                             stride, k == 0),
                              (3, 4, 20, 3), 64, lambda stage, k: (256 << stage) + (k + 2) * dense[stage])
    return torch_zoo.Classifier(2048 + 4 * 128, conv1=torch_zoo.conv(3, 64, 3), bn1=nn.BatchNorm2d(64), **layers)


def residual(block, *counts):
    return lambda: torch_networks.Residual(block, counts, 64)


TWINS = {**{f"vgg{depth}": lambda depth=depth: VGG(depth, True) for depth in VGGS},
         **{f"vgg{depth}_plain": lambda depth=depth: VGG(depth, False) for depth in VGGS},
         "resnet34": residual(torch_networks.Basic, 3, 4, 6, 3),
         "resnet101": residual(torch_networks.Bottleneck, 3, 4, 23, 3),
         "resnet152": residual(torch_networks.Bottleneck, 3, 8, 36, 3), "alexnet": AlexNet, "dpn92": dpn92,
         "coresnet101": lambda: torch_coresnet.CoResNet((3, 4, 23, 3)),
         "coresnet152": lambda: torch_coresnet.CoResNet((3, 8, 36, 3)),
         "regnet_x_200mf": lambda: RegNet((24, 56, 152, 368), (1, 1, 4, 7), 8),
         "regnet_x_400mf": lambda: RegNet((32, 64, 160, 400), (1, 2, 7, 12), 16),
         "regnet_y_400mf": lambda: RegNet((48, 104, 208, 440), (1, 3, 6, 6), 8, 0.25), "efficientnet_b0": EfficientNet,
         "shufflenetv2": ShuffleNetV2, "vit_tiny_4": lambda: ViT(4, 192, 12, 3)}
