"""Small PyTorch networks of all families, and what each is called with: NETS[name] = (make, shapes of the inputs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {}
IMAGES = (2, 3, 8, 8)


def net(*shapes: tuple[int, ...]) -> Callable[[Any], Any]:
    """Registers a class or function that makes a network."""
    def register(make: Any) -> Any:
        NETS[make.__name__] = (make, shapes or (IMAGES,))
        return make
    return register


@net()
def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3),
                         nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Dropout(0.0),
                         nn.Linear(12, 5))


class Block(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout, momentum=0.3, eps=1e-4)
        self.shortcut = nn.Sequential()
        if stride > 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


@net()
class residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.layers = nn.Sequential(Block(6, 6), Block(6, 8, 2))
        self.fc = nn.Linear(8 * 4, 5)

    def forward(self, x):
        x = F.avg_pool2d(self.layers(self.stem(x)), 2)
        return self.fc(x.view(x.size(0), -1))


@net()
class pre_activation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.conv = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)
        self.bn2, self.fc = nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.conv(F.relu(self.bn(x)))
        return self.fc(F.relu(self.bn2(x)).mean((2, 3)))


@net()
class dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 + 4 * k, 4, 3, padding=1, bias=False) for k in range(3)])
        self.bns = nn.ModuleList([nn.BatchNorm2d(3 + 4 * k) for k in range(3)])
        self.fc = nn.Linear(15, 4)

    def forward(self, x):
        for bn, conv in zip(self.bns, self.convs):
            x = torch.cat([conv(F.relu(bn(x))), x], 1)
        return self.fc(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1))


@net()
class grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=2, groups=4, dilation=2)
        self.c, self.fc = nn.Conv2d(8, 8, (3, 1), (2, 1), (1, 0), groups=8), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.c(F.silu(self.b(F.gelu(self.a(x))))).flatten(2).mean(-1))


@net()
class shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=3), nn.Linear(6, 3)

    def forward(self, x):
        x = self.a(x)
        n, c, h, w = x.size()
        x = x.view(n, 3, c // 3, h, w).permute(0, 2, 1, 3, 4).reshape(n, c, h, w)
        x = self.b(x).view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)
        left, right = x.chunk(2, dim=1)
        return self.fc(torch.cat((left * 2, torch.sigmoid(right)), dim=1).amax((2, 3)))


@net()
class split_channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(5, 5, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.a(x)
        left, right = torch.split(x, [3, 5], 1)
        y = torch.cat([x[:, :3] - left.detach(), self.b(right)], 1)
        return self.c(y)[:, :, ::2, 1:].sum(dim=(-1, -2)) + y[:, -4:].max(dim=2)[0].min(dim=2)[0]


class SqueezeExcite(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(c, 4), nn.Linear(4, c)

    def forward(self, x):
        n, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(n, c)
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(y)))).view(n, c, 1, 1).expand_as(x)


@net()
class squeeze_excite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.se = nn.Conv2d(3, 6, 3, padding=1), SqueezeExcite(6)
        self.conv2, self.scale = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)

    def forward(self, x):
        x = self.se(self.conv(x))
        return (self.conv2(x) * F.hardsigmoid(self.scale(x.mean([2, 3], keepdim=True)))).flatten(1)


@net()
class unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.merge = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 6, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 6), nn.Conv2d(9, 4, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        y = F.relu(self.norm(self.merge(torch.cat([a, self.up(b)], dim=1))))
        z = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(torch.cat([y, z], dim=-3))


@net()
class unet_resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.up = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1), nn.Upsample(scale_factor=2)

    def forward(self, x):
        y = self.up(self.a(x))
        y = F.interpolate(y, size=x.shape[-2:], mode="nearest") + F.pad(x, (1, 1, 1, 1))[:, :1, 1:-1, 1:-1]
        return self.b(F.interpolate(F.pad(y, (2, 0, 1, 1), mode="reflect"), size=(6, 7), mode="bicubic"))


@net((2, 7))
class generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(7, 8 * 2 * 2)
        self.main = nn.Sequential(
            nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 6, 4, 2, 1, bias=False), nn.BatchNorm2d(6),
            nn.LeakyReLU(0.2), nn.ConvTranspose2d(6, 3, 3, 2, 1, output_padding=1), nn.Tanh())

    def forward(self, z):
        return self.main(self.fc(z).view(-1, 8, 2, 2))


@net()
class discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(3, 6, 4, 2, 1), nn.InstanceNorm2d(6, affine=True)
        self.b, self.c = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect"), nn.Conv2d(6, 1, 4)

    def forward(self, x):
        x = F.leaky_relu(self.a(x), 0.2)
        return self.c(F.elu(self.n(self.b(x)))).view(-1)


@net()
class pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.up = nn.Conv2d(3, 8, 3, padding="same"), nn.PixelShuffle(2)
        self.act, self.b = nn.PReLU(8), nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x):
        return F.pixel_unshuffle(self.b(self.up(self.act(self.a(x)))), 2)


@net()
class mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm1, self.norm2 = nn.Conv2d(3, 6, 2, 2), nn.LayerNorm(6), nn.LayerNorm(6)
        self.tokens = nn.Sequential(nn.Linear(16, 9), nn.GELU(), nn.Linear(9, 16))
        self.channels = nn.Sequential(nn.Linear(6, 9), nn.GELU("tanh"), nn.Linear(9, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(x.mean(dim=1))


@net()
class conv_mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.n0 = nn.Conv2d(3, 6, 2, 2), nn.BatchNorm2d(6)
        self.depth = nn.Sequential(nn.Conv2d(6, 6, 3, groups=6, padding="same"), nn.GELU(), nn.BatchNorm2d(6))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(6, 3))

    def forward(self, x):
        x = self.n0(F.gelu(self.patch(x)))
        return self.head(self.depth(x) + x)


@net()
class inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)
        self.c = nn.Conv2d(3, 2, (1, 5), padding=(0, 2))
        self.pool, self.fc = nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Linear(13 * 16, 3)

    def forward(self, x):
        y = torch.cat([self.a(x), self.b(x), self.c(x), self.pool(x)], 1)
        return self.fc(torch.flatten(F.max_pool2d(y, 3, 2, ceil_mode=True), 1))


@net()
class lrn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(3, alpha=0.1), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return F.softplus(self.b(self.n(F.relu6(self.a(x)))))


@net()
class branches(nn.Module):
    """Training and inference take different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.aux, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        y = self.a(x).mean((-2, -1))
        if self.training:
            return {"out": self.fc(y), "aux": [self.aux(y), y]}
        return {"out": self.fc(y)}


@net()
class two_heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)
        self.b, self.c = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1, bias=False)

    def forward(self, x):
        x = self.bn(self.a(x)).clamp(min=-1, max=1.5)
        return self.b(x), self.c(torch.where(x > 0, x, x * 0.1)).flatten(1)
