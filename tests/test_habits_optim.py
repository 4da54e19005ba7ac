"""Optimizers and schedules that people bring from PyTorch: steps as PyTorch's, or as their equations say."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.errors import ArgumentError, CheckpointError, ConfigError
from alpha.optim import schedule
from tests.op_checks import floats, refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

W, GRADS = floats((3, 4)), [floats((3, 4), k) for k in range(1, 9)]


def run(optimizer: Any, w: Any, made: Any) -> np.ndarray:
    for g in GRADS:
        w.grad = made(g)
        optimizer.step()
    return w.detach().numpy()


@pytest.mark.parametrize("name, settings", [
    ("NAdam", {}), ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "momentum_decay": 0.1}), ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}), ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1}),
])
def test_as_pytorch(name: str, settings: dict) -> None:
    w, t = alpha.tensor(W, requires_grad=True), torch.tensor(W, requires_grad=True)
    ours = run(getattr(optim, name)([w], **settings), w, alpha.tensor)
    theirs = run(getattr(torch.optim, name)([t], **settings), t, torch.tensor)
    np.testing.assert_allclose(ours, theirs, 2e-8, 1e-12)  # PyTorch keeps NAdam's products in float32


def test_lion_and_lamb_by_their_equations() -> None:
    w = alpha.tensor(W, requires_grad=True)
    found = run(optim.Lion([w], lr=0.01, weight_decay=0.1), w, alpha.tensor)
    x, m = W.copy(), np.zeros_like(W)
    for g in GRADS:
        x = x - 0.01 * 0.1 * x - 0.01 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
    np.testing.assert_allclose(found, x, 1e-9)
    w = alpha.tensor(W, requires_grad=True)
    found = run(optim.LAMB([w], lr=0.01), w, alpha.tensor)
    x, m, v = W.copy(), np.zeros_like(W), np.zeros_like(W)
    for t, g in enumerate(GRADS, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = m / (1 - 0.9 ** t) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-6) + 0.01 * x
        x = x - 0.01 * np.linalg.norm(x) / np.linalg.norm(r) * r
    np.testing.assert_allclose(found, x, 1e-9)
    zero = alpha.zeros((2,), requires_grad=True)
    zero.grad = alpha.ones((2,))
    optim.LAMB([zero], lr=0.5).step()
    np.testing.assert_allclose(zero.detach().numpy(), -0.5, 1e-4)


@pytest.mark.parametrize("name", ["Lion", "LAMB", "NAdam", "Adagrad", "Adadelta", "Muon"])
def test_factors_states_and_16_bits(name: str) -> None:
    make = getattr(optim, name)
    w = alpha.tensor(W, requires_grad=True)
    optimizer = make([("w", w)])
    w.grad = alpha.tensor(np.full_like(W, np.nan))
    optimizer.step(alpha.zeros(()))
    assert np.array_equal(w.detach().numpy(), W)
    assert not any(t.any() for t in optimizer.state_dict()["tensors"].values())
    scaled, plain = alpha.tensor(W, requires_grad=True), alpha.tensor(W, requires_grad=True)
    a, b = make([scaled]), make([plain])
    for g in GRADS:
        scaled.grad, plain.grad = alpha.tensor(g * 4), alpha.tensor(g)
        a.step(alpha.tensor(0.25, dtype="float32"))
        b.step()
    assert np.array_equal(scaled.detach().numpy(), plain.detach().numpy())
    other = alpha.tensor(plain.detach().numpy(), requires_grad=True)
    resumed = make([other])
    resumed.load_state_dict(b.state_dict())
    for w, o in ((plain, b), (other, resumed)):
        w.grad = alpha.tensor(GRADS[0])
        o.step()
    assert np.array_equal(other.detach().numpy(), plain.detach().numpy())
    with refused(ArgumentError, f"{name}: factor is 3, a float32 tensor of shape () is needed"):
        a.step(3)
    half = alpha.tensor(W, dtype="float16", requires_grad=True)
    half.grad = alpha.tensor(GRADS[0], dtype="float16")
    make([half]).step()
    assert half.dtype == "float16" and half.isfinite().all()


COPIES = [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))]
MAKERS = [("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": schedule.cosine(0.1, 20, warmup_steps=2)}),
          ("NAdam", {}), ("Muon", {"lr": schedule.linear(0.1, total_steps=20)}), ("RMSprop", {"lr": np.sqrt})]


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("name, settings", MAKERS, ids=[name for name, _ in MAKERS])
def test_a_copy_goes_on_alike_and_by_itself(name: str, settings: dict[str, Any], copied: Any) -> None:
    layer = nn.Linear(3, 4, bias=False)
    optimizer = getattr(optim, name)(layer.named_parameters(), **settings)

    def step(owner: nn.Linear, by: Any, g: np.ndarray) -> None:
        owner.weight.grad = alpha.tensor(g.T.reshape(4, 3), "float32")
        by.step()
    step(layer, optimizer, GRADS[0])
    other, twin = copied((layer, optimizer))
    assert twin.param_groups[0]["params"][0] is other.weight and twin.lr == optimizer.lr
    before = other.weight.detach().numpy().copy()
    for g in GRADS:
        step(layer, optimizer, g)
    assert (other.weight.detach().numpy() == before).all() and twin.step_count == 1
    for g in GRADS:
        step(other, twin, g)
    assert (other.weight.detach().numpy() == layer.weight.detach().numpy()).all()
    twin.add_param_group({"params": [alpha.zeros((2, 2), requires_grad=True)], "lr": 0.5})
    with refused(ConfigError, "lr is -1"):
        twin.add_param_group({"params": [alpha.zeros((2, 2), requires_grad=True)], "lr": -1})


def test_a_schedule_without_a_name_is_copied_and_not_pickled() -> None:
    optimizer = optim.SGD([alpha.zeros((2,), requires_grad=True)], lr=lambda t: 0.5)
    assert copy.deepcopy(optimizer).lr == 0.5
    with refused(CheckpointError, "lr of group 0 of SGD is", "save optimizer.state_dict()"):
        pickle.dumps(optimizer)


@pytest.mark.parametrize("made", [
    schedule.constant(0.1), schedule.step(0.1, 3, gamma=0.5), schedule.multistep(0.1, [2, 5]),
    schedule.exponential(0.1, 0.9), schedule.cosine(0.1, total_steps=12, warmup_steps=2), schedule.one_cycle(0.1, 12),
    schedule.triangular(0.1, 0.3, 4), schedule.linear(0.1, 12), schedule.polynomial(0.1, 12, power=2.0),
    schedule.warm_restarts(0.1, first=3, factor=2)])
def test_schedules_can_be_pickled(made: Any) -> None:
    again = pickle.loads(pickle.dumps(made))
    assert [again(t) for t in range(15)] == [made(t) for t in range(15)]


def test_lookahead() -> None:
    w = alpha.tensor(W, requires_grad=True)
    optimizer = optim.Lookahead(optim.SGD([("w", w)], lr=0.1, momentum=0.9), k=3, alpha=0.5)
    x, slow, v = W.copy(), W.copy(), np.zeros_like(W)
    for t, g in enumerate(GRADS, 1):
        w.grad = alpha.tensor(g)
        optimizer.step()
        v = g if t == 1 else 0.9 * v + g
        x = x - 0.1 * v
        if t % 3 == 0:
            slow = slow + 0.5 * (x - slow)
            x = slow.copy()
    np.testing.assert_allclose(w.detach().numpy(), x, 1e-9)
    assert optimizer.step_count == 8 and optimizer.lr == 0.1 and "Lookahead(k=3" in repr(optimizer)
    other = alpha.tensor(x, requires_grad=True)
    resumed = optim.Lookahead(optim.SGD([("w", other)], lr=0.1, momentum=0.9), k=3, alpha=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    for p, o in ((w, optimizer), (other, resumed)):
        p.grad = alpha.tensor(GRADS[0])
        o.step()
    assert np.array_equal(other.detach().numpy(), w.detach().numpy())
    optimizer.zero_grad()
    assert w.grad is None
    with refused(ArgumentError, "Lookahead: optimizer is 3, an Optimizer is needed"):
        optim.Lookahead(3)
    with refused(CheckpointError, "Lookahead: the state has 0 slow weights, the optimizer 1"):
        optimizer.load_state_dict(optimizer.optimizer.state_dict())


SCHEDULES = torch.optim.lr_scheduler


@pytest.mark.parametrize("ours, make", [
    (schedule.linear(0.1, 20, 0.02), lambda o: SCHEDULES.LinearLR(o, 1.0, 0.2, 20)),
    (schedule.polynomial(0.1, 20, 2.0), lambda o: SCHEDULES.PolynomialLR(o, 20, 2.0)),
    (schedule.warm_restarts(0.1, 7), lambda o: SCHEDULES.CosineAnnealingWarmRestarts(o, 7)),
    (schedule.warm_restarts(0.1, 3, 2, 0.01), lambda o: SCHEDULES.CosineAnnealingWarmRestarts(o, 3, 2, 0.01)),
])
def test_schedules(ours: Any, make: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = make(optimizer)
    for t in range(40):
        assert ours(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15), t
        optimizer.step()
        theirs.step()
    assert schedule.linear(0.1, 10, warmup_steps=5)(0) == pytest.approx(0.02)
    with refused(ConfigError, "polynomial: warmup_steps=10 is not in [0, total_steps=10)"):
        schedule.polynomial(0.1, 10, warmup_steps=10)


@pytest.mark.parametrize("settings", [{}, {"mode": "max"}, {"cooldown": 2}, {"threshold_mode": "abs", "threshold": 0.2},
                                      {"min_lr": 0.05}, {"factor": 0.5, "patience": 0}])
def test_plateaus(settings: dict) -> None:
    settings = {"patience": 2, **settings}
    ours, theirs = optim.SGD([alpha.zeros((1,), requires_grad=True)], lr=0.1), torch.optim.SGD(
        [torch.zeros(1, requires_grad=True)], lr=0.1)
    a, b = optim.ReduceLROnPlateau(ours, **settings), SCHEDULES.ReduceLROnPlateau(theirs, **settings)
    for k, value in enumerate([1.0, 0.9, 0.95, 0.9, 0.91, 0.92, math.nan, 0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.8]):
        a.step(alpha.tensor(value) if k % 2 else value)
        b.step(value)
        assert ours.lr == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12), k
    other = optim.ReduceLROnPlateau(optim.SGD([alpha.zeros((1,), requires_grad=True)], lr=1.0), **settings)
    other.load_state_dict(a.state_dict())
    assert other.state_dict() == a.state_dict()
    with refused(CheckpointError, "ReduceLROnPlateau: the state is not that of 1 groups"):
        other.load_state_dict({})
    with refused(ConfigError, "ReduceLROnPlateau: the lr of a group is a schedule"):
        optim.ReduceLROnPlateau(optim.SGD([alpha.zeros((1,), requires_grad=True)], lr=schedule.constant(1.0)))


def test_groups_reprs_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = optim.Adam(model[0].named_parameters(), lr=0.1)
    optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.01})
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.01]
    assert "Adam(step_count=0\n  group 0: 2 tensors of 16 elements, lr=0.1" in repr(optimizer)
    with refused(ConfigError, "Adam: parameter 4 was given before"):
        optimizer.add_param_group({"params": model[1].parameters()})
    with refused(ConfigError, 'Adam: a group is 3, a dict with "params" is needed'):
        optimizer.add_param_group(3)
    model(alpha.ones((2, 3))).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optim.clip_grad_value_(model.parameters(), 0.5)
    assert optim.clip_grad_norm_(model.parameters(), 1.0) == 0
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    for name, twin in (("lr_scheduler", "alpha.optim.schedule"), ("LBFGS", "there is none"), ("Adagard", "Adagrad")):
        with refused(AttributeError, f"alpha.optim: there is no {name}", twin):
            getattr(optim, name)
    with refused(AttributeError, "alpha.optim.schedule: there is no StepLR", "schedule.step(lr, step_size)"):
        _ = schedule.StepLR
