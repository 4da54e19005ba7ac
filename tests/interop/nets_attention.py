"""Small PyTorch networks of tokens, and of operators that stand in forward by themselves."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.interop.nets import net


@net()
class vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.pos = nn.Parameter(torch.randn(1, 5, 8))
        self.norm1, self.attn = nn.LayerNorm(8, eps=1e-6), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm2, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        n = x.shape[0]
        x = self.patch(x).reshape(n, 8, 4).permute(0, 2, 1)
        x = torch.cat([self.cls.expand(n, -1, -1), x], dim=1) + self.pos
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return self.head(x[:, 0])


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.by_hand:
            x = ((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).softmax(dim=-1) @ v
        else:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


@net()
class vit_by_hand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.a, self.b, self.head = Attention(8, 2, True), Attention(8, 4, False), nn.Linear(8, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.a(x)
        return self.head((x + self.b(x)).mean(1))


@net((2, 5, 8))
class encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(dim=1))


@net((2, 5, 8))
class encoder_length_first(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu")

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


@net((2, 4, 8), (2, 6, 8))
class cross_attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)
        self.register_buffer("mask", torch.triu(torch.ones(4, 6, dtype=torch.bool), 3))

    def forward(self, x, memory):
        y, weights = self.attn(x.transpose(0, 1), memory.transpose(0, 1), memory.transpose(0, 1), attn_mask=self.mask)
        return y.transpose(0, 1), weights


@net((2, 6, 8))
class causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, 2, c // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.mT / math.sqrt(c)
        scores = scores.masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), float("-inf"))
        return (y + torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


class ConvNextBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(dim, dim, 3, padding=1, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gamma = nn.Parameter(0.5 * torch.ones(dim))
        self.scale = nn.Parameter(torch.rand(dim, 1, 1))

    def forward(self, x):
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)
        return x + self.scale * y


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias,
                            self.eps).permute(0, 3, 1, 2)


@net()
class convnext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.block = nn.Conv2d(3, 6, 2, 2), LayerNorm2d(6), ConvNextBlock(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.block(self.norm(self.stem(x))).mean([-2, -1]))


@net()
class positions(nn.Module):
    """Parameters that are maps, one of which is read with other axes too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.LayerNorm([4, 8, 8])
        self.pos = nn.Parameter(torch.randn(1, 4, 8, 8))
        self.bias = nn.Parameter(torch.randn(4, 1, 1))
        self.both = nn.Parameter(torch.randn(1, 4, 8, 8))
        self.rows = nn.Parameter(torch.randn(8, 1))

    def forward(self, x):
        x = self.norm(self.conv(x) + self.pos) * self.bias + self.rows
        return (x * self.both).sum(1) + self.both.reshape(4, 8, 8)[0]


@net()
class stochastic(nn.Module):
    """Functional dropout with its own switch, and stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.p = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), 0.0

    def forward(self, x):
        x = F.dropout2d(self.conv(x), self.p, self.training)
        if self.training:
            keep = torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(1.0)
            x = x * keep.div_(1.0)
        return self.fc(F.dropout(x.mean((2, 3)), 0.0, True))


@net()
class einsums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.w = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.randn(5, 4))

    def forward(self, x):
        x = self.conv(x)
        y = torch.einsum("nchw,oc->nohw", x, self.w)
        return torch.einsum("nohw,nohw->no", y, y) + torch.einsum("...hw,...h->...w", y, y[..., 0]).sum(-1)


@net()
class broadcasts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(3, 4)

    def forward(self, x):
        y = self.conv(x)
        g = self.fc(x.mean((2, 3)))
        y = y + g[:, :, None, None] + g.unsqueeze(-1).unsqueeze(-1).expand(-1, -1, 8, 8)
        w = torch.softmax(y.flatten(2), dim=2).view_as(y)
        y = (y * w).sum((2, 3), keepdim=True).repeat(1, 1, 2, 2)
        return y / y.norm(dim=1, keepdim=True) + torch.arange(2, dtype=y.dtype) + y.std(dim=1, keepdim=True)


@net()
class adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.pool, self.fc = nn.AdaptiveAvgPool2d((3, 2)), nn.Linear(24 + 16, 3)

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        y = torch.cat([self.pool(x).flatten(1), F.adaptive_max_pool2d(x, 2).flatten(1)], 1)
        return self.fc(y)


@net((2, 4, 9))
class lines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), nn.Conv1d(6, 4, 1)

    def forward(self, x):
        x = F.relu(self.bn(self.a(x)))
        return self.b(F.max_pool1d(x, 3, 2)) + F.adaptive_avg_pool1d(x, 1)[:, :4]


@net()
class windows(nn.Module):
    """Attention in windows: samples and windows share an axis; a table is read by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.table = nn.Conv2d(3, 4, 1), nn.Parameter(torch.randn(9, 1))
        self.register_buffer("index", torch.randint(0, 9, (16,)), persistent=False)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        x = torch.roll(x, shifts=(-1, -1), dims=(1, 2))
        b, h, w, c = x.shape
        x = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        a = x @ x.transpose(1, 2) + self.table[self.index].view(4, 4)
        x = (a.softmax(-1) @ x).view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x.flip(1).permute(0, 3, 1, 2)


@net()
class in_place(nn.Module):
    """Values that are changed in place: whole, and a slice of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pair = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(2, 2, 1)

    def forward(self, x):
        x = self.conv(x)
        x.mul_(2).add_(x)
        y = torch.zeros_like(x)
        y[:, 1:3] = self.pair(x[:, :2])
        y[:, 0] += x[:, 3]
        y[:, :, 2:5] *= 3
        return y


@net((2, 8))
class shared(nn.Module):
    """A layer that is called twice, and a parameter that two layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.b.weight = self.a.weight
        self.again = self.a
        self.c.bias.requires_grad_(False)
        self.unused = nn.Conv2d(2, 3, 1)

    def forward(self, x):
        return self.c(self.b(torch.relu(self.again(torch.relu(self.a(x))))))


class Gate(nn.Module):
    def forward(self, x):
        return F.glu(x, 1) * math.sqrt(2)


@net()
class gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.gate, self.w = nn.Conv2d(3, 8, 1), Gate(), nn.Parameter(torch.randn(4, 4, 3, 3))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = F.conv2d(self.gate(self.a(x)), self.w, padding=1)
        x = self.pool(F.hardswish(x)) ** 2 + torch.tensor(0.5)
        return torch.stack([x.mean(1), x.argmax(1).to(x.dtype)], 1).log_softmax(1)


@net((2, 4, 4))
class marked(nn.Module):
    """A mask of parts that are numbered in place, as of shifted windows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        mask = x.new_zeros((4, 4))
        count = 0
        for rows in (slice(0, -2), slice(-2, -1), slice(-1, None)):
            for columns in (slice(0, -2), slice(-2, None)):
                mask[rows, columns] = count
                count += 1
        parts = mask.view(2, 2, 2, 2).permute(0, 2, 1, 3).reshape(4, 4)
        parts = parts.unsqueeze(1) - parts.unsqueeze(2)
        parts = parts.masked_fill(parts != 0, -100.0).masked_fill(parts == 0, 0.0)
        return (self.fc(x).unsqueeze(1) + parts.unsqueeze(0)).softmax(-1)
