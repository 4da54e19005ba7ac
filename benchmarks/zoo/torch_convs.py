"""PyTorch twins of convs.py: the same names, PyTorch's own layers, maps N C H W."""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.zoo.torch_shipped import Gate


def unit(channels_in, channels, size, stride=1, groups=1):
    size = (size, size) if isinstance(size, int) else size
    return nn.Sequential(nn.Conv2d(channels_in, channels, size, stride, (size[0] // 2, size[1] // 2), groups=groups,
                                   bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def plain(channels_in, channels, size=1, stride=1):
    return nn.Sequential(nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=False),
                         nn.BatchNorm2d(channels))


class Pooled(nn.Module):
    """A body, then a head: behind the mean over each map if it is linear, else in front of it."""

    def __init__(self, channels, *body, linear=True):
        super().__init__()
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(channels, 10) if linear else nn.Conv2d(channels, 10, 1)
        self.linear = linear

    def forward(self, x):
        x = self.body(x)
        return self.head(x.mean((2, 3))) if self.linear else self.head(x).mean((2, 3))


def allconv():
    plan = ((3, 96, 1), (96, 96, 1), (96, 96, 2), (96, 192, 1), (192, 192, 1), (192, 192, 2), (192, 192, 1))
    return Pooled(192, *(unit(i, o, 3, stride) for i, o, stride in plan), unit(192, 192, 1), linear=False)


def nin():
    return Pooled(192, unit(3, 192, 5), unit(192, 160, 1), unit(160, 96, 1), nn.MaxPool2d(3, 2, 1), unit(96, 192, 5),
                  unit(192, 192, 1), unit(192, 192, 1), nn.AvgPool2d(2), unit(192, 192, 3), unit(192, 192, 1),
                  linear=False)


class Fire(nn.Module):
    def __init__(self, channels_in, squeezed, channels):
        super().__init__()
        self.squeeze = unit(channels_in, squeezed, 1)
        self.one, self.three = unit(squeezed, channels, 1), unit(squeezed, channels, 3)

    def forward(self, x):
        x = self.squeeze(x)
        return torch.cat([self.one(x), self.three(x)], 1)


def squeezenet():
    return Pooled(512, unit(3, 96, 3), nn.MaxPool2d(2), Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128),
                  nn.MaxPool2d(2), Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256),
                  nn.MaxPool2d(2), Fire(512, 64, 256), linear=False)


class Factorized(nn.Module):
    def __init__(self, i, n):
        super().__init__()
        self.one = unit(i, 64, 1)
        self.seven = nn.Sequential(unit(i, n, 1), unit(n, n, (1, 7)), unit(n, 64, (7, 1)))
        self.twice = nn.Sequential(unit(i, n, 1), unit(n, n, (7, 1)), unit(n, n, (1, 7)), unit(n, n, (7, 1)),
                                   unit(n, 64, (1, 7)))
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=True), unit(i, 64, 1))

    def forward(self, x):
        return torch.cat([self.one(x), self.seven(x), self.twice(x), self.pool(x)], 1)


def inceptionv3():
    return Pooled(256, unit(3, 64, 3), unit(64, 128, 3, 2), Factorized(128, 48), Factorized(256, 64),
                  unit(256, 256, 3, 2), Factorized(256, 64), Factorized(256, 80))


class RepBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.three, self.one = plain(channels_in, channels, 3, stride), plain(channels_in, channels, 1, stride)
        self.same = nn.BatchNorm2d(channels) if stride == 1 and channels_in == channels else None

    def forward(self, x):
        y = self.three(x) + self.one(x)
        return F.relu(y if self.same is None else y + self.same(x), inplace=True)


def repvgg():
    blocks, before = [], 3
    for channels, count in ((48, 1), (48, 2), (96, 4), (192, 8), (512, 1)):
        for k in range(count):
            blocks.append(RepBlock(before, channels, 2 if k == 0 and channels > 48 else 1))
            before = channels
    return Pooled(before, *blocks)


class Ghost(nn.Module):
    def __init__(self, channels_in, channels, active):
        super().__init__()
        half = channels // 2
        self.primary, self.cheap = plain(channels_in, half), nn.Sequential(
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half))
        if active:
            self.primary.append(nn.ReLU(inplace=True))
            self.cheap.append(nn.ReLU(inplace=True))

    def forward(self, x):
        x = self.primary(x)
        return torch.cat([x, self.cheap(x)], 1)


