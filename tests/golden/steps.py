"""Hashes of training steps: parameters, gradients and losses, bit by bit.

Sums of floats depend on the instructions and on the number of threads, so the hashes of whole networks are kept by
machine, and compared by the command. A network whose values are all small integers has the same bits everywhere, with
and without compiled kernels, whatever is made again: that one is compared by the suite.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import alpha
import models
from alpha import nn, ops, optim

HERE = Path(__file__).parent
RECOMPUTE = ("none", "cheap", "full", "auto")
KERNELS = ("compiled", "numpy")
NETWORKS = {"lenet5": (4, 20), "resnet18": (2, 2), "vgg16": (2, 2), "googlenet": (2, 2)}  # samples, steps


def kept() -> dict[str, dict[str, str]]:
    """Returns the record."""
    path = HERE / "steps.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def machine() -> str:
    """Returns a name for what the bits of float sums depend on: instructions, threads, version of NumPy."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    flags = next((line for line in info.splitlines() if line.startswith("flags")), "")
    threads = alpha.config.num_threads or len(os.sched_getaffinity(0))
    return f"cpu {hashlib.sha256(flags.encode()).hexdigest()[:8]}, {threads} threads, numpy {np.__version__}"


def _add(to: hashlib._Hash, model: nn.Module, loss: alpha.Tensor) -> None:
    to.update(loss.numpy().tobytes())
    for name, p in model.named_parameters():
        to.update(name.encode())
        to.update(p.numpy().tobytes())
        to.update(b"" if p.grad is None else p.grad.numpy().tobytes())


# ---- networks of floats ----------------------------------------------------------------------------------------------


def rounded() -> dict[str, str]:
    """Returns the hash of each case of whole networks on this machine."""
    return dict(_rounded())


def _rounded() -> Iterator[tuple[str, str]]:
    for name, (samples, count) in NETWORKS.items():
        for kernels in KERNELS:
            if kernels == "numpy" and name != "lenet5":
                continue    # minutes each
            for precision in ("fp32", "fp16"):
                with alpha.config(cpu_kernels=kernels == "compiled", precision=precision):
                    for recompute in RECOMPUTE:
                        with alpha.config(recompute=recompute):
                            yield f"{name} {precision} {kernels} {recompute}", training(name, samples, count)
                    yield f"{name} {precision} {kernels} inference", inferring(name, samples)


def _images(samples: int) -> alpha.Tensor:
    return alpha.tensor(np.random.default_rng(0).standard_normal((samples, 32, 32, 3)).astype(np.float32))


def training(name: str, samples: int, count: int) -> str:
    """Returns the hash of some steps of a network with SGD with momentum."""
    alpha.manual_seed(0)
    model, found = models.create(name), hashlib.sha256()
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x, labels = _images(samples), alpha.tensor(np.arange(samples) % 10)
    for _ in range(count):
        optimizer.zero_grad()
        loss = ops.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        _add(found, model, loss)
    return found.hexdigest()[:16]


def inferring(name: str, samples: int) -> str:
    """Returns the hash of a network's results without a graph: op by op, and as alpha.inference makes them."""
    alpha.manual_seed(0)
    model, x = models.create(name).eval(), _images(samples)
    with alpha.no_grad():
        eager = model(x).numpy()
    return hashlib.sha256(eager.tobytes() + alpha.inference(model, x)(x).numpy().tobytes()).hexdigest()[:16]


# ---- a network of small integers -------------------------------------------------------------------------------------


class Whole(nn.Module):
    """Convolutions with strides and groups, pools, a residual and views, on integers."""

    def __init__(self) -> None:
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.c, self.d = nn.Conv2d(4, 4, 1, groups=2), nn.Linear(16, 3)

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        x = ops.max_pool2d(self.a(x, activation="relu"), 2)
        y = self.b(x)
        y = ops.relu(self.c(y) + y)
        z = y.permute(0, 3, 1, 2).flatten(1).reshape(2, -1)[:, :16]
        return self.d(z * ops.where(z > 2.0, z * 0.0 + 1.0, z) + z.sum(1, keepdims=True) * 0.0)


def exact() -> dict[str, str]:
    """Returns the hash of steps on integers, for each way to compute them; all are the same."""
    found = {}
    for kernels in KERNELS:
        for recompute in RECOMPUTE:
            with alpha.config(cpu_kernels=kernels == "compiled", recompute=recompute, conv_algorithm="direct"):
                found[f"integers {kernels} {recompute}"] = _integers()
    return found


def _integers() -> str:
    rng, model, found = np.random.default_rng(1), Whole(), hashlib.sha256()
    for p in model.parameters():
        p.copy_(rng.integers(-1, 2, p.shape).astype(np.float32))
    x = alpha.tensor(rng.integers(-2, 3, (2, 8, 8, 2)).astype(np.float32), requires_grad=True)
    weights = alpha.tensor(rng.integers(-1, 2, (2, 3)).astype(np.float32))
    for _ in range(3):
        loss = (model(x) * weights).sum()
        loss.backward()
        assert abs(loss.item()) < 1 << 20 and x.grad is not None
        _add(found, model, loss)
        found.update(x.grad.numpy().tobytes())
        with alpha.no_grad():
            for p in (*model.parameters(), x):
                assert p.grad is not None
                p.copy_(ops.clip(p - p.grad, -2, 2))
                p.grad = None
    return found.hexdigest()[:16]
