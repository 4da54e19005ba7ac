"""float32 beside the 16 bits of a precision mode: computed in float32, rounded once, with float32 gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.op import op
from alpha.errors import DTypeError
from models.convnext import ConvNeXt
from tests.op_checks import floats, refused

HALF, WHOLE = "float16", "float32"
BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "maximum": np.maximum,
    "minimum": np.minimum, "floor_divide": np.floor_divide}


@op
class halfway_of_test:
    """y = (a + b) / 2, an op of one's own."""

    args, equation = "a b", "(a + b) * 0.5"

    def shape(a, b):
        return a.shape

    def vjp_a(g, s):
        return g * 0.5

    def vjp_b(g, s):
        return g * 0.5


def pair(shape: tuple[int, ...] = (5, 7), of: tuple[int, ...] = (7,)) -> tuple[Any, Any]:
    """Returns positive activations in float16 and a parameter in float32, which both want gradients."""
    x = alpha.tensor(np.abs(floats(shape, 1)).astype(HALF) + np.float16(0.1), requires_grad=True)
    p = alpha.tensor(np.abs(floats(of, 2)).astype(WHOLE) + np.float32(0.1), requires_grad=True)
    return x, p


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", list(BINARY))
def test_the_result_is_that_of_float32_rounded_once(name: str, swapped: bool) -> None:
    x, p = pair()
    a, b = (p, x) if swapped else (x, p)
    with alpha.precision("fp16"):
        y = getattr(ops, name)(a, b)
    expected = getattr(ops, name)(a.astype(WHOLE), b.astype(WHOLE)).numpy()
    assert y.dtype == HALF and np.array_equal(y.numpy(), expected.astype(HALF))
    np.testing.assert_allclose(expected, BINARY[name](a.numpy().astype(WHOLE), b.numpy().astype(WHOLE)), rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in BINARY if n != "floor_divide"])
def test_gradients_are_those_of_float32(name: str) -> None:
    found = []
    for follow in (True, False):
        x, p = pair((300, 7))
        with alpha.precision("fp16" if follow else "fp32"):
            y = getattr(ops, name)(x, p) if follow else getattr(ops, name)(x.astype(WHOLE), p).astype(HALF)
        (y.astype(WHOLE) * alpha.tensor(floats((300, 7), 3).astype(WHOLE))).sum().backward()    # no mode is needed here
        found.append((x.grad, p.grad))
    (dx, dp), (ex, ep) = found
    assert (dx.dtype, dp.dtype) == (HALF, WHOLE)
    if name in ("div", "pow"):      # which read y, as it was rounded
        np.testing.assert_allclose(dx.numpy(), ex.numpy(), rtol=2e-3)
        np.testing.assert_allclose(dp.numpy(), ep.numpy(), rtol=2e-3, atol=0.05)
    else:
        assert np.array_equal(dx.numpy(), ex.numpy()) and np.array_equal(dp.numpy(), ep.numpy())


def test_where_concat_and_comparisons_follow() -> None:
    x, p = pair((4, 3), (4, 3))
    with alpha.precision("fp16"):
        z, c, less = ops.where(x > 1.0, x, p), ops.concat([p, x, p], 1), x < p
    a, b = x.numpy(), p.numpy()
    assert z.dtype == c.dtype == HALF and less.dtype == "bool"
    assert np.array_equal(z.numpy(), np.where(a > 1, a, b.astype(HALF)))
    assert np.array_equal(c.numpy(), np.concatenate([b, a, b], 1).astype(HALF))
    assert np.array_equal(less.numpy(), a.astype(WHOLE) < b)
    (z.astype(WHOLE).sum() + c.astype(WHOLE).sum()).backward()
    assert np.array_equal(p.grad.numpy(), 2 + (a <= 1)) and p.grad.dtype == WHOLE
    assert np.array_equal(x.grad.numpy(), 1 + (a > 1)) and x.grad.dtype == HALF


def test_a_sum_over_many_rows_keeps_the_digits_of_float32() -> None:
    n = 70_000      # more than float16 has
    x = alpha.tensor(np.ones((n, 2), HALF))
    p = alpha.tensor(np.ones(2, WHOLE), requires_grad=True)
    with alpha.precision("fp16"):
        (x * p).astype(WHOLE).sum().backward()
    assert np.array_equal(p.grad.numpy(), [n, n])


