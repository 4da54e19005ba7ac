"""Losses where a model is sure, or their numbers are large: digits against float64, and indices that went bad later."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.errors import ConfigError, DataError, DTypeError, ShapeError
from alpha.ops.loss import cross_entropy_grad
from alpha.ops.pool import adaptive_max_pool2d, max_pool2d_backward, pool_gather, pool_scatter
from alpha.ops.shape import take, take_grad
from tests.op_checks import refused

LOGITS = np.linspace(-80, 80, 1601, dtype=np.float32)


def leaf(a: np.ndarray) -> alpha.Tensor:
    return alpha.tensor(np.asarray(a, np.float32), requires_grad=True)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def logistic(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


# ---- digits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, 3.0])
@pytest.mark.parametrize("target", [0.0, 1.0, 0.5, 0.25, 0.9, 1e-3, 0.999])
def test_bce_with_logits_keeps_its_digits(cpu_kernels: str, target: float, weight: float | None) -> None:
    x, wide, t, w = leaf(LOGITS), LOGITS.astype(np.float64), np.float64(np.float32(target)), weight or 1.0
    pos_weight = None if weight is None else alpha.tensor(np.full(1, weight, np.float32))
    y = ops.bce_with_logits_loss(x, alpha.tensor(np.full_like(LOGITS, target)), pos_weight=pos_weight, reduction="none")
    y.sum().backward()
    loss = (1 - t) * softplus(wide) + w * t * softplus(-wide)
    up, down = (1 - t) * logistic(wide), w * t * logistic(-wide)
    assert (np.abs(y.detach().numpy() - loss) <= 5e-7 * loss).all()
    assert (np.abs(x.grad.numpy() - (up - down)) <= 5e-7 * (up + down)).all()  # of a soft target, where both cancel


@pytest.mark.torch
def test_bce_with_logits_has_the_digits_that_pytorch_has() -> None:
    """PyTorch's gradient at target 0 is exact; at 1 it loses them all."""
    functional, torch = pytest.importorskip("torch").nn.functional, pytest.importorskip("torch")
    x, twin = leaf(LOGITS), torch.tensor(LOGITS, requires_grad=True)
    ops.bce_with_logits_loss(x, ops.zeros((LOGITS.size,)), reduction="sum").backward()
    functional.binary_cross_entropy_with_logits(twin, torch.zeros(LOGITS.size), reduction="sum").backward()
    np.testing.assert_allclose(x.grad.numpy(), twin.grad.numpy(), rtol=1e-6)


