"""Loss scaling: a scaled step is the step, one with gradients that are not finite is none, and the scale moves."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import optim
from alpha.errors import CheckpointError, ConfigError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import floats, refused

STEPS_OF = {"SGD": dict(lr=0.1), "momentum": dict(lr=0.1, momentum=0.9, weight_decay=0.1), "Adam": {}, "AdamW": {},
            "Adamax": {}, "RAdam": {}, "AdaMod": {}, "RMSprop": dict(centered=True, momentum=0.5)}


def f32(a: np.ndarray) -> np.ndarray:
    return np.asarray(a, np.float32)


def make_optimizer(name: str, params: list[alpha.Tensor]) -> optim.Optimizer:
    return getattr(optim, "SGD" if name == "momentum" else name)(params, **STEPS_OF[name])


def parameters() -> list[alpha.Tensor]:
    return [alpha.tensor(f32(floats(shape, k)), requires_grad=True) for k, shape in enumerate([(3, 4), (5,)])]


def give_gradients(params: list[alpha.Tensor], scale: float, seed: int) -> None:
    for k, p in enumerate(params):
        p.grad = alpha.tensor(f32(floats(p.shape, 10 * seed + k)) * np.float32(scale))


@pytest.mark.parametrize("name", STEPS_OF)
def test_a_scaled_step_is_the_step_and_a_skipped_one_is_none(cpu_kernels: str, name: str) -> None:
    plain, scaled = parameters(), parameters()
    theirs, ours, scaler = make_optimizer(name, plain), make_optimizer(name, scaled), optim.LossScaler(initial=1024.0)
    for seed in range(3):
        give_gradients(plain, 1.0, seed)
        give_gradients(scaled, scaler.value, seed)
        theirs.step()
        scaler.step(ours)
    assert (scaler.value, scaler.skipped) == (1024, 0)
    state = {**dict(enumerate(scaled)), **ours.state_dict()["tensors"]}
    before = {key: t.numpy() for key, t in state.items()}
    for key, t in {**dict(enumerate(plain)), **theirs.state_dict()["tensors"]}.items():
        assert_equal_at(t, before[key], name=str(key))  # a power of two costs no bit
    for bad in (np.inf, -np.inf, np.nan):
        give_gradients(scaled, 1.0, 7)
        scaled[1].grad = alpha.tensor(np.array([1, 2, bad, 3, 4], "float32"))
        scaler.step(ours)
    for key, t in state.items():
        assert_equal_at(t, before[key], name=str(key))
    assert (scaler.value, scaler.skipped, ours.step_count) == (128, 3, 6)


def test_the_scale_grows_after_some_steps_and_stays_in_its_range() -> None:
    p = parameters()[:1]
    optimizer, scaler = optim.SGD(p, lr=0.1), optim.LossScaler(initial=2.0 ** 23, growth_interval=2)
    seen = []
    for bad in (0, 0, 0, 1, 0, 0, 0, 0, 0, 0):
        give_gradients(p, np.inf if bad else 1.0, 1)
        scaler.step(optimizer)
        seen.append(np.log2(scaler.value))
    assert seen == [23, 24, 24, 23, 23, 24, 24, 24, 24, 24] and scaler.skipped == 1
    scaler = optim.LossScaler(initial=2.0)
    for _ in range(3):
        give_gradients(p, np.nan, 1)
        scaler.step(optimizer)
    assert (scaler.value, scaler.skipped) == (1, 3)


def test_gradients_are_clipped_by_their_true_norm() -> None:
    plain, scaled = parameters(), parameters()
    scaler = optim.LossScaler(initial=256.0)
    give_gradients(plain, 1.0, 1)
    give_gradients(scaled, 256.0, 1)
    assert optim.clip_grad_norm(plain, 0.5) > 0.5
    optim.SGD(plain, lr=1.0).step()
    scaler.step(optim.SGD(scaled, lr=1.0), max_norm=0.5)
    for a, b in zip(plain, scaled):
        assert_equal_at(b.detach(), a.detach(), rtol=1e-6, atol=1e-7)


def test_without_gradients_a_step_changes_nothing() -> None:
    optimizer, scaler = optim.SGD(parameters(), lr=0.1), optim.LossScaler()
    scaler.step(optimizer)
    assert (optimizer.step_count, scaler.value, scaler.skipped) == (1, 65536, 0)


def test_the_state_of_a_scaler_comes_back() -> None:
    p = parameters()
    scaler, other = optim.LossScaler(initial=8.0, growth_interval=3), optim.LossScaler(growth_interval=3)
    for factor in (1.0, np.inf, 1.0, 1.0):
        give_gradients(p, factor, 1)
        scaler.step(optim.SGD(p, lr=0.1))
    other.load_state_dict({name: alpha.tensor(t) for name, t in scaler.state_dict().items()})
    assert (other.value, other.skipped) == (scaler.value, scaler.skipped) == (4, 1)
    give_gradients(p, 1.0, 1)
    other.step(optim.SGD(p, lr=0.1))
    assert other.value == 8  # the third finite step in a row
    with refused(CheckpointError, "LossScaler: the state has nothing, not ['counts', 'scale']", "a run in fp16"):
        other.load_state_dict({})


def test_settings_of_a_scaler_are_checked() -> None:
    for name, value in (("initial", 0.5), ("initial", 2.0 ** 25), ("growth_interval", 0)):
        with refused(ConfigError, f"LossScaler: {name} is {value}, a", " is needed"):
            optim.LossScaler(**{name: value})
    with refused(ConfigError, "LossScaler.step: max_norm=-1 is below 0"):
        optim.LossScaler().step(optim.SGD(parameters(), lr=0.1), max_norm=-1)
