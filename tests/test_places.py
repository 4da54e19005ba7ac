"""Sums by index, grids of lines, distances of rows, and draws: against NumPy; and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.errors import AlphaError, ArgumentError, ConfigError, DataError, DTypeError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")


def rows(*shape: int) -> alpha.Tensor:
    return alpha.tensor(np.arange(int(np.prod(shape))).reshape(shape) * 1.0)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_index_add_adds_slices_where_the_index_says() -> None:
    x, src = np.arange(12.0).reshape(4, 3), np.arange(9.0).reshape(3, 3) + 1
    right = x.copy()
    np.add.at(right, [2, 0, 2], src * 0.5)
    np.testing.assert_array_equal(alpha.tensor(x).index_add(0, [2, 0, -2], alpha.tensor(src), alpha=0.5).numpy(), right)
    np.add.at(wide := x.copy(), (slice(None), [1, 1]), np.ones((4, 2)))
    np.testing.assert_array_equal(alpha.index_add(alpha.tensor(x), 1, [1, 1], ops.ones((4, 2), "float64")).numpy(),
                                  wide)


@pytest.mark.parametrize("kind, function", [("sum", np.add), ("amax", np.maximum), ("amin", np.minimum)])
def test_scatter_reduce_is_numpys_at(kind: str, function: Any) -> None:
    rng = np.random.default_rng(1)
    x, src, index = rng.normal(size=(4, 3)), rng.normal(size=(5, 2)), rng.integers(0, 4, (5, 2))
    right = x.copy()
    function.at(right, (index, np.arange(2)), src)
    y = alpha.tensor(x).scatter_reduce(0, alpha.tensor(index), alpha.tensor(src), kind)
    np.testing.assert_allclose(y.numpy(), right, rtol=1e-12)


def test_scatter_reduce_means_and_leaves_out_what_was_there() -> None:
    x, src = alpha.tensor([10.0, 20.0, 30.0]), alpha.tensor([1.0, 2.0, 6.0])
    index = alpha.tensor([0, 0, 2])
    np.testing.assert_allclose(
        x.scatter_reduce(0, index, src, "mean").numpy(), [13 / 3, 20.0, 18.0], rtol=1e-6)
    for kind, right in (("sum", [3, 20, 6]), ("mean", [1.5, 20, 6]), ("amax", [2, 20, 6]), ("amin", [1, 20, 6])):
        assert x.scatter_reduce(0, index, src, kind, include_self=False).tolist() == right


def test_equals_share_the_gradient_of_a_scattered_maximum() -> None:
    x = alpha.tensor([2.0, 0.0], requires_grad=True)
    src = alpha.tensor([2.0, 2.0, 1.0], requires_grad=True)
    (x.scatter_reduce(0, alpha.tensor([0, 0, 1]), src, "amax") * alpha.tensor([3.0, 5.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0] and src.grad.tolist() == [1.0, 1.0, 5.0]


def test_meshgrid_is_numpys() -> None:
    lines = [np.arange(3), np.arange(2) + 5, np.arange(4) * 2]
    for how in ("ij", "xy"):
        for ours, right in zip(alpha.meshgrid(*map(alpha.tensor, lines), indexing=how),
                               np.meshgrid(*lines, indexing=how)):
            np.testing.assert_array_equal(ours.numpy(), right)
    assert [t.shape for t in alpha.meshgrid([alpha.arange(2), alpha.tensor(1.0)])] == [(2, 1)] * 2


def test_cdist_is_the_distance_of_each_pair() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4))
    d = a[:, :, None] - b
    for p in (0.5, 1, 2, 3):
        np.testing.assert_allclose(alpha.cdist(alpha.tensor(a), alpha.tensor(b), p).numpy(),
                                   (np.abs(d) ** p).sum(-1) ** (1 / p), rtol=1e-12)
    np.testing.assert_allclose(alpha.cdist(alpha.tensor(a), alpha.tensor(b), float("inf")).numpy(),
                               np.abs(d).max(-1), rtol=1e-12)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_equal_rows_have_distance_0_and_no_gradient(p: float) -> None:
    x = alpha.tensor([[1.0, 2.0], [3.0, 2.0]], requires_grad=True)
    alpha.cdist(x, x.detach(), p).sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and x.grad[:, 1].tolist() == [0.0, 0.0]


# ---- draws -----------------------------------------------------------------------------------------------------------


def test_bernoulli_draws_by_the_chances_and_the_seed() -> None:
    p = alpha.tensor(np.array([0.0, 0.2, 0.7, 1.0]).repeat(4000).reshape(4, 4000))
    alpha.manual_seed(3)
    y = alpha.bernoulli(p)
    assert y.dtype == p.dtype and set(np.unique(y.numpy())) == {0.0, 1.0} and not y.requires_grad
    np.testing.assert_allclose(y.numpy().mean(1), [0, 0.2, 0.7, 1], atol=0.03)
    again = p.bernoulli()
    alpha.manual_seed(3)
    assert (p.bernoulli().numpy() == y.numpy()).all() and (again.numpy() != y.numpy()).any()


def test_multinomial_draws_as_often_as_the_weights_say() -> None:
    w = alpha.tensor([[1.0, 0.0, 3.0, 6.0], [2.0, 2.0, 0.0, 0.0]])
    alpha.manual_seed(5)
    y = w.multinomial(8000, replacement=True)
    assert y.shape == (2, 8000) and y.dtype == "int64"
    counts = [np.bincount(row, minlength=4) / 8000 for row in y.numpy()]
    np.testing.assert_allclose(counts, [[0.1, 0, 0.3, 0.6], [0.5, 0.5, 0, 0]], atol=0.02)
    alpha.manual_seed(5)
    assert (w.multinomial(8000, replacement=True).numpy() == y.numpy()).all()


def test_multinomial_without_replacement_draws_each_element_once() -> None:
    w = np.array([5.0, 1.0, 0.0, 4.0])
    alpha.manual_seed(7)
    y = alpha.multinomial(alpha.tensor(np.tile(w, (6000, 1))), 2).numpy()
    assert (y[:, 0] != y[:, 1]).all() and not (y == 2).any()
    np.testing.assert_allclose(np.bincount(y[:, 0], minlength=4) / 6000, w / 10, atol=0.03)
    after_0 = y[y[:, 0] == 0, 1]        # of what is left the chances are as the weights
    np.testing.assert_allclose((after_0 == 3).mean(), 0.8, atol=0.03)
    assert sorted(alpha.multinomial(alpha.tensor(w), 3).tolist()) == [0, 1, 3]


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: ops.index_add(rows(4, 3), 0, [0, 4], rows(2, 3)), ShapeError, "index 4 is out of range"),
    (lambda: ops.index_add(rows(4, 3), 0, [0.5], rows(1, 3)), DTypeError, "int32 or int64"),
    (lambda: ops.index_add(rows(4, 3), 0, [0], rows(2, 3)), ShapeError, "src (2, 3)"),
    (lambda: ops.index_add(rows(4, 3), 0, [0], rows(1, 3).float()), DTypeError, "src float32"),
    (lambda: ops.index_add(rows(4, 3).long(), 0, [0], rows(1, 3).long()), DTypeError, "one float dtype"),
    (lambda: ops.index_add(rows(4, 3), 2, [0], rows(1, 3)), ShapeError, "axis"),
    (lambda: ops.scatter_reduce(rows(3), 0, alpha.tensor([0]), rows(1), "prod"), ConfigError, '"amin"'),
    (lambda: ops.scatter_reduce(rows(3), 0, alpha.tensor([0.0]), rows(1), "sum"), DTypeError, "int32 or int64"),
    (lambda: ops.scatter_reduce(rows(3), 0, alpha.tensor([3]), rows(1), "amax"), ShapeError, "outside"),
    (lambda: ops.meshgrid(), ShapeError, "[]"),
    (lambda: ops.meshgrid(rows(2, 2)), ShapeError, "(2, 2)"),
    (lambda: ops.meshgrid(3), ArgumentError, "a Tensor is needed"),
    (lambda: ops.meshgrid(rows(2), indexing="yx"), ConfigError, '"xy"'),
    (lambda: ops.cdist(rows(3), rows(3)), ShapeError, "(3,)"),
    (lambda: ops.cdist(rows(2, 3), rows(2, 4)), ShapeError, "one length D"),
    (lambda: ops.cdist(rows(2, 2, 3), rows(3, 2, 3)), ShapeError, "broadcast"),
    (lambda: ops.cdist(rows(2, 3), rows(2, 3), 0), ConfigError, "above 0"),
    (lambda: ops.bernoulli(rows(3)), DataError, "0 to 2"),
    (lambda: ops.bernoulli(alpha.tensor([0.5, float("nan")])), DataError, "nan"),
    (lambda: ops.bernoulli(rows(3).long()), DTypeError, "int64"),
    (lambda: ops.multinomial(rows(3).long(), 1), DTypeError, "int64"),
    (lambda: ops.multinomial(rows(1, 1, 1), 1), ShapeError, "(1, 1, 1)"),
    (lambda: ops.multinomial(-rows(3), 1), DataError, "negative"),
    (lambda: ops.multinomial(rows(1), 1), DataError, "none above 0"),
    (lambda: ops.multinomial(rows(3), 3), ShapeError, "has 2 above 0"),
    (lambda: ops.multinomial(rows(3), 0), ConfigError, "at least 1"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[said for *_, said in REFUSED])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()
