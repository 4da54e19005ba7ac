"""Convolutions and products that skip the zeros of their input: NumPy's lists and the compiled kernels."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.errors import ConfigError
from alpha.gradcheck import assert_equal_at
from alpha.ops.algorithms.family import Way, cost_of, counts_zeros, sparse_cost
from alpha.plan import AUTO, Request, time_us
from tests.conv_cases import CASES, Case, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.op_checks import refused

get_backend("cpu")
from alpha.cpu import native  # noqa: E402
from alpha.cpu.algorithms import chosen, for_zeros, sparse, sparse_numpy, zeros_of  # noqa: E402
from alpha.cpu.algorithms.machines import MACHINES, choose  # noqa: E402

COMPILED = native.library() is not None
MODULES = [sparse_numpy, *([sparse] if COMPILED else [])]
compiled = pytest.mark.skipif(not COMPILED, reason="there are no compiled CPU kernels here")
SHARES = (0.0, 0.3, 0.5, 0.9, 1.0)
WIDE = [square("blocks", 2, 5, 200, 150, 3, 1, 1), square("many non-zeros", 1, 3, 300, 9, 1),
        Case("tails", 3, (4, 37), 53, 77, (3, 2), (2, 1), (1, 1), (1, 2))]


def integers(rng, shape, zeros=0.0):
    """Small integers other than zero, with a share of zeros."""
    a = rng.integers(1, 4, shape) * rng.choice([-1, 1], shape)
    return np.where(rng.random(shape) < zeros, 0, a).astype(np.float32)


def passes(module: ModuleType, case: Case, x, w, g):
    y, dx, dw = (np.full(a.shape, np.nan, x.dtype) for a in (g, x, w))
    module.fprop(case.desc, x, w, y)
    module.dgrad(case.desc, g, w, dx)
    module.wgrad(case.desc, x, g, dw)
    return y, dx, dw


def oracle(case: Case, x, w, g):
    geometry = tuple(case.attrs.values())
    return (conv_fprop_padded(x, w, *geometry), conv_dgrad_padded(g, w, case.hw, *geometry),
            conv_wgrad_padded(x, g, case.f, *geometry))


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", SHARES)
@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_all_passes_are_exact_on_integers(module, zeros):
    rng = np.random.default_rng(1)
    for case in [*small_cases(), *WIDE]:
        if case.groups > 1:
            continue
        x, g = (integers(rng, shape, zeros) for shape in (case.x_shape, case.desc.y_shape))
        w = integers(rng, case.w_shape)
        for name, a, b in zip(("y", "dx", "dw"), passes(module, case, x, w, g), oracle(case, x, w, g)):
            assert_equal_at(a, b, name=f"{case.name}: {name}")


@compiled
@pytest.mark.slow
def test_compiled_equals_dense_over_the_catalogue():
    rng = np.random.default_rng(2)
    for case in CASES:
        if case.groups > 1 or case.desc.useful_flops > 4e8:
            continue
        x, w, g = integers(rng, case.x_shape, 0.7), integers(rng, case.w_shape), integers(rng, case.desc.y_shape, 0.7)
        y, dx, dw = (np.empty_like(a) for a in (g, x, w))
        native.conv_fprop(case.desc, x, w, y)
        native.conv_dgrad(case.desc, g, w, dx)
        native.conv_wgrad(case.desc, x, g, dw)
        for name, a, b in zip(("y", "dx", "dw"), passes(sparse, case, x, w, g), (y, dx, dw)):
            assert_equal_at(a, b, name=f"{case.name}: {name}")


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_any_mask(module, data):
    case = data.draw(st.sampled_from([square("", 2, 4, 9, 10, 3, 1, 1), square("", 1, 5, 17, 3, 2, 2),
                                      Case("", 1, (3, 6), 8, 8, (2, 3), (1, 1), (1, 2), (2, 1))]))
    rng = np.random.default_rng(3)
    size = int(np.prod(case.x_shape))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(case.x_shape)
    x = integers(rng, case.x_shape) * mask
    w, g = integers(rng, case.w_shape), integers(rng, case.desc.y_shape)
    y, _, dw = passes(module, case, x.astype(np.float32), w, g)
    expected = oracle(case, x, w, g)
    assert_equal_at(y, expected[0])
    assert_equal_at(dw, expected[2])


def both(run):
    """Returns what a function gives with the compiled kernels, where there are any, and without."""
    results = [run()] if COMPILED else []
    with alpha.config(cpu_kernels=False):
        return [*results, run()]


def test_bias_and_relu_and_special_values():
    rng = np.random.default_rng(4)
    x, w, b = integers(rng, (1, 5, 5, 20), 0.5), integers(rng, (11, 3, 3, 20)), integers(rng, (11,))
    tensors = [alpha.tensor(a) for a in (x, w, b)]
    expected = ops.conv2d_bias_act(*tensors, padding=1, activation="relu", algorithm="direct").numpy()
    for got in both(lambda: ops.conv2d_bias_act(*tensors, padding=1, activation="relu", algorithm="sparse").numpy()):
        assert_equal_at(got, expected)
    for nothing in (np.zeros_like(x), np.full_like(x, -0.0)):
        empty = alpha.tensor(nothing)
        for got in both(lambda x=empty: ops.conv2d_bias_act(x, *tensors[1:], algorithm="sparse").numpy()):
            assert_equal_at(got, np.broadcast_to(b, got.shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@np.errstate(invalid="ignore")
def test_nan_and_infinity_are_kept_and_zeros_do_not_meet_them(value):
    rng = np.random.default_rng(5)
    x, w = integers(rng, (1, 6, 6, 10), 0.6), integers(rng, (4, 3, 3, 10))
    hot = x.copy()
    hot[0, 2, 3, 7] = value
    expected = ops.conv2d(alpha.tensor(hot), alpha.tensor(w), algorithm="direct").numpy()
    for got in both(lambda: ops.conv2d(alpha.tensor(hot), alpha.tensor(w), algorithm="sparse").numpy()):
        assert_equal_at(got, expected)
    x[..., 7] = 0
    w[2, 1, 1, 7] = value           # meets zeros alone: not multiplied, where dense loops make NaN
    clean = np.where(np.isfinite(w), w, 0)
    for got in both(lambda: ops.conv2d(alpha.tensor(x), alpha.tensor(w), algorithm="sparse").numpy()):
        assert_equal_at(got, conv_fprop_padded(x, clean, (1, 1), (0, 0), (1, 1), 1))
    assert np.isnan(ops.conv2d(alpha.tensor(x), alpha.tensor(w), algorithm="direct").numpy()).any()


def test_products_are_those_of_non_zeros_that_taps_meet(monkeypatch):
    made = []
    monkeypatch.setattr(sparse_numpy, "_multiply", lambda a, b: made.append(b.size) or a * b)
    rng = np.random.default_rng(6)
    for case in (square("", 2, 5, 6, 7, 3, 1, 1), square("", 1, 9, 4, 5, 3, 2, 1), square("", 1, 8, 3, 2, 2, 3)):
        x, w, g = integers(rng, case.x_shape, 0.6), integers(rng, case.w_shape), integers(rng, case.desc.y_shape, 0.3)
        ones = np.ones((1, *case.f, case.ic))
        met = conv_fprop_padded((x != 0).astype(float), ones, *tuple(case.attrs.values())).sum()
        made.clear()
        sparse_numpy.fprop(case.desc, x, w, np.empty_like(g))
        assert sum(made) == met * case.oc
        made.clear()
        sparse_numpy.wgrad(case.desc, x, g, np.empty_like(w))
        assert sum(made) == met * case.oc


def test_the_promise_of_fp32_holds():
    case = square("", 1, 7, 1024, 16, 3, 1, 1)
    rng = np.random.default_rng(7)
    x = np.maximum(rng.standard_normal(case.x_shape), 0).astype(np.float32)
    w, g = (rng.standard_normal(s).astype(np.float32) for s in (case.w_shape, case.desc.y_shape))
    expected = oracle(case, *(a.astype(np.float64) for a in (x, w, g)))
    for module in MODULES:
        for got, want in zip(passes(module, case, x, w, g), expected):
            assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


@compiled
def test_results_do_not_depend_on_threads():
    rng = np.random.default_rng(8)
    case = square("", 4, 14, 130, 200, 3, 1, 1)
    x, w, g = (rng.standard_normal(s).astype(np.float32) for s in (case.x_shape, case.w_shape, case.desc.y_shape))
    x[rng.random(x.shape) < 0.6] = 0
    results = []
    for threads in (1, 2, 3):
        with alpha.config(num_threads=threads):
            native.library()
            results.append(passes(sparse, case, x, w, g))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert_equal_at(a, b)


# ---- requests --------------------------------------------------------------------------------------------------------


def test_gradients_of_a_sparse_convolution(monkeypatch):
    """dgrad is dense, wgrad skips the zeros of x; a caller may ask for a sparse dgrad."""
    from alpha.cpu import conv
    taken = []

    def note(pass_name, desc, request, compiled):
        found = chosen(pass_name, desc, request, compiled)
        taken.append((pass_name, found.way.name if found else "direct"))
        return found
    monkeypatch.setattr(conv, "chosen", note)
    rng = np.random.default_rng(9)
    x, w = (alpha.tensor(integers(rng, s, z), requires_grad=True) for s, z in (((2, 6, 6, 8), 0.5), ((5, 3, 3, 8), 0)))
    g = alpha.tensor(integers(rng, (2, 3, 3, 5)))
    ops.conv2d(x, w, stride=2, padding=1, algorithm="sparse").backward(g)
    assert sorted(taken) == [("dgrad", "direct"), ("fprop", "sparse"), ("wgrad", "sparse")]
    got = x.grad.numpy(), w.grad.numpy()
    expected = (conv_dgrad_padded(g.numpy(), w.numpy(), (6, 6), (2, 2), (1, 1), (1, 1), 1),
                conv_wgrad_padded(x.numpy(), g.numpy(), (3, 3), (2, 2), (1, 1), (1, 1), 1))
    for a, b in zip(got, expected):
        assert_equal_at(a, b)
    asked = ops.conv2d_dgrad(g, w, hw=6, stride=2, padding=1, algorithm="sparse")
    assert taken[-1] == ("dgrad", "sparse")
    assert_equal_at(asked.numpy(), expected[0])
    assert alpha.gradcheck(lambda x, w: ops.conv2d(x, w, padding=1, algorithm="sparse"),
                           [alpha.tensor(a.numpy().astype("float64"), requires_grad=True) for a in (x, w)])


def test_what_sparse_does_not_serve():
    x = ops.randn((5, 6, 6, 4))
    with refused(ConfigError, "conv2d: sparse does not serve groups=2, which must be 1", 'algorithm="auto"'):
        ops.conv2d(x, ops.randn((4, 3, 3, 2)), groups=2, algorithm="sparse")
    with refused(ConfigError, "linear: sparse does not serve x of 5 rows, 4 are the most", 'algorithm="auto"'):
        ops.linear(ops.randn((5, 7)), ops.randn((3, 7)), algorithm="sparse")
    with refused(ConfigError, 'matmul: algorithm is "sparse"'):
        ops.matmul(ops.randn((2, 3)), ops.randn((3, 2)), algorithm="sparse")
    with alpha.config(conv_algorithm="sparse"):         # a preference falls to what serves
        assert nn.Conv2d(4, 4, 3, groups=2)(x).shape == (5, 4, 4, 4)


@pytest.mark.parametrize("shape", [(1, 64, 64), (4, 600, 1003), (3, 5, 7), (2, 1100, 513)], ids=str)
def test_linear_skips_rows(shape):
    n, inputs, outputs = shape
    rng = np.random.default_rng(10)
    x, w, b = (alpha.tensor(integers(rng, s, z), requires_grad=True) for s, z in
               (((n, inputs), 0.75), ((outputs, inputs), 0), ((outputs,), 0)))
    for activation in (None, "relu"):
        expected = ops.linear(x, w, b, activation=activation).numpy()
        for got in both(lambda act=activation: ops.linear(x, w, b, activation=act, algorithm="sparse").numpy()):
            assert_equal_at(got, expected)
    ops.linear(x, w, b, algorithm="sparse").sum().backward()
    assert_equal_at(x.grad.numpy(), np.broadcast_to(w.numpy().sum(0), (n, inputs)))


def test_linear_keeps_nan_and_makes_no_zero_times_infinity():
    x, w = np.float32([[0, 2, np.nan, 0], [1, 0, 0, -0.0]]), np.ones((3, 4), np.float32)
    w[1, 3] = np.inf
    for got in both(lambda: ops.linear(alpha.tensor(x), alpha.tensor(w), algorithm="sparse").numpy()):
        assert np.isnan(got[0]).all() and (got[1] == 1).all()


# ---- the choice by zeros ---------------------------------------------------------------------------------------------


def test_costs_fall_with_zeros_and_only_wide_layers_are_counted():
    rates = MACHINES["cpu8"].rates
    desc = square("", 8, 16, 128, 128, 3, 1, 1).desc
    times = [time_us(sparse_cost(p, desc, z), rates) for p in ("fprop", "dgrad", "wgrad") for z in (0, 0.5, 0.9)]
    assert all(a > b for a, b in zip(times[:2] + times[3:5], times[1:3] + times[4:6]))
    dense = time_us(cost_of(Way("direct"), "fprop", desc), rates)
    assert times[2] < dense < times[0]
    assert counts_zeros(desc)
    for other in (square("", 8, 16, 64, 128, 3), square("", 8, 16, 128, 64, 3), square("", 8, 16, 128, 128, 1)):
        assert not counts_zeros(other.desc)
    choice = choose("fprop", desc, Request("sparse", True), "cpu8", 1 << 30)
    assert choice.taken.way.name == "sparse"
    assert choose("fprop", desc, AUTO, "cpu8", 1 << 30).taken.way.name != "sparse"


@compiled
def test_auto_counts_zeros_where_the_setting_says_so():
    desc = square("", 8, 24, 128, 128, 3, 1, 1).desc
    rng = np.random.default_rng(11)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (desc.x_shape, desc.w_shape))
    few = np.where(rng.random(x.shape) < 0.97, 0, x).astype(np.float32)
    assert abs(zeros_of(few) - 0.97) < 0.01 and zeros_of(x) == 0
    found = chosen("fprop", desc, AUTO, True)
    assert for_zeros(desc, AUTO, x, found) is found
    taken = for_zeros(desc, AUTO, few, found)
    assert taken is not None and taken.way.name == "sparse"
    assert for_zeros(desc, Request("direct", True), few, None) is None
    dense = ops.conv2d(alpha.tensor(few), alpha.tensor(w), padding=1).numpy()
    with alpha.config(conv_sparsity=True):
        skipped = ops.conv2d(alpha.tensor(few), alpha.tensor(w), padding=1).numpy()
        again = ops.conv2d(alpha.tensor(few), alpha.tensor(w), padding=1).numpy()
    assert_equal_at(skipped, again)
    assert_equal_at(skipped, ops.conv2d(alpha.tensor(few), alpha.tensor(w), padding=1, algorithm="sparse").numpy())
    assert np.linalg.norm(skipped - dense) <= 2e-6 * np.linalg.norm(dense)
    assert not np.array_equal(skipped, dense)       # another order of sums: the setting did something
