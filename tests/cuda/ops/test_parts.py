"""Parts of networks on the GPU against the CPU; tests/cuda/ops/test_op_twins.py has the ops that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import func, linalg, nn, optim

pytestmark = pytest.mark.cuda


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def first(y: Any) -> alpha.Tensor:
    while isinstance(y, tuple):
        y = y[0]
    return y


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: nn.LSTM(3, 4, bidirectional=True), (3, 2, 3)), "GRU": (lambda: nn.GRU(3, 4), (3, 2, 3)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), (1, 3, 3, 3, 2)),
    "weight_norm": (lambda: nn.utils.weight_norm(nn.Conv2d(3, 4, 2)), (1, 3, 3, 3)),
    "spectral_norm": (lambda: nn.utils.spectral_norm(nn.Linear(3, 4)), (2, 3)),
    "SqueezeExcite": (lambda: nn.SqueezeExcite(4, 2), (2, 3, 3, 4)),
    "momentum=None": (lambda: nn.BatchNorm2d(3, momentum=None), (2, 2, 2, 3))}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_are_the_cpus(name: str) -> None:
    make, shape = LAYERS[name]
    there = make()
    here = make()
    here.load_state_dict(there.state_dict())
    here.to("cuda")
    x = drawn(*shape)
    results = []
    for layer, device in ((there, "cpu"), (here, "cuda")):
        leaf = alpha.tensor(x, device=device, requires_grad=True)
        for _ in range(2):
            y = first(layer(leaf))
        (y * y).sum().backward()
        results.append([y, leaf.grad, *[p.grad for p in layer.parameters()], *layer.buffers()])
    for a, b in zip(*results):
        np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_functions_options_and_assignments_stay_on_the_device() -> None:
    x = alpha.tensor(drawn(3, 3), device="cuda")
    found = func.grad(lambda a: (a ** 3).sum())(x)
    assert found.device.type == "cuda"
    np.testing.assert_allclose(found.numpy(), 3 * drawn(3, 3) ** 2, rtol=1e-5)
    square = x + 3.0 * alpha.eye(3, device="cuda")
    back = linalg.inv(square.requires_grad_())
    back.sum().backward()
    assert back.device.type == square.grad.device.type == "cuda"
    np.testing.assert_allclose(back.detach().numpy(), np.linalg.inv(square.detach().numpy()), rtol=1e-4)
    np.testing.assert_allclose(alpha.clamp(x, x * 0.0, x[0].abs()).numpy(), np.minimum(np.maximum(
        drawn(3, 3), 0), np.abs(drawn(3, 3)[0])))
    leaf = alpha.tensor(drawn(3, 3), device="cuda", requires_grad=True)
    y = leaf * 2.0
    y[y > 1.0] = 0.0
    y[:, 0] = leaf[:, 1]
    y.sum().backward()
    right = np.where(2 * drawn(3, 3) > 1, 0.0, 2.0)
    right[:, 0] = 0.0
    right[:, 1] += 1.0
    np.testing.assert_allclose(leaf.grad.numpy(), right)
    alpha.manual_seed(1)
    here = alpha.bernoulli(alpha.full((4, 5), 0.5, device="cuda"))
    alpha.manual_seed(1)
    assert (here.numpy() == alpha.bernoulli(alpha.full((4, 5), 0.5)).numpy()).all()


@pytest.mark.parametrize("make", [optim.Adafactor, optim.Adan, optim.LARS, optim.MuonAdamW, optim.ScheduleFreeAdamW],
                         ids=lambda make: make.__name__)
def test_steps_of_optimizers_are_the_cpus(make: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        params = [nn.Parameter(alpha.tensor(drawn(*shape, seed=k), device=device))
                  for k, shape in enumerate(((3, 4), (4, 4), (4, 2), (5,)))]
        optimizer = make(params, lr=0.02)
        for step in range(3):
            for p in params:
                p.grad = alpha.tensor(drawn(*p.shape, seed=10 + step), device=device)
            optimizer.step()
        results.append([p.detach().numpy() for p in params])
    for a, b in zip(*results):      # Muon's products are made in bfloat16 on a GPU
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-3 if make is optim.MuonAdamW else 1e-5)