def exact_cross_entropy(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns loss and gradient per row, in float64 and without cancellation."""
    below = x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64)
    at = np.arange(len(x)), labels
    share = np.exp(below)
    total = share.sum(1)
    others = share.copy()
    others[at] = 0
    gradient = share / total[:, None]
    gradient[at] = -others.sum(1) / total
    return np.where(below[at] == 0, np.log1p(others.sum(1)), np.log(total) - below[at]), gradient


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("offset", [0, 1000, 1e6])
@pytest.mark.parametrize("spread, tolerance", [(8, 2e-6), (80, 1.5e-5)])  # the differences are rounded
def test_cross_entropy_keeps_its_digits(cpu_kernels: str, classes: int, offset: float, spread: float,
                                        tolerance: float) -> None:
    rng = np.random.default_rng(0)
    logits = (rng.uniform(-spread, spread, (300, classes)) + offset).astype(np.float32)
    labels = rng.integers(0, classes, 300)
    labels[:150] = logits[:150].argmax(1)
    x = leaf(logits)
    y = ops.cross_entropy(x, alpha.tensor(labels), reduction="none")
    y.sum().backward()
    for got, exact in zip((y.detach().numpy(), x.grad.numpy()), exact_cross_entropy(logits, labels)):
        normal = np.abs(exact) > 1e-37
        assert (np.abs(got - exact)[normal] <= tolerance * np.abs(exact)[normal]).all()
        assert (np.abs(got)[~normal] < 1.1e-37).all()


@pytest.mark.parametrize("size", [1e4, 1e8, 1e30])
def test_the_gradient_of_large_equal_logits_is_even(cpu_kernels: str, size: float) -> None:
    """The logarithm of their sum, as one number, is the logit again: each class would have a share of 1."""
    x = leaf([[size, size]])
    ops.cross_entropy(x, alpha.tensor([1])).backward()
    assert x.grad.numpy().tolist() == [[pytest.approx(0.5), pytest.approx(-0.5)]]


def test_a_class_that_cannot_be_has_no_gradient(cpu_kernels: str) -> None:
    x = leaf([[0, -np.inf, 0]])
    ops.cross_entropy(x, alpha.tensor([0])).backward()
    assert x.grad.numpy()[0, 1] == 0


@pytest.mark.torch
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["smooth_l1_loss", "l1_loss", "mse_loss"])
def test_differences_that_are_no_numbers_are_as_in_pytorch(name: str, beta: float) -> None:
    torch = pytest.importorskip("torch")
    more = {"beta": beta} if name == "smooth_l1_loss" else {}
    for value in (np.nan, np.inf, -np.inf, -0.0, 0.5, 1e-45, 3e38):
        x, twin = leaf([value]), torch.tensor([value], dtype=torch.float32, requires_grad=True)
        y = getattr(ops, name)(x, ops.zeros((1,)), **more)
        expected = getattr(torch.nn.functional, name)(twin, torch.zeros(1), **more)
        y.backward()
        expected.backward()
        np.testing.assert_allclose([y.item(), x.grad.item()], [expected.item(), twin.grad.item()], rtol=1e-6,
                                   atol=1e-44, err_msg=str(value))


# ---- what went bad after it was checked ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("bad", [-1, 5, 2 ** 31 - 1, -2 ** 31])
def test_labels_that_changed_before_backward_are_refused(cpu_kernels: str, bad: int, reduction: str,
                                                         dtype: str) -> None:
    x, labels = leaf(np.zeros((4, 5))), alpha.tensor([0, 1, 2, 3], dtype)
    loss = ops.cross_entropy(x, labels, reduction=reduction)
    np.from_dlpack(labels)[2:] = bad
    with refused(DataError, f"backward of cross_entropy: label {bad} at position 2 is outside [0, 5)",
                 "classes: 5; labels: 4"):
        loss.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bad", [-1, 6, 2 ** 31 - 1])
def test_positions_outside_of_the_map_are_refused(cpu_kernels: str, bad: int, dtype: str) -> None:
    x, index = ops.ones((2, 2, 2, 3)), alpha.tensor(np.zeros((2, 2, 2, 3)), dtype)
    np.from_dlpack(index)[1, 0, 1, 2] = bad  # element 17 of 24
    with refused(ShapeError, f"pool_scatter: index {bad} at position 17 is outside [0, 6)", "map: (2, 3)"):
        pool_scatter(x, index, hw=(2, 3))
    with refused(ShapeError, f"pool_gather: index {bad} at position 17 is outside [0, 6)"):
        pool_gather(ops.ones((2, 2, 3, 3)), index)


def test_an_index_that_changed_before_backward_is_refused(cpu_kernels: str) -> None:
    x = leaf(np.arange(12).reshape(1, 2, 2, 3))
    y, index = adaptive_max_pool2d.full(x, output_size=(1, 1))
    np.from_dlpack(index)[...] = 4
    with refused(ShapeError, "pool_scatter: index 4 at position 0 is outside [0, 4)"):
        y.sum().backward()


@pytest.mark.parametrize("bad", [-1, 3])
def test_rows_that_are_not_there_are_refused(bad: int) -> None:
    index = alpha.tensor([0, bad])
    with refused(ShapeError, f"take: index ranges from {min(0, bad)} to {max(0, bad)}, there are 3 rows"):
        take(ops.ones((3, 2)), index)
    with refused(ShapeError, f"take_grad: index ranges from {min(0, bad)} to {max(0, bad)}, there are 3 rows"):
        take_grad(ops.ones((2, 2)), index, rows=3)


X, LABELS, STATS, G = ops.zeros((2, 4)), alpha.tensor([0, 1]), ops.zeros((3, 2)), ops.ones(())
N = ops.ones(())


@pytest.mark.parametrize("error, call, said", [
    (ShapeError, lambda: cross_entropy_grad(G, X, LABELS, ops.zeros((2,)), N, label_smoothing=0.0, reduction="mean"),
     "cross_entropy_grad: g has shape (), stats (2,) and dtype float32, the logits have shape (2, 4)"),
    (ShapeError, lambda: cross_entropy_grad(ops.ones((1,)), X, LABELS, STATS, N, label_smoothing=0.0, reduction="none"),
     "cross_entropy_grad: g has shape (1,), stats (3, 2)"),
    (ShapeError, lambda: cross_entropy_grad(G, X, alpha.tensor([0]), STATS, N, label_smoothing=0.0, reduction="mean"),
     "the input has shape (2, 4), the labels (1,)"),
    (DTypeError, lambda: cross_entropy_grad(G, X, ops.ones((2,)), STATS, N, label_smoothing=0.0, reduction="mean"),
     "the labels have dtype float32"),
    (DTypeError, lambda: pool_scatter(ops.ones((1, 1, 1, 1)), ops.ones((1, 1, 1, 1)), hw=(1, 1)),
     "pool_scatter: index has dtype float32, int32 or int64 is needed"),
    (DTypeError, lambda: max_pool2d_backward(ops.ones((1, 1, 1, 1)), alpha.tensor([[[[0]]]], "int64"), hw=(2, 2),
                                             kernel_size=2),
     "max_pool2d_backward: index has dtype int64, int32 is needed"),
    (ConfigError, lambda: ops.smooth_l1_loss(X, X, beta=float("nan")), "beta is nan, a finite number"),
    (ConfigError, lambda: ops.smooth_l1_loss(X, X, beta=float("inf")), "beta is inf, a finite number"),
    (ConfigError, lambda: ops.cross_entropy(X, LABELS, label_smoothing=float("nan")), "label_smoothing is nan, a"),
    (DataError, lambda: ops.bce_loss(alpha.tensor([np.nan, 1.5]), ops.zeros((2,))), "p has an element 1.5, outside"),
    (DataError, lambda: ops.cross_entropy(X, alpha.tensor([0, -101])), "label -101 at position 1 is outside [0, 4)"),
])
def test_what_does_not_fit_is_refused(error: type[Exception], call, said: str) -> None:
    with refused(error, said):
        call()
