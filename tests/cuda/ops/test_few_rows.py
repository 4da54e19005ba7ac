"""Products of up to four rows on CUDA, with all weights and without those that meet zeros; bitwise on integers."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.errors import ConfigError
from tests.op_checks import refused

pytestmark = pytest.mark.cuda

SIZES = [(1, 10, 512), (1, 264, 1024), (3, 16, 1000), (4, 520, 64), (2, 8, 4104), (1, 4096, 8)]


def operands(rows, n, k):
    rng = np.random.default_rng(k)
    x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((rows, k), (n, k)))
    x[rng.random(x.shape) < 0.6] = 0
    return x, w, rng.integers(-3, 4, n).astype(np.float32)


def on(a, dtype="float32"):
    return alpha.tensor(a).to("cuda").astype(dtype)


def same(y, expected, dtype):
    assert (y.astype("float32").numpy() == on(expected, dtype).astype("float32").numpy()).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_weights_and_those_that_meet_something_give_the_same(size, dtype):
    x, w, b = operands(*size)
    expected, given = np.maximum(x @ w.T + b, 0), (on(x, dtype), on(w), on(b))
    same(ops.linear(*given, activation="relu"), expected, dtype)
    same(ops.matmul(given[0], on(w, dtype), transpose_b=True), x @ w.T, dtype)
    if size[1] % 8 == 0:
        same(ops.linear(*given, activation="relu", algorithm="sparse"), expected, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_special_values(dtype):
    x, w, _ = operands(2, 8, 64)
    x[0, :3] = np.nan, np.inf, -np.inf
    w[:, 5], x[:, 5] = np.inf, -0.0     # what meets no product makes no NaN
    y = ops.linear(on(x, dtype), on(w), algorithm="sparse").astype("float32").numpy()
    w[:, 5] = 0
    with np.errstate(invalid="ignore"):
        assert np.array_equal(y, x @ w.T, equal_nan=True)
    nothing = ops.linear(on(np.zeros((1, 64), np.float32), dtype), on(w), on(np.arange(8, dtype=np.float32)),
                         algorithm="sparse")
    same(nothing, np.arange(8, dtype=np.float32)[None], dtype)


def test_weights_that_change_are_turned_again():
    x, w, _ = operands(1, 16, 40)
    weights = on(w)
    same(ops.linear(on(x), weights, algorithm="sparse"), x @ w.T, "float32")
    weights.copy_(3 * w)
    same(ops.linear(on(x), weights, algorithm="sparse"), 3 * x @ w.T, "float32")


def test_what_is_not_served_is_refused_by_name_and_computed_otherwise():
    x, w, _ = operands(5, 16, 40)
    with refused(ConfigError, "linear: sparse does not serve 5 rows of 40 features and 16 outputs in float32"):
        ops.linear(on(x), on(w), algorithm="sparse")
    with refused(ConfigError, "1 rows of 40 features and 15 outputs"):
        ops.linear(on(x[:1]), on(w[:15]), algorithm="sparse")


def test_gradients_are_those_of_the_dense_product():
    x, w, b = operands(2, 8, 40)
    found = []
    for algorithm in ("sparse", None):
        given = [on(a) for a in (x, w, b)]
        for t in given:
            t.requires_grad = True
        ops.linear(*given, activation="relu", algorithm=algorithm).sum().backward()
        found.append([t.grad.numpy() for t in given])
    assert all((a == e).all() for a, e in zip(*found))


@pytest.mark.parametrize("sparsity", [False, True])
def test_a_runner_skips_zeros_behind_a_relu(sparsity):
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16)).to("cuda")
    x = on(operands(2, 8, 40)[0])
    with alpha.config(conv_sparsity=sparsity):
        run = alpha.inference(model, x)
    assert ("2", "skips rows of zeros") in run.report().notes or not sparsity
    assert run.report().count("skips rows of zeros") == sparsity
    with alpha.no_grad():
        expected = model(x).numpy()
    for _ in range(2):
        assert np.abs(run(x).numpy() - expected).max() <= 1e-6 * np.abs(expected).max()
