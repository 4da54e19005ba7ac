"""Small random networks beside the same networks in PyTorch, and beside themselves with each of alpha's settings.

A network is a list of steps over maps: layers, activations, sums, products, concatenations, slices, resizing. PyTorch's
side runs in float64, which is what is right, and in float32, which says how far float32 may be from it. Then the same
bits must come from every setting of `recompute`, with and without `fuse`, of two threads, of a recorded step and from a
second run; without compiled kernels the values must be right, too. In 16 bits every setting of `recompute` and a
recorded step must give the same bits. `alpha.inference` must give what the model in inference mode gives.

    python -m tests.fuzz --only networks --minutes 30 --seed 1000
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn as tnn
from torch.nn import functional as TF

import alpha
from alpha import nn, ops
from tests.fuzz._network_values import compare, drawn_again, expected_of, narrow, seen_by, values_of

SECONDS = 60
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"recompute": "none"}, {"recompute": "cheap"}, {"recompute": "full"},
                                        {"fuse": False}, {"num_threads": 2})
ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (ops.relu, TF.relu), "gelu": (ops.gelu, TF.gelu), "silu": (ops.silu, TF.silu), "elu": (ops.elu, TF.elu),
    "leaky": (lambda x: ops.leaky_relu(x, 0.2), lambda t: TF.leaky_relu(t, 0.2)), "tanh": (ops.tanh, torch.tanh),
    "sigmoid": (ops.sigmoid, torch.sigmoid), "softplus": (ops.softplus, TF.softplus), "relu6": (ops.relu6, TF.relu6),
    "hardswish": (ops.hardswish, TF.hardswish), "square": (lambda x: x * x, lambda t: t * t),
    "softmax": (lambda x: ops.softmax(x, -1), lambda t: TF.softmax(t, 1)),
    "centred": (lambda x: x - x.mean((1, 2), True), lambda t: t - t.mean((2, 3), keepdim=True)),
    "halves": (lambda x: ops.concat(ops.split(x, (x.shape[-1] + 1) // 2, -1)[::-1], -1),
               lambda t: torch.cat(torch.split(t, (t.shape[1] + 1) // 2, 1)[::-1], 1)),
    "affine": (lambda x: 0.5 * x + 0.25, lambda t: 0.5 * t + 0.25), "abs": (lambda x: x.abs(), torch.abs)}


class Instance(tnn.Module):
    """InstanceNorm2d; PyTorch's own has other gradients for one sample in 2.13, if they come in another layout."""

    def forward(self, t: Any) -> Any:
        var, mean = torch.var_mean(t, (2, 3), correction=0, keepdim=True)
        return (t - mean) / torch.sqrt(var + 1e-5)


