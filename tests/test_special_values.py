"""NaN, infinities, both zeros, the smallest and largest numbers, and where pieces meet: values and gradients.

A function gives PyTorch's answer, and gives it at every size, in every lane, compiled or not, alone or fused.
PyTorch is asked for one element at a time: its vectors have other answers at NaN (relu6, elu, hardswish), as it chose
none there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.op import registry
from alpha.cpu.elementwise import LIGHT
from alpha.gradcheck import assert_equal_at
from alpha.ops.norm import batch_norm_act

INF, NAN = np.inf, np.nan
STEPS = [np.nextafter(np.float32(k), np.float32(k + d)) for k in (-3, 0, 3, 6) for d in (-1, 1)]
SPECIAL = np.array([NAN, -NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 3.4028235e38, -3.4028235e38, 1.0, -1.0, 3, -3, 6,
                    -6, 20, -20, 20.5, 87, -87, 100, -100, 110, -110, 0.4, -0.4, *STEPS], np.float32)
GRADIENT = np.float32(1.5)
TINY = 1.2e-38  # below it are the numbers that some units have as 0
SIZES = (1, 7, len(SPECIAL), 1000, 4 * LIGHT + 3)

# name -> ours, the way to PyTorch's, and how exact
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "relu": (ops.relu, lambda f, t: f.relu(t), 0),
    "relu6": (ops.relu6, lambda f, t: f.relu6(t), 0),
    "leaky_relu": (ops.leaky_relu, lambda f, t: f.leaky_relu(t), 0),
    "leaky_relu with a rise to the left": (lambda x: ops.leaky_relu(x, -0.5), lambda f, t: f.leaky_relu(t, -0.5), 0),
    "sigmoid": (ops.sigmoid, lambda f, t: t.sigmoid(), 2e-6),
    "tanh": (ops.tanh, lambda f, t: t.tanh(), 2e-5),
    "silu": (ops.silu, lambda f, t: f.silu(t), 2e-6),
    "gelu": (ops.gelu, lambda f, t: f.gelu(t.double()).float(), 2e-6),
    "elu": (ops.elu, lambda f, t: f.elu(t), 2e-6),
    "elu to -0.5": (lambda x: ops.elu(x, 0.5), lambda f, t: f.elu(t, 0.5), 2e-6),
    "softplus": (ops.softplus, lambda f, t: f.softplus(t), 2e-6),
    "hardswish": (ops.hardswish, lambda f, t: f.hardswish(t), 2e-6),
    "neg": (lambda x: -x, lambda f, t: -t, 0),
    "abs": (ops.abs, lambda f, t: t.abs(), 0),
    "sign": (ops.sign, lambda f, t: t.sign(), 0),
    "exp": (ops.exp, lambda f, t: t.exp(), 2e-6),
    "log": (ops.log, lambda f, t: t.log(), 2e-6),
    "sqrt": (ops.sqrt, lambda f, t: t.sqrt(), 2e-6),
    "sin": (ops.sin, lambda f, t: t.double().sin().float(), 2e-6),
    "cos": (ops.cos, lambda f, t: t.double().cos().float(), 2e-6),
    "floor": (ops.floor, lambda f, t: t.floor(), 0),
    "erf": (ops.erf, lambda f, t: t.erf(), 2e-6),
    "expm1": (ops.expm1, lambda f, t: t.expm1(), 2e-6),
    "log1p": (ops.log1p, lambda f, t: t.log1p(), 2e-6),
    "sinh": (ops.sinh, lambda f, t: t.sinh(), 2e-6),
    "cosh": (ops.cosh, lambda f, t: t.cosh(), 2e-6),
    "atan": (ops.atan, lambda f, t: t.atan(), 2e-6),
    "asin": (ops.asin, lambda f, t: t.asin(), 2e-6),
    "acos": (ops.acos, lambda f, t: t.acos(), 2e-6),
    "erfc": (ops.erfc, lambda f, t: t.erfc(), 1e-5),
    "clip": (lambda x: ops.clip(x, -1.0, 3.0), lambda f, t: t.clamp(-1, 3), 0),
    "clip from below": (lambda x: ops.clip(x, low=-1.0), lambda f, t: t.clamp(min=-1), 0),
    "clip from above": (lambda x: ops.clip(x, high=3.0), lambda f, t: t.clamp(max=3), 0),
    "square": (lambda x: x ** 2, lambda f, t: t ** 2, 2e-6),
    "cube": (lambda x: x ** 3, lambda f, t: t ** 3, 2e-6),
    "maximum with 1": (lambda x: ops.maximum(x, 1.0), lambda f, t: t.maximum(t.new_tensor(1.0)), 0),
    "minimum with 1": (lambda x: ops.minimum(x, 1.0), lambda f, t: t.minimum(t.new_tensor(1.0)), 0),
    "maximum with NaN": (lambda x: ops.maximum(x, NAN), lambda f, t: t.maximum(t.new_tensor(NAN)), 0),
    "1 / x": (lambda x: 1.0 / x, lambda f, t: 1 / t, 2e-6),
    "where": (lambda x: ops.where(x > 0.0, x, x * 2.0), lambda f, t: t.where(t > 0, t * 2), 0),
}
PIECES = ("relu", "relu6", "leaky_relu", "clip", "abs", "sign", "hardswish", "elu")


def tiled(size: int, dtype: str = "float32") -> np.ndarray:
    """The special values over and over, so that each comes to lie in every lane."""
    return np.resize(SPECIAL, size).astype(dtype)


def value_and_gradient(f: Callable[..., Any], a: np.ndarray, device: str = "cpu",
                       dtype: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    x = alpha.tensor(a, dtype, device=device, requires_grad=True)
    y = f(x)
    y.backward(alpha.tensor(np.full(a.shape, GRADIENT), y.dtype, device=device))
    return y.detach().numpy(), x.grad.numpy()


def assert_alike(got: np.ndarray, expected: np.ndarray, x: np.ndarray, name: str, rtol: float = 0,
                 atol: float = TINY) -> None:
    """Asserts that NaNs, infinities, zeros and their signs are where they should be, and all else is close.

    A zero that a small number was rounded to may have either sign, unless it should be exact (rtol 0).
    """
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        rounded = (rtol > 0) & (x != 0)
        same = (got == expected) & ((got != 0) | rounded | (np.signbit(got) == np.signbit(expected)))
        close = rounded & np.isfinite(got) & (np.abs(got - expected) <= rtol * np.abs(expected) + atol)
        close |= (rtol > 0) & (x == 0) & (got != 0) & (np.abs(got - expected) <= rtol * np.abs(expected))
    wrong = ~(same | close | (np.isnan(got) & np.isnan(expected)))
    found = [(float(a), float(b), float(c)) for a, b, c in zip(x[wrong], got[wrong], expected[wrong])][:8]
    assert not wrong.any(), f"{name}: (x, ours, expected): {found}"


def of_pytorch(f: Callable[..., Any], a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value and gradient, one element after the other."""
    torch = pytest.importorskip("torch")
    found = []
    for element in a:
        t = torch.tensor([element], requires_grad=True)
        y = f(torch.nn.functional, t)
        y.backward(torch.tensor([GRADIENT]))
        found.append((y.item(), t.grad.item()))
    values, gradients = np.array(found, np.float32).T
    return values, gradients