class GhostBlock(nn.Module):
    def __init__(self, channels_in, inner, channels, stride):
        super().__init__()
        middle = [nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner)]
        self.body = nn.Sequential(Ghost(channels_in, inner, True), *(middle if stride > 1 else []),
                                  Gate(inner, inner // 4), Ghost(inner, channels, False))
        self.shortcut = None if stride == 1 and channels_in == channels else plain(channels_in, channels, 1, stride)

    def forward(self, x):
        return self.body(x) + (x if self.shortcut is None else self.shortcut(x))


def ghostnet():
    plan = ((16, 48, 24, 2), (24, 72, 24, 1), (24, 72, 40, 2), (40, 120, 40, 1), (40, 240, 80, 2), (80, 184, 80, 1),
            (80, 480, 112, 1))
    return Pooled(480, unit(3, 16, 3), *(GhostBlock(*item) for item in plan), unit(112, 480, 1))


class Res2Block(nn.Module):
    def __init__(self, channels_in, width, channels, stride):
        super().__init__()
        self.first = unit(channels_in, 4 * width, 1, stride)
        self.convs = nn.ModuleList(unit(width, width, 3) for _ in range(3))
        self.last, self.shortcut = plain(4 * width, channels), plain(channels_in, channels, 1, stride)

    def forward(self, x):
        first, *slices = self.first(x).chunk(4, 1)
        parts, y = [first], slices[0]
        for k, conv in enumerate(self.convs):
            y = conv(y if k == 0 else y + slices[k])
            parts.append(y)
        return F.relu(self.last(torch.cat(parts, 1)) + self.shortcut(x), inplace=True)


def res2net():
    return Pooled(1024, unit(3, 64, 3), Res2Block(64, 26, 256, 1), Res2Block(256, 26, 256, 1),
                  Res2Block(256, 52, 512, 2), Res2Block(512, 52, 512, 1), Res2Block(512, 104, 1024, 2))


class PyramidBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(channels_in),
                                  nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
                                  nn.BatchNorm2d(channels))
        self.pool, self.more = nn.AvgPool2d(2) if stride > 1 else nn.Identity(), channels - channels_in

    def forward(self, x):
        return self.body(x) + F.pad(self.pool(x), (0, 0, 0, 0, 0, self.more))


def pyramidnet():
    widths = [16 + round(84 * (k + 1) / 18) for k in range(18)]
    blocks = (PyramidBlock(before, channels, 2 if k in (6, 12) else 1)
              for k, (before, channels) in enumerate(zip([16, *widths], widths)))
    return Pooled(100, nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), *blocks, nn.BatchNorm2d(100),
                  nn.ReLU(inplace=True))


def separable(channels_in, channels, size=3, stride=1, dilation=1):
    return [nn.ReLU(), nn.Conv2d(channels_in, channels_in, size, stride, dilation * (size // 2), dilation,
                                 groups=channels_in, bias=False), *plain(channels_in, channels)]


class XceptionBlock(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.body = nn.Sequential(*separable(channels_in, channels), *separable(channels, channels),
                                  nn.MaxPool2d(3, 2, 1))
        self.shortcut = plain(channels_in, channels, 1, 2)

    def forward(self, x):
        return self.body(x) + self.shortcut(x)


def xception():
    return Pooled(512, unit(3, 32, 3), unit(32, 64, 3), XceptionBlock(64, 128), XceptionBlock(128, 256),
                  *separable(256, 256), *separable(256, 256), *separable(256, 512), nn.ReLU(inplace=True))


class Cell(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.enter = nn.Sequential(nn.ReLU(), *plain(channels_in, channels, 1, stride))
        self.a, self.b = (nn.Sequential(*separable(channels, channels, size)) for size in (3, 5))
        self.c, self.d = (nn.Sequential(*separable(channels, channels, size, 1, 2)) for size in (3, 5))
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, x):
        x = self.enter(x)
        one = self.a(x) + self.b(x)
        two = self.c(one) + x
        three = self.d(x) + self.pool(one)
        return torch.cat([one, two, three, self.pool(two) + three], 1)


def cells():
    made, before = [], 48
    for k, channels in enumerate((16, 16, 32, 32, 32, 64, 64, 64)):
        made.append(Cell(before, channels, 2 if k in (2, 5) else 1))
        before = 4 * channels
    return Pooled(before, nn.Conv2d(3, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), *made)


class CBAMBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.body = nn.Sequential(unit(channels_in, channels, 3, stride), *plain(channels, channels, 3))
        self.mlp = nn.Sequential(nn.Linear(channels, channels // 8), nn.ReLU(inplace=True),
                                 nn.Linear(channels // 8, channels))
        self.place = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.shortcut = plain(channels_in, channels, 1, stride)

    def forward(self, x):
        y = self.body(x)
        y = y * torch.sigmoid(self.mlp(y.mean((2, 3))) + self.mlp(y.amax((2, 3))))[:, :, None, None]
        seen = torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)
        return F.relu(y * torch.sigmoid(self.place(seen)) + self.shortcut(x), inplace=True)


def cbam():
    return Pooled(256, unit(3, 32, 3), CBAMBlock(32, 32, 1), CBAMBlock(32, 64, 2), CBAMBlock(64, 128, 2),
                  CBAMBlock(128, 256, 2))


TWINS = {"allconv": allconv, "nin": nin, "squeezenet": squeezenet, "inceptionv3": inceptionv3, "repvgg": repvgg,
         "ghostnet": ghostnet, "res2net": res2net, "pyramidnet": pyramidnet, "xception": xception, "cells": cells,
         "cbam": cbam}