class Case:
    """One random network: the shape of each map, the layers of both sides, and the steps that lead from map to map."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        side = rng.choice([4, 5, 7, 8, 9, 12, 16])
        self.batch = rng.choice([1, 2, 3, 4, 8])
        self.maps = [(side, rng.choice([side, side, side + 1, 6]), rng.choice([1, 2, 3, 4, 8, 16]))]
        self.steps: list[tuple[str, tuple[int, ...], Any]] = []
        self.ours, self.theirs = nn.ModuleList(), tnn.ModuleList()
        self.drawn = False      # whether there is dropout, whose mask PyTorch does not have

    def layer(self, ours: nn.Module, theirs: tnn.Module) -> int:
        """Takes a layer of each side."""
        for p in theirs.parameters():
            if p.dim() == 1:
                p.data = torch.tensor([self.rng.uniform(0.3, 1.5) for _ in range(len(p))])
        self.ours.append(ours)
        self.theirs.append(theirs)
        return len(self.ours) - 1

    def add(self, what: str, sources: tuple[int, ...], shape: tuple[int, ...], detail: Any = None) -> None:
        if min(shape) >= 1 and shape[0] * shape[1] * shape[2] <= 40_000:
            self.steps.append((what, sources, detail))
            self.maps.append(shape)

    def grow(self) -> None:
        """Adds a step, if the one that is drawn fits the map that is drawn."""
        s = max(len(self.maps) - 1 - int(self.rng.expovariate(1.2)), 0)
        grow = self.rng.choice([self.convolution] * 6 + [self.activation] * 6 + [self.norm] * 5 + [self.join] * 3
                               + [self.pool] * 3 + [self.rows, self.gate, self.cut, self.resize, self.pad, self.scale,
                                                    self.attention, self.again, self.again, self.dropout])
        grow(s, *self.maps[s])

    def activation(self, s: int, h: int, w: int, c: int) -> None:
        self.add(self.rng.choice(list(ACTIVATIONS)), (s,), (h, w, c))

    def norm(self, s: int, h: int, w: int, c: int) -> None:
        kind = self.rng.choice(["batch", "batch", "group", "layer", "instance", "rms"])
        if kind == "rms":
            self.add("rows", (s,), (h, w, c), self.layer(nn.RMSNorm(c, 1e-5), tnn.RMSNorm(c, 1e-5)))
        elif kind == "layer" and c > 1:
            self.add("rows", (s,), (h, w, c), self.layer(nn.LayerNorm(c), tnn.LayerNorm(c)))
        elif kind == "batch" and self.batch * h * w > 1:
            self.add("layer", (s,), (h, w, c), self.layer(nn.BatchNorm2d(c), tnn.BatchNorm2d(c)))
        elif kind == "group" and self.batch * h * w > 1:
            groups = self.rng.choice([d for d in (1, 2, 4) if c % d == 0])
            self.add("layer", (s,), (h, w, c), self.layer(nn.GroupNorm(groups, c), tnn.GroupNorm(groups, c)))
        elif kind == "instance" and h * w > 1:
            self.add("layer", (s,), (h, w, c), self.layer(nn.InstanceNorm2d(c), Instance()))

    def pool(self, s: int, h: int, w: int, c: int) -> None:
        kind, k, size = self.rng.choice(["MaxPool2d", "AvgPool2d", "adaptive"]), self.rng.choice([2, 3]), 2
        if kind == "adaptive":
            size = self.rng.randint(1, 3)
            name = self.rng.choice(["AdaptiveAvgPool2d", "AdaptiveMaxPool2d"])
            ours, theirs = getattr(nn, name)(size), getattr(tnn, name)(size)
            self.add("layer", (s,), (size, size, c), self.layer(ours, theirs))
            return
        geometry = (k, self.rng.choice([1, 2, 3]), self.rng.randint(0, k // 2))
        more = {"ceil_mode": self.rng.random() < 0.3}
        reach = k
        if kind == "MaxPool2d" and self.rng.random() < 0.3:
            more["dilation"] = 2
            reach = 2 * k - 1
        if min(h, w) + 2 * geometry[2] >= reach:
            there = getattr(tnn, kind)(*geometry, **more)
            seen = there(torch.zeros(1, c, h, w))
            if seen.isinf().any():      # a window in the padding alone, which alpha refuses
                return
            shape = seen.shape
            self.add("layer", (s,), (*shape[2:], c), self.layer(getattr(nn, kind)(*geometry, **more), there))

    def join(self, s: int, h: int, w: int, c: int) -> None:
        how = self.rng.choice(["sum", "sum", "product", "concat", "larger"])
        if how == "concat":
            near = [k for k, shape in enumerate(self.maps) if shape[:2] == (h, w)]
            parts = (s, *(self.rng.choice(near) for _ in range(self.rng.randint(1, 2))))
            self.add(how, parts, (h, w, sum(self.maps[k][2] for k in parts)))
        else:
            same = [k for k, shape in enumerate(self.maps) if shape == (h, w, c)]
            self.add(how, (s, self.rng.choice(same)), (h, w, c))

    def rows(self, s: int, h: int, w: int, c: int) -> None:
        out, bias = self.rng.choice([2, 4, 8, 10]), self.rng.random() < 0.7
        self.add("rows", (s,), (h, w, out), self.layer(nn.Linear(c, out, bias), tnn.Linear(c, out, bias)))

    def gate(self, s: int, h: int, w: int, c: int) -> None:
        self.add("gate", (s,), (h, w, c), self.layer(nn.Linear(c, c), tnn.Linear(c, c)))

    def scale(self, s: int, h: int, w: int, c: int) -> None:
        self.add("scale", (s,), (h, w, c), self.layer(nn.Linear(1, c, False), tnn.Linear(1, c, False)))

    def cut(self, s: int, h: int, w: int, c: int) -> None:
        if c > 1:
            a = self.rng.randint(0, c - 1)
            b = self.rng.randint(a + 1, c)
            self.add("slice", (s,), (h, w, b - a), (a, b))

    def resize(self, s: int, h: int, w: int, c: int) -> None:
        mode = self.rng.choice(["nearest", "nearest-exact", "bilinear", "bicubic", "shuffle"])
        if mode != "shuffle":
            size = (2 * h, 2 * w)
            if self.rng.random() < 0.5:
                size = (self.rng.randint(1, 2 * h), self.rng.randint(1, 2 * w))
            more = {"align_corners": self.rng.random() < 0.5} if mode.startswith("bi") else {}
            self.add("layer", (s,), (*size, c), self.layer(nn.Upsample(size, mode=mode, **more),
                                                           tnn.Upsample(size, mode=mode, **more)))
        elif c % 4 == 0:
            self.add("layer", (s,), (2 * h, 2 * w, c // 4), self.layer(nn.PixelShuffle(2), tnn.PixelShuffle(2)))

    def attention(self, s: int, h: int, w: int, c: int) -> None:
        heads = self.rng.choice([k for k in (1, 2, 4) if c % k == 0])
        if h * w <= 64:
            self.add("attention", (s,), (h, w, c), self.layer(nn.MultiheadAttention(c, heads, batch_first=True),
                                                              tnn.MultiheadAttention(c, heads, batch_first=True)))

    def again(self, s: int, h: int, w: int, c: int) -> None:
        """A layer a second time, on a map of the shape that it had."""
        near = [k for k, (what, sources, _) in enumerate(self.steps)
                if what in ("layer", "rows", "attention") and self.maps[sources[0]] == (h, w, c)]
        if near:
            k = self.rng.choice(near)
            self.add(self.steps[k][0], (s,), self.maps[k + 1], self.steps[k][2])

    def dropout(self, s: int, h: int, w: int, c: int) -> None:
        if self.rng.random() < 0.5:
            self.drawn = True
            self.add("layer", (s,), (h, w, c), self.layer(nn.Dropout(0.3), tnn.Dropout(0.3)))

    def pad(self, s: int, h: int, w: int, c: int) -> None:
        if min(h, w) > 2:
            sides = tuple(self.rng.randint(0, 2) for _ in range(4))
            mode = self.rng.choice(["constant", "reflect", "replicate"])
            self.add("pad", (s,), (h + sides[2] + sides[3], w + sides[0] + sides[1], c), (sides, mode))

    def convolution(self, s: int, h: int, w: int, c: int) -> None:
        rng, kind = self.rng, self.rng.choice(["conv", "conv", "conv", "pointwise", "depthwise", "deconv"])
        out, bias, k = rng.choice([1, 2, 4, 6, 8, 16, 20]), rng.random() < 0.6, rng.choice([1, 2, 3, 3, 3, 5])
        size = (k, rng.choice([k, k, k, 1, 3]))
        more = {"stride": rng.choice([1, 1, 1, 2, 3]), "padding": rng.randint(0, 3), "groups": 1, "bias": bias}
        if kind == "pointwise":
            size, more["padding"], more["stride"] = (1, 1), 0, rng.choice([1, 1, 2])
        elif kind == "depthwise":
            more["groups"], out = c, c * rng.choice([1, 1, 2])
        else:
            more["groups"] = rng.choice([d for d in (1, 1, 1, 2, 4) if c % d == 0 and out % d == 0])
        mine, other = nn.Conv2d, tnn.Conv2d
        if kind == "deconv":
            mine, other = nn.ConvTranspose2d, tnn.ConvTranspose2d
            more["output_padding"] = rng.randint(0, more["stride"] - 1)
        else:
            more["dilation"] = rng.choice([1, 1, 1, 2])
        there = other(c, out, size, **more)
        try:
            shape = there(torch.zeros(1, c, h, w)).shape
        except RuntimeError:    # the filter is larger than the map
            return
        self.add("layer", (s,), (*shape[2:], shape[1]), self.layer(mine(c, out, size, **more), there))

    def end(self) -> None:
        """The loose ends meet: a mean of each over its pixels, and one linear layer."""
        read = {k for _, sources, _ in self.steps for k in sources}
        self.ends = [k for k in range(len(self.maps)) if k not in read]
        width = sum(self.maps[k][2] for k in self.ends)
        self.head = self.layer(nn.Linear(width, 3), tnn.Linear(width, 3))


def walk(net: Any, x: Any, side: int) -> list[Any]:
    """Returns all maps of a network, of which `net.step` makes those that differ in layout or in names."""
    maps = [x]
    for what, sources, detail in net.steps:
        t, *rest = [maps[k] for k in sources]
        if what in ACTIVATIONS:
            maps.append(ACTIVATIONS[what][side](t))
        elif what in ("sum", "product"):
            maps.append(t + rest[0] if what == "sum" else t * rest[0])
        else:
            maps.append(net.step(what, t, rest, detail))
    return maps


class Ours(nn.Module):
    """The network in alpha."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layers, self.steps, self.ends, self.head = case.ours, case.steps, case.ends, case.head

    def forward(self, x: Any) -> Any:
        maps = walk(self, x, 0)
        return self.layers[self.head](ops.concat([maps[k].mean((1, 2)) for k in self.ends], 1))

    def step(self, what: str, t: Any, rest: list[Any], detail: Any) -> Any:
        if what in ("layer", "rows"):
            return self.layers[detail](t)
        if what == "attention":
            rows = t.reshape(t.shape[0], -1, t.shape[3])
            return self.layers[detail](rows, rows, rows, need_weights=False)[0].reshape(t.shape)
        if what == "larger":
            return ops.maximum(t, rest[0] * 0.5)
        if what == "concat":
            return ops.concat([t, *rest], 3)
        if what == "gate":
            return t * ops.sigmoid(self.layers[detail](t.mean((1, 2)))).reshape(t.shape[0], 1, 1, t.shape[3])
        if what == "slice":
            return t[..., detail[0]:detail[1]]
        if what == "pad":
            return nn.functional.pad(t, detail[0], mode=detail[1])
        return t * self.layers[detail].weight.reshape(-1)


