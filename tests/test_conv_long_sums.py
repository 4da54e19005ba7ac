"""Sums of tens of thousands of terms keep the promise of fp32: chains are short, and their sums are added up."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops

PROMISE = 2e-6
F, C, OC = 31, 64, 16   # 61,504 terms


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def draws(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Returns arrays; the first is that of a relu, whose sums drift."""
    first, *others = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return [np.maximum(first, 0), *others]


@pytest.mark.parametrize("n", [1, 16])
def test_large_filters(rng, n):
    x, w, b = draws(rng, (n, F, F, C), (OC, F, F, C), (OC,))
    y = ops.conv2d_bias_act(alpha.tensor(x), alpha.tensor(w), alpha.tensor(b), algorithm="direct").numpy()
    exact = x.reshape(n, -1).astype(np.float64) @ w.reshape(OC, -1).T + b
    assert error(y.reshape(n, OC), exact) <= PROMISE
    relu = ops.conv2d_bias_act(alpha.tensor(x), alpha.tensor(w), alpha.tensor(b), activation="relu",
                               algorithm="direct").numpy()
    np.testing.assert_array_equal(relu, np.maximum(y, 0))


def test_gradients_of_large_filters(rng):
    """The pixel in the middle of the map meets every tap."""
    g, w = draws(rng, (2, F, F, C), (C, F, F, OC))
    dx = ops.conv2d_dgrad(alpha.tensor(g), alpha.tensor(w), hw=(F, F), padding=F // 2, algorithm="direct").numpy()
    exact = g.reshape(2, -1).astype(np.float64) @ w[:, ::-1, ::-1].transpose(1, 2, 0, 3).reshape(-1, OC)
    assert error(dx[:, F // 2, F // 2], exact) <= PROMISE


def test_wide_linear_layers(rng):
    x, w = draws(rng, (16, 60_000), (OC, 60_000))
    y = ops.linear(alpha.tensor(x), alpha.tensor(w)).numpy()
    assert error(y, x.astype(np.float64) @ w.T) <= PROMISE


def test_chains_of_integers_are_exact(rng):
    """Several chains, several panels, a bias that is added once."""
    x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 13, 13, 70), (37, 11, 11, 70)))
    b = np.arange(37, dtype=np.float32)
    y = ops.conv2d_bias_act(alpha.tensor(x), alpha.tensor(w), alpha.tensor(b), algorithm="direct").numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x, (11, 11), axis=(1, 2))
    np.testing.assert_array_equal(y, np.einsum("nhwcij,oijc->nhwo", windows, w, optimize=True) + b)
