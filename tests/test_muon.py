"""Muon against PyTorch's, with its products in full precision; filters, a network, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.errors import ConfigError
from alpha.optim.muon import orthogonal
from tests.op_checks import floats, refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch rounds to bfloat16 before its products, which no CPU here has."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda t: t.clone())


def steps(make: Any, w: Any, made: Any, seeds: range) -> np.ndarray:
    optimizer = make([w])
    for seed in seeds:
        w.grad = made(floats(w.shape, seed))
        optimizer.step()
    return w.detach().numpy()


@pytest.mark.parametrize("shape", [(3, 4), (7, 2), (5, 5), (1, 3)])
@pytest.mark.parametrize("settings", [{}, {"nesterov": False, "momentum": 0.8}, {"weight_decay": 0.0, "lr": 0.3},
                                      {"adjust_lr_fn": "match_rms_adamw"}, {"adjust_lr_fn": "original", "ns_steps": 3},
                                      {"ns_coefficients": (2.0, -1.5, 0.5), "eps": 0.1}])
def test_as_pytorch(in_full: None, settings: dict[str, Any], shape: tuple[int, int]) -> None:
    w = floats(shape)
    ours = steps(lambda p: optim.Muon(p, **settings), alpha.tensor(w, requires_grad=True), alpha.tensor, range(1, 7))
    theirs = steps(lambda p: torch.optim.Muon(p, **settings), torch.tensor(w, requires_grad=True), torch.tensor,
                   range(1, 7))
    np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)


def test_as_pytorch_in_bfloat16() -> None:
    w = floats((6, 8)).astype(np.float32)
    ours = steps(optim.Muon, alpha.tensor(w, requires_grad=True), lambda g: alpha.tensor(g, "float32"), range(1, 4))
    theirs = steps(torch.optim.Muon, torch.tensor(w, requires_grad=True), lambda g: torch.tensor(g).float(),
                   range(1, 4))
    moved = np.abs(theirs - w).max()
    assert np.abs(ours - theirs).max() < 0.02 * moved


def test_filters_are_matrices() -> None:
    """A step of filters is that of the matrix with a row for each."""
    w = floats((6, 3, 3, 2))
    flat = steps(optim.Muon, alpha.tensor(w.reshape(6, -1), requires_grad=True), lambda g: alpha.tensor(g), range(1, 4))
    maps = alpha.tensor(w, requires_grad=True)
    optimizer = optim.Muon([maps])
    for seed in range(1, 4):
        maps.grad = alpha.tensor(floats((6, 18), seed).reshape(w.shape))
        optimizer.step()
    assert (maps.detach().numpy().reshape(6, -1) == flat).all()


def test_singular_values_come_near_1() -> None:
    for shape in ((8, 5), (5, 8)):
        o = orthogonal(alpha.tensor(floats(shape)), (3.4445, -4.775, 2.0315), 5, 1e-7).numpy()
        values = np.linalg.svd(o)[1]
        assert values.min() > 0.3 and values.max() < 1.3
    assert (orthogonal(alpha.zeros((3, 2)), (3.4445, -4.775, 2.0315), 5, 1e-7).numpy() == 0).all()


def test_a_network_trains_with_two_optimizers() -> None:
    alpha.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
    both = (optim.Muon([p for p in net.parameters() if p.ndim > 1], lr=0.05),
            optim.AdamW([p for p in net.parameters() if p.ndim == 1], lr=1e-3))
    x, labels = alpha.randn((30, 6, 6, 1)), alpha.tensor(np.arange(30) % 3)
    losses = []
    for _ in range(60):
        loss = alpha.ops.cross_entropy(net(x), labels)
        loss.backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    other, twin = copy.deepcopy((net, both[0]))
    assert twin.param_groups[0]["params"][0] is other[0].weight and twin.step_count == 60


def test_what_is_refused() -> None:
    with refused(ConfigError, "parameter 1.bias", "has shape (3,), two axes or more", "AdamW"):
        optim.Muon((f"1.{name}", p) for name, p in nn.Linear(2, 3).named_parameters())
    w = alpha.zeros((2, 3), requires_grad=True)
    for settings, said in (({"momentum": 1.0}, "momentum is 1.0"), ({"ns_steps": 0}, "ns_steps is 0"),
                           ({"ns_coefficients": (1, 2)}, "three numbers"),
                           ({"adjust_lr_fn": "x"}, 'adjust_lr_fn is "x"')):
        with refused(ConfigError, "Muon", said):
            optim.Muon([w], **settings)
