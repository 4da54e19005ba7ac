"""Depthwise convolution by strips in every dtype: bitwise on small integers, and who takes it."""

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.conv import depthwise
from alpha.cuda.conv.planner import PASSES, PRECISIONS, plan
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import ints

pytestmark = pytest.mark.cuda

HALVES = ("bfloat16", "float16")
CASES = [square(f"{f}x{f}/{s} pad {p} map {hw} x {c}", 3, hw, c, c, f, s, p, 1, c)
         for f, s, p, hw, c in ((3, 1, 1, 9, 36), (3, 2, 1, 8, 24), (3, 2, 0, 11, 8), (5, 1, 2, 6, 200),
                                (5, 2, 2, 9, 16), (7, 1, 3, 10, 100), (7, 2, 2, 13, 12), (7, 1, 0, 8, 4),
                                (3, 1, 3, 2, 8), (3, 1, 1, 17, 6), (3, 2, 1, 35, 10), (5, 2, 2, 34, 194),
                                (7, 2, 3, 19, 2), (7, 1, 3, 41, 40))]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sixteen_bits_are_exact_on_small_integers(case: Case, half: str, device) -> None:
    desc = case.desc
    shapes = desc.x_shape, desc.w_shape, desc.y_shape
    x, w, g = (ints(*shape, seed=k, low=-1, high=2) for k, shape in enumerate(shapes))
    b = ints(desc.oc, seed=3, low=-1, high=2)
    on = [alpha.tensor(a, half, "cuda") for a in (x, g)]
    weight = alpha.tensor(w, device="cuda")
    y = ops.conv2d_bias_act(on[0], weight, alpha.tensor(b, device="cuda"), activation="relu", **case.attrs)
    dx = ops.conv2d_dgrad(on[1], weight, hw=case.hw, **case.attrs)
    dw = ops.conv2d_wgrad(*on, f=case.f, **case.attrs)
    assert (y.dtype, dx.dtype, dw.dtype) == (half, half, "float32")
    assert_equal_at(y.numpy().astype(np.float32), np.maximum(conv_fprop_padded(x, w, **case.attrs) + b, 0), name="y")
    assert_equal_at(dx.numpy().astype(np.float32), conv_dgrad_padded(g, w, case.hw, **case.attrs), name="dx")
    assert_equal_at(dw.numpy(), conv_wgrad_padded(x, g, case.f, **case.attrs).astype(np.float32), name="dw")
    half_weight = ops.conv2d(on[0], alpha.tensor(w, half, "cuda"), **case.attrs)
    assert_equal_at(half_weight.numpy().astype(np.float32), conv_fprop_padded(x, w, **case.attrs), name="y of 16 bits")


@pytest.mark.classes
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_strips_are_taken_where_they_fit(precision: str, device) -> None:
    desc = square("", 256, 32, 96, 96, 3, 1, 1, 1, 96).desc
    chosen = [plan(pass_name, desc, precision).chosen for pass_name in PASSES]
    assert all(isinstance(one, depthwise.Strip) and one.reads == PRECISIONS[precision].dtype for one in chosen)


@pytest.mark.parametrize("case, fragment", [
    (square("", 2, 8, 5, 5, 3, groups=5), "not a multiple of 2"), (square("", 2, 8, 8, 16, 3, groups=8), "8 -> 16"),
    (square("", 2, 8, 8, 8, 4, groups=8), "filters of 4x4"), (square("", 2, 8, 8, 8, 3, 3, groups=8), "strides 3, 3"),
    (square("", 2, 8, 8, 8, 3, 1, 2, 2, 8), "dilations 2, 2"), (Case("", 2, (8, 8), 8, 8, (3, 5), groups=8), "3x5")])
def test_others_are_left_with_a_reason(case: Case, fragment: str) -> None:
    for candidate in depthwise.STRIPS:
        assert fragment in (candidate.rejection(case.desc) or "")
