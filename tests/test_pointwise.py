"""Kernels made from equations: every op on every broadcast, accuracy, places, threads; equations of one's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.build import compilers
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.core.equation import FUNCTIONS, Equation
from alpha.core.op import op, registry
from alpha.cpu import native, pointwise
from alpha.errors import ConfigError
from alpha.gradcheck import assert_equal_at, gradcheck
from tests.op_checks import floats, leaf, refused

pytestmark = pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")
get_backend("cpu")
OWN = {o.name: o for o in pointwise.own()}
needs_compiler = pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here")


@pytest.fixture(autouse=True)
def kernels() -> Any:
    with config(cpu_kernels=True):
        yield native.library()


def operands_of(o: Any, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    assert o.equation
    xs = [np.asarray(floats(shape, k, -3, 3), np.float32) for k, shape in enumerate(shapes)]
    return [np.asarray(x > 0) if name in o.equation.code.conditions else x for name, x in zip(o.equation.args, xs)]


def agrees(o: Any, operands: list[Any], attrs: dict[str, float]) -> None:
    """The compiled kernel against the equation in float64."""
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for x in operands]
    expected = o.equation.compute({**dict(zip(o.equation.args, wide)), **attrs})
    got = pointwise.compiled(o, operands, attrs)
    assert got.shape == expected.shape and got.flags.c_contiguous
    assert_equal_at(got, expected, rtol=1e-6, atol=1e-6, name=o.name)


@st.composite
def boxes(draw: Any, operands: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast, some of them with axes longer than a vector, or a block of 2,048 elements in all."""
    whole = draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 40, 96]), max_size=4))
    while math.prod(whole) > 40_000:
        whole.pop()
    shapes = []
    for _ in range(operands):
        cut = [1 if draw(st.booleans()) else n for n in whole]
        shapes.append(tuple(cut[draw(st.integers(0, len(whole))):]))
    return shapes


@needs_compiler
@pytest.mark.parametrize("name", OWN)
@settings(max_examples=8)
@given(data=st.data())
def test_every_equation_on_every_broadcast(name: str, data: Any) -> None:
    o = OWN[name]
    shapes = data.draw(boxes(len(o.equation.args)))
    agrees(o, operands_of(o, shapes), {k: 0.25 + 0.5 * n for n, k in enumerate(o.equation.attrs)})


@needs_compiler
@pytest.mark.parametrize("shapes", [
    [(7, 300, 11), (300, 11)],          # a period longer than a block, which no block begins with
    [(300, 11), (7, 300, 11)], [(40, 1, 60), (1, 50, 60)], [(9, 700), (9, 1)], [(9, 1, 96), (9, 33, 96)],
    [(3, 1, 96), (3, 100, 96)],         # a span of several blocks, within which a vector repeats
    [(2, 1, 50, 60), (2, 7, 50, 60)],   # and one whose period is longer than a block
    [(5000,), ()], [(), (5000,)], [(2, 1, 3, 1, 2, 1, 3), (1, 3, 1, 2, 1, 3, 1)], [(0, 3), (3,)],
    [(70_000,), (70_000,)]])
def test_blocks_and_periods(shapes: list[tuple[int, ...]]) -> None:
    for name in ("sub", "lt", "div"):
        agrees(OWN[name], operands_of(OWN[name], shapes), {})


@needs_compiler
def test_numbers_and_conditions_broadcast() -> None:
    x, cond = floats((50, 3, 60), 1).astype(np.float32), floats((50, 1, 60), 2) > 0
    agrees(OWN["where"], [cond, x, 7.5], {})
    agrees(OWN["where"], [cond, -1.0, x[:1]], {})
    agrees(OWN["where"], [cond[0], x, x[:, :1].copy()], {})
    agrees(OWN["sub"], [2.5, x], {})


# Against float64, in units of the last place of a result; what is below 1.2e-38 may be 0.
REFERENCES = {"exp": (math.exp, 1.5), "log": (math.log, 1.5), "tanh": (math.tanh, 1.5), "erf": (math.erf, 2),
              "sigmoid": (lambda v: 1 / (1 + math.exp(-v)), 2), "softplus": (lambda v: math.log1p(math.exp(v)), 2),
              "gelu": (lambda v: v * math.erfc(-v / math.sqrt(2)) / 2, 8),
              "silu": (lambda v: v / (1 + math.exp(-v)), 2.6), "elu": (lambda v: v if v > 0 else math.expm1(v), 2)}


