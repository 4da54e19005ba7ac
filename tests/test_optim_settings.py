"""Settings of optimizers, schedules, plateaus, scalers and clipping: each has an effect, or is refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.errors import ArgumentError, ConfigError, MissingError
from alpha.optim import schedule
from alpha.training import fit

# optimizer -> (settings that are always given, setting -> another value than its default)
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SGD": (dict(lr=0.1, momentum=0.5), dict(lr=0.2, momentum=0.9, dampening=0.5, weight_decay=0.1, nesterov=True)),
    "Adam": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1, amsgrad=True)),
    "AdamW": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1, amsgrad=True)),
    "Adamax": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1)),
    "RAdam": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1)),
    "AdaMod": ({}, dict(lr=0.1, betas=(0.8, 0.9), beta3=0.5, eps=0.1, weight_decay=0.1)),
    "RMSprop": ({}, dict(lr=0.1, alpha=0.5, eps=0.1, weight_decay=0.1, momentum=0.5, centered=True)),
    "Lion": ({}, dict(lr=0.1, betas=(0.1, 0.2), weight_decay=0.1)),
    "NAdam": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1, momentum_decay=1.0)),
    "Adagrad": ({}, dict(lr=0.1, lr_decay=0.5, weight_decay=0.1, initial_accumulator_value=0.5, eps=0.1)),
    "Adadelta": ({}, dict(lr=0.1, rho=0.5, eps=0.1, weight_decay=0.1)),
    "LAMB": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1)),
    "Muon": ({}, dict(lr=0.1, weight_decay=0.5, momentum=0.5, nesterov=False, ns_coefficients=(2.0, -1.5, 0.5),
                      eps=100.0, ns_steps=2, adjust_lr_fn="match_rms_adamw")),
    "MuonAdamW": ({}, dict(lr=0.1, weight_decay=0.5, momentum=0.5, betas=(0.8, 0.9), eps=0.1)),
    "Adafactor": ({}, dict(lr=0.1, beta2_decay=-0.3, eps=(None, 0.9), d=0.1, weight_decay=0.1)),
    "Adan": ({}, dict(lr=0.1, betas=(0.8, 0.9, 0.5), eps=0.1, weight_decay=0.1)),
    "LARS": ({}, dict(lr=0.1, momentum=0.5, weight_decay=0.1, trust_coefficient=0.1, eps=0.1)),
    "ScheduleFreeSGD": ({}, dict(lr=0.1, momentum=0.5, weight_decay=0.1, warmup_steps=3)),
    "ScheduleFreeAdamW": ({}, dict(lr=0.1, betas=(0.8, 0.9), eps=0.1, weight_decay=0.1, warmup_steps=3)),
}
CASES = [(name, setting) for name, (_, others) in OTHER.items() for setting in others]


def trained(name: str, **settings: Any) -> bytes:
    rng = np.random.default_rng(0)
    p = nn.Parameter(alpha.tensor(rng.standard_normal((4, 3)).astype(np.float32)))
    group = {"params": [p], **({"hidden": "momentum" in settings} if name == "MuonAdamW" else {})}
    optimizer = getattr(optim, name)([group], **settings)
    for k in range(12):
        p.grad = alpha.tensor((rng.standard_normal((4, 3)) * (10 if k == 2 else 1)).astype(np.float32))
        optimizer.step()
    return p.numpy().tobytes()


@pytest.mark.parametrize("name, setting", CASES, ids=[f"{name}-{setting}" for name, setting in CASES])
def test_a_setting_of_an_optimizer_changes_the_result(name: str, setting: str) -> None:
    base, others = OTHER[name]
    assert trained(name, **base) != trained(name, **{**base, setting: others[setting]})


def test_every_optimizer_and_every_setting_has_a_case() -> None:
    classes = {name for name in optim.__all__ if inspect.isclass(cls := getattr(optim, name))
               and issubclass(cls, optim.Optimizer) and cls not in (optim.Optimizer, optim.Composed)}
    assert classes == {*OTHER}
    for name, (_, others) in OTHER.items():
        assert {*inspect.signature(getattr(optim, name).__init__).parameters} - {"self", "params"} == {*others}


# schedule -> (arguments, setting -> another value than its default)
SCHEDULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "constant": (dict(lr=0.1), dict(lr=0.2)),
    "step": (dict(lr=0.1, step_size=3), dict(lr=0.2, step_size=4, gamma=0.5)),
    "multistep": (dict(lr=0.1, milestones=[2, 5]), dict(lr=0.2, milestones=[3, 5], gamma=0.5)),
    "exponential": (dict(lr=0.1, gamma=0.9), dict(lr=0.2, gamma=0.8)),
    "cosine": (dict(lr=0.1, total_steps=10), dict(lr=0.2, total_steps=8, warmup_steps=3, final_lr=0.01)),
    "one_cycle": (dict(max_lr=0.1, total_steps=10), dict(max_lr=0.2, total_steps=8, pct_start=0.5, div_factor=10.0,
                                                         final_div_factor=10.0)),
    "triangular": (dict(base_lr=0.1, max_lr=0.3, step_size=4), dict(base_lr=0.2, max_lr=0.5, step_size=3)),
    "linear": (dict(lr=0.1, total_steps=10), dict(lr=0.2, total_steps=8, final_lr=0.01, warmup_steps=3)),
    "polynomial": (dict(lr=0.1, total_steps=10), dict(lr=0.2, total_steps=8, power=2.0, final_lr=0.01, warmup_steps=3)),
    "warm_restarts": (dict(lr=0.1, first=3), dict(lr=0.2, first=4, factor=2, final_lr=0.01)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_setting_of_a_schedule_changes_its_rates(name: str) -> None:
    given, others = SCHEDULES[name]
    make = getattr(schedule, name)
    assert {*inspect.signature(make).parameters} == {*others}

    def rates(**settings: Any) -> list[float]:
        return [make(**settings)(t) for t in range(12)]
    for setting, value in others.items():
        assert rates(**given) != rates(**{**given, setting: value}), setting


def plateau(lr: float = 1.0, **settings: Any) -> list[float]:
    """Returns the rates behind each of a run of measurements."""
    optimizer = optim.SGD([nn.Parameter(alpha.ones((1,)))], lr=lr)
    watcher = optim.ReduceLROnPlateau(optimizer, **settings)
    found = []
    for value in (5.0, 4.0, 3.96, 4.2, 3.5, 4.0, 4.0, 4.0, 2.9, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0):
        watcher.step(value)
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("setting, value", [
    ("mode", "max"), ("factor", 0.5), ("patience", 0), ("threshold", 0.3), ("threshold_mode", "abs"), ("cooldown", 3),
    ("min_lr", 0.05), ("eps", 0.5)])
def test_a_setting_of_a_plateau_changes_its_rates(setting: str, value: Any) -> None:
    base: dict[str, Any] = dict(patience=1, threshold=0.2)
    assert plateau(**base) != plateau(**{**base, setting: value})


@pytest.mark.parametrize("mode, values", [
    ("min", [-1.0] * 5), ("max", [-1.0] * 5), ("min", [-1.0, -0.99995, -0.9999, -0.99985]),
    ("max", [-1.0, -1.00005, -1.0001, -1.00015]), ("min", [1.0] * 5), ("max", [0.0] * 5), ("min", [float("nan")] * 5)])
def test_a_plateau_of_any_sign_is_no_progress(mode: str, values: list[float]) -> None:
    optimizer = optim.SGD([nn.Parameter(alpha.ones((1,)))], lr=1.0)
    watcher = optim.ReduceLROnPlateau(optimizer, mode=mode, patience=1)
    for value in values:
        watcher.step(value)
    assert optimizer.lr < 1.0


@pytest.mark.parametrize("mode, values", [("min", [-1.0, -1.1, -1.2, -1.3]), ("max", [-1.3, -1.2, -1.1, -1.0]),
                                          ("min", [0.1, -0.1, -0.2, -0.3]), ("max", [-0.1, 0.1, 0.2, 0.3])])
def test_progress_of_negative_values_keeps_the_rate(mode: str, values: list[float]) -> None:
    optimizer = optim.SGD([nn.Parameter(alpha.ones((1,)))], lr=1.0)
    watcher = optim.ReduceLROnPlateau(optimizer, mode=mode, patience=0)
    for value in values:
        watcher.step(value)
    assert optimizer.lr == 1.0


def scales(growth: int = 2, initial: float = 64.0) -> list[float]:
    p = nn.Parameter(alpha.ones((1,)))
    optimizer, scaler = optim.SGD([p], lr=0.1), optim.LossScaler(initial=initial, growth_interval=growth)
    found = []
    for _ in range(4):
        p.grad = alpha.ones((1,))
        scaler.step(optimizer)
        found.append(scaler.value)
    return found


def test_a_setting_of_a_scaler_changes_its_scales() -> None:
    assert scales() != scales(growth=1) and scales() != scales(initial=32.0)


P = [nn.Parameter(alpha.ones((1,)))]


def sgd(**settings: Any) -> optim.Optimizer:
    return optim.SGD(P, lr=0.1, **settings)


@pytest.mark.parametrize("call, parts", [
    (lambda: sgd(dampening=0.5), ("SGD: dampening=0.5 with momentum=0.0", "no effect")),
    (lambda: optim.SGD([{"params": P, "momentum": 0.0}], lr=0.1, momentum=0.9, dampening=0.5),
     ("dampening=0.5 with momentum=0.0",)),
    (lambda: sgd(nesterov=True), ("nesterov with momentum=0.0",)),
    (lambda: sgd(nesterov=True, momentum=0.9, dampening=0.1), ("nesterov with momentum=0.9, dampening=0.1",)),
    (lambda: schedule.multistep(0.1, [], gamma=0.5), ("multistep: milestones is empty", "gamma=0.5 has no effect")),
    (lambda: schedule.multistep(0.1, [5, 2]), ("milestones [5, 2] do not rise",)),
    (lambda: schedule.cosine(0.1, 5, warmup_steps=5), ("cosine: warmup_steps=5", "total_steps=5")),
    (lambda: schedule.linear(0.1, 5, warmup_steps=6), ("linear: warmup_steps=6", "total_steps=5")),
    (lambda: schedule.polynomial(0.1, 5, warmup_steps=6), ("polynomial: warmup_steps=6", "total_steps=5")),
    (lambda: optim.ReduceLROnPlateau(sgd(), min_lr=0.1), ("min_lr=0.1 and eps=1e-08", "every lr as it is: 0.1")),
    (lambda: optim.ReduceLROnPlateau(sgd(), eps=0.2), ("min_lr=0.0 and eps=0.2", "every lr as it is: 0.1")),
    (lambda: optim.ReduceLROnPlateau(sgd(), patience=-1), ("patience is -1",)),
    (lambda: optim.clip_grad_norm(iter(()), 1.0), ("clip_grad_norm: there are no parameters", "generator")),
    (lambda: optim.clip_grad_value([], 1.0), ("clip_grad_value: there are no parameters",)),
])
def test_a_setting_without_effect_is_refused_with_both_names(call: Callable[[], Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.torch
def test_positions_mean_what_they_mean_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    given = inspect.signature(optim.Adagrad).parameters
    theirs = inspect.signature(torch.optim.Adagrad).parameters
    assert [*given] == [*theirs][:len(given)]
    group = optim.Adagrad(P, 0.01, 0.0, 0.0, 0.1).param_groups[0]
    assert group["initial_accumulator_value"] == 0.1 and group["eps"] == 1e-10
    with pytest.raises(ArgumentError, match="LossScaler: 3 arguments are given by position, 2 is the most"):
        optim.LossScaler("cpu", 64.0, 2)


@pytest.mark.torch
def test_adagrads_sums_start_where_pytorchs_do() -> None:
    torch = pytest.importorskip("torch")
    p, twin = nn.Parameter(alpha.ones((3,))), torch.ones(3, requires_grad=True)
    ours, theirs = (kind([x], 0.1, 0.1, 0.01, 0.5) for kind, x in ((optim.Adagrad, p), (torch.optim.Adagrad, twin)))
    for k in range(3):
        p.grad, twin.grad = alpha.full((3,), 0.3 + k), torch.full((3,), 0.3 + k)
        ours.step()
        theirs.step()
    np.testing.assert_allclose(p.numpy(), twin.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", ["accumulate_grad_batches", "gradient_accumulation_steps"])
def test_fit_answers_accumulation_with_what_to_do(name: str) -> None:
    data = np.zeros((4, 2), np.float32), np.zeros(4, np.int64)
    with pytest.raises(ConfigError, match="call backward for several batches before the step") as caught:
        fit(nn.Linear(2, 2), data, epochs=1, progress=False, **{name: 2})
    assert "dampening" not in str(caught.value) and "did you mean" not in str(caught.value)


def test_weight_norm_is_told_with_its_place_and_clipping_with_its_own() -> None:
    with pytest.raises(MissingError, match=r"alpha\.nn\.utils\.weight_norm"):
        _ = nn.weight_norm
    with pytest.raises(MissingError, match=r"alpha\.optim\.clip_grad_norm_"):
        _ = nn.utils.clip_grad_norm_
