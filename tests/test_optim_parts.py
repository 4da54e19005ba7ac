"""Adafactor, Adan, LARS, schedule-free optimizers, SAM, and Muon for a whole network: against their equations."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.errors import AlphaError, ArgumentError, CheckpointError, ConfigError, GraphError
from alpha.training import fit
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")

W = np.random.default_rng(0).normal(size=(4, 3))
GRADS = [np.random.default_rng(1 + k).normal(size=(4, 3)) for k in range(6)]


def steps(optimizer: Any, *params: alpha.Tensor, grads: Any = GRADS) -> list[np.ndarray]:
    """Returns the parameters behind steps whose gradients have as many elements as each has."""
    for g in grads:
        for p in params:
            p.grad = alpha.tensor(np.resize(g, p.shape).astype(p.dtype))
        optimizer.step()
    return [p.detach().numpy() for p in params]


def leaf(a: np.ndarray = W) -> alpha.Tensor:
    return alpha.tensor(a, requires_grad=True)


# ---- equations -------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("settings", [{}, dict(lr=0.1, weight_decay=0.1), dict(beta2_decay=-0.5, d=1.5,
                                                                                       eps=(1e-4, 0.1))])
@pytest.mark.parametrize("shape", [(4, 3), (5,), ()])
def test_adafactor_is_pytorchs(settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    w = np.resize(W, shape)
    ours = steps(made := optim.Adafactor([p := leaf(w)], **settings), p)[0]
    t = torch.tensor(w, requires_grad=True)
    theirs = torch.optim.Adafactor([t], **settings)
    for g in GRADS:
        t.grad = torch.tensor(np.resize(g, shape))
        theirs.step()
    np.testing.assert_allclose(ours, t.detach().numpy(), rtol=1e-9)
    kept = sum(s.numel() for s in made.state_dict()["tensors"].values())
    assert kept == (7 if len(shape) == 2 else w.size)


def test_adafactor_treats_filters_as_matrices() -> None:
    w = np.random.default_rng(3).normal(size=(6, 3, 3, 2))
    grads = [np.random.default_rng(9 + k).normal(size=w.size) for k in range(3)]
    maps, flat = leaf(w), leaf(w.reshape(6, -1))
    a = steps(optim.Adafactor([maps]), maps, grads=grads)[0]
    b = steps(optim.Adafactor([flat]), flat, grads=grads)[0]
    np.testing.assert_allclose(a.reshape(6, -1), b, rtol=1e-12)


def test_adan_is_its_equation() -> None:
    w, m, v, n, before = W, 0.0, 0.0, 0.0, GRADS[0]
    for t, g in enumerate(GRADS, 1):
        change = g - before
        m, v = 0.9 * m + 0.1 * g, 0.8 * v + 0.2 * change
        n = 0.95 * n + 0.05 * (g + 0.8 * change) ** 2
        u = (m / (1 - 0.9 ** t) + 0.8 * v / (1 - 0.8 ** t)) / (np.sqrt(n / (1 - 0.95 ** t)) + 1e-8)
        w, before = (w - 0.05 * u) / (1 + 0.05 * 0.1), g
    p = leaf()
    found = steps(optim.Adan([p], lr=0.05, betas=(0.9, 0.8, 0.95), weight_decay=0.1), p)[0]
    np.testing.assert_allclose(found, w, rtol=1e-10)


def test_lars_is_its_equation() -> None:
    w, m = W, 0.0
    for g in GRADS:
        ratio = 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.1 * np.linalg.norm(w) + 1e-8)
        m = 0.9 * m + 0.5 * ratio * (g + 0.1 * w)
        w = w - m
    p = leaf()
    found = steps(optim.LARS([p], lr=0.5, weight_decay=0.1, trust_coefficient=0.02), p)[0]
    np.testing.assert_allclose(found, w, rtol=1e-10)
    plain, other = leaf(), leaf()
    np.testing.assert_allclose(steps(optim.LARS([plain], lr=0.1, trust_coefficient=0), plain)[0],
                               steps(optim.SGD([other], lr=0.1, momentum=0.9), other)[0], rtol=1e-10)
    zero = leaf(np.zeros(3))
    assert np.isfinite(steps(optim.LARS([zero]), zero)[0]).all()


@pytest.mark.parametrize("adam", [False, True])
def test_schedule_free_optimizers_average_their_steps(adam: bool) -> None:
    z = x = W
    v = total = 0.0
    for t, g in enumerate(GRADS, 1):
        y = 0.1 * z + 0.9 * x
        rate = 0.05 * min(1, t / 4)
        v = 0.99 * v + 0.01 * g * g
        d = (g / (np.sqrt(v / (1 - 0.99 ** t)) + 1e-8) if adam else g) + 0.1 * y
        z = z - rate * d
        total += rate ** 2
        x = x + (z - x) * rate ** 2 / total
    p = leaf()
    given = dict(lr=0.05, weight_decay=0.1, warmup_steps=4)
    made = optim.ScheduleFreeAdamW([p], betas=(0.9, 0.99), **given) if adam else optim.ScheduleFreeSGD([p], **given)
    np.testing.assert_allclose(steps(made, p)[0], 0.1 * z + 0.9 * x, rtol=1e-9)
    made.eval()
    made.eval()
    np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-9)
    with refused(GraphError, "behind optimizer.eval()"):
        made.step()
    with refused(GraphError, "before a state to resume from"):
        made.state_dict()
    made.train()
    np.testing.assert_allclose(p.detach().numpy(), 0.1 * z + 0.9 * x, rtol=1e-9)


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_steps_by_the_gradient_of_the_worst_point_nearby(adaptive: bool) -> None:
    scale = np.linspace(1, 3, 12).reshape(4, 3)

    def gradient(w: np.ndarray) -> np.ndarray:
        return scale * w ** 3
    w = W
    for _ in range(3):
        g = gradient(w)
        there = g * w * w / np.linalg.norm(g * np.abs(w)) if adaptive else g / np.linalg.norm(g)
        w = w - 0.01 * gradient(w + 0.1 * there)
    p = leaf()
    sam = optim.SAM(optim.SGD([p], lr=0.01), rho=0.1, adaptive=adaptive)

    def closure() -> alpha.Tensor:
        loss = (alpha.tensor(scale) * p ** 4).sum() / 4
        loss.backward()
        return loss
    for k in range(3):
        sam.zero_grad()
        closure()
        if k == 1:
            sam.first_step()
            closure()
            sam.second_step()
        else:
            assert np.isfinite(sam.step(closure).item())
    np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-6)
    assert sam.step_count == 3 and sam.param_groups[0]["lr"] == 0.01


def test_sam_goes_back_where_the_closure_fails() -> None:
    p = leaf()
    sam = optim.SAM(optim.SGD([p], lr=0.1))
    p.grad = alpha.tensor(GRADS[0])

    def fails() -> None:
        raise ValueError("no data")
    with pytest.raises(ValueError, match="no data"):
        sam.step(fails)
    assert (p.detach().numpy() == W).all()


def test_muon_for_a_network_is_muon_and_adamw() -> None:
    def network() -> nn.Module:
        alpha.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2))
    model, other = network(), network()
    whole = optim.MuonAdamW(model.named_parameters(), lr=0.01)
    hidden = [other[1].weight, other[2].weight]
    parts = [optim.Muon(hidden, lr=0.01, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", eps=1e-8), optim.AdamW(
        [p for p in other.parameters() if all(p is not h for h in hidden)], lr=0.01, betas=(0.9, 0.95))]
    for g in GRADS:
        for net, optimizers in ((model, [whole]), (other, parts)):
            for p in net.parameters():
                p.grad = alpha.tensor(np.resize(g, p.shape).astype("float32"))
            for optimizer in optimizers:
                optimizer.step()
    for p, q in zip(model.parameters(), other.parameters()):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert [group["hidden"] for group in whole.param_groups] == [True, False]
    assert whole.param_groups[0]["names"] == ["1.weight", "2.weight"]
    whole.add_param_group({"params": [leaf()], "hidden": True})
    with refused(ConfigError, "two axes or more are needed"):
        whole.add_param_group({"params": [leaf(np.ones(3))], "hidden": True})


# ---- states ----------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[Any], Any]] = {
    "Adafactor": optim.Adafactor, "Adan": optim.Adan, "LARS": optim.LARS, "ScheduleFreeSGD": optim.ScheduleFreeSGD,
    "ScheduleFreeAdamW": optim.ScheduleFreeAdamW, "MuonAdamW": optim.MuonAdamW,
    "SAM": lambda ps: optim.SAM(optim.SGD(ps, lr=0.1))}


@pytest.mark.parametrize("name", [n for n in MAKERS if n != "SAM"])
def test_states_are_resumed_and_copied(name: str) -> None:
    make = MAKERS[name]
    params = [leaf(), leaf(W[0]), leaf(W.T), leaf(W)]
    first = make([(f"p{k}", p) for k, p in enumerate(params)])
    steps(first, *params)
    for other in (copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))):
        twins, twin = other((params, first))
        for p, q in zip(params, twins):
            assert (p.detach().numpy() == q.detach().numpy()).all()
        steps(twin, *twins, grads=GRADS[:1])
    again = [leaf(p.detach().numpy()) for p in params]
    second = make([(f"p{k}", p) for k, p in enumerate(again)])
    second.load_state_dict(first.state_dict())
    for a, b in zip(steps(first, *params, grads=GRADS[:2]), steps(second, *again, grads=GRADS[:2])):
        np.testing.assert_array_equal(a, b)
    state = first.state_dict()
    key = next(iter(state["tensors"]))
    state["tensors"] = {**state["tensors"], key: alpha.ones((9, 9))}
    with refused(CheckpointError, key):
        second.load_state_dict(state)


@pytest.mark.parametrize("name", ["Adafactor", "Adan", "LARS", "MuonAdamW"])
def test_factors_scale_gradients_and_0_skips_a_step(name: str) -> None:
    make = MAKERS[name]
    scaled, plain, still = leaf(), leaf(), leaf()
    a, b, c = make([scaled]), make([plain]), make([still])
    for g in GRADS:
        scaled.grad, plain.grad = alpha.tensor(g * 4), alpha.tensor(g)
        a.step(alpha.tensor(0.25, dtype="float32"))
        b.step()
    np.testing.assert_array_equal(scaled.detach().numpy(), plain.detach().numpy())
    still.grad = alpha.tensor(np.full_like(W, np.nan))
    c.step(alpha.zeros(()))
    assert (still.detach().numpy() == W).all()
    half = alpha.tensor(W, dtype="float16", requires_grad=True)
    half.grad = alpha.tensor(GRADS[0], dtype="float16")
    make([half]).step()
    assert half.dtype == "float16" and np.isfinite(half.numpy()).all()


@pytest.mark.parametrize("name", ["muon", "lookahead_sgd", "lookahead_adamw", "lars", "adan", "adafactor"])
def test_fit_finds_them_by_name(name: str) -> None:
    alpha.manual_seed(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    lr = {"lars": 2.0, "lookahead_sgd": 0.1, "adafactor": 0.1}.get(name, 0.01)
    history = fit(model, (x, y), epochs=8, batch_size=16, optimizer=name, lr=lr, progress=False)
    losses = [row["train_loss"] for row in history]
    assert losses[-1] < 0.8 * losses[0]


REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: optim.Adafactor([leaf()], beta2_decay=0.5), ConfigError, "[-1, 0)"),
    (lambda: optim.Adafactor([leaf()], eps=(1e-3,)), ConfigError, "a pair of None or a number"),
    (lambda: optim.Adan([leaf()], betas=(0.9, 0.9)), ConfigError, "three numbers in [0, 1)"),
    (lambda: optim.LARS([leaf()], momentum=1.0), ConfigError, "momentum"),
    (lambda: optim.ScheduleFreeSGD([leaf()], momentum=0.0), ConfigError, "(0, 1)"),
    (lambda: optim.ScheduleFreeAdamW([leaf()], betas=(0.0, 0.9)), ConfigError, "(0, 1) for beta1"),
    (lambda: optim.SAM([leaf()]), ArgumentError, "an Optimizer is needed"),
    (lambda: optim.SAM(optim.SGD([leaf()], lr=1.0), rho=0), ConfigError, "above 0"),
    (lambda: optim.SAM(optim.SGD([leaf()], lr=1.0)).first_step(), GraphError, "no parameter has a gradient"),
    (lambda: optim.SAM(optim.SGD([leaf()], lr=1.0)).second_step(), GraphError, "has not been made"),
    (lambda: optim.SAM(optim.SGD([leaf()], lr=1.0)).step(None), ArgumentError, "a function is needed"),
    (lambda: optim.MuonAdamW([]), ConfigError, "there are no parameters"),
    (lambda: optim.MuonAdamW([{"lr": 1.0}]), ConfigError, 'a dict with "params"'),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()