@needs_compiler
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_exact_to_a_few_units(name: str) -> None:
    f, most = REFERENCES[name]
    x = np.concatenate([floats((20_000,), 1, -87, 87), floats((20_000,), 2, -3, 3),
                        np.exp(floats((5000,), 3, -60, 4)) * np.sign(floats((5000,), 4))]).astype(np.float32)
    x = np.abs(x) if name == "log" else x
    expected = np.array([f(float(v)) for v in x])
    got = getattr(ops, name)(alpha.tensor(x)).numpy().astype(np.float64)
    normal = (np.abs(expected) > 1e-36) & (np.abs(expected) < 3e38)
    units = np.abs(got - expected)[normal] / np.spacing(np.abs(expected[normal]).astype(np.float32))
    assert units.max() <= most, (x[normal][units.argmax()], units.max())
    assert np.abs(got - expected)[~normal & (np.abs(expected) < 1)].max(initial=0) <= 1.2e-36


@needs_compiler
def test_exp_makes_no_numbers_that_processors_are_slow_with() -> None:
    x = np.linspace(-110, -80, 20_000, dtype=np.float32)
    row = np.append(x, np.float32([0, -np.inf, np.nan]))
    for y in (ops.exp(alpha.tensor(row)).numpy(), ops.softmax(alpha.tensor(row[:-1])).numpy()):
        assert not ((y > 0) & (y < 1.17549435e-38)).any()
        assert (y[:len(x)][x > -87.3] > 0).all() and not y[:len(x)][x < -87.4].any()
    assert np.isnan(ops.exp(alpha.tensor(row)).numpy()[-1])


@needs_compiler
@pytest.mark.parametrize("name, place", [("sigmoid", -16.637), ("sigmoid", -3.45e-4), ("softplus", -1.26168),
                                         ("silu", -16.7)])
def test_functions_are_exact_to_a_few_units_where_they_err_most(name: str, place: float) -> None:
    f, most = REFERENCES[name]
    x = (np.float32(place).view(np.int32) + np.arange(-20_000, 20_000, dtype=np.int32)).view(np.float32)
    expected = np.array([f(float(v)) for v in x])
    units = np.abs(getattr(ops, name)(alpha.tensor(x)).numpy() - expected) / np.spacing(expected.astype(np.float32))
    assert np.abs(units).max() <= most, (x[np.abs(units).argmax()], np.abs(units).max())


