"""Tensors from nothing: shapes, dtypes, the random stream, messages."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops, random
from alpha.errors import ConfigError, DeviceError, DTypeError, ShapeError
from tests.op_checks import is_contiguous, refused

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4), (100, 100)], ids=str)
def test_constants(shape: tuple, dtype: str) -> None:
    for make, value in ((ops.zeros, 0), (ops.ones, 1), (lambda s, d: ops.full(s, 1, d), 1)):
        x = make(shape, dtype)
        assert (x.shape, x.dtype, x.device, x.requires_grad) == (shape, dtype, "cpu", False) and is_contiguous(x)
        assert (x.numpy() == value).all()


def test_defaults_and_forms_of_a_shape() -> None:
    assert ops.zeros(3).shape == (3,) and ops.zeros([2, 3]).dtype == "float32" and ops.zeros(np.int64(2)).shape == (2,)
    assert ops.full((2,), 2.5).tolist() == [2.5, 2.5]
    assert ops.ones((2,), np.float64, requires_grad=True).requires_grad


def test_likes_take_shape_and_dtype() -> None:
    x = ops.ones((2, 3), "float64", requires_grad=True)
    for make in (ops.zeros_like, ops.ones_like, ops.rand_like, ops.randn_like, lambda t: ops.full_like(t, 7)):
        y = make(x)
        assert (y.shape, y.dtype, y.requires_grad) == ((2, 3), "float64", False)
    assert ops.full_like(x, 7).tolist() == [[7.0] * 3] * 2


@pytest.mark.parametrize("numbers", [(5,), (2, 7), (2, 9, 3), (5, 0, -2), (0,), (0.5, 3.0), (0, 1, 0.25), (3, 1)],
                         ids=str)
def test_arange(numbers: tuple) -> None:
    x = ops.arange(*numbers)
    assert x.dtype == ("int64" if all(isinstance(n, int) for n in numbers) else "float32")
    assert x.tolist() == np.arange(*numbers).tolist()
    assert ops.arange(*numbers, dtype="float64").dtype == "float64"


def test_random_numbers_come_from_the_global_stream() -> None:
    alpha.manual_seed(7)
    x, y, z = ops.rand((3, 5)), ops.randn(6, "float64"), ops.rand(4)
    assert x.numpy().reshape(-1).tolist() == random.uniform(7, 0, 0, 15).tolist()
    assert y.tolist() == random.normal(7, 0, 16, 6).tolist()
    assert z.tolist() == random.uniform(7, 0, 24, 4).tolist()
    alpha.manual_seed(7)
    assert ops.rand((3, 5)).tolist() == x.tolist()
    alpha.manual_seed(8)
    assert ops.rand((3, 5)).tolist() != x.tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_random_numbers_have_their_distribution(dtype: str) -> None:
    x, y = ops.rand((100, 100), dtype).numpy().astype(float), ops.randn((100, 100), dtype).numpy().astype(float)
    assert x.min() >= 0 and abs(x.mean() - 0.5) < 0.01 and abs(x.std() - 12 ** -0.5) < 0.01
    assert abs(y.mean()) < 0.03 and abs(y.std() - 1) < 0.03 and 3 < np.abs(y).max() < 6
    assert ops.rand((), dtype).shape == () and ops.randn((0, 2), dtype).shape == (0, 2)


def test_what_makes_no_tensor_is_refused() -> None:
    with refused(ShapeError, "zeros: shape is (2, -1), an int or a tuple of ints of at least 0 is needed"):
        ops.zeros((2, -1))
    with refused(ShapeError, "ones: shape is 2.5, an int or a tuple of ints of at least 0 is needed"):
        ops.ones(2.5)
    with refused(ShapeError, "randn: shape is ((2,),)"):
        ops.randn(((2,),))
    with refused(DTypeError, "zeros: the cpu backend has no bfloat16"):
        ops.zeros(2, "bfloat16")
    with refused(DTypeError, "'complex64' is not a dtype"):
        ops.zeros(2, "complex64")
    with refused(DTypeError, "dtype: 3 is not a dtype", "It is one tuple: zeros((2, 3))"):
        ops.full(2, 3, 3)
    with refused(DTypeError, "rand: dtype int64 holds no fractions"):
        ops.rand(2, "int64")
    with refused(DTypeError, "requires_grad_: dtype int64 has no gradients"):
        ops.zeros(2, "int64", requires_grad=True)
    with refused(ConfigError, "arange: step is 0", "start: 0; stop: 3"):
        ops.arange(0, 3, 0)
    with refused(DeviceError, "'gpu' is not a device"):
        ops.zeros(2, device="gpu")
