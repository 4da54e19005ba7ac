"""alpha.nn.init: bounds and moments, agreement with PyTorch's formulas, determinism, errors."""

import math

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.errors import ConfigError, ShapeError
from alpha.nn import init

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def test_fans_of_our_layouts():
    assert init.fans((64, 3, 5, 16)) == (3 * 5 * 16, 3 * 5 * 64)
    assert init.fans((10, 20)) == (20, 10)


def assert_uniform(a, bound):
    """Within the bounds, close to them, and with the moments of a uniform distribution (5 sigma)."""
    a = a.astype(np.float64)
    n = a.size
    assert -bound <= a.min() < -bound * (1 - 20 / n) and bound * (1 - 20 / n) < a.max() <= bound
    assert abs(a.mean()) < 5 * bound / math.sqrt(3 * n)
    assert abs(np.mean(a ** 2) * 3 / bound ** 2 - 1) < 5 * math.sqrt(0.8 / n)


@pytest.mark.parametrize("make, fan_in", [
    (lambda: nn.Conv2d(16, 64, (3, 5)), 240), (lambda: nn.Conv2d(32, 64, 3, groups=4), 72),
    (lambda: nn.ConvTranspose2d(16, 32, 3, groups=2), 144), (lambda: nn.Linear(300, 400), 300)])
def test_layers_start_like_torch(make, fan_in):
    layer = make()
    bound = 1 / math.sqrt(fan_in)
    assert_uniform(layer.weight.numpy(), bound)
    assert np.abs(layer.bias.numpy()).max() <= bound and np.ptp(layer.bias.numpy()) > bound


@pytest.mark.torch
@pytest.mark.parametrize("name, kwargs", [
    ("xavier_uniform_", {"gain": 2.0}), ("xavier_normal_", {}), ("kaiming_uniform_", {"a": 0.3}),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}), ("kaiming_uniform_", {"nonlinearity": "tanh"}),
    ("kaiming_normal_", {"nonlinearity": "linear"}), ("kaiming_uniform_", {"a": math.sqrt(5)})])
def test_same_distribution_as_torch(name, kwargs):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = getattr(torch.nn.init, name)(torch.empty(96, 32, 3, 5), **kwargs).numpy().astype(np.float64)
    ours = getattr(init, name)(ops.zeros((96, 3, 5, 32)), **kwargs).numpy().astype(np.float64)
    n = ours.size
    assert abs(ours.mean() - theirs.mean()) < 5 * ours.std() * math.sqrt(2 / n)
    assert ours.std() == pytest.approx(theirs.std(), rel=5 * math.sqrt(1 / n))
    if "uniform" in name:
        assert np.abs(ours).max() == pytest.approx(np.abs(theirs).max(), rel=1e-3)
    else:
        quantiles = (0.02, 0.1, 0.5, 0.9, 0.98)
        assert np.quantile(ours, quantiles) == pytest.approx(np.quantile(theirs, quantiles), abs=0.1 * ours.std())


@pytest.mark.torch
def test_gains_as_torch():
    torch = pytest.importorskip("torch")
    for name in ("linear", "sigmoid", "tanh", "relu", "leaky_relu"):
        assert init.gain(name, 0.2) == pytest.approx(torch.nn.init.calculate_gain(name, 0.2))


def test_constants():
    t = ops.zeros((3,), dtype="float64")
    assert init.ones_(t) is t and t.tolist() == [1.0] * 3
    assert init.constant_(t, 2.5).tolist() == [2.5] * 3
    assert init.zeros_(t).tolist() == [0.0] * 3
    values = init.normal_(ops.zeros((40000,)), mean=3.0, std=0.5).numpy()
    assert values.mean() == pytest.approx(3.0, abs=0.02) and values.std() == pytest.approx(0.5, rel=0.03)


def test_the_seed_decides():
    def weight(seed):
        alpha.manual_seed(seed)
        return nn.Linear(30, 20).weight.numpy()

    assert np.array_equal(weight(3), weight(3))
    assert not np.array_equal(weight(3), weight(4))


def test_errors():
    with pytest.raises(ShapeError, match=r"init: a tensor of shape \(3,\) has no fan-in and fan-out\nhelp: use"):
        init.xavier_uniform_(ops.zeros((3,)))
    with pytest.raises(ConfigError, match="init: no gain is known for 'swish'\nhelp: use one of"):
        init.kaiming_normal_(ops.zeros((3, 3)), nonlinearity="swish")
    with pytest.raises(ConfigError, match=r'kaiming_uniform_: mode is "fan_up" .str., "fan_in" or "fan_out".*\nhelp: '):
        init.kaiming_uniform_(ops.zeros((3, 3)), mode="fan_up")
