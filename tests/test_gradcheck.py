"""The checks of gradients themselves: they pass what is right, and say where and by how much the rest is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import alpha
from alpha.core.op import registry
from alpha.errors import AlphaError, ArgumentError, DTypeError
from alpha.gradcheck import adjoint_check, assert_equal_at, gradcheck
from tests.op_checks import leaf, refused

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def detached_square(x: alpha.Tensor) -> alpha.Tensor:
    """x^2, whose backward gives x in place of 2x."""
    return x * x.detach()


@pytest.fixture
def cube() -> Iterator[alpha.op]:
    """x^3, whose gradient is right and whose second gradient is half of what it should be."""
    @alpha.op
    class cube:
        """y = x^3."""

        args, saves = "x", "x"

        def shape(x):
            return x.shape

        def vjp_x(g, s):
            return g * (s.x * s.x.detach()) * 3.0

    @cube.impl("cpu")
    def cube_cpu(x: np.ndarray) -> np.ndarray:
        return x ** 3

    yield cube
    del registry["cube"]


def test_gradcheck_passes_what_is_right() -> None:
    x, y = leaf((2, 3)), leaf((3,), seed=1)
    assert gradcheck(lambda x, y: (x * y, x * x * x), [x, y], second_order=True) is True


def test_gradcheck_names_the_input_and_both_values() -> None:
    x, y = alpha.tensor(np.ones(1), requires_grad=True), alpha.tensor(np.full((2, 1), 3.0), requires_grad=True)
    with refused(AlphaError, "gradcheck: gradient of input 1: backward gives ", ", differences give ",
                 "shape: (2, 1); eps: 1e-05", "correct the op's vjp; at a kink (relu at 0) choose other inputs"):
        gradcheck(lambda x, y: x * detached_square(y), [x, y])
    with pytest.raises(AlphaError) as caught:
        gradcheck(detached_square, [x])
    words = str(caught.value).split()
    exact, numeric = (float(words[words.index(word) + 1].rstrip(",")) for word in ("gives", "give"))
    assert numeric == pytest.approx(2 * exact) and exact != 0


def test_gradcheck_of_the_second_order_sees_what_the_first_does_not(cube: alpha.op) -> None:
    x = leaf((3,), low=0.5)
    assert gradcheck(cube, [x])
    with refused(AlphaError, "gradcheck: second gradient of input 0: backward gives"):
        gradcheck(cube, [x], second_order=True)


@pytest.fixture
def in_numpy() -> Iterator[Callable[..., alpha.op]]:
    """Makes an op with a gradient that is thrown away after the test."""
    def make(forward: Callable[..., Any], vjp: Callable[..., Any]) -> alpha.op:
        registry.pop("numeric", None)
        made = alpha.op(type("numeric", (), dict(args="x", saves="x", shape=lambda x: x.shape, vjp_x=vjp)))
        made.impl("cpu")(forward)
        return made
    yield make
    registry.pop("numeric", None)


def test_a_gradient_written_in_numpy_has_no_second_one(in_numpy: Callable[..., alpha.op]) -> None:
    x = leaf((3,), low=0.5)
    op = in_numpy(np.sin, lambda g, s: alpha.tensor(g.numpy() * np.cos(s.x.numpy())))
    assert gradcheck(op, [x])
    with refused(AlphaError, "gradcheck: second gradient of input 0: backward gives 0, differences give",
                 "1 of 1 results have no graph", "compute a vjp with alpha's ops: NumPy, detach and alpha.tensor"):
        gradcheck(op, [x], second_order=True)
    # cut at what comes in alone: the gradient of a linear function does not depend on x
    op = in_numpy(lambda x: 2.0 * x, lambda g, s: alpha.tensor(2.0 * g.numpy()))
    with refused(AlphaError, "gradcheck: second gradient of incoming gradient 0: backward gives 0"):
        gradcheck(op, [x], second_order=True)
    # cut in one of two factors
    op = in_numpy(np.sin, lambda g, s: g * alpha.tensor(np.cos(s.x.numpy())))
    with refused(AlphaError, "gradcheck: second gradient of input 0: backward gives 0"):
        gradcheck(op, [x], second_order=True)
    assert gradcheck(lambda x: x.sum() * 2.0 + 1.0, [x], second_order=True)
    assert gradcheck(in_numpy(np.sin, lambda g, s: g * (1.0 - op_sin(s.x) ** 2) ** 0.5), [x])


def op_sin(x: alpha.Tensor) -> alpha.Tensor:
    return alpha.tensor(np.sin(x.numpy()))


def test_a_function_written_in_numpy_is_named(in_numpy: Callable[..., alpha.op]) -> None:
    x = leaf((3,))
    with refused(AlphaError, "gradcheck: gradient of input 0: backward gives 0, differences give",
                 "; 1 of 1 results have no graph", "compute the function with alpha's ops"):
        gradcheck(lambda x: alpha.tensor(x.numpy() * 2.0), [x])
    assert gradcheck(lambda x: (x * x, alpha.tensor(np.ones(2))), [x], second_order=True)


def test_a_gradient_that_is_missing_counts_as_zero() -> None:
    x, y = leaf((2,)), leaf((2,), seed=1)
    with refused(AlphaError, "gradcheck: gradient of input 1: backward gives 0, differences give"):
        gradcheck(lambda x, y: x * y.detach(), [x, y])


def test_gradcheck_needs_float64() -> None:
    x, y = leaf((2,)), alpha.tensor([1.0], requires_grad=True)
    with refused(DTypeError, "gradcheck: input 1 has dtype float32, differences need float64",
                 'make it alpha.tensor(a, "float64", requires_grad=True)'):
        gradcheck(lambda x, y: x, [x, y])
    assert gradcheck(lambda x, y: x * x, [x, y.detach()])


def test_adjoint_check_shows_both_products() -> None:
    x, g = alpha.tensor([[1.0, 2.0]]), alpha.tensor([3.0, 5.0, 7.0])
    w = alpha.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
    assert adjoint_check(lambda x: (x @ w).reshape(3), lambda g: (w @ g).reshape(1, 2), x, g) is True
    with refused(AlphaError, "adjoint_check: <forward(x), g> = 41.0 but <x, transpose(g)> = 82.0",
                 "x: (1, 2); g: (3,)", "correct the gradient's implementation"):
        adjoint_check(lambda x: (x @ w).reshape(3), lambda g: (w @ g).reshape(1, 2) * 2.0, x, g)


def test_assert_equal_at_names_the_first_bad_coordinate() -> None:
    a = np.array([[1.0, np.nan], [2.0, 3.0]])
    assert_equal_at(a, a)
    assert_equal_at(a, a * 1.1, rtol=0.1)
    with pytest.raises(AssertionError, match=r"dx: 2 of 4 elements differ, first at \(0, 1\): .*nan.*, expected .*0.0"):
        assert_equal_at(a, np.array([[1.0, 0.0], [2.0, 4.0]]), name="dx")
    with pytest.raises(AssertionError, match=r"result: shape \(2, 2\), expected \(2,\)"):
        assert_equal_at(a, a[0])


@pytest.mark.parametrize("inputs", [alpha.ones((2,), dtype="float64"), [alpha.tensor([1]), 2.0], [], [None]])
def test_gradcheck_refuses_to_check_nothing(inputs: Any) -> None:
    with refused(ArgumentError, "gradcheck: none of the", "requires a gradient, nothing would be checked",
                 "requires_grad=True"):
        alpha.gradcheck(lambda *xs: xs[0] * xs[0], inputs)
