"""A NaN or an infinity in a channel reaches that channel's statistics and results, and no other's."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops

BAD = [np.nan, np.inf, -np.inf]
ROWS = [5, 64, 700, 3000]
PLACES = [0, 1, -1]


def with_one(bad: float, rows: int, place: int) -> np.ndarray:
    a = np.random.default_rng(0).random((rows, 24), dtype=np.float32)
    a[place, 3] = bad
    return a


def check_batch_norm(bad: float, rows: int, place: int, device: str, dtype: str = "float32") -> None:
    mean, var = alpha.zeros((24,), device=device), alpha.ones((24,), device=device)
    x = alpha.tensor(with_one(bad, rows, place), device=device).astype(dtype)
    x.requires_grad = True
    y = ops.batch_norm(x, running_mean=mean, running_var=var, momentum=0.5, activation="relu")
    y.backward(alpha.ones(y.shape, device=device).astype(dtype))
    others = np.arange(24) != 3
    assert np.isnan(var.numpy()[3]) and not np.isfinite(mean.numpy()[3])
    assert np.isfinite(var.numpy()[others]).all() and np.isfinite(mean.numpy()[others]).all()
    for t in (y, x.grad):
        found = t.astype("float32").numpy()
        assert np.isnan(found[:, 3]).all() and np.isfinite(found[:, others]).all()


def check_sample_norms(bad: float, device: str) -> None:
    a = with_one(bad, 12, 5).reshape(3, 4, 24)  # sample 1, pixel 1, channel 3
    x = alpha.tensor(a, device=device)
    rows = ops.layer_norm(x).numpy()
    assert np.isnan(rows[1, 1]).all() and np.isfinite(np.delete(rows.reshape(12, 24), 5, 0)).all()
    groups = ops.group_norm(x, groups=4).numpy()
    assert np.isnan(groups[1, :, :6]).all() and np.isfinite(groups[1, :, 6:]).all()
    assert np.isfinite(groups[[0, 2]]).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bad", BAD)
def test_batch_norm(cpu_kernels: str, bad: float, rows: int, place: int) -> None:
    check_batch_norm(bad, rows, place, "cpu")


@pytest.mark.parametrize("bad", BAD)
def test_norms_of_samples(cpu_kernels: str, bad: float) -> None:
    check_sample_norms(bad, "cpu")


@pytest.mark.torch
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", BAD)
def test_running_statistics_are_those_of_torch(cpu_kernels: str, bad: float, place: int) -> None:
    torch = pytest.importorskip("torch")
    a = with_one(bad, 200, place)
    mean, var = alpha.zeros((24,)), alpha.ones((24,))
    expected = torch.zeros(24), torch.ones(24)
    ops.batch_norm(alpha.tensor(a), running_mean=mean, running_var=var)
    torch.nn.functional.batch_norm(torch.tensor(a), *expected, training=True)
    for ours, theirs in zip((mean, var), expected):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)


def test_values_whose_squares_overflow_keep_their_mean(cpu_kernels: str) -> None:
    a = np.random.default_rng(0).choice(np.array([-3e38, 1e38], np.float32), (300, 2))
    mean = alpha.zeros((2,))
    ops.batch_norm(alpha.tensor(a), running_mean=mean, running_var=alpha.ones((2,)), momentum=1.0)
    np.testing.assert_allclose(mean.numpy(), a.mean(0, dtype=np.float64), rtol=1e-6)
