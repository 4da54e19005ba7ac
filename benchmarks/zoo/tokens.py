"""Mixers, transformers and networks of maps to maps that alpha does not ship, as a user writes them.

Twins in PyTorch stand in torch_tokens.py, under the same names.
"""

from __future__ import annotations

from alpha import Tensor, nn, ops
from alpha.nn import functional as F


def patches(x: Tensor) -> Tensor:
    """(N, H, W, C) -> (N, H * W, C)."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


class MLP(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, channels: int, inner: int) -> None:
        self.fc1, self.fc2 = nn.Linear(channels, inner), nn.Linear(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class MixerBlock(nn.Module):
    """One MLP over the tokens, one over the channels."""

    def __init__(self, tokens: int, channels: int) -> None:
        self.norm1, self.tokens = nn.LayerNorm(channels), MLP(tokens, tokens * 2)
        self.norm2, self.channels = nn.LayerNorm(channels), MLP(channels, channels * 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).permute(0, 2, 1)).permute(0, 2, 1)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al., arXiv 2105.01601): patches of 4x4, 128 channels, eight blocks."""

    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 128, 4, 4)
        self.blocks, self.norm = nn.Sequential(*[MixerBlock(64, 128) for _ in range(8)]), nn.LayerNorm(128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(patches(self.stem(x)))).mean(axis=1))


class ConvMixer(nn.Module):
    """Depthwise 5x5 with a shortcut, then 1x1, eight times (Trockman and Kolter, arXiv 2201.09792)."""

    def __init__(self) -> None:
        c = 256
        self.stem = nn.Sequential(nn.Conv2d(3, c, 2, 2), nn.GELU(), nn.BatchNorm2d(c))
        self.depthwise = nn.ModuleList([nn.Sequential(nn.Conv2d(c, c, 5, padding=2, groups=c), nn.GELU(),
                                                      nn.BatchNorm2d(c)) for _ in range(8)])
        self.pointwise = nn.ModuleList([nn.Sequential(nn.Conv2d(c, c, 1), nn.GELU(), nn.BatchNorm2d(c))
                                        for _ in range(8)])
        self.head = nn.Linear(c, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, pointwise in zip(self.depthwise, self.pointwise):
            x = pointwise(x + depthwise(x))
        return self.head(x.mean(axis=(1, 2)))


class Attention(nn.Module):
    """Self-attention of several heads over (N, tokens, channels)."""

    def __init__(self, channels: int, heads: int) -> None:
        self.heads, self.qkv, self.out = heads, nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, channels = x.shape
        q, k, v = ops.unbind(self.qkv(x).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4), axis=0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.permute(0, 2, 1, 3).reshape(n, tokens, channels))


class Block(nn.Module):
    """Norm and attention, norm and MLP, each beside a shortcut."""

    def __init__(self, channels: int, heads: int, ratio: int = 4) -> None:
        self.norm1, self.attention = nn.LayerNorm(channels), Attention(channels, heads)
        self.norm2, self.mlp = nn.LayerNorm(channels), MLP(channels, ratio * channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CCT(nn.Module):
    """Tokens by convolutions, and a learned mean of them (Hassani et al., arXiv 2104.05704)."""

    def __init__(self) -> None:
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                                  nn.Conv2d(64, 128, 3, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks, self.norm = nn.Sequential(*[Block(128, 2, 2) for _ in range(6)]), nn.LayerNorm(128)
        self.weigh, self.head = nn.Linear(128, 1), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(patches(self.stem(x))))
        weights = F.softmax(self.weigh(x), axis=1)
        return self.head((weights.permute(0, 2, 1) @ x).reshape(x.shape[0], -1))


class SwinBlock(nn.Module):
    """Attention within windows, which every second block shifts by a half."""

    def __init__(self, channels: int, heads: int, window: int, shift: int) -> None:
        self.norm1, self.attention = nn.LayerNorm(channels), Attention(channels, heads)
        self.norm2, self.mlp = nn.LayerNorm(channels), MLP(channels, 4 * channels)
        self.window, self.shift = window, shift

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        m, s = self.window, self.shift
        y = self.norm1(x)
        if s:
            y = ops.roll(y, (-s, -s), (1, 2))
        y = y.reshape(n, h // m, m, w // m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, m * m, c)
        y = self.attention(y)
        y = y.reshape(n, h // m, w // m, m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        if s:
            y = ops.roll(y, (s, s), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):
    """2x2 pixels become one of twice the channels."""

    def __init__(self, channels: int) -> None:
        self.norm, self.reduction = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduction(self.norm(ops.concat(parts, axis=-1)))


class Swin(nn.Module):
    """Windows of 4x4 on maps of 16x16 and 8x8 (Liu et al., arXiv 2103.14030), without masks and position biases."""

    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 96, 2, 2)
        self.body = nn.Sequential(SwinBlock(96, 3, 4, 0), SwinBlock(96, 3, 4, 2), Merge(96), SwinBlock(192, 6, 4, 0),
                                  SwinBlock(192, 6, 4, 2), SwinBlock(192, 6, 4, 0), SwinBlock(192, 6, 4, 2))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.stem(x))).mean(axis=(1, 2)))


