"""PyTorch twins of tokens.py: the same names, PyTorch's own layers, maps N C H W."""

import torch
import torch.nn.functional as F
from torch import nn


def patches(x):
    return x.flatten(2).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, channels, inner):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, inner), nn.Linear(inner, channels)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class MixerBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm1, self.tokens = nn.LayerNorm(channels), MLP(tokens, tokens * 2)
        self.norm2, self.channels = nn.LayerNorm(channels), MLP(channels, channels * 4)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class OfPatches(nn.Module):
    """Patches of 4x4, blocks, a norm, the mean over the tokens."""

    def __init__(self, block):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 128, 4, 4), nn.LayerNorm(128)
        self.blocks, self.head = nn.Sequential(*(block(64, 128) for _ in range(8))), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(patches(self.stem(x)))).mean(1))


class ConvMixer(nn.Module):
    def __init__(self):
        super().__init__()
        c = 256
        self.stem = nn.Sequential(nn.Conv2d(3, c, 2, 2), nn.GELU(), nn.BatchNorm2d(c))
        self.depthwise = nn.ModuleList(nn.Sequential(nn.Conv2d(c, c, 5, padding=2, groups=c), nn.GELU(),
                                                     nn.BatchNorm2d(c)) for _ in range(8))
        self.pointwise = nn.ModuleList(nn.Sequential(nn.Conv2d(c, c, 1), nn.GELU(), nn.BatchNorm2d(c))
                                       for _ in range(8))
        self.head = nn.Linear(c, 10)

    def forward(self, x):
        x = self.stem(x)
        for depthwise, pointwise in zip(self.depthwise, self.pointwise):
            x = pointwise(x + depthwise(x))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x):
        n, tokens, channels = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, channels))


class Block(nn.Module):
    def __init__(self, channels, heads, ratio=4):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(channels), Attention(channels, heads)
        self.norm2, self.mlp = nn.LayerNorm(channels), MLP(channels, ratio * channels)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CCT(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
                                  nn.Conv2d(64, 128, 3, 1, 1, bias=False), nn.ReLU(inplace=True),
                                  nn.MaxPool2d(3, 2, 1))
        self.blocks, self.norm = nn.Sequential(*(Block(128, 2, 2) for _ in range(6))), nn.LayerNorm(128)
        self.weigh, self.head = nn.Linear(128, 1), nn.Linear(128, 10)

    def forward(self, x):
        x = self.norm(self.blocks(patches(self.stem(x))))
        return self.head((self.weigh(x).softmax(1).transpose(1, 2) @ x).squeeze(1))


class SwinBlock(nn.Module):
    """Takes and returns maps N H W C."""

    def __init__(self, channels, heads, window, shift):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(channels), Attention(channels, heads)
        self.norm2, self.mlp = nn.LayerNorm(channels), MLP(channels, 4 * channels)
        self.window, self.shift = window, shift

    def forward(self, x):
        n, h, w, c = x.shape
        m, s = self.window, self.shift
        y = self.norm1(x)
        y = torch.roll(y, (-s, -s), (1, 2)) if s else y
        y = y.view(n, h // m, m, w // m, m, c).transpose(2, 3).reshape(-1, m * m, c)
        y = self.attention(y).view(n, h // m, w // m, m, m, c).transpose(2, 3).reshape(n, h, w, c)
        x = x + (torch.roll(y, (s, s), (1, 2)) if s else y)
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x):
        return self.reduction(self.norm(torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)))


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 96, 2, 2)
        self.body = nn.Sequential(SwinBlock(96, 3, 4, 0), SwinBlock(96, 3, 4, 2), Merge(96), SwinBlock(192, 6, 4, 0),
                                  SwinBlock(192, 6, 4, 2), SwinBlock(192, 6, 4, 0), SwinBlock(192, 6, 4, 2))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 10)

    def forward(self, x):
        return self.head(self.norm(self.body(self.stem(x).permute(0, 2, 3, 1).contiguous())).mean((1, 2)))


class PoolBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm1, self.pool = nn.GroupNorm(1, channels), nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.norm2 = nn.GroupNorm(1, channels)
        self.fc1, self.fc2 = nn.Conv2d(channels, 4 * channels, 1), nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x):
        y = self.norm1(x)
        x = x + (self.pool(y) - y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class PoolFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 64, 2, 2), *(PoolBlock(64) for _ in range(3)),
                                  nn.Conv2d(64, 128, 3, 2, 1), *(PoolBlock(128) for _ in range(3)))
        self.norm, self.head = nn.GroupNorm(1, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).mean((2, 3)))


class GatedBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm, self.enter = nn.LayerNorm(channels), nn.Linear(channels, 6 * channels)
        self.gate_norm, self.tokens = nn.LayerNorm(3 * channels), nn.Linear(tokens, tokens)
        self.leave = nn.Linear(3 * channels, channels)

    def forward(self, x):
        u, v = F.gelu(self.enter(self.norm(x))).chunk(2, -1)
        return x + self.leave(u * self.tokens(self.gate_norm(v).transpose(1, 2)).transpose(1, 2))


class DCGAN(nn.Module):
    def __init__(self):
        super().__init__()
        down = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
        for i, o in ((64, 128), (128, 256)):
            down += [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)]
        up = [nn.ConvTranspose2d(100, 256, 4, bias=False), nn.BatchNorm2d(256), nn.ReLU(inplace=True)]
        for i, o in ((256, 128), (128, 64)):
            up += [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        self.down, self.code = nn.Sequential(*down), nn.Conv2d(256, 100, 4)
        self.up = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        return self.up(self.code(self.down(x)))


class Hourglass(nn.Module):
    def __init__(self):
        super().__init__()

        def blocks():
            return nn.ModuleList(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64),
                                               nn.ReLU(inplace=True)) for _ in range(6))
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        self.down, self.skip, self.up = blocks(), blocks(), blocks()
        self.heads, self.back = nn.ModuleList(nn.Conv2d(64, 16, 1) for _ in range(2)), nn.Conv2d(16, 64, 1)

    def glass(self, x, first):
        kept = []
        for k in range(first, first + 3):
            kept.append(self.skip[k](x))
            x = self.down[k](F.max_pool2d(x, 2))
        for k in range(first, first + 3):
            x = F.interpolate(self.up[k](x), scale_factor=2, mode="nearest") + kept.pop()
        return x

    def forward(self, x):
        x = self.stem(x)
        y = self.glass(x, 0)
        return self.heads[1](self.glass(x + y + self.back(self.heads[0](y)), 3))


TWINS = {"mixer": lambda: OfPatches(MixerBlock), "convmixer": ConvMixer, "cct": CCT, "swin": Swin,
         "poolformer": PoolFormer, "gmlp": lambda: OfPatches(GatedBlock), "dcgan": DCGAN, "hourglass": Hourglass}
