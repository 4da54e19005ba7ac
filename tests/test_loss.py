"""Losses: against PyTorch, by differences, fused against composed, at the extremes, and the refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.errors import ConfigError, DataError, DTypeError, ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from alpha.ops.loss import label_cross_entropy, label_mask

REDUCTIONS = ["mean", "sum", "none"]


def leaf(a, dtype="float64"):
    return alpha.tensor(np.asarray(a), dtype, requires_grad=True)


def backward(y, seed=0):
    """Runs backward with random weights of the outputs, which it returns."""
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, y.shape)
    y.backward(alpha.tensor(weights, y.dtype))
    return weights


# ---- cross entropy ---------------------------------------------------------------------------------------------------


@pytest.mark.torch
@given(n=st.integers(1, 9), c=st.integers(1, 40), smoothing=st.sampled_from([0.0, 0.1, 1.0]),
       reduction=st.sampled_from(REDUCTIONS), compiled=st.booleans(), labels=st.sampled_from(["int32", "int64"]))
def test_cross_entropy_is_pytorchs(n, c, smoothing, reduction, compiled, labels):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(n * 100 + c)
    x, target = leaf(5 * rng.standard_normal((n, c)), "float32"), rng.integers(0, c, n)
    twin = torch.tensor(x.numpy(), requires_grad=True, dtype=torch.float64)
    with config(cpu_kernels=compiled):
        y = ops.cross_entropy(x, alpha.tensor(target, labels), label_smoothing=smoothing, reduction=reduction)
        weights = backward(y)
    ty = torch.nn.functional.cross_entropy(twin, torch.tensor(target), label_smoothing=smoothing, reduction=reduction)
    ty.backward(torch.tensor(weights))
    assert_equal_at(y.detach(), ty.detach(), rtol=2e-6, atol=2e-6)
    assert_equal_at(x.grad, twin.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_targets_are_pytorchs(cpu_kernels, reduction, smoothing):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, q = leaf(rng.standard_normal((5, 7))), leaf(rng.dirichlet(np.ones(7), 5))
    tx, tq = (torch.tensor(t.numpy(), requires_grad=True) for t in (x, q))
    y = ops.cross_entropy(x, q, label_smoothing=smoothing, reduction=reduction)
    weights = backward(y)
    ty = torch.nn.functional.cross_entropy(tx, tq, label_smoothing=smoothing, reduction=reduction)
    ty.backward(torch.tensor(weights))
    assert_equal_at(y.detach(), ty.detach(), rtol=1e-12)
    assert_equal_at(x.grad, tx.grad, rtol=1e-10, atol=1e-12)
    assert_equal_at(q.grad, tq.grad, rtol=1e-10, atol=1e-12)


def test_cross_entropy_of_equal_logits_is_the_log_of_their_number(cpu_kernels):
    y = ops.cross_entropy(leaf(np.full((3, 8), 7.0), "float32"), alpha.tensor([0, 3, 7]), reduction="none")
    assert_equal_at(y.detach(), np.full(3, np.log(np.float32(8))), rtol=2e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_of_a_thousand_do_not_overflow(cpu_kernels, dtype):
    x = leaf([[1000.0, 0.0, -1000.0], [-1e30, -1e30, 0.0]], dtype)
    y = ops.cross_entropy(x, alpha.tensor([1, 2]), reduction="none")
    backward(y)
    assert_equal_at(y.detach(), [1000, 0])
    assert np.isfinite(x.grad.numpy()).all()
    assert_equal_at(x.grad.numpy()[1], [0, 0, 0], atol=1e-30)


def test_a_logit_of_minus_infinity_is_a_class_that_cannot_be(cpu_kernels):
    x = leaf([[0.0, -np.inf, 0.0]], "float32")
    y = ops.cross_entropy(x, alpha.tensor([0]))
    y.backward()
    assert_equal_at(y.detach(), np.log(np.float32(2)), rtol=2e-7)
    assert_equal_at(x.grad, [[-0.5, 0, 0.5]], atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_fused_cross_entropy_equals_its_parts(cpu_kernels, smoothing, reduction):
    """One op gives what log_softmax and a product with the smoothed one-hot target give."""
    rng = np.random.default_rng(1)
    logits, target = rng.standard_normal((6, 11)), rng.integers(0, 11, 6)
    q = np.eye(11)[target] * (1 - smoothing) + smoothing / 11
    fused, parts = leaf(logits, "float32"), leaf(logits, "float32")
    a = ops.cross_entropy(fused, alpha.tensor(target), label_smoothing=smoothing, reduction=reduction)
    b = -(ops.log_softmax(parts, 1) * alpha.tensor(q, "float32")).sum(1)
    b = b.mean() if reduction == "mean" else b.sum() if reduction == "sum" else b
    backward(a)
    backward(b)
    assert_equal_at(a.detach(), b.detach(), rtol=1e-6, atol=1e-6)
    assert_equal_at(fused.grad, parts.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_gradients_of_both_orders(smoothing, reduction):
    rng = np.random.default_rng(2)
    x, target, q = leaf(rng.standard_normal((4, 5))), alpha.tensor([0, 4, 2, 2]), leaf(rng.dirichlet(np.ones(5), 4))
    settings = dict(label_smoothing=smoothing, reduction=reduction)
    assert gradcheck(lambda x: ops.cross_entropy(x, target, **settings), [x], second_order=True)
    assert gradcheck(lambda x, q: ops.cross_entropy(x, q, **settings), [x, q], second_order=True)
    fused = alpha.grad(ops.cross_entropy(x, target, **settings).sum(), x)[0]
    composed = alpha.grad(ops.cross_entropy(x, target, **settings).sum(), x, create_graph=True)[0]
    assert_equal_at(fused, composed.detach(), rtol=1e-12, atol=1e-14)


def test_float16_losses_are_summed_in_float32():
    rng = np.random.default_rng(3)
    x, target = leaf(rng.standard_normal((300, 50)), "float16"), alpha.tensor(rng.integers(0, 50, 300))
    loss, stats, _ = label_cross_entropy.full(x, target)
    assert (loss.dtype, stats.dtype) == ("float16", "float32")
    wide = ops.cross_entropy(x.detach().astype("float32"), target)
    assert_equal_at(loss.detach(), wide, rtol=1e-3)
    loss.backward()
    assert x.grad.dtype == "float16"


def test_no_rows_have_no_mean(cpu_kernels):
    x, target = leaf(np.zeros((0, 3)), "float32"), alpha.tensor(np.zeros(0, np.int64))
    assert np.isnan(ops.cross_entropy(x, target).item())
    assert ops.cross_entropy(x, target, reduction="sum").item() == 0
    assert ops.cross_entropy(x, target, reduction="none").shape == (0,)


@pytest.mark.parametrize("call", [ops.cross_entropy, ops.nll_loss])
@pytest.mark.parametrize("bad, labels", [(5, [0, 5, 4]), (9, [0, 9, 5]), (-1, [4, -1, 5])])
def test_the_first_label_out_of_range_is_named(cpu_kernels, call, bad, labels):
    with pytest.raises(DataError) as error:
        call(alpha.tensor(np.zeros((3, 5), np.float32)), alpha.tensor(labels))
    assert str(error.value).startswith(f"{call.__name__}: label {bad} at position 1 is outside [0, 5)")
    assert "\nhelp: number the classes from 0" in str(error.value)


@pytest.mark.torch
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss_is_pytorchs(reduction):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, target = leaf(np.log(rng.dirichlet(np.ones(6), 5))), rng.integers(0, 6, 5)
    twin = torch.tensor(x.numpy(), requires_grad=True)
    y = ops.nll_loss(x, alpha.tensor(target), reduction=reduction)
    weights = backward(y)
    ty = torch.nn.functional.nll_loss(twin, torch.tensor(target), reduction=reduction)
    ty.backward(torch.tensor(weights))
    assert_equal_at(y.detach(), ty.detach(), rtol=1e-14)
    assert_equal_at(x.grad, twin.grad, rtol=1e-14)


def test_nll_loss_does_not_see_other_classes():
    """-inf elsewhere is no NaN."""
    y = ops.nll_loss(leaf([[0.0, -np.inf], [-3.0, 0.0]]), alpha.tensor([0, 0]), reduction="none")
    assert_equal_at(y.detach(), [0, 3])


# ---- numbers ---------------------------------------------------------------------------------------------------------

PAIRS = {
    "mse_loss": {}, "l1_loss": {}, "smooth_l1_loss": dict(beta=0.7),
    "bce_loss": {}, "bce_with_logits_loss": {},
}
TORCH_NAMES = {"bce_loss": "binary_cross_entropy", "bce_with_logits_loss": "binary_cross_entropy_with_logits"}


def pair_for(name, shape, seed=5):
    rng = np.random.default_rng(seed)
    if name.startswith("bce"):
        x = rng.uniform(0.05, 0.95, shape)
        return (x if name == "bce_loss" else 4 * rng.standard_normal(shape)), rng.uniform(0, 1, shape)
    return 2 * rng.standard_normal(shape), rng.standard_normal(shape)


@pytest.mark.torch
@pytest.mark.parametrize("name", PAIRS)
@given(shape=st.lists(st.integers(1, 4), max_size=3), reduction=st.sampled_from(REDUCTIONS))
def test_losses_of_numbers_are_pytorchs(name, shape, reduction):
    torch = pytest.importorskip("torch")
    inputs = [leaf(a) for a in pair_for(name, shape)]
    twins = [torch.tensor(t.numpy(), requires_grad=True) for t in inputs]
    y = getattr(ops, name)(*inputs, reduction=reduction, **PAIRS[name])
    weights = backward(y)
    ty = getattr(torch.nn.functional, TORCH_NAMES.get(name, name))(*twins, reduction=reduction, **PAIRS[name])
    ty.backward(torch.tensor(weights))
    assert_equal_at(y.detach(), ty.detach(), rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(inputs, twins):
        assert_equal_at(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_of_both_orders(name):
    inputs = [leaf(a) for a in pair_for(name, (3, 4))]
    assert gradcheck(lambda x, t: getattr(ops, name)(x, t, reduction="none", **PAIRS[name]), inputs, second_order=True)


@pytest.mark.parametrize("name, expected", [
    ("mse_loss", [4, 1, 0, 9]), ("l1_loss", [2, 1, 0, 3]), ("smooth_l1_loss", [1, 0.25, 0, 2]),
])
def test_small_integers_are_exact(name, expected):
    settings = dict(beta=2.0) if name == "smooth_l1_loss" else {}
    x, target = alpha.tensor([3.0, 1.0, 2.0, -3.0]), alpha.tensor([1.0, 2.0, 2.0, 0.0])
    assert_equal_at(getattr(ops, name)(x, target, reduction="none", **settings), expected)
    assert getattr(ops, name)(x, target, **settings).item() == np.float32(sum(expected) / 4)


@pytest.mark.torch
def test_smooth_l1_at_its_joint_and_without_a_square():
    torch = pytest.importorskip("torch")
    for beta in (0.0, 0.5):
        x = leaf([0.5, -0.5, 0.25, 2.0, 1e30])
        y = ops.smooth_l1_loss(x, leaf(np.zeros(5)), beta=beta, reduction="none")
        twin = torch.tensor(x.numpy(), requires_grad=True)
        ty = torch.nn.functional.smooth_l1_loss(twin, torch.zeros(5, dtype=torch.float64), beta=beta, reduction="none")
        y.sum().backward()
        ty.sum().backward()
        assert_equal_at(y.detach(), ty.detach())
        assert_equal_at(x.grad, twin.grad)


@pytest.mark.torch
def test_bce_at_the_ends_is_pytorchs():
    torch = pytest.importorskip("torch")
    p, target = leaf([0.0, 1.0, 0.0, 1.0], "float32"), leaf([0.0, 1.0, 1.0, 0.0], "float32")
    tp = torch.tensor(p.numpy(), requires_grad=True)
    ops.bce_loss(p, target, reduction="sum").backward()
    torch.nn.functional.binary_cross_entropy(tp, torch.tensor(target.numpy()), reduction="sum").backward()
    assert_equal_at(ops.bce_loss(p, target, reduction="none").detach(), [0, 0, 100, 100])
    assert_equal_at(p.grad, tp.grad)
    assert_equal_at(target.grad, [100, -100, 100, -100])  # PyTorch has infinities here


@pytest.mark.torch
def test_bce_with_logits_is_stable_and_takes_pos_weight():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    x, target = leaf(np.concatenate([[-1e4, 1e4, 0.0], 3 * rng.standard_normal(3)]).reshape(2, 3)), rng.random((2, 3))
    for weight in (None, rng.uniform(0.5, 3, 3)):
        twin = torch.tensor(x.numpy(), requires_grad=True)
        x.grad = None
        y = ops.bce_with_logits_loss(x, alpha.tensor(target),
                                     pos_weight=None if weight is None else alpha.tensor(weight))
        ty = torch.nn.functional.binary_cross_entropy_with_logits(
            twin, torch.tensor(target), pos_weight=None if weight is None else torch.tensor(weight))
        y.backward()
        ty.backward()
        assert_equal_at(y.detach(), ty.detach(), rtol=1e-12)
        assert_equal_at(x.grad, twin.grad, rtol=1e-12, atol=1e-15)


# ---- refusals --------------------------------------------------------------------------------------------------------


def t(*shape, dtype="float32"):
    return alpha.tensor(np.full(shape, 0.5), dtype)


LABELS = alpha.tensor([0, 1])


@pytest.mark.parametrize("error, call, said", [
    (ShapeError, lambda: ops.cross_entropy(t(3, 4), LABELS), "the input has shape (3, 4), the labels (2,)"),
    (ShapeError, lambda: ops.cross_entropy(t(2, 4, 4), LABELS), "the input has shape (2, 4, 4), the labels (2,)"),
    (ShapeError, lambda: ops.cross_entropy(t(2, 0), LABELS), "no class to choose from"),
    (ShapeError, lambda: ops.cross_entropy(t(2, 4), t(2, 3)), "the logits have shape (2, 4), the target (2, 3)"),
    (ShapeError, lambda: ops.nll_loss(t(3, 4), LABELS), "the input has shape (3, 4), the labels (2,)"),
    (DTypeError, lambda: ops.cross_entropy(t(2, 4), t(2)), "the labels have dtype float32, int32 or int64 is needed"),
    (DTypeError, lambda: ops.nll_loss(t(2, 4), t(2, dtype="uint8")), "the labels have dtype uint8"),
    (DTypeError, lambda: label_mask(t(2), classes=2), "label_mask: the labels have dtype float32"),
    (ConfigError, lambda: ops.cross_entropy(t(2, 4), LABELS, label_smoothing=1.5), "label_smoothing is 1.5, a number"),
    (ConfigError, lambda: ops.cross_entropy(t(2, 4), t(2, 4), label_smoothing=-1), "label_smoothing is -1, a number"),
    (ConfigError, lambda: ops.cross_entropy(t(2, 4), LABELS, reduction="max"), 'reduction is "max" (str), "mean"'),
    (ConfigError, lambda: ops.nll_loss(t(2, 4), LABELS, reduction="max"), 'nll_loss: reduction is "max" (str), "mean"'),
    (ConfigError, lambda: ops.smooth_l1_loss(t(2), t(2), beta=-1.0), "beta is -1.0, a finite number of at least 0"),
    (DataError, lambda: ops.bce_loss(t(2) * 3.0, t(2)), "p has an element 1.5, outside [0, 1]"),
    (ShapeError, lambda: ops.bce_with_logits_loss(t(2, 3), t(2, 3), pos_weight=t(2)),
     "pos_weight has shape (2,), x has (2, 3)"),
    *[(ShapeError, lambda name=name: getattr(ops, name)(t(2, 3), t(3)),
       f"{name}: the input has shape (2, 3), the target (3,)") for name in PAIRS],
    *[(ConfigError, lambda name=name: getattr(ops, name)(t(2), t(2), reduction="avg"),
       f'{name}: reduction is "avg" (str), "mean", "sum" or "none" is needed') for name in PAIRS],
])
def test_what_does_not_fit_is_refused(error, call, said):
    with pytest.raises(error) as caught:
        call()
    assert said in str(caught.value) and "\nhelp: " in str(caught.value)
