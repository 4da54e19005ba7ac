"""find_lr: rates at which a model learns; the model and the random numbers stay as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim, random
from alpha.core.config import config
from alpha.errors import AlphaError, ArgumentError, ConfigError, DataError
from alpha.training import find_lr, fit
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

RNG = np.random.default_rng(0)
LABELS = np.arange(96) % 4
IMAGES = (RNG.integers(0, 100, (96, 8, 8, 3)) + 40 * LABELS[:, None, None, None]).astype(np.uint8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with config(num_threads=1):
        yield


def net() -> nn.Module:
    alpha.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(),
                         nn.Linear(16, 4))


def test_the_suggestion_learns_and_the_model_stays_as_it_was() -> None:
    model = net()
    model[1].eval()     # type: ignore[index]
    before, state = {k: t.numpy().copy() for k, t in model.state_dict().items()}, random.get_state()
    rates = find_lr(model, (IMAGES, LABELS), batch_size=16, momentum=0.9)
    assert all(np.array_equal(before[k], t.numpy()) for k, t in model.state_dict().items())
    assert random.get_state() == state and [m.training for m in model.modules()].count(False) == 1
    assert all(p.grad is None for p in model.parameters())
    assert len(rates) <= 100 and rates.lrs[0] == 1e-6 and (np.diff(np.log(rates.lrs)) > 0).all()
    assert 1e-4 < rates.suggestion < 10 and f"suggestion {rates.suggestion:.2g}" in repr(rates)
    assert rates[0] == (rates.lrs[0], rates.losses[0])
    slow, good = (fit(net(), (IMAGES, LABELS), epochs=3, lr=lr, momentum=0.9, batch_size=16, progress=False)
                  for lr in (rates.suggestion / 1000, rates.suggestion))
    assert good["train_loss"][-1] < slow["train_loss"][-1]


def test_the_losses_are_those_of_the_steps() -> None:
    x = RNG.standard_normal((12, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    alpha.manual_seed(3)
    model = nn.Linear(3, 1)
    w, b = (t.numpy().astype(np.float64) for t in model.state_dict().values())
    rates = find_lr(model, [(a, c) for a, c in zip(x, y)], loss="mse", batch_size=12, low=1e-3, high=1e-1, steps=6)
    mean, wanted = 0.0, []
    for k, lr in enumerate(np.geomspace(1e-3, 1e-1, 6)):    # one batch: the order of its samples changes nothing
        e = x @ w.T + b - y
        mean = 0.9 * mean + 0.1 * (e ** 2).mean()
        wanted.append(mean / (1 - 0.9 ** (k + 1)))
        w, b = w - lr * 2 * (e * x).mean(0)[None], b - lr * 2 * e.mean()
    assert rates.lrs == pytest.approx(np.geomspace(1e-3, 1e-1, 6)) and rates.losses == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("given", "error", "said"), [
    ({"optimizer": optim.SGD([alpha.zeros((1,))], lr=0.1)}, ArgumentError, "which is made already"),
    ({"low": 1.0, "high": 0.1}, ConfigError, "low=1, high=0.1, steps=100: at least 3 rising rates"),
    ({"steps": 2}, ConfigError, "steps=2"), ({"optimizer": "sdg"}, ConfigError, "there is no optimizer 'sdg'"),
    ({"low": -1.0}, AlphaError, "low"), ({"loss": "mss"}, ConfigError, "there is no loss 'mss'")])
def test_what_does_not_fit_is_refused(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with refused(error, said):
        find_lr(net(), (IMAGES, LABELS), **given)


def test_data_without_a_finite_loss_are_refused() -> None:
    x = np.full((8, 3), np.nan, np.float32)
    model = nn.Linear(3, 2)
    with refused(DataError, "the loss is not finite after 0 steps, from lr=1e-06 on"):
        find_lr(model, (x, np.arange(8) % 2))
    assert np.isfinite(model.weight.numpy()).all()