def test_what_is_kept_for_backward_is_what_was_given() -> None:
    x, p = pair()
    with alpha.precision("fp16"):
        y = x * p
    node = y._node[0]
    assert node.saved[0] is x and node.saved[1] is p


@pytest.mark.parametrize("recompute", ["cheap", "full"])
def test_results_that_are_made_again_have_the_same_bits(recompute: str) -> None:
    found = []
    for how in ("none", recompute):
        x, p = pair((64, 7))
        with alpha.precision("fp16"), alpha.config(recompute=how):
            y = ((x * p).exp() * p).astype(WHOLE).sum()
        y.backward()
        found.append((x.grad.numpy(), p.grad.numpy()))
    assert all(np.array_equal(a, b) for a, b in zip(*found))


def test_second_derivatives() -> None:
    x, p = pair((3, 7))
    with alpha.precision("fp16"):
        y = (x * p * p).astype(WHOLE).sum()
    first, = alpha.grad(y, [p], create_graph=True)
    second, = alpha.grad(first.sum(), [p])
    np.testing.assert_allclose(second.numpy(), 2 * x.numpy().astype(WHOLE).sum(0), rtol=2e-3)


def test_an_op_of_ones_own_follows_by_its_equation() -> None:
    x, p = pair((3, 7), (3, 7))
    with alpha.precision("fp16"):
        y = halfway_of_test(x, p)
    assert np.array_equal(y.numpy(), ((x.numpy().astype(WHOLE) + p.numpy()) * np.float32(0.5)).astype(HALF))
    y.astype(WHOLE).sum().backward()
    assert p.grad.dtype == WHOLE and x.grad.dtype == HALF and (p.grad.numpy() == 0.5).all()


def test_without_the_mode_a_mixture_is_an_error_that_names_it() -> None:
    x, p = pair()
    fix = r'convert them to one dtype: x.astype(dtype), or say alpha.precision("fp16"): mul of the two is float16 there'
    for mode in ("fp32", "tf32", "bf16"):
        with refused(DTypeError, "mul: the tensors have dtypes float16 and float32", fix), alpha.precision(mode):
            x * p
    with refused(DTypeError, "the tensors have dtypes float16 and float64"), alpha.precision("fp16"):
        x * p.astype("float64")
    with refused(DTypeError, "concat: the tensors have dtypes float16 and float32", fix.replace("mul", "concat")):
        ops.concat([x, x.astype(WHOLE)], 0)


class Block(nn.Module):
    """What users write: layer scale, a class token, a positional table, a learned temperature."""

    def __init__(self) -> None:
        self.linear = nn.Linear(6, 6)
        self.scale, self.token = nn.Parameter(ops.full((6,), 0.1)), nn.Parameter(ops.zeros((1, 1, 6)))
        self.table, self.temperature = nn.Parameter(ops.randn((5, 6))), nn.Parameter(ops.zeros(()))

    def forward(self, x: Any) -> Any:
        x = self.linear(x)
        x = ops.concat([ops.expand(self.token, (x.shape[0], 1, 6)), x], 1) + self.table
        return (x + self.scale * self.linear(x)) / self.temperature.exp()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_layers_of_ones_own_train_in_every_mode(precision: str) -> None:
    net = Block()
    with alpha.precision(precision):
        y = net(ops.randn((2, 4, 6)))
        assert y.dtype == (HALF if precision == "fp16" else WHOLE)
        (y * y).astype(WHOLE).mean().backward()
    assert all(p.grad.dtype == WHOLE and np.abs(p.grad.numpy()).max() > 0 for p in net.parameters())


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_convnext_trains_in_every_mode(precision: str) -> None:
    alpha.manual_seed(0)
    net = ConvNeXt((8, 16), (1, 1), 4, scale=0.5)
    optimizer, scaler = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), optim.LossScaler()
    x, labels, losses = ops.randn((8, 8, 8, 3)), alpha.tensor([0, 1, 2, 3] * 2), []
    for _ in range(12):
        optimizer.zero_grad()
        with alpha.precision(precision):
            loss = ops.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
