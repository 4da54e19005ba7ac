"""Activations and softmax: against PyTorch, by gradcheck, at extreme inputs, in 16 bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

import alpha
from alpha import ops
from alpha.errors import ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from tests.op_checks import floats, integers, is_contiguous, leaf, like_torch, refused, shapes

PIECEWISE_LINEAR = ("relu", "relu6", "leaky_relu")
SMOOTH = ("sigmoid", "tanh", "silu", "gelu", "elu", "softplus", "hardswish")
LIMITS = {"relu": (0, math.inf), "relu6": (0, 6), "leaky_relu": (-1e4 * 0.01, math.inf), "sigmoid": (0, 1),
          "tanh": (-1, 1), "silu": (0, math.inf), "gelu": (0, math.inf), "elu": (-1, math.inf),
          "softplus": (0, math.inf), "hardswish": (0, math.inf)}


def torch_function(name: str):
    torch = pytest.importorskip("torch")
    return getattr(torch, name) if name in ("sigmoid", "tanh") else getattr(torch.nn.functional, name)


@pytest.mark.torch
@pytest.mark.parametrize("name", PIECEWISE_LINEAR + SMOOTH)
@given(shape=shapes)
def test_matches_torch(name: str, shape: tuple) -> None:
    like_torch(getattr(ops, name), torch_function(name), [floats(shape, 1, -8.0, 8.0)])


@pytest.mark.torch
@pytest.mark.parametrize("name", PIECEWISE_LINEAR + SMOOTH)
def test_kinks_and_large_inputs_match_torch(name: str) -> None:
    x = np.array([-1000.0, -100.0, -30.0, -3.0, -0.0, 0.0, 3.0, 6.0, 30.0, 100.0, 1000.0])
    like_torch(getattr(ops, name), torch_function(name), [x])
    like_torch(getattr(ops, name), torch_function(name), [x.astype(np.float32)], rtol=2e-6, atol=2e-6)


@pytest.mark.torch
def test_parameters_match_torch() -> None:
    functional = pytest.importorskip("torch").nn.functional
    x = floats((40,), 1, -5.0, 5.0)
    like_torch(lambda t: ops.leaky_relu(t, 0.2), lambda t: functional.leaky_relu(t, 0.2), [x])
    like_torch(lambda t: ops.leaky_relu(t, slope=-0.5), lambda t: functional.leaky_relu(t, -0.5), [x])
    like_torch(lambda t: ops.elu(t, alpha=1.7), lambda t: functional.elu(t, 1.7), [x])


@pytest.mark.parametrize("name", PIECEWISE_LINEAR + SMOOTH)
def test_gradients_to_second_order(name: str) -> None:
    x = alpha.tensor([[-5.1, -2.3, -0.7, 0.4], [1.6, 2.9, 3.3, 6.5]], "float64", requires_grad=True)
    assert gradcheck(getattr(ops, name), [x], second_order=True)


@pytest.mark.parametrize("name", SMOOTH)
def test_fused_gradient_equals_the_composed_one(name: str) -> None:
    x = leaf((50,), 1, -8.0, 8.0)
    y = getattr(ops, name)(x)
    (fused,) = alpha.grad(y, x, ops.ones_like(y), retain_graph=True)
    (composed,) = alpha.grad(y, x, ops.ones_like(y), create_graph=True)
    assert not fused.requires_grad and composed.requires_grad
    assert_equal_at(composed.detach(), fused, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("name", PIECEWISE_LINEAR + SMOOTH)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extreme_inputs_give_the_limits(name: str, dtype: str) -> None:
    low, high = LIMITS[name]
    x = alpha.tensor(np.array([-1e4, math.inf]), dtype, requires_grad=True)
    y = getattr(ops, name)(x)
    assert y.dtype == dtype and is_contiguous(y)
    assert_equal_at(y.detach(), np.array([low, high], dtype))
    y.sum().backward()
    assert x.grad.dtype == dtype and np.isfinite(x.grad.numpy()[0])


@pytest.mark.parametrize("name", SMOOTH + ("softmax", "log_softmax"))
def test_float16_is_rounded_once(name: str) -> None:
    x = floats((200,), 1, -4.0, 4.0).astype(np.float16)
    exact = getattr(ops, name)(alpha.tensor(x.astype(np.float64))).numpy()
    assert_equal_at(getattr(ops, name)(alpha.tensor(x)), exact.astype(np.float16), rtol=1e-3, atol=6e-8)


def test_piecewise_linear_is_exact_on_integers(cpu_kernels: str) -> None:
    for shape in ((), (7,), (300, 301)):  # the last one is large enough for the compiled kernels
        a, g = (integers(shape, seed, -8, 9).astype(np.float32) for seed in range(2))
        for name, y, slope in (("relu", np.maximum(a, 0), a > 0), ("relu6", np.clip(a, 0, 6), (a > 0) & (a < 6)),
                               ("leaky_relu", np.where(a > 0, a, a * np.float32(0.01)), None)):
            x = alpha.tensor(a, requires_grad=True)
            out = getattr(ops, name)(x)
            out.backward(alpha.tensor(g))
            expected = np.where(a > 0, g, g * np.float32(0.01)) if slope is None else g * slope
            assert_equal_at(out.detach(), y, name=name)
            assert_equal_at(x.grad, expected, name=f"gradient of {name}")


def test_a_gradient_that_is_masked_is_0_even_where_it_was_infinite(cpu_kernels: str) -> None:
    for n in (2, 70_000):
        x = alpha.tensor(np.full(n, -1.0, np.float32), requires_grad=True)
        x.relu().backward(alpha.tensor(np.full(n, np.inf, np.float32)))
        assert not x.grad.numpy().any()


@pytest.mark.torch
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@given(shape=shapes.filter(len))
def test_softmax_matches_torch(name: str, shape: tuple) -> None:
    functional = pytest.importorskip("torch").nn.functional
    for axis in (0, -1):
        like_torch(lambda x: getattr(ops, name)(x, axis), lambda t: getattr(functional, name)(t, axis),  # noqa: B023
                   [floats(shape, 1, -5.0, 5.0)])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_gradients_to_second_order(name: str) -> None:
    for axis in (0, 1, -1):
        assert gradcheck(lambda x: getattr(ops, name)(x, axis), [leaf((3, 4, 2))], second_order=True)  # noqa: B023


def test_softmax_does_not_overflow() -> None:
    x = alpha.tensor([[1e38, 0.0, -1e38], [-1e38, -1e38, -1e38]])
    assert_equal_at(x.softmax(), np.array([[1, 0, 0], [1 / 3] * 3]), rtol=1e-6)
    assert x.log_softmax()[0, 0].item() == 0.0
    assert_equal_at(x.log_softmax()[1], np.full(3, -math.log(3)), rtol=1e-6)


def test_softmax_refuses_an_axis_that_is_not_there() -> None:
    with refused(ShapeError, "softmax: axis 2 does not exist in a tensor of 2 axes", "from -2 to 1"):
        alpha.tensor(np.ones((2, 3))).softmax(2)
    with refused(ShapeError, "log_softmax: axis 1 of shape (2, 0) is empty"):
        alpha.tensor(np.ones((2, 0))).log_softmax(1)