class Theirs(tnn.Module):
    """The network in PyTorch, on (N, C, H, W)."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layers, self.steps, self.ends, self.head = case.theirs, case.steps, case.ends, case.head

    def forward(self, x: Any) -> Any:
        maps = walk(self, x, 1)
        return self.layers[self.head](torch.cat([maps[k].mean((2, 3)) for k in self.ends], 1))

    def step(self, what: str, t: Any, rest: list[Any], detail: Any) -> Any:
        if what == "layer":     # one sample in another layout has wrong gradients of batch norm in 2.13
            return self.layers[detail](t.contiguous())
        if what == "rows":
            return self.layers[detail](t.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if what == "attention":
            rows = t.flatten(2).transpose(1, 2)
            y = self.layers[detail](rows, rows, rows, need_weights=False)[0]
            return y.transpose(1, 2).reshape(t.shape)
        if what == "larger":
            return torch.maximum(t, rest[0] * 0.5)
        if what == "concat":
            return torch.cat([t, *rest], 1)
        if what == "gate":
            return t * torch.sigmoid(self.layers[detail](t.mean((2, 3))))[:, :, None, None]
        if what == "slice":
            return t[:, detail[0]:detail[1]]
        if what == "pad":
            return TF.pad(t, detail[0], mode=detail[1])
        return t * self.layers[detail].weight.reshape(1, -1, 1, 1)


def attempt(rng: random.Random, folder: pathlib.Path, device: str = "cpu") -> str:
    """Runs one network; returns what it was."""
    torch.manual_seed(rng.randrange(1 << 30))
    case = Case(rng)
    for _ in range(rng.randint(1, 12)):
        case.grow()
    case.end()
    theirs = Theirs(case)
    ours = Ours(case).to(device)
    alpha.checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
    what = " ".join(f"{name if name != 'layer' and name != 'rows' else case.theirs[detail]}{list(sources)}"
                    for name, sources, detail in case.steps)
    x = np.random.default_rng(rng.randrange(1 << 30)).normal(size=(case.batch, *case.maps[0])).astype(np.float32)
    labels = np.arange(case.batch) % 3
    right, near = (expected_of(theirs, x, labels, dtype) for dtype in (torch.float64, torch.float32))

    def step(t: Any, wanted: Any) -> Any:
        y = ours(t)
        ops.cross_entropy(y, wanted).backward()
        return y.detach()

    ours.train()
    first = values_of(ours, step, x, labels, device)
    if not case.drawn:
        def again() -> Any:
            return drawn_again(theirs, x, labels)

        compare(first, right, near, what, again)
        if device == "cpu":
            with alpha.config(cpu_kernels=False):
                compare(values_of(ours, step, x, labels, device), right, near, f"without compiled kernels: {what}",
                        again)
    captured = alpha.capture(step, ours)
    for which, settings in [(step, s) for s in SETTINGS] + [(captured, {})] * 5:
        with alpha.config(**settings):
            found = values_of(ours, which, x, labels, device)
        for name, a in found.items():
            assert np.array_equal(a, first[name], equal_nan=True), \
                f"{settings or which.__name__}: other bits in {name}: {what}"
    for name in ("fp16",) if device == "cpu" else ("bf16", "fp16"):     # what the CPU has
        narrow(ours, step, x, labels, device, name, what)
    ours.eval()
    with alpha.no_grad():
        y = ours(alpha.tensor(x, device=device)).numpy()
    seen = [{"output": seen_by(theirs, x, dtype)} for dtype in (torch.float64, torch.float32)]
    compare({"output": y}, *seen, f"in inference mode: {what}")
    run = alpha.inference(ours, alpha.tensor(x, device=device))
    for _ in range(2):
        compare({"output": run(alpha.tensor(x, device=device)).numpy()}, *seen, f"in a recorded inference: {what}")
    return what