@pytest.mark.torch
@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_pytorchs_at_every_size(cpu_kernels: str, name: str) -> None:
    ours, theirs, rtol = FUNCTIONS[name]
    expected = of_pytorch(theirs, SPECIAL)
    for size in SIZES:
        x = tiled(size)
        for what, got, wanted in zip(("value", "gradient"), value_and_gradient(ours, x), expected):
            # Of expm1 it is g (y + 1), as PyTorch's: near -1 the last place of y counts; NumPy's depends on the CPU.
            atol = 2e-7 if (name, what) == ("expm1", "gradient") else TINY
            assert_alike(got, np.resize(wanted, size), x, f"{what} of {name}, {size} elements", rtol, atol)


# The table of docs/explanation/numerics.md: x -> (value, gradient where g = 1.5), without PyTorch.
TABLE = {
    "relu": {NAN: (NAN, 1.5), INF: (INF, 1.5), -INF: (0, 0), 0.0: (0, 0)},
    "relu6": {NAN: (NAN, 1.5), INF: (6, 0), -INF: (0, 0), 0.0: (0, 0), 6.0: (6, 0)},
    "leaky_relu": {NAN: (NAN, 0.015), INF: (INF, 1.5), -INF: (-INF, 0.015), 0.0: (0, 0.015)},
    "elu": {NAN: (NAN, 1.5), INF: (INF, 1.5), -INF: (-1, 0), 0.0: (0, 1.5)},
    "hardswish": {NAN: (NAN, 1.5), INF: (INF, 1.5), -INF: (NAN, 0), 3.0: (3, 1.5), -3.0: (0, 0)},
    "silu": {NAN: (NAN, NAN), INF: (INF, NAN), -INF: (NAN, NAN)},
    "gelu": {NAN: (NAN, NAN), INF: (INF, NAN), -INF: (NAN, NAN)},
    "softplus": {NAN: (NAN, NAN), INF: (INF, 1.5), -INF: (0, 0)},
    "sigmoid": {NAN: (NAN, NAN), INF: (1, 0), -INF: (0, 0)},
    "tanh": {NAN: (NAN, NAN), INF: (1, 0), -INF: (-1, 0)},
    "abs": {NAN: (NAN, 0), INF: (INF, 1.5), -INF: (INF, -1.5), 0.0: (0, 0)},
    "sign": {NAN: (0, 0), INF: (1, 0), -INF: (-1, 0), 0.0: (0, 0)},
    "clip": {NAN: (NAN, 0), INF: (3, 0), -INF: (-1, 0), 3.0: (3, 1.5), -1.0: (-1, 1.5)},
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", TABLE)
def test_the_table_holds(cpu_kernels: str, name: str, dtype: str) -> None:
    for x, expected in TABLE[name].items():
        for size in (1, 33):
            for got, wanted in zip(value_and_gradient(FUNCTIONS[name][0], np.full(size, x), dtype=dtype), expected):
                assert_equal_at(got, np.full(size, wanted, dtype), rtol=1e-3, name=f"{name} at {x}")


@pytest.mark.parametrize("name", TABLE)
def test_the_gradient_that_is_differentiated_again_is_the_same(name: str) -> None:
    x = alpha.tensor(SPECIAL, requires_grad=True)
    y = FUNCTIONS[name][0](x)
    fused, composed = (alpha.grad(y, x, ops.full(y.shape, 1.5), retain_graph=True, create_graph=again)[0]
                       for again in (False, True))
    finite = np.abs(SPECIAL) < 1e19  # of the others some products overflow in one form alone
    finite |= ~np.isfinite(SPECIAL) if name in PIECES else False
    assert_alike(composed.detach().numpy()[finite], fused.numpy()[finite], SPECIAL[finite], name, 2e-5, 2e-7)


@pytest.mark.parametrize("name", ["relu", "relu6", "leaky_relu"])
def test_a_gradient_of_infinity_or_nan_reaches_no_masked_element(cpu_kernels: str, name: str) -> None:
    for size in SIZES:
        for g in (INF, NAN):
            x = alpha.tensor(np.resize(np.array([-1, 1, 0, -INF], np.float32), size), requires_grad=True)
            getattr(ops, name)(x).backward(alpha.tensor(np.full(size, g, np.float32)))
            expected = [g if name == "leaky_relu" else 0, g, g if name == "leaky_relu" else 0] * size
            assert_equal_at(x.grad.numpy()[:3], expected[:min(3, size)], name=name)


# ---- fused forms: what they give is the same as by themselves --------------------------------------------------------


def scaled(x: alpha.Tensor, activation: str | None, form: str) -> alpha.Tensor:
    """y = activation(x), x of shape (rows, channels), as the end of another op; sums of a single product."""
    rows, channels = x.shape
    device, of_ones = x.device, ops.ones((channels,), device=x.device)
    if form == "linear":
        return ops.linear(x.reshape(-1, 1), ops.ones((1, 1), device=device), ops.zeros((1,), device=device), activation)
    if form == "conv2d":
        filters = ops.ones((1, 1, 1, 1), device=device)
        return ops.conv2d_bias_act(x.reshape(rows, 1, channels, 1), filters, ops.zeros((1,), device=device),
                                   activation=activation)
    if form == "depthwise":
        filters = ops.ones((channels, 1, 1, 1), device=device)
        return ops.conv2d_bias_act(x.reshape(rows, 1, 1, channels), filters, of_ones * 0.0, groups=channels,
                                   activation=activation)
    return batch_norm_act(x, of_ones, of_ones * 0.0, of_ones * 0.0, of_ones, training=False, eps=0.0,
                              activation=activation)


@pytest.mark.parametrize("form", ["linear", "conv2d", "depthwise", "batch_norm"])
def test_a_fused_relu_is_relu(cpu_kernels: str, form: str) -> None:
    for rows, channels in ((1, 5), (3, 8), (40, 35), (150, 500)):
        x = tiled(rows * channels).reshape(rows, channels)
        apart = value_and_gradient(lambda x: scaled(x, None, form).relu().reshape(rows, channels), x)  # noqa: B023
        fused = value_and_gradient(lambda x: scaled(x, "relu", form).reshape(rows, channels), x)  # noqa: B023
        for what, a, b in zip(("value", "gradient"), apart, fused):
            assert_equal_at(b, a, name=f"{what} of {form} at {(rows, channels)}")
        assert (np.isnan(fused[0]) == np.isnan(x)).all()


def test_every_elementwise_op_is_looked_at() -> None:
    """An op of one tensor's shape that is in no table above says here why."""
    others = {"cast", "transfer",                       # test_tensor.py
              "keyed_dropout", "reshape", "permute", "flip", "expand", "softmax", "log_softmax"}
    tables = {name.split()[0] for name in FUNCTIONS} | others
    one_tensor = {name for name, op in registry.items() if op.__module__.startswith("alpha.ops.") and [
        a.name for a in op.args] == ["x"] and op.__module__.split(".")[-1] in ("activation", "curves",
                                                                                        "elementwise", "logic")}
    assert one_tensor <= tables, one_tensor - tables


# ---- two tensors -----------------------------------------------------------------------------------------------------

NUMBERS = np.array([NAN, INF, -INF, 0.0, -0.0, 1e-40, 3.4e38, -3.4e38, 1e20, 1, -1, 2, -2, 0.5, -0.5, 3, -3],
                   np.float32)
PAIRS = tuple(m.ravel() for m in np.meshgrid(NUMBERS, NUMBERS))
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def of_pairs(f: Callable[..., Any], device: str = "cpu") -> list[np.ndarray]:
    """The values of f(a, b), and the gradients of a and of b."""
    a, b = (alpha.tensor(p, device=device, requires_grad=True) for p in PAIRS)
    y = f(a, b)
    y.backward(ops.full(y.shape, GRADIENT, device=device))
    return [t.detach().numpy() for t in (y, a.grad, b.grad)]


def assert_close_pairs(name: str, found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for what, got, wanted in zip(("value", "gradient of a", "gradient of b"), found, expected):
        assert_equal_at(got, wanted, rtol=3e-6, atol=TINY, name=f"{what} of {name}")


@pytest.mark.torch
@pytest.mark.parametrize("name", ARITHMETIC)
def test_pairs_are_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(p, requires_grad=True) for p in PAIRS)
    y = getattr(torch, name)(a, b)
    y.backward(torch.full_like(y, float(GRADIENT)))
    assert_close_pairs(name, of_pairs(getattr(ops, name)), [t.detach().numpy() for t in (y, a.grad, b.grad)])


@pytest.mark.torch
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours = getattr(ops, name)(*map(alpha.tensor, PAIRS)).numpy()
    assert (ours == getattr(torch, name)(*map(torch.tensor, PAIRS)).numpy()).all()
