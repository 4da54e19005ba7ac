"""What implementations and gradients of an op return: refused where the shape rule says something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.op import Spec, registry
from alpha.errors import DeviceError, DTypeError, GraphError, ShapeError
from tests.op_checks import is_contiguous, refused

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
A = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def made() -> Iterator[Callable[..., alpha.op]]:
    """Makes an op that returns what a function returns, to be thrown away after the test."""
    def make(f: Callable[..., Any], shape: Callable[..., Any] = lambda x: x.shape, **body: Any) -> alpha.op:
        registry.pop("foreign", None)
        op = alpha.op(type("foreign", (), dict(dict(args="x", shape=shape), **body)))
        op.impl("cpu")(f)
        return op
    yield make
    registry.pop("foreign", None)


def test_a_wrong_shape_or_dtype_is_refused(made: Callable[..., alpha.op]) -> None:
    x = alpha.tensor(A)
    with refused(ShapeError, "foreign: its cpu implementation returned y with shape (3,), its shape rule says (2, 3)",
                 "returned: ((3,), 'float32'); expected: ((2, 3), 'float32')", "correct the one that is wrong"):
        made(lambda x: x[0])(x)
    with refused(DTypeError, "foreign: its cpu implementation returned y with dtype float64, its shape rule says "
                 "float32"):
        made(lambda x: x.astype(np.float64))(x)
    with refused(DTypeError, "returned y with dtype float32, its shape rule says int64"):
        made(lambda x: x, lambda x: Spec(x.shape, "int64"))(x)
    with refused(DTypeError, "returned y with dtype >f4, its shape rule says float32"):
        made(lambda x: x.astype(">f4"))(x)


def test_what_is_no_array_is_refused(made: Callable[..., alpha.op]) -> None:
    x = alpha.tensor(A)
    for value, kind in ((None, "NoneType"), (1.5, "float"), ([1.0], "list"),
                        (x, "Tensor")):
        with refused(DeviceError, f"foreign: its cpu implementation returned a {kind} for y, arrays of cpu are "
                     "numpy.ndarray"):
            made(lambda x, value=value: value)(x)


def test_a_wrong_number_of_results_is_refused(made: Callable[..., alpha.op]) -> None:
    x, two = alpha.tensor(A), dict(outs="y z")
    for value, count in ((A, 1), ((A,), 1), ((A, A, A), 3), (None, 0)):
        with refused(ShapeError, f"foreign: its cpu implementation returned {count} results, it has 2 (y z)"):
            made(lambda x, value=value: value, lambda x: (x.shape, x.shape), **two)(x)
    with refused(ShapeError, "foreign: its shape rule returned 1 results, it has 2 (y z)"):
        made(lambda x: (x, x), lambda x: (x.shape,), **two)(x)
    with refused(ShapeError, "foreign: its shape rule returned [2, 3] for y", "a tuple of ints"):
        made(lambda x: x, lambda x: [2, 3])(x)
    y, z = made(lambda x: [x + 1, x], lambda x: (x.shape, x.shape), **two)(x)
    assert y.tolist() == (A + 1).tolist() and z.tolist() == A.tolist()


def test_layouts_of_numpy_are_put_in_order(made: Callable[..., alpha.op]) -> None:
    x = alpha.tensor(A)
    for f, shape in ((lambda x: x.T, (3, 2)), (lambda x: np.broadcast_to(x, (2, 2, 3)), (2, 2, 3)),
                     (lambda x: x.max(), ()), (lambda x: np.broadcast_to(x, x.shape), (2, 3)),
                     (lambda x: np.ma.masked_array(x), (2, 3))):
        y = made(f, lambda x, shape=shape: shape)(x)
        assert is_contiguous(y) and y.array.flags.writeable and y.shape == shape
        assert y.tolist() == np.asarray(f(A)).tolist()


def test_a_gradient_that_is_no_tensor_is_refused(made: Callable[..., alpha.op]) -> None:
    x = alpha.tensor(A, requires_grad=True)
    with refused(DTypeError, "backward of foreign: the gradient of x is a numpy.ndarray, a Tensor is needed",
                 "correct vjp_x of the op: compute it with ops"):
        made(lambda x: x, vjp_x=lambda g, s: g.numpy())(x).sum().backward()
    with refused(DTypeError, "backward of foreign: the gradient of x has dtype float64, x has float32"):
        made(lambda x: x, vjp_x=lambda g, s: g.astype("float64"))(x).sum().backward()
    with refused(GraphError, "backward of foreign: the gradient of x is None, though one is needed", "zeros where"):
        made(lambda x: x, vjp_x=lambda g, s: None)(x).sum().backward()
    for value, found in ((lambda g: g, "a Tensor"), (lambda g: [g, g], "2"), (lambda g: None, "a NoneType")):
        with refused(ShapeError, f"backward of foreign: vjp returned {found}, the op has 1 args (x)"):
            made(lambda x: x, vjp=lambda g, s, needs, value=value: value(g))(x).sum().backward()


def test_gradients_of_a_list_are_refused_one_by_one(made: Callable[..., alpha.op]) -> None:
    x = alpha.tensor(A, requires_grad=True)
    for vjp, error, text in ((lambda g: g, ShapeError, "the gradient of xs is a Tensor, xs has 2 tensors"),
                             (lambda g: [g], ShapeError, "the gradient of xs is 1 gradients, xs has 2 tensors"),
                             (lambda g: [g, g.sum()], ShapeError, "the gradient of xs[1] has shape (), xs[1] has (2, "),
                             (lambda g: [g.numpy(), g], DTypeError, "the gradient of xs[0] is a numpy.ndarray")):
        op = made(lambda xs: xs[0] + xs[1], lambda xs: xs[0].shape, args="*xs", vjp_xs=lambda g, s, vjp=vjp: vjp(g))
        with refused(error, f"backward of foreign: {text}", "correct vjp_xs of the op"):
            op([x, x]).sum().backward()


def test_ops_of_alpha_are_looked_at_in_tests_alone() -> None:
    import subprocess
    import sys
    code = ("import alpha; from alpha.core.op import registry; import alpha.cpu\n"
            "print([name for name, op in registry.items() if op.checked])")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]" and ops.relu.checked
