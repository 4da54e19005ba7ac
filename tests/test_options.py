"""Options that people bring: limits that are tensors, weights of a loss, negative borders, means of all batches, and
elements set in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import checkpoint, nn, ops
from alpha.errors import AlphaError, DTypeError, GraphError, ShapeError
from tests.op_checks import refused
from tests.op_orders import orders, torch_orders

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")

X = np.random.default_rng(0).normal(size=(3, 4))
LOW, HIGH = np.random.default_rng(1).normal(size=(2, 4))
MASK = np.random.default_rng(2).random((3, 4)) > 0.5


def t(a: Any, grad: bool = False) -> alpha.Tensor:
    return alpha.tensor(np.asarray(a), requires_grad=grad)


def agree(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray) -> None:
    for a, b in zip(orders(ours, arrays), torch_orders(theirs, arrays)):
        np.testing.assert_allclose(a, b, atol=1e-12)


# ---- clamp -----------------------------------------------------------------------------------------------------------


def test_limits_may_be_tensors() -> None:
    np.testing.assert_array_equal(alpha.clamp(t(X), t(LOW), t(HIGH)).numpy(), np.minimum(np.maximum(X, LOW), HIGH))
    np.testing.assert_array_equal(t(X).clamp(min=t(LOW)).numpy(), np.maximum(X, LOW))
    np.testing.assert_array_equal(t(X).clip(-0.1, t(HIGH)).numpy(), np.minimum(np.maximum(X, -0.1), HIGH))
    assert np.isnan(alpha.clamp(t([np.nan]), t([0.0])).numpy()).all()


@pytest.mark.torch
def test_limits_that_are_tensors_have_pytorchs_gradients() -> None:
    torch = pytest.importorskip("torch")
    low, high = np.minimum(LOW, HIGH), np.maximum(LOW, HIGH)
    agree(lambda x, a, b: alpha.clamp(x, a, b) * x, lambda x, a, b: torch.clamp(x, a, b) * x, X, low, high)
    agree(lambda x, b: alpha.clamp(x, max=b) * x, lambda x, b: torch.clamp(x, max=b) * x, X, high)


# ---- losses and borders ----------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_weights_of_binary_cross_entropy_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    target, weight = MASK * 1.0, np.abs(LOW) + 0.1
    for reduction in ("mean", "sum", "none"):
        agree(lambda x: F.binary_cross_entropy_with_logits(x, t(target), t(weight), reduction=reduction),  # noqa: B023
              lambda x: torch.nn.functional.binary_cross_entropy_with_logits(
                  x, torch.tensor(target), torch.tensor(weight), reduction=reduction), X)  # noqa: B023
        agree(lambda x: F.binary_cross_entropy(x.sigmoid(), t(target), t(weight), reduction=reduction),  # noqa: B023
              lambda x: torch.nn.functional.binary_cross_entropy(
                  x.sigmoid(), torch.tensor(target), torch.tensor(weight), reduction=reduction), X)  # noqa: B023


def test_layers_weigh_elements() -> None:
    p, target, weight = t(MASK * 0.4 + 0.3), t(MASK * 1.0), t(np.abs(LOW))
    each = nn.BCELoss(reduction="none")(p, target).numpy()
    np.testing.assert_allclose(nn.BCELoss(weight)(p, target).item(), (each * np.abs(LOW)).mean())
    layer = nn.BCEWithLogitsLoss(weight, pos_weight=t([2.0]))
    assert {*layer.state_dict()} == {"weight", "pos_weight"}
    np.testing.assert_allclose(layer(t(X), target).item(), (nn.BCEWithLogitsLoss(
        pos_weight=t([2.0]), reduction="none")(t(X), target).numpy() * np.abs(LOW)).mean())


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_negative_borders_cut(mode: str) -> None:
    x = np.arange(48.0).reshape(1, 4, 6, 2)
    found = F.pad(t(x), (-1, 2, 1, -2), mode=mode).numpy()
    kind = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    np.testing.assert_array_equal(found, np.pad(x[:, :2, 1:], ((0, 0), (1, 0), (0, 2), (0, 0)), mode=kind))
    assert (ops.pad(t(X), ((-1, -1), (0, -4))).shape) == (1, 0)
    y = t(X, True)
    ops.pad(y, ((0, -1), (-1, 0))).sum().backward()
    assert y.grad.numpy().sum() == 6 and not y.grad.numpy()[2].any() and not y.grad.numpy()[:, 0].any()


# ---- batch norm ------------------------------------------------------------------------------------------------------


def test_running_statistics_are_the_means_of_all_batches() -> None:
    norm = nn.BatchNorm1d(4, momentum=None).double()
    batches = np.random.default_rng(3).normal(size=(5, 8, 4))
    for batch in batches:
        norm(t(batch))
    np.testing.assert_allclose(norm.running_mean.numpy(), batches.mean((0, 1)), rtol=1e-10)
    np.testing.assert_allclose(norm.running_var.numpy(), batches.var(1, ddof=1).mean(0), rtol=1e-10)
    assert norm.num_batches_tracked.item() == 5
    norm.eval()
    norm(t(batches[0]))
    assert norm.num_batches_tracked.item() == 5
    other = nn.BatchNorm1d(4, momentum=None).double()
    other.load_state_dict(norm.state_dict())
    assert other.num_batches_tracked.item() == 5 and "num_batches_tracked" not in nn.BatchNorm2d(4).state_dict()


@pytest.mark.torch
def test_counts_of_batches_come_from_pytorch_and_go_there() -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = torch.nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, momentum=None)
    batches = np.random.default_rng(4).normal(size=(4, 2, 3, 3, 3)).astype("float32")
    for batch in batches[:2]:
        theirs(torch.tensor(batch).movedim(-1, 1))
    checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
    for batch in batches[2:]:
        theirs(torch.tensor(batch).movedim(-1, 1))
        ours(t(batch))
    state = checkpoint.to_torch_state_dict(ours)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-5, atol=1e-6)


# ---- elements set in a graph -----------------------------------------------------------------------------------------


def writing(m: Any, key: Any, whole: bool = False) -> Callable[..., Any]:
    """A function that sets elements of a product to elements of another."""
    def f(x: Any, v: Any) -> Any:
        y = x * 2.0
        y[key] = v * v if whole else (v * v).sum()
        return y * x
    return f


@pytest.mark.torch
@pytest.mark.parametrize("key, shape", [
    ((slice(None), 0), (3,)), (1, (4,)), ((slice(None, None, 2), slice(1, 3)), (2, 2)), ((..., -1), (1,)),
    ((slice(None), [0, 2]), (3, 2)), (slice(0, 0), (4,)), ((2, 3), ())])
def test_elements_set_in_a_graph_have_pytorchs_gradients(key: Any, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    agree(writing(alpha, key, True), writing(torch, key, True), X, np.random.default_rng(5).normal(size=shape))


@pytest.mark.torch
def test_a_mask_sets_elements_in_a_graph() -> None:
    torch = pytest.importorskip("torch")
    agree(writing(alpha, alpha.tensor(MASK)), writing(torch, torch.tensor(MASK)), X, X[0])
    many = np.random.default_rng(6).normal(size=int(MASK.sum()))
    agree(writing(alpha, alpha.tensor(MASK), True), writing(torch, torch.tensor(MASK), True), X, many)


def test_a_tensor_without_a_gradient_takes_that_of_what_it_is_given() -> None:
    y, v = ops.zeros((3, 2), "float64"), t([1.0, 2.0], True)
    y[1] = v * 3.0
    (y * y).sum().backward()
    assert v.grad.tolist() == [18.0, 36.0] and y.requires_grad
    z = t(X, True)
    w = z * 1.0
    w[MASK] = 0.0
    w.sum().backward()
    assert (z.grad.numpy() == ~MASK).all()
    with alpha.no_grad():
        z[0] = 5.0
    assert (z.detach().numpy()[0] == 5).all()


def test_what_was_saved_before_is_not_silently_another() -> None:
    """As in PyTorch: z needs y as it was."""
    y = t(X, True) * 1.0
    z = y * y
    y[0] = 0.0
    with refused(GraphError, "got other elements after the forward pass"):
        z.sum().backward()


# ---- what is refused -------------------------------------------------------------------------------------------------


def assign(x: alpha.Tensor, key: Any, value: Any) -> None:
    x[key] = value


REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: alpha.clamp(t(X), t([1, 2, 3, 4])), DTypeError, "low has dtype int64, x has float64"),
    (lambda: alpha.clamp(t(X), t([1.0, 2.0])), ShapeError, "(3, 4)"),
    (lambda: F.binary_cross_entropy(t([0.5]), t([1.0]), t([1.0, 2.0])), ShapeError, "weight has shape (2,)"),
    (lambda: F.binary_cross_entropy_with_logits(t([0.5]), t([1.0]), pos_weight=t([1.0, 2.0])), ShapeError,
     "pos_weight has shape (2,)"),
    (lambda: ops.pad(t(X), ((-2, -2), (0, 0))), ShapeError, "cut more than x of shape (3, 4) has"),
    (lambda: assign(t(X, True), 0, 1.0), GraphError, "a leaf of shape (3, 4) that requires a gradient"),
    (lambda: assign(t(X, True) * 1.0, 0, t([1.0, 2.0])), ShapeError, "value of shape (2,) does not fit"),
    (lambda: assign((y := t(X, True) * 1.0)[0], 0, y.sum()), GraphError, "where(mask, value, t)"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()
