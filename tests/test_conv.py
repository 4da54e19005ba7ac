"""The convolution trio, what is made of it, and the NumPy algorithms below it."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha.cpu import conv_numpy
from alpha.errors import ShapeError
from alpha.gradcheck import adjoint_check, assert_equal_at
from alpha.ops.conv import (
    conv2d,
    conv2d_bias_act,
    conv2d_dgrad,
    conv2d_dgrad_add,
    conv2d_wgrad,
    conv_transpose2d,
)
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div
from tests.conv_cases import EDGE, Case, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded

CASES = small_cases()
FORMS = {"by_tap": 1 << 60, "by_pixel": 0}


def integers(shape, dtype="float64"):
    """Small integers: every sum of their products is exact in float32."""
    return np.random.randint(-3, 4, shape).astype(dtype)


def operands(case: Case, dtype="float64"):
    """Returns integers x, w, g of a case."""
    return (integers(shape, dtype) for shape in (case.x_shape, case.w_shape, case.desc.y_shape))


def oracle(case: Case, x, w, g):
    """Returns y, dx, dw of the padded oracle."""
    geometry = tuple(case.attrs.values())
    return (conv_fprop_padded(x, w, *geometry), conv_dgrad_padded(g, w, case.hw, *geometry),
            conv_wgrad_padded(x, g, case.f, *geometry))


def assert_case(case: Case, got, expected, **tolerance):
    for name, a, b in zip(("y", "dx", "dw"), got, expected, strict=True):
        assert_equal_at(a, b, name=f"{case.name}: {name}", **tolerance)


# ---- bitwise on small integers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_three_passes_equal_the_padded_oracle(dtype, cpu_kernels):
    for case in CASES:
        x, w, g = operands(case, dtype)
        tx, tw, tg = map(alpha.tensor, (x, w, g))
        got = (conv2d(tx, tw, **case.attrs), conv2d_dgrad(tg, tw, case.hw, **case.attrs),
               conv2d_wgrad(tx, tg, case.f, **case.attrs))
        assert all(t.dtype == dtype for t in got)
        assert_case(case, [t.numpy() for t in got], oracle(case, x, w, g))


@pytest.mark.parametrize("case", [square("plain", 2, 7, 5, 6, 3, 1, 1), square("depthwise", 2, 7, 5, 5, 3, 1, 1, 1, 5)],
                         ids=lambda case: case.name)
def test_float16_is_rounded_once(case):
    """The products have more digits than float16 holds: partial sums in float16 would show."""
    x, w, g = ((np.random.randint(150, 200, shape) / 16).astype("float16")
               for shape in (case.x_shape, case.w_shape, case.desc.y_shape))
    tx, tw, tg = map(alpha.tensor, (x, w, g))
    got = (conv2d(tx, tw, **case.attrs), conv2d_dgrad(tg, tw, case.hw, **case.attrs),
           conv2d_wgrad(tx, tg, case.f, **case.attrs))
    expected = [a.astype("float16" if k < 2 else "float32") for k, a in enumerate(oracle(case, x, w, g))]
    assert [t.dtype for t in got] == [a.dtype for a in expected]  # dw is not rounded
    assert_case(case, [t.numpy() for t in got], expected)


@pytest.mark.parametrize("column_bytes", [conv_numpy.COLUMN_BYTES, 3000])
@pytest.mark.parametrize("form", FORMS)
def test_both_numpy_forms_on_every_case(form, column_bytes, monkeypatch):
    monkeypatch.setattr(conv_numpy, "BY_TAP_PIXELS", FORMS[form])
    monkeypatch.setattr(conv_numpy, "COLUMN_BYTES", column_bytes)
    for case in CASES:
        x, w, g = operands(case, "int64")
        got = [np.full(shape, 99) for shape in (case.desc.y_shape, case.x_shape, case.w_shape)]
        conv_numpy.fprop(case.desc, x, w, got[0])
        conv_numpy.dgrad(case.desc, g, w, got[1])
        conv_numpy.wgrad(case.desc, x, g, got[2])
        assert_case(case, got, oracle(case, x, w, g))


def test_adjoint_identities_are_exact(cpu_kernels):
    for case in CASES:
        x, w, g = map(alpha.tensor, operands(case, "float32"))
        adjoint_check(partial(conv2d, w=w, **case.attrs), partial(conv2d_dgrad, w=w, hw=case.hw, **case.attrs), x, g)
        adjoint_check(partial(conv2d, x, **case.attrs), partial(conv2d_wgrad, x, f=case.f, **case.attrs), w, g)


# ---- zeros are skipped, memory is bounded ----------------------------------------------------------------------------


@pytest.fixture
def multiplications(monkeypatch):
    """Counts the scalar multiplications of conv_numpy; reading it starts over."""
    done = [0]

    def matmul(a, b, out):
        done[0] += a.shape[0] * a.shape[1] * b.shape[1]
        return np.matmul(a, b, out=out)

    def multiply(a, b, out):
        done[0] += out.size
        return np.multiply(a, b, out=out)

    monkeypatch.setattr(conv_numpy, "_matmul", matmul)
    monkeypatch.setattr(conv_numpy, "_multiply", multiply)

    def read():
        count, done[0] = done[0], 0
        return count
    return read


def count_passes(case: Case, multiplications) -> list[int]:
    x, w, g = operands(case)
    counts = []
    for run, a, b, shape in ((conv_numpy.fprop, x, w, g.shape), (conv_numpy.dgrad, g, w, x.shape),
                             (conv_numpy.wgrad, x, g, w.shape)):
        run(case.desc, a, b, np.empty(shape))
        counts.append(multiplications())
    return counts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("f, padding", [(3, 1), (5, 2)])
def test_multiplications_done_are_the_useful_ones(f, padding, form, multiplications, monkeypatch):
    monkeypatch.setattr(conv_numpy, "BY_TAP_PIXELS", FORMS[form])
    for i, stride in product(range(1, 9), (1, 2, 3)):
        case = square("", 2, i, 3, 5, f, stride, padding)
        taps = sum(0 <= o * stride - padding + t < i for o in range(case.desc.h.o) for t in range(f))
        assert count_passes(case, multiplications) == [2 * taps ** 2 * 3 * 5] * 3, (i, stride)
        assert case.desc.useful_flops == 2 * 2 * taps ** 2 * 3 * 5


@pytest.mark.parametrize("form", FORMS)
def test_multiplications_of_the_edge_cases(form, multiplications, monkeypatch):
    monkeypatch.setattr(conv_numpy, "BY_TAP_PIXELS", FORMS[form])
    for case in EDGE:
        small = case.small()
        assert count_passes(small, multiplications) == [small.desc.useful_flops // 2] * 3, case.name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [1, 4, 32])
def test_work_buffers_are_bounded(form, groups, monkeypatch):
    """One tap of the whole batch would take 8 MB (4 MB with groups), all taps 75 MB."""
    sizes = []

    def empty(shape, dtype):
        sizes.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return np.empty(shape, dtype)

    monkeypatch.setattr(conv_numpy, "empty", empty)
    monkeypatch.setattr(conv_numpy, "BY_TAP_PIXELS", FORMS[form])
    case = square("", 64, 32, 32, 32, 3, 1, 1, 1, groups)
    x, w, g = operands(case, "float32")
    conv_numpy.fprop(case.desc, x, w, np.empty_like(g))
    conv_numpy.dgrad(case.desc, g, w, np.empty_like(x))
    conv_numpy.wgrad(case.desc, x, g, np.empty_like(w))
    assert 0 < max(sizes) <= conv_numpy.COLUMN_BYTES


# ---- torch as oracle -------------------------------------------------------------------------------------------------


@st.composite
def cases(draw) -> Case:
    """Any convolution that has an output: odd sizes, 1x1 maps, kernels over maps, empty tap lists, groups."""
    per_axis = []
    for _ in range(2):
        i, f, s, d = (draw(st.integers(1, most)) for most in (11, 5, 4, 3))
        least = max(0, ceil_div(d * (f - 1) + 1 - i, 2))
        per_axis.append((i, f, s, draw(st.integers(least, least + 3)), d))
    i, f, s, p, d = zip(*per_axis)
    groups = draw(st.integers(1, 4))
    icg, ocg = draw(st.sampled_from([(1, 1), (1, 2), (3, 2), (4, 9), (17, 5)]))
    return Case("drawn", draw(st.integers(1, 3)), i, icg * groups, ocg * groups, f, s, p, d, groups)


@pytest.mark.torch
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-13), ("float32", 1e-5)])
@settings(max_examples=60)
@given(case=cases())
def test_gradients_equal_torch(dtype, rtol, case):
    torch = pytest.importorskip("torch")
    x, w, g = (np.random.standard_normal(s) for s in (case.x_shape, case.w_shape, case.desc.y_shape))
    tx, tw = (torch.tensor(a).permute(0, 3, 1, 2).requires_grad_() for a in (x, w))
    ty = torch.nn.functional.conv2d(tx, tw, None, *case.attrs.values())
    ty.backward(torch.tensor(g).permute(0, 3, 1, 2))
    expected = [t.detach().permute(0, 2, 3, 1).numpy() for t in (ty, tx.grad, tw.grad)]
    ax, aw = (alpha.tensor(a, dtype, requires_grad=True) for a in (x, w))
    y = conv2d(ax, aw, **case.attrs)
    y.backward(alpha.tensor(g, dtype))
    scale = max(float(np.abs(a).max()) for a in expected)
    assert_case(case, [y.detach().numpy(), ax.grad.numpy(), aw.grad.numpy()], expected, rtol=rtol, atol=rtol * scale)


@pytest.mark.torch
@settings(max_examples=60)
@given(case=cases(), extra=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_transposed_convolution_equals_torch(case, extra):
    torch = pytest.importorskip("torch")
    extra = tuple(e % s for e, s in zip(extra, case.stride))
    size = [Axis.transposed_size(a.o, a.f, a.s, a.p, a.d) + e for a, e in zip((case.desc.h, case.desc.w), extra)]
    if min(size) < 1:
        return
    x, w = integers(case.desc.y_shape), integers(case.w_shape)
    expected = torch.nn.functional.conv_transpose2d(
        *(torch.tensor(a).permute(0, 3, 1, 2) for a in (x, w)), None, case.stride, case.padding, extra, case.groups,
        case.dilation).permute(0, 2, 3, 1).numpy()
    got = conv_transpose2d(alpha.tensor(x), alpha.tensor(w), case.stride, case.padding, extra, case.dilation,
                           case.groups)
    assert_equal_at(got.numpy(), expected, name=f"{case}")


def test_output_padding_grows_the_far_end():
    x, w = alpha.tensor(integers((2, 4, 5, 3))), alpha.tensor(integers((3, 3, 3, 2)))
    y = conv_transpose2d(x, w, 2, 1).numpy()
    grown = conv_transpose2d(x, w, 2, 1, output_padding=(1, 0)).numpy()
    assert (y.shape, grown.shape) == ((2, 7, 9, 2), (2, 8, 9, 2))
    assert_equal_at(grown[:, :7], y)


# ---- gradients -------------------------------------------------------------------------------------------------------

GRADIENT_CASES = [case.small() for case in EDGE if case.name.split(".")[1] in (
    "kernel_over_map_stride", "inputs_without_tap", "dilation2_stride4", "groups3_stride2", "depthwise_multiplier",
    "asymmetric")]


def leaf(shape):
    return alpha.tensor(np.random.standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_gradients_to_second_order(case):
    x, w, g = leaf(case.x_shape), leaf(case.w_shape), leaf(case.desc.y_shape)
    assert alpha.gradcheck(lambda x, w: conv2d(x, w, **case.attrs), (x, w), second_order=True)
    assert alpha.gradcheck(lambda g, w: conv2d_dgrad(g, w, case.hw, **case.attrs), (g, w), second_order=True)
    assert alpha.gradcheck(lambda g, w, x: conv2d_dgrad_add(g, w, x, case.hw, **case.attrs), (g, w, x),
                           second_order=True)
    assert alpha.gradcheck(lambda x, g: conv2d_wgrad(x, g, case.f, **case.attrs), (x, g), second_order=True)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_gradients_of_the_fused_op_to_second_order(activation):
    x, w, b = leaf((2, 5, 4, 3)), leaf((4, 3, 3, 3)), leaf((4,))
    assert alpha.gradcheck(lambda x, w, b: conv2d_bias_act(x, w, b, 2, 1, activation=activation), (x, w, b),
                           second_order=True)


def test_gradients_of_the_transposed_convolution_to_second_order():
    assert alpha.gradcheck(lambda x, w: conv_transpose2d(x, w, 2, 1, 1), (leaf((2, 3, 4, 3)), leaf((3, 3, 2, 4))),
                           second_order=True)


def test_the_input_of_a_network_costs_no_dgrad(monkeypatch):
    monkeypatch.setattr(conv2d_dgrad, "impls", {})
    w = leaf((4, 3, 3, 3))
    conv2d(alpha.tensor(np.random.standard_normal((2, 6, 6, 3))), w).sum().backward()
    assert w.grad.shape == w.shape


@pytest.mark.parametrize("activation, with_bias", [(None, False), (None, True), ("relu", False), ("relu", True)])
def test_fused_equals_unfused(activation, with_bias, cpu_kernels):
    for case in EDGE:
        case = case.small()
        arrays = integers(case.x_shape, "float32"), integers(case.w_shape, "float32"), integers((case.oc,), "float32")
        results = []
        for fused in (True, False):
            x, w, b = (alpha.tensor(a, requires_grad=True) for a in arrays)
            if fused:
                y = conv2d_bias_act(x, w, b if with_bias else None, **case.attrs, activation=activation)
            else:
                y = conv2d(x, w, **case.attrs)
                y = y + b if with_bias else y
                y = y.relu() if activation else y
            y.backward(alpha.tensor(np.ones(y.shape, "float32")))
            results.append([t.numpy() for t in (y.detach(), x.grad, w.grad, *([b.grad] if with_bias else []))])
        for name, a, b in zip(("y", "dx", "dw", "db"), *results):
            assert_equal_at(a, b, name=f"{case.name}: {name}")


def test_the_same_input_gives_the_same_bits(cpu_kernels):
    case = square("", 8, 9, 33, 40, 3, 1, 1)
    x, w = (alpha.tensor(np.random.standard_normal(s).astype("float32")) for s in (case.x_shape, case.w_shape))
    runs = [[conv2d(x, w, 1, 1).numpy(), conv2d_dgrad(conv2d(x, w, 1, 1), w, case.hw, 1, 1).numpy(),
             conv2d_wgrad(x, conv2d(x, w, 1, 1), case.f, 1, 1).numpy()] for _ in range(3)]
    assert all(a.tobytes() == b.tobytes() for run in runs for a, b in zip(run, runs[0]))


# ---- arguments and errors --------------------------------------------------------------------------------------------


def test_an_int_means_both_axes_and_attributes_may_be_positional():
    x, w = alpha.tensor(integers((2, 9, 9, 4))), alpha.tensor(integers((6, 3, 3, 2)))
    expected = conv2d(x, w, stride=(2, 2), padding=(1, 1), dilation=(2, 2), groups=2).numpy()
    assert_equal_at(conv2d(x, w, 2, 1, 2, 2).numpy(), expected)
    assert_equal_at(conv2d(x, w, [2, 2], np.int64(1), (2, np.int32(2)), 2).numpy(), expected)


def check(error, *parts):
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\nhelp: " in str(error.value)


@pytest.mark.parametrize("value", [1.5, (1, 2, 3), "ab", None, (1, 2.0), ()])
def test_pair_refuses_what_is_neither_int_nor_pair(value):
    with pytest.raises(ShapeError) as error:
        conv2d(X, W, stride=value)
    check(error, "conv2d: stride is ", ", an int or a pair of ints of at least 1 is needed", "stride=(height, width)")


X, W = alpha.tensor(np.zeros((2, 8, 8, 3))), alpha.tensor(np.zeros((4, 3, 3, 3)))


def test_groups_must_be_an_int():
    with pytest.raises(ShapeError) as error:
        conv2d(X, W, groups=1.0)
    check(error, "conv2d: groups is 1.0, an int of at least 1 is needed")


@pytest.mark.parametrize("call, parts", [
    (lambda: conv2d(X, alpha.tensor(np.zeros((4, 3, 3, 5)))), ["conv2d: x has 3 channels, w expects 5"]),
    (lambda: conv2d(alpha.tensor(np.zeros((2, 3, 8, 8))), W), ["x looks like NCHW"]),
    (lambda: conv2d(X, alpha.tensor(np.zeros((4, 9, 3, 3)))), ["conv2d: a filter of 9 taps", "along H"]),
    (lambda: conv2d_dgrad(X, W, (10, 10)), ["conv2d_dgrad: g has shape (2, 8, 8, 3)", "(2, 8, 8, 4)"]),
    (lambda: conv2d_dgrad(X, W, 2.5), ["conv2d_dgrad: hw is 2.5"]),
    (lambda: conv2d_dgrad_add(alpha.zeros((2, 8, 8, 4), dtype="float64"), W, X, (10, 10)),
     ["conv2d_dgrad_add: onto has shape (2, 8, 8, 3), dx has (2, 10, 10, 3)"]),
    (lambda: conv2d_wgrad(X, X, 3), ["conv2d_wgrad: g has shape (2, 8, 8, 3)", "(2, 6, 6, 3)"]),
    (lambda: conv2d_wgrad(X, X, "3"), ['conv2d_wgrad: f is "3" (str), an int']),
    (lambda: conv2d_bias_act(X, W, X), ["conv2d_bias_act: b has shape (2, 8, 8, 3), w has 4 filters", "shape (4,)"]),
    (lambda: conv2d_bias_act(X, W, None, activation="tanh"), ['conv2d_bias_act: activation is "tanh" (str), None or']),
])
def test_errors_of_the_ops(call, parts):
    with pytest.raises(ShapeError) as error:
        call()
    check(error, *parts)


TX, TW = X, alpha.tensor(np.zeros((3, 3, 3, 5)))


@pytest.mark.parametrize("call, parts", [
    (lambda: conv_transpose2d(TX, TW, 2, output_padding=2), ["output_padding (2, 2) is below neither stride (2, 2)"]),
    (lambda: conv_transpose2d(TX, TW, 2, output_padding=(0, -1)), ["output_padding is (0, -1), an int"]),
    (lambda: conv_transpose2d(TX, TW, padding=6), ["the output would have height and width (-2, -2)", "less padding"]),
    (lambda: conv_transpose2d(TX, W), ["x has 3 channels, w expects 4", "make in_channels of the layer 3"]),
    (lambda: conv_transpose2d(alpha.tensor(np.zeros((2, 3, 8, 8))), TW), ["x has 8 channels, w expects 3", "NCHW"]),
    (lambda: conv_transpose2d(alpha.tensor(np.zeros((8, 8, 3))), TW), ["x has 3 axes and w 4, both need 4"]),
    (lambda: conv_transpose2d(TX, TW, output_padding="1"), ['output_padding is "1" (str), an int or a pair']),
])
def test_errors_of_the_transposed_convolution(call, parts):
    with pytest.raises(ShapeError) as error:
        call()
    check(error, "conv_transpose2d: ", *parts)


def test_the_shape_rule_needs_no_tensor_data():
    assert ConvDesc.fprop(X.shape, W.shape, stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=1).y_shape == \
        conv2d(X, W, 2, 1).shape == (2, 4, 4, 4)


def test_dgrad_adds_to_what_is_given() -> None:
    g, w = alpha.tensor(integers((2, 5, 5, 6))), alpha.tensor(integers((6, 3, 3, 4)))
    onto = alpha.tensor(integers((2, 9, 9, 4)))
    before = onto.numpy().copy()
    got = conv2d_dgrad_add(g, w, onto, 9, 2, 1)
    assert_equal_at(got.numpy(), conv2d_dgrad(g, w, 9, 2, 1).numpy() + before)
    assert_equal_at(onto.numpy(), before)