class PoolBlock(nn.Module):
    """A mean over the neighbours in the place of attention."""

    def __init__(self, channels: int) -> None:
        self.norm1, self.pool = nn.GroupNorm(1, channels), nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.norm2 = nn.GroupNorm(1, channels)
        self.fc1, self.fc2 = nn.Conv2d(channels, 4 * channels, 1), nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + (self.pool(y) - y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class PoolFormer(nn.Module):
    """Pools as the mixer of tokens (Yu et al., arXiv 2111.11418)."""

    def __init__(self) -> None:
        self.body = nn.Sequential(nn.Conv2d(3, 64, 2, 2), *[PoolBlock(64) for _ in range(3)],
                                  nn.Conv2d(64, 128, 3, 2, 1), *[PoolBlock(128) for _ in range(3)])
        self.norm, self.head = nn.GroupNorm(1, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)).mean(axis=(1, 2)))


class GatedBlock(nn.Module):
    """Half of the channels gate the other half, by a product over the tokens."""

    def __init__(self, tokens: int, channels: int) -> None:
        self.norm, self.enter = nn.LayerNorm(channels), nn.Linear(channels, 6 * channels)
        self.gate_norm, self.tokens = nn.LayerNorm(3 * channels), nn.Linear(tokens, tokens)
        self.leave = nn.Linear(3 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        u, v = ops.chunk(F.gelu(self.enter(self.norm(x))), 2, axis=-1)
        v = self.tokens(self.gate_norm(v).permute(0, 2, 1)).permute(0, 2, 1)
        return x + self.leave(u * v)


class GMLP(nn.Module):
    """Gated MLPs (Liu et al., arXiv 2105.08050): patches of 4x4, 128 channels, eight blocks."""

    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 128, 4, 4)
        self.blocks, self.norm = nn.Sequential(*[GatedBlock(64, 128) for _ in range(8)]), nn.LayerNorm(128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(patches(self.stem(x)))).mean(axis=1))


class DCGAN(nn.Module):
    """A discriminator's body, 100 numbers, and a generator's (Radford et al., arXiv 1511.06434): images to images."""

    def __init__(self) -> None:
        down = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
        for i, o in ((64, 128), (128, 256)):
            down += [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2)]
        up: list[nn.Module] = [nn.ConvTranspose2d(100, 256, 4, bias=False), nn.BatchNorm2d(256), nn.ReLU()]
        for i, o in ((256, 128), (128, 64)):
            up += [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        self.down, self.code = nn.Sequential(*down), nn.Conv2d(256, 100, 4)
        self.up = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.code(self.down(x)))


class Hourglass(nn.Module):
    """Two hourglasses of residual blocks (Newell et al., arXiv 1603.06937): a heat map for each of 16 points."""

    def __init__(self) -> None:
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.down = nn.ModuleList([self.block() for _ in range(6)])
        self.skip = nn.ModuleList([self.block() for _ in range(6)])
        self.up = nn.ModuleList([self.block() for _ in range(6)])
        self.heads = nn.ModuleList([nn.Conv2d(64, 16, 1) for _ in range(2)])
        self.back = nn.Conv2d(16, 64, 1)

    @staticmethod
    def block() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())

    def glass(self, x: Tensor, first: int) -> Tensor:
        kept = []
        for k in range(first, first + 3):
            kept.append(self.skip[k](x))
            x = self.down[k](F.max_pool2d(x, 2))
        for k in range(first, first + 3):
            x = F.interpolate(self.up[k](x), scale_factor=2, mode="nearest") + kept.pop()
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.glass(x, 0)
        y = self.glass(x + y + self.back(self.heads[0](y)), 3)
        return self.heads[1](y)


NETWORKS = {"mixer": Mixer, "convmixer": ConvMixer, "cct": CCT, "swin": Swin, "poolformer": PoolFormer, "gmlp": GMLP,
            "dcgan": DCGAN, "hourglass": Hourglass}
