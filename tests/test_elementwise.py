"""Arithmetic, comparisons, casts: against NumPy bit for bit on integers, against PyTorch, by gradcheck; messages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.errors import ConfigError, DeviceError, DTypeError, ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from tests.op_checks import broadcasting, floats, integers, is_contiguous, leaf, like_torch, refused, shapes

NUMPY_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
                "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                "ge": np.greater_equal}
NUMPY_UNARY = {"neg": np.negative, "abs": np.abs, "sign": np.sign}
DTYPES = ("float16", "float32", "float64", "int32", "int64")


@pytest.mark.parametrize("name", NUMPY_BINARY)
@given(pair=broadcasting(), dtype=st.sampled_from(DTYPES))
def test_binary_equals_numpy_on_integers(name: str, pair: tuple, dtype: str) -> None:
    a, b = (integers(shape, seed).astype(dtype) for seed, shape in enumerate(pair))
    y = getattr(ops, name)(alpha.tensor(a), alpha.tensor(b))
    expected = NUMPY_BINARY[name](a, b)
    assert y.dtype == expected.dtype.name and is_contiguous(y)
    assert_equal_at(y, expected, name=name)


@pytest.mark.parametrize("name", NUMPY_UNARY)
@given(shape=shapes, dtype=st.sampled_from(DTYPES))
def test_unary_equals_numpy_on_integers(name: str, shape: tuple, dtype: str) -> None:
    a = integers(shape).astype(dtype)
    y = getattr(ops, name)(alpha.tensor(a))
    assert y.dtype == dtype and is_contiguous(y)
    assert_equal_at(y, NUMPY_UNARY[name](a), name=name)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "minimum"])
@given(pair=broadcasting())
def test_binary_matches_torch(name: str, pair: tuple) -> None:
    torch = pytest.importorskip("torch")
    a, b = (floats(shape, seed, 0.5, 2.0) for seed, shape in enumerate(pair))
    theirs = {"sub": torch.sub, "div": torch.div}.get(name) or getattr(torch, name)
    like_torch(getattr(ops, name), theirs, [a, b])


@pytest.mark.torch
@pytest.mark.parametrize("name", ["neg", "exp", "log", "sqrt", "abs", "sign", "erf"])
@given(shape=shapes)
def test_unary_matches_torch(name: str, shape: tuple) -> None:
    torch = pytest.importorskip("torch")
    low = 0.1 if name in ("log", "sqrt") else -2.0
    like_torch(getattr(ops, name), getattr(torch, name), [floats(shape, 1, low, 2.0)])


@pytest.mark.torch
def test_gradients_at_the_edges_match_torch() -> None:
    torch = pytest.importorskip("torch")
    kinks = np.array([-1.0, 0.0, 0.0, 1.0, 2.0])
    like_torch(ops.maximum, torch.maximum, [kinks, np.array([-1.0, 0.0, 1.0, 0.0, 2.0])])
    like_torch(ops.minimum, torch.minimum, [kinks, np.array([-1.0, 0.0, 1.0, 0.0, 2.0])])
    for exponent in (0, 0.0, 1, 2, 2.0, 3, 0.5, -1):
        like_torch(lambda x: x ** exponent, lambda x: x ** exponent, [np.abs(kinks)])  # noqa: B023
    for base in (0.0, 2, 2.5):
        like_torch(lambda x: base ** x, lambda x: base ** x, [np.array([0.0, 1.0, 2.5])])  # noqa: B023
    like_torch(ops.pow, torch.pow, [np.array([0.0, 0.0, 0.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.5, 0.0, -1.0])])
    like_torch(abs, torch.abs, [kinks])
    like_torch(ops.sqrt, torch.sqrt, [np.array([0.0, 4.0])])
    like_torch(lambda x: ops.clip(x, -1, 1), lambda x: torch.clamp(x, -1, 1), [np.array([-2.0, -1.0, 0.0, 1.0, 2.0])])
    like_torch(lambda x: x.clip(low=0.5), lambda x: torch.clamp(x, min=0.5), [kinks])
    like_torch(lambda x: x.clip(high=0.5), lambda x: torch.clamp(x, max=0.5), [kinks])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "minimum"])
@pytest.mark.parametrize("pair", [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (2, 3))])
def test_binary_gradients_to_second_order(name: str, pair: tuple) -> None:
    a, b = (leaf(shape, seed, 0.5, 2.0) for seed, shape in enumerate(pair))
    assert gradcheck(getattr(ops, name), [a, b], second_order=True)


@pytest.mark.parametrize("name", ["neg", "exp", "log", "sqrt", "abs", "erf"])
def test_unary_gradients_to_second_order(name: str) -> None:
    assert gradcheck(getattr(ops, name), [leaf((3, 4), 0, 0.2, 2.0)], second_order=True)


def test_gradients_with_numbers_to_second_order() -> None:
    x = leaf((3, 4), 0, 0.5, 2.0)
    for f in (lambda x: x + 2, lambda x: 2 - x, lambda x: x * 3.5, lambda x: 1 / x, lambda x: x / 4, lambda x: x ** 3,
              lambda x: x ** -0.5, lambda x: 2.0 ** x, lambda x: ops.maximum(x, 1.0), lambda x: ops.minimum(1.0, x),
              lambda x: x.clip(0.7, 1.5)):
        assert gradcheck(f, [x], second_order=True)


def test_third_derivative() -> None:
    x = alpha.tensor(2.0, "float64", requires_grad=True)
    y = x ** 4
    for expected in (32.0, 48.0, 48.0):
        (y,) = alpha.grad(y, x, create_graph=True)
        assert y.item() == expected


@given(pair=broadcasting())
def test_where_picks_and_splits_the_gradient(pair: tuple) -> None:
    x, y = (leaf(shape, seed) for seed, shape in enumerate(pair))
    cond = integers(np.broadcast_shapes(*pair), 3) > 0
    out = ops.where(alpha.tensor(cond), x, y)
    assert is_contiguous(out)
    assert_equal_at(out, np.where(cond, x.numpy(), y.numpy()))
    assert gradcheck(lambda x, y: ops.where(alpha.tensor(cond), x, y), [x, y], second_order=True)


def test_where_takes_numbers_and_hides_the_other_side() -> None:
    x = alpha.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    y = ops.where(x > 0, 1 / x, 0.0)
    assert y.tolist() == [0.0, 0.0, 0.25] and y.dtype == "float32"
    assert ops.where(x > 0, 1, alpha.tensor([7, 8, 9])).tolist() == [7, 8, 1]
    assert ops.where(x > 0, alpha.tensor([True] * 3), False).dtype == "bool"


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_take_the_dtype_of_the_tensor(dtype: str) -> None:
    x = alpha.tensor([1, 2, 3], dtype)
    for y in (x + 2, 2 * x, x - True, x.clip(2, 5), ops.maximum(x, 2)):
        assert y.dtype == dtype and is_contiguous(y)
    if x.is_floating_point:
        for number in (2.5, np.float64(2.5), np.float32(2.5)):
            y = x * number
            assert y.dtype == dtype and is_contiguous(y)
            assert_equal_at(y, np.array([2.5, 5, 7.5], dtype))
            assert is_contiguous(ops.where(x > number, x, number))
    assert (x + np.int64(2)).tolist() == [3, 4, 5]


def test_a_numpy_number_computes_in_the_dtype_of_the_tensor() -> None:
    x = alpha.tensor(floats((50,)).astype(np.float32))
    assert_equal_at(x * np.float64(0.1), x.numpy() * np.float32(0.1))


def test_overflow_and_division_by_zero_are_silent() -> None:
    big = alpha.tensor([3e38, -3e38])
    assert (big + big).tolist() == [math.inf, -math.inf]
    assert (big * 10.0 / alpha.tensor([0.0, 0.0])).tolist() == [math.inf, -math.inf]
    assert np.isnan((alpha.tensor([0.0]) / 0.0).numpy()).all()
    assert ops.log(alpha.tensor([0.0])).item() == -math.inf
    assert np.isnan(ops.sqrt(alpha.tensor([-1.0])).numpy()).all()
    assert ops.exp(alpha.tensor([1000.0])).item() == math.inf


def test_nan_wins_in_maximum_and_minimum() -> None:
    a, b = alpha.tensor([math.nan, 1.0]), alpha.tensor([1.0, math.nan])
    assert np.isnan(ops.maximum(a, b).numpy()).all() and np.isnan(ops.minimum(a, b).numpy()).all()


def test_erf_is_exact_to_double_precision() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [0.0, -0.0, 1e-300, 0.46875, 0.4688, 6.0, 30.0, math.inf, -math.inf]])
    y = ops.erf(alpha.tensor(x)).numpy()
    expected = np.array([math.erf(v) for v in x])
    assert_equal_at(y, expected, rtol=1e-15)
    assert np.signbit(y[-8]) and np.isnan(ops.erf(alpha.tensor([math.nan])).numpy()).all()
    assert_equal_at(ops.erf(alpha.tensor(x.astype(np.float32))), expected.astype(np.float32), rtol=2e-7)


@pytest.mark.parametrize("shape", [(70_000,), (300, 301)])
def test_large_arrays(cpu_kernels: str, shape: tuple) -> None:
    a, b = (integers(shape, seed).astype(np.float32) for seed in range(2))
    assert_equal_at(alpha.tensor(a) + alpha.tensor(b), a + b)
    assert_equal_at(alpha.tensor(a) + alpha.tensor(b[..., :1]), a + b[..., :1])
    assert_equal_at(alpha.tensor(a) + 1.5, a + np.float32(1.5))
    assert_equal_at(alpha.tensor(a) * alpha.tensor(b), a * b)


def test_cast_between_all_dtypes() -> None:
    values = np.array([-3.7, 0.0, 1.2, 200.9])
    for dtype in (*DTYPES, "uint8", "bool"):
        start = np.abs(values).astype(dtype)
        for target in (*DTYPES, "uint8", "bool"):
            y = ops.cast(alpha.tensor(start), dtype=target)
            assert y.dtype == target and is_contiguous(y)
            assert_equal_at(y, start.astype(target))
    assert alpha.tensor(values).astype(np.int32).tolist() == [-3, 0, 1, 200]


def test_cast_carries_the_gradient_in_the_dtype_of_its_argument() -> None:
    x = alpha.tensor([1.5, 2.5], "float32", requires_grad=True)
    (x.astype("float64") * alpha.tensor([2.0, 3.0], "float64")).sum().backward()
    assert x.grad.dtype == "float32" and x.grad.tolist() == [2.0, 3.0]
    assert not x.astype("int32").requires_grad


def test_to_device_copies_and_carries_the_gradient() -> None:
    x = alpha.tensor([1.0, 2.0], requires_grad=True)
    y = ops.to_device(x, "cpu")
    assert y.tolist() == [1.0, 2.0] and y.array is not x.array and y.device == "cpu"
    (y * y).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert x.to("cpu") is x
    with refused(DeviceError, "'tpu' is not a device"):
        x.to("tpu")


def test_shapes_that_do_not_broadcast_are_named() -> None:
    with refused(ShapeError, "add: the shapes (2, 3) and (2,) do not broadcast", "a: (2, 3); b: (2,)"):
        alpha.tensor(np.ones((2, 3))) + alpha.tensor(np.ones(2))
    with refused(ShapeError, "where: ", "cond: (2,); x: (3,); y: ()"):
        ops.where(alpha.tensor([True, False]), alpha.tensor([1.0, 2.0, 3.0]), 0.0)


def test_dtypes_that_do_not_fit_are_refused() -> None:
    ints, bools = alpha.tensor([1, 2]), alpha.tensor([True, False])
    with refused(DTypeError, "div: a has dtype int64", 'a.astype("float32")'):
        ints / ints
    with refused(DTypeError, "exp: x has dtype int64"):
        ops.exp(ints)
    with refused(DTypeError, "neg: x has dtype bool, a number dtype is needed"):
        ops.neg(bools)
    with refused(DTypeError, "add: the tensors have dtypes float32 and int64", "a: int64; b: float32"):
        ints + alpha.tensor([1.0, 2.0])
    for number in (2.5, np.float32(2.5)):
        with refused(DTypeError, "mul: the number 2.5 does not fit a tensor of dtype int64"):
            ints * number
    with refused(DTypeError, "add: the number 300 does not fit a tensor of dtype uint8"):
        alpha.tensor([1], "uint8") + 300
    with refused(DTypeError, "clip: limits 0.5 and None are no integers, x has dtype int64"):
        ints.clip(0.5)
    with refused(DTypeError, "cast: the cpu backend has no bfloat16"):
        alpha.tensor([1.0]).astype("bfloat16")
    with refused(DTypeError, "'complex64' is not a dtype"):
        alpha.tensor([1.0]).astype("complex64")
    with refused(DTypeError, "where: cond is of type float32, a bool tensor is needed"):
        ops.where(alpha.tensor([1.0]), alpha.tensor([1.0]), 0.0)
    with refused(DTypeError, "where: x is 1.0, y is 0.0: neither is a tensor"):
        ops.where(bools, 1.0, 0.0)


def test_limits_that_limit_nothing_are_refused() -> None:
    with refused(ConfigError, "clip: low 2 is above high 1"):
        alpha.tensor([1.0]).clip(2, 1)
    with refused(ConfigError, "clip: neither low nor high is given"):
        alpha.tensor([1.0]).clip()


def test_arrays_are_refused_as_operands() -> None:
    x = alpha.tensor([1.0, 2.0])
    for f in (lambda: x + np.ones(2), lambda: np.ones(2) + x, lambda: np.array(2.0) * x, lambda: ops.add(x, "2")):
        with refused(TypeError, "a Tensor or a number is needed", "alpha.tensor("):
            f()
    with refused(TypeError, "add: one argument at least must be a Tensor"):
        ops.add(1.0, 2.0)
