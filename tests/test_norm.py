"""Batch, layer and group normalisation: against PyTorch, by differences, fused against composed, and the refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.errors import AlphaError, ArgumentError, ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from alpha.ops.norm import batch_norm_act
from tests.op_checks import check_sample_norm_of_nearly_equal_elements

EPS = 1e-5
SHAPES = [(2, 1), (5, 3), (2, 1, 1, 4), (3, 1, 1, 1), (2, 5, 3, 7), (4, 8, 8, 65)]


def leaf(rng, shape, dtype="float32"):
    return alpha.tensor(rng.standard_normal(shape), dtype, requires_grad=True)


def away_from_kinks(rng, shape):
    """Few, well separated values: no relu behind a batch norm of them is close to its kink."""
    return alpha.tensor(rng.permutation(np.prod(shape)).reshape(shape) * 1.37, "float64", requires_grad=True)


def reference(x, gamma, beta, mean, var, residual=None, relu=False):
    y = (x - mean) / np.sqrt(var + EPS) * gamma + beta + (0 if residual is None else residual)
    return np.maximum(y, 0) if relu else y


def check_batch_norm(shape, residual, activation, training, seed=0):
    """Compares y, gradients and running statistics with float64 NumPy."""
    rng = np.random.default_rng(seed)
    c = shape[-1]
    x, gamma, beta = leaf(rng, shape), leaf(rng, (c,)), leaf(rng, (c,))
    add = leaf(rng, shape) if residual else None
    running = alpha.tensor(rng.standard_normal(c), "float32"), alpha.tensor(rng.uniform(0.5, 2, c), "float32")
    before = [r.numpy().astype(np.float64) for r in running]
    g = rng.standard_normal(shape).astype(np.float32)
    y = ops.batch_norm(x, gamma, beta, *running, add, training=training, momentum=0.3, activation=activation)
    y.backward(alpha.tensor(g))
    xs, gs = x.numpy().astype(np.float64).reshape(-1, c), gamma.numpy().astype(np.float64)
    mean, var = (xs.mean(0), xs.var(0)) if training else before
    plain = reference(xs, gs, beta.numpy(), mean, var, add.numpy().reshape(-1, c) if residual else None)
    v = g.reshape(-1, c) * (plain > 0) if activation else g.reshape(-1, c)
    assert_equal_at(y.numpy().reshape(-1, c), np.maximum(plain, 0) if activation else plain, rtol=1e-4, atol=1e-4)
    xhat, istd = (xs - mean) / np.sqrt(var + EPS), 1 / np.sqrt(var + EPS)
    dx = v - v.mean(0) - xhat * (v * xhat).mean(0) if training else v
    tolerance = dict(rtol=1e-3, atol=1e-3 * np.sqrt(len(xs)))
    assert_equal_at(x.grad.numpy().reshape(-1, c), gs * istd * dx, rtol=1e-3, atol=1e-4 * istd.max(), name="dx")
    assert_equal_at(gamma.grad, (v * xhat).sum(0), name="dgamma", **tolerance)
    assert_equal_at(beta.grad, v.sum(0), name="dbeta", **tolerance)
    if residual:
        assert_equal_at(add.grad.numpy().reshape(-1, c), v, name="dresidual")
    unbiased = xs.var(0, ddof=1) if training else None
    expected = [0.7 * b + 0.3 * s for b, s in zip(before, (mean, unbiased))] if training else before
    for r, e in zip(running, expected):
        assert_equal_at(r, e, rtol=1e-5, atol=1e-6, name="running")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_is_the_equation(cpu_kernels, shape, residual, activation, training):
    check_batch_norm(shape, residual, activation, training)


@given(n=st.integers(1, 4), h=st.integers(1, 5), w=st.integers(1, 5), c=st.integers(1, 19), residual=st.booleans(),
       activation=st.sampled_from([None, "relu"]), compiled=st.booleans())
def test_batch_norm_of_any_shape(n, h, w, c, residual, activation, compiled):
    if n * h * w > 2:
        with config(cpu_kernels=compiled):
            check_batch_norm((n, h, w, c), residual, activation, True)


def test_batch_norm_of_small_integers_is_exact(cpu_kernels):
    """Means, variances and roots that floats hold exactly: +-4 around 3 has variance 16."""
    x = alpha.tensor(np.array([[7, -1], [-1, 7], [7, 7], [-1, -1]], np.float32))
    gamma, beta = alpha.tensor(np.array([2, 3], np.float32)), alpha.tensor(np.array([1, -1], np.float32))
    y, mean, istd = batch_norm_act.full(x, gamma, beta, eps=0.0)
    assert_equal_at(mean, [3, 3])
    assert_equal_at(istd, [0.25, 0.25])
    assert_equal_at(y, [[3, -4], [-1, 2], [3, 2], [-1, -4]])
    y = ops.batch_norm(x, gamma, beta, residual=x, eps=0.0, activation="relu")
    assert_equal_at(y, [[10, 0], [0, 9], [10, 9], [0, 0]])


def test_batch_norm_without_parameters_standardizes(cpu_kernels):
    x = leaf(np.random.default_rng(0), (6, 3, 3, 5))
    y = ops.batch_norm(x)
    y.backward(alpha.tensor(np.ones(x.shape, np.float32)))
    assert_equal_at(y.mean((0, 1, 2)), np.zeros(5), atol=1e-6)
    assert_equal_at(y.var((0, 1, 2)), np.ones(5), rtol=1e-4)
    assert_equal_at(x.grad, np.zeros(x.shape), atol=1e-5)


def test_a_large_mean_costs_no_digits_of_the_variance(cpu_kernels):
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal((512, 3))).astype(np.float32)
    _, mean, istd = batch_norm_act.full(alpha.tensor(x))
    assert_equal_at(mean, x.astype(np.float64).mean(0), rtol=1e-6)
    assert_equal_at(istd, 1 / np.sqrt(x.astype(np.float64).var(0) + EPS), rtol=1e-4)


@pytest.mark.parametrize("residual", [False, True])
def test_fused_batch_norm_equals_its_parts(cpu_kernels, residual):
    """activation and residual in one op give what three ops give, forward and backward."""
    rng = np.random.default_rng(1)
    tensors = [leaf(rng, (3, 4, 4, 9)), leaf(rng, (9,)), leaf(rng, (9,)), leaf(rng, (3, 4, 4, 9))]
    copies = [alpha.tensor(t, requires_grad=True) for t in tensors]
    x, gamma, beta, add = tensors
    y = ops.batch_norm(x, gamma, beta, residual=add if residual else None, activation="relu")
    (y * y).sum().backward()
    x, gamma, beta, add = copies
    parts = ops.batch_norm(x, gamma, beta)
    parts = ops.relu(parts + add if residual else parts)
    (parts * parts).sum().backward()
    assert_equal_at(y, parts, atol=1e-6)
    for fused, composed in zip(tensors[:3 + residual], copies):
        assert_equal_at(fused.grad, composed.grad, rtol=1e-4, atol=1e-4)


def test_the_residual_free_form_does_not_keep_y():
    """Only the mask of relu after a residual needs y; it is the largest thing that could be kept."""
    x = leaf(np.random.default_rng(0), (4, 3))
    outputs = [ops.batch_norm(x, residual=r, activation="relu") for r in (None, x)]
    kept = [any(saved is y.array for saved in y._node[0].saved) for y in outputs]
    assert kept == [False, True]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("residual", [False, True])
def test_batch_norm_gradients_of_both_orders(training, activation, residual):
    rng = np.random.default_rng(2)
    shape = (3, 2, 2, 3)
    running = alpha.tensor(rng.standard_normal(3)), alpha.tensor(rng.uniform(0.5, 2, 3))
    inputs = [away_from_kinks(rng, shape), leaf(rng, (3,), "float64"), leaf(rng, (3,), "float64")]
    inputs += [leaf(rng, shape, "float64")] * residual

    def f(x, gamma, beta, add=None):
        return ops.batch_norm(x, gamma, beta, *running, add, training=training, momentum=0.0, activation=activation)

    assert gradcheck(f, inputs, second_order=True)


def test_the_fused_gradient_equals_the_composed_one():
    """An ordinary backward runs batch_norm_grad, one under create_graph is composed: one result."""
    rng = np.random.default_rng(3)
    for activation in (None, "relu"):
        inputs = [leaf(rng, (4, 3, 3, 5), "float64"), leaf(rng, (5,), "float64"), leaf(rng, (5,), "float64")]
        seed = alpha.tensor(rng.standard_normal((4, 3, 3, 5)))
        y = ops.batch_norm(*inputs, activation=activation)
        fused = alpha.grad(y, inputs, seed, retain_graph=True)
        composed = alpha.grad(y, inputs, seed, create_graph=True)
        assert not fused[0].requires_grad and composed[0].requires_grad
        for a, b in zip(fused, composed):
            assert_equal_at(a.detach(), b.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_pytorchs(cpu_kernels, training):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, gamma, beta = leaf(rng, (3, 4, 5, 6)), leaf(rng, (6,)), leaf(rng, (6,))
    running = alpha.tensor(np.zeros(6, np.float32)), alpha.tensor(np.ones(6, np.float32))
    tx, tg, tb, tm, tv = (torch.tensor(t.numpy(), requires_grad=t.requires_grad) for t in (x, gamma, beta, *running))
    for _ in range(3):
        y = ops.batch_norm(x, gamma, beta, *running, training=training)
        ty = torch.nn.functional.batch_norm(tx.permute(0, 3, 1, 2), tm, tv, tg, tb, training)
    (y * y * y).sum().backward()
    (ty * ty * ty).sum().backward()
    assert_equal_at(y, ty.permute(0, 2, 3, 1).detach(), rtol=1e-5, atol=1e-5)
    for ours, theirs in ((x.grad, tx.grad), (gamma.grad, tg.grad), (beta.grad, tb.grad), (running[0], tm),
                         (running[1], tv)):
        assert_equal_at(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_is_no_tensor_is_refused_where_there_is_no_sample() -> None:
    with pytest.raises(AlphaError, match=r"running_mean is True.*\nhelp: "):
        ops.batch_norm(alpha.zeros((0, 4)), running_mean=True)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("shape, groups", [((40, 5), 0), ((40, 5), 1), ((3, 70, 24), 0), ((3, 70, 24), 4)])
def test_sample_norms_of_nearly_equal_elements_keep_their_digits(cpu_kernels, shape, groups, again):
    check_sample_norm_of_nearly_equal_elements(shape, groups, again=again)


@pytest.mark.torch
@given(shape=st.lists(st.integers(1, 5), min_size=2, max_size=4), ndim=st.integers(1, 2), affine=st.booleans())
def test_layer_norm_is_pytorchs(shape, ndim, affine):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    inputs = [leaf(rng, shape, "float64")] + [leaf(rng, shape[-ndim:], "float64") for _ in range(2 * affine)]
    twins = [torch.tensor(t.numpy(), requires_grad=True) for t in inputs]
    y = ops.layer_norm(*inputs, normalized_ndim=ndim)
    ty = torch.nn.functional.layer_norm(twins[0], shape[-ndim:], *twins[1:])
    _compare(y, ty, inputs, twins)


@pytest.mark.torch
@given(n=st.integers(1, 3), hw=st.integers(1, 4), groups=st.integers(1, 3), width=st.integers(1, 4),
       affine=st.booleans())
def test_group_norm_is_pytorchs(n, hw, groups, width, affine):
    torch = pytest.importorskip("torch")
    rng, c = np.random.default_rng(6), groups * width
    inputs = [leaf(rng, (n, hw, 2, c), "float64")] + [leaf(rng, (c,), "float64") for _ in range(2 * affine)]
    twins = [torch.tensor(t.numpy(), requires_grad=True) for t in inputs]
    y = ops.group_norm(*inputs, groups=groups)
    ty = torch.nn.functional.group_norm(twins[0].permute(0, 3, 1, 2), groups, *twins[1:]).permute(0, 2, 3, 1)
    _compare(y, ty, inputs, twins)


def _compare(y, ty, inputs, twins):
    seed = np.random.default_rng(7).standard_normal(y.shape)
    y.backward(alpha.tensor(seed))
    import torch
    ty.backward(torch.tensor(seed))
    assert_equal_at(y.detach(), ty.detach(), rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(inputs, twins):
        assert_equal_at(ours.grad, theirs.grad, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("affine", [False, True])
def test_layer_and_group_norm_gradients_of_both_orders(affine):
    rng = np.random.default_rng(8)
    x = leaf(rng, (2, 3, 2, 4), "float64")
    vectors = [leaf(rng, (4,), "float64") for _ in range(2 * affine)]
    maps = [leaf(rng, (2, 4), "float64") for _ in range(2 * affine)]
    assert gradcheck(lambda x, *p: ops.layer_norm(x, *p), [x, *vectors], second_order=True)
    assert gradcheck(lambda x, *p: ops.layer_norm(x, *p, normalized_ndim=2), [x, *maps], second_order=True)
    assert gradcheck(lambda x, *p: ops.group_norm(x, *p, groups=2), [x, *vectors], second_order=True)


def test_layer_and_group_norm_of_small_integers_are_exact():
    x = alpha.tensor(np.array([[7, -1, 7, -1], [-2, 2, 2, -2]], np.float32))
    assert_equal_at(ops.layer_norm(x, eps=0.0), [[1, -1, 1, -1], [-1, 1, 1, -1]])
    beta = alpha.tensor(np.array([1, 2, 3, 4], np.float32))
    assert_equal_at(ops.group_norm(x, None, beta, groups=2, eps=0.0), [[2, 1, 4, 3], [0, 3, 4, 3]])


def test_sixteen_bits_keep_statistics_in_thirty_two():
    """Squares of 300 overflow float16; mean and istd come in float32, gradients in float16."""
    rng = np.random.default_rng(9)
    x = alpha.tensor(300 * rng.standard_normal((8, 3, 4)), "float16", requires_grad=True)
    for y, mean, istd, *_ in (batch_norm_act.full(x, activation="relu"), ops.layer_norm.full(x),
                              ops.group_norm.full(x, groups=2)):
        y.sum().backward()
        assert (y.dtype, mean.dtype, istd.dtype, x.grad.dtype) == ("float16", "float32", "float32", "float16")
        assert np.isfinite(y.numpy()).all() and np.abs(y.numpy()).max() > 1
    wide = ops.layer_norm(x.detach().astype("float32"))
    assert_equal_at(ops.layer_norm(x.detach()), wide, rtol=1e-3, atol=1e-3)
    running = alpha.tensor(np.zeros(4), "float16"), alpha.tensor(np.ones(4), "float16")
    y = ops.batch_norm(x, None, None, *running, training=False)
    assert alpha.grad(y.sum(), x)[0].dtype == "float16"


def t(*shape):
    return alpha.tensor(np.ones(shape, np.float32))


@pytest.mark.parametrize("call, said", [
    (lambda: ops.batch_norm(t(2, 3, 3, 4), t(5)), "x has 4 channels, gamma has shape (5,)"),
    (lambda: ops.batch_norm(t(2, 3, 8, 8), t(3)), "x looks like NCHW; alpha uses NHWC: x.permute(0, 2, 3, 1)"),
    (lambda: ops.batch_norm(t(2, 4), t(4), t(4), t(4), t(3)), "x has 4 channels, running_var has shape (3,)"),
    (lambda: ops.batch_norm(t(2, 4), t(4), t(4), t(4)), "1 of running_mean and running_var are None"),
    (lambda: ops.batch_norm(t(2, 4), training=False), "2 of running_mean and running_var are None"),
    (lambda: ops.batch_norm(t(1, 1, 1, 4)), "training needs more than 1 value per channel, x of shape (1, 1, 1, 4)"),
    (lambda: ops.batch_norm(t(4)), "x has 1 axes, at least 2 are needed"),
    (lambda: ops.batch_norm(t(2, 4), activation="gelu"), 'batch_norm: activation is "gelu" (str), None or "relu"'),
    (lambda: ops.batch_norm(t(2, 4), residual=t(4)), "residual has shape (4,), x has (2, 4)"),
    (lambda: ops.layer_norm(t(2, 4), normalized_ndim=3), "cannot normalise 3 axes of shape (2, 4)"),
    (lambda: ops.layer_norm(t(2, 0)), "cannot normalise 1 axes of shape (2, 0)"),
    (lambda: ops.layer_norm(t(2, 4), None, t(3)), "beta has shape (3,), (4,) is needed"),
    (lambda: ops.group_norm(t(2, 3, 6), groups=4), "4 groups do not divide 6 channels"),
    (lambda: ops.group_norm(t(6), groups=2), "x of shape (6,) has no samples with values"),
    (lambda: ops.group_norm(t(2, 3, 6), t(3), groups=2), "gamma has shape (3,), (6,) is needed"),
])
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises(ShapeError) as error:
        call()
    assert said in str(error.value) and "\nhelp: " in str(error.value)


def test_one_value_per_channel_is_fine_in_inference(cpu_kernels):
    y = ops.batch_norm(t(1, 4), None, None, t(4), t(4), training=False)
    assert_equal_at(y, np.zeros((1, 4)))


@pytest.mark.parametrize("shape", [(2, 3, 3, 0), (0, 3, 3, 4)])
def test_nothing_is_normalised_in_inference(shape):
    x, c = alpha.zeros(shape, requires_grad=True), shape[-1]
    gamma, beta = (alpha.ones((c,), requires_grad=True) for _ in range(2))
    y = ops.batch_norm(x, gamma, beta, alpha.zeros((c,)), alpha.ones((c,)), training=False, activation="relu")
    y.backward(alpha.ones(shape))
    assert y.shape == x.grad.shape == shape and gamma.grad.numpy().tolist() == beta.grad.numpy().tolist() == [0.0] * c


@pytest.mark.parametrize("shape", [(2, 3, 3, 4), (0, 3, 3, 4)])
@pytest.mark.parametrize("training", [np.zeros((2, 3)), 1, None, "x"])
def test_training_is_a_bool(training, shape):
    with pytest.raises(ArgumentError, match=r"batch_norm: training is .*, True or False is needed\nhelp: "):
        ops.batch_norm(alpha.zeros(shape), None, None, alpha.zeros((4,)), alpha.ones((4,)), training=training)