@needs_compiler
def test_log1p_of_what_is_tiny_large_or_no_number() -> None:
    by_equation = op(type("log1p_by_equation", (), dict(args="x", equation="log1p(x)", shape=lambda x: x.shape)))
    x = np.array([0, -0.0, 1e-30, -1e-8, -0.5, -1, -2, 2, 7e37, 9e37, 1.3e38, 3e38, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        expected = np.log1p(x.astype(np.float64)).astype(np.float32)
    got = by_equation(alpha.tensor(x)).numpy()
    assert_equal_at(got, expected, rtol=2e-7)
    assert (np.signbit(got[:2]) == [False, True]).all()
    for part in (x[:5].repeat(16), x[9:12].repeat(16)):     # whole vectors of one kind
        assert_equal_at(by_equation(alpha.tensor(part)).numpy(), np.log1p(part.astype(np.float64)).astype(np.float32),
                        rtol=2e-7)


@needs_compiler
@pytest.mark.parametrize("name", ["gelu", "sigmoid", "div", "silu_grad", "where"])
def test_bits_depend_on_no_place_size_or_number_of_threads(name: str) -> None:
    o = OWN[name]
    whole = operands_of(o, [(100_003,)] * len(o.equation.args))
    expected = pointwise.compiled(o, whole, {})
    for first, count in ((1, 100_000), (17, 3), (5, 31), (99_990, 13)):
        part = pointwise.compiled(o, [x[first:first + count].copy() for x in whole], {})
        assert (part.view(np.int32) == expected[first:first + count].view(np.int32)).all()
    for threads in (1, 2, 3):
        with config(num_threads=threads):
            native.library()
            assert (pointwise.compiled(o, whole, {}).view(np.int32) == expected.view(np.int32)).all()


@pytest.mark.parametrize("name", ["gelu", "silu", "elu", "softplus", "hardswish", "sigmoid", "tanh"])
def test_second_order_in_float32_is_that_of_float64(cpu_kernels: str, name: str) -> None:
    results = []
    for dtype in ("float32", "float64"):
        x = alpha.tensor(floats((300, 7), 1), dtype, requires_grad=True)
        gamma = alpha.tensor(floats((7,), 2), dtype, requires_grad=True)
        (g,) = alpha.grad((getattr(ops, name)(x * gamma) * x).sum(), gamma, create_graph=True)
        (g * g).sum().backward()
        results.append((x.grad.numpy(), gamma.grad.numpy()))
    for narrow, wide in zip(*results):
        assert_equal_at(narrow, wide, rtol=2e-4, atol=2e-4 * np.abs(wide).max(), name=name)


# ---- equations -------------------------------------------------------------------------------------------------------


def test_an_equation_says_the_same_to_numpy_and_to_compilers() -> None:
    e = Equation("f", "p = logistic(x); p if not (low <= x < 2 or cond) else -x * 1e-3", ("x", "cond"), ("low",))
    assert e.code.statements == ["const auto p_ = logistic(x_);"] and e.code.conditions == {"cond"}
    assert e.code.result == ("select((!(((low_ <= x_) & (x_ < number(2.0f))) | cond_)), p_, ((-x_) * number(0.001f)))")
    x, cond = np.array([-1, 0.5, 3, 3]), np.array([False, False, False, True])
    assert_equal_at(e.compute(dict(x=x, cond=cond, low=0.0)),
                    [1 / (1 + math.e), -0.0005, 1 / (1 + math.exp(-3)), -3e-3], rtol=1e-12)


@pytest.mark.parametrize("text, part", [
    ("x +", "no expression of Python"), ("y = x", "not `name = expression"), ("x * z", "'z' is unknown"),
    ("x ** 2", "'x ** 2' is unknown"), ("sin(x)", "'sin(x)' is unknown"), ("exp(x, x)", "'exp(x, x)' is unknown"),
    ("x if x else 1", "x is a condition, a number is needed"), ("(x > 0) + 1", "x > 0 is a condition"),
    ("1 if x * 2 else 0", "x * 2 is a number, a condition is needed"), ("True", "'True' is unknown"),
    ("x = 1; x", "x has two meanings"), ("x.y", "'x.y' is unknown"), ("x\0", "no expression of Python"),
    ("for x in x: x", "not `name = expression")])
def test_what_is_no_equation_is_refused(text: str, part: str) -> None:
    with refused(ConfigError, f"wave: its equation {text!r} cannot be compiled", part, "functions: abs sqrt exp"):
        Equation("wave", text, ("x",))


@needs_compiler
def test_every_function_is_computed_alike_by_numpy_and_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernels are one source here, which compiles in the time of a single one."""
    made = {}
    for name, (count, _) in FUNCTIONS.items():
        args = "xy"[:count]
        body = dict(args=" ".join(args), equation=f"{name}({', '.join(args)})", shape=lambda *xs: xs[0].shape)
        made[name] = op(type(f"by_equation_{name}", (), body))
    try:
        library = native.load_library("functions", [pointwise.write_source(made.values())])
        monkeypatch.setattr(native, "load_library", lambda *_: library)
        for name, (count, f) in FUNCTIONS.items():
            xs = [floats((40,), k, 0.1, 3).astype(np.float32) for k in range(count)]
            assert_equal_at(made[name](*map(alpha.tensor, xs)), f(*xs), rtol=1e-6, name=name)
    finally:
        for o in made.values():
            del registry[o.name]


def test_an_op_of_ones_own_needs_its_equation_alone(cpu_kernels: str) -> None:
    class wave:
        """y = rise * x^2 where x > 0, else e^x - 1."""

        args, saves, equation = "x", "x", "rise * x * x if x > 0 else expm1(x)"

        def shape(x, *, rise=1.0):
            return x.shape

        def vjp_x(g, s, *, rise):
            return g * ops.where(s.x > 0.0, s.x * (2.0 * rise), ops.exp(s.x))

    made = op(wave)
    try:
        x = floats((2, 50), 1)
        expected = np.where(x > 0, 0.5 * x * x, np.expm1(x))
        for dtype, rtol in (("float64", 1e-12), ("float32", 1e-6), ("float16", 2e-3)):
            y = made(alpha.tensor(x, dtype), rise=0.5)
            assert y.dtype == dtype
            assert_equal_at(y, expected, rtol=rtol, atol=rtol)
        assert gradcheck(lambda x: made(x, rise=0.5), [leaf((3, 4))], second_order=True)
    finally:
        del registry["wave"]
