"""The kernels for few input channels and for depthwise convolution: bitwise on small integers wherever they fit."""

import numpy as np
import pytest

from alpha.cuda.conv.planner import PASSES, candidates
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import download, upload
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import ints
from tests.cuda.conv.checks import with_long

pytestmark = pytest.mark.cuda

# Beside the catalogue: channels that fill vectors and end inside a tile, images that a tile of positions ends in,
# several tiles of filters, and filters that do not fit into shared memory at once.
MORE = (square("stem_two_tiles", 3, 20, 3, 68, 3, 1, 1), square("stem_7x7", 2, 18, 3, 64, 7, 2, 3),
        square("stem_11x11", 1, 15, 3, 20, 11, 4, 2), square("stem_5x5_wide", 2, 9, 4, 130, 5, 1, 2),
        square("stem_dilated", 2, 13, 2, 24, 3, 2, 2, 3), square("stem_one_channel", 2, 12, 1, 32, 5, 1, 2),
        square("stem_many_taps", 1, 11, 4, 8, 19, 1, 9), square("stem_six_channels", 2, 9, 6, 16, 5),
        square("stem_sixteen", 2, 7, 16, 19, 3, 2, 1), square("depthwise_132", 2, 9, 132, 132, 3, 1, 1, 1, 132),
        square("depthwise_4", 3, 8, 4, 4, 3, 2, 1, 1, 4), square("depthwise_no_tap", 2, 5, 4, 4, 2, 3, 3, 1, 4),
        square("depthwise_5x5", 2, 9, 12, 12, 5, 1, 2, 1, 12), square("depthwise_5x5_2", 2, 8, 8, 8, 5, 2, 2, 1, 8),
        square("depthwise_7x7", 2, 10, 200, 200, 7, 1, 3, 1, 200), square("depthwise_7x7_2", 2, 9, 8, 8, 7, 2, 1, 1, 8),
        square("depthwise_pad", 2, 5, 8, 8, 3, 1, 4, 1, 8), square("depthwise_pad_2", 2, 6, 8, 8, 3, 2, 0, 1, 8),
        Case("depthwise_uneven", 2, (7, 11), 8, 8, (3, 3), (2, 2), (1, 2), (1, 1), 8),
        square("depthwise_long_sum", 9, 16, 8, 8, 3, 1, 1, 1, 8),
        Case("depthwise_row", 2, (5, 9), 8, 8, (1, 5), (2, 1), (0, 2), (1, 1), 8))
# Of 3x3 filters: ends of lines and of batches, and every padding.
LINES = (square("lines_rgb", 2, 32, 3, 64, 3, 1, 1), square("lines_bare", 3, 8, 4, 64, 3),
         square("lines_wide", 1, 33, 3, 64, 3, 1, 2), Case("lines_row", 3, (1, 20), 3, 64, (3, 3), (1, 1), (1, 1)),
         Case("lines_padded", 3, (7, 31), 2, 64, (3, 3), (1, 1), (2, 1)),
         Case("lines_narrow", 3, (9, 5), 3, 4, (3, 3), (1, 1), (0, 2)),
         Case("lines_tail", 1, (6, 9), 1, 20, (3, 3), (1, 1), (1, 0)))
CASES = (*(case for case in small_cases() if case.ic <= 4 or case.groups == case.ic), *MORE, *LINES)


def direct(pass_name, desc=None):
    """Returns the candidates that this file is about; those that fit, where a description is given."""
    names = "depthwise", "few"
    found = [c for c in candidates(pass_name) if c.name.startswith(names) and c.reads == "float32"]
    return [c for c in found if not (desc and c.rejection(desc))]


def run(candidate, desc, *operands, shape, bias=None, activation=None):
    """Returns the result of one candidate; the output starts as NaN."""
    out = upload(np.full(shape, np.nan, np.float32))
    epilogue = Epilogue.of(None if bias is None else upload(bias), activation)
    candidate.prepare(desc)(*map(upload, operands), out, *([epilogue] if epilogue != NOTHING else []))
    return download(out, "float32")


def operands(case, seed=0):
    desc = case.desc
    return desc, ints(*desc.x_shape, seed=seed), ints(*desc.w_shape, seed=seed + 1), ints(*desc.y_shape, seed=seed + 2)


@pytest.mark.parametrize("case", with_long(CASES, "stem_many_taps"), ids=lambda case: case.name)
def test_fprop_is_exact(case):
    desc, x, w, _ = operands(case)
    b = ints(desc.oc, seed=3)
    plain = conv_fprop_padded(x, w, **case.attrs).astype(np.float32)
    for c in direct("fprop", desc):
        assert_equal_at(run(c, desc, x, w, shape=desc.y_shape), plain, name=f"y of {c.name}")
        assert_equal_at(run(c, desc, x, w, shape=desc.y_shape, bias=b, activation="relu"), np.maximum(plain + b, 0),
                        name=f"y with bias and relu of {c.name}")


@pytest.mark.parametrize("case", with_long(CASES, "stem_many_taps"), ids=lambda case: case.name)
def test_dgrad_is_exact(case):
    desc, _, w, g = operands(case)
    expected = conv_dgrad_padded(g, w, case.hw, **case.attrs).astype(np.float32)
    for c in direct("dgrad", desc):
        assert_equal_at(run(c, desc, g, w, shape=desc.x_shape), expected, name=f"dx of {c.name}")


@pytest.mark.parametrize("case", with_long(CASES, "stem_many_taps"), ids=lambda case: case.name)
def test_wgrad_is_exact(case):
    desc, x, _, g = operands(case)
    expected = conv_wgrad_padded(x, g, case.f, **case.attrs).astype(np.float32)
    for c in direct("wgrad", desc):
        assert_equal_at(run(c, desc, x, g, shape=desc.w_shape), expected, name=f"dw of {c.name}")


@pytest.mark.parametrize("case", [
    square("square", 7, 19, 3, 64, 3, 1, 1), square("7x7", 3, 26, 3, 20, 7, 2, 3),
    square("wide", 5, 32, 3, 64, 3, 1, 1), Case("bare", 9, (12, 17), 4, 64, (3, 3)),
    Case("high", 3, (23, 3), 4, 60, (3, 3), (1, 1), (1, 1))], ids=lambda case: case.name)
def test_several_tiles_of_a_block_are_exact(case, monkeypatch):
    """On few multiprocessors a block has tile after tile, and reads what the next one begins with."""
    monkeypatch.setattr(context, "sm_count", 1)
    desc, x, w, _ = operands(case)
    b = ints(desc.oc, seed=3)
    y = np.maximum(conv_fprop_padded(x, w, **case.attrs) + b, 0).astype(np.float32)
    for c in direct("fprop", desc):
        assert_equal_at(run(c, desc, x, w, shape=desc.y_shape, bias=b, activation="relu"), y, name=f"y of {c.name}")


@pytest.mark.parametrize("width", [6, 40])
def test_infinity_does_not_reach_taps_that_meet_padding(width):
    desc, x, _, g = operands(Case("", 3, (6, width), 3, 8, (3, 3), (1, 1), (1, 1)))
    ones, corner = np.ones_like(x), np.ones_like(g)
    x[:, 0, 0] = corner[:, 0, 0] = np.inf
    found = direct("wgrad", desc)
    assert found
    for c in found:
        dw = run(c, desc, x, np.ones_like(g), shape=desc.w_shape)
        assert np.isposinf(dw[:, :2, :2]).all() and np.isfinite(dw[:, 2]).all() and np.isfinite(dw[:, :, 2]).all()
        dw = run(c, desc, ones, corner, shape=desc.w_shape)
        assert np.isposinf(dw[:, 1:, 1:]).all() and np.isfinite(dw[:, 0]).all() and np.isfinite(dw[:, :, 0]).all()


@pytest.mark.parametrize("pass_name", PASSES)
def test_every_candidate_serves_some_case(pass_name):
    for c in direct(pass_name):
        assert any(not c.rejection(case.desc) for case in CASES), f"no case reaches {c.name}"


@pytest.mark.parametrize(("case", "fragment"), [
    (square("full", 2, 8, 8, 8, 3), "8 input channels per group"),
], ids=lambda v: getattr(v, "name", v))
def test_a_depthwise_kernel_says_why_it_cannot(case, fragment):
    for pass_name in PASSES:
        candidate = next(c for c in candidates(pass_name) if c.name == f"depthwise_{pass_name}")
        assert fragment in (candidate.rejection(case.desc) or "")


@pytest.mark.long
def test_adjoints_agree_to_the_last_bit():
    case = square("", 2, 10, 3, 20, 3, 2, 1)
    desc, x, w, g = operands(case, seed=7)
    totals = []
    for pass_name, (a, b, c) in {"fprop": (x, w, g), "dgrad": (g, w, x), "wgrad": (x, g, w)}.items():
        for candidate in candidates(pass_name, "fp32"):
            if not candidate.rejection(desc):
                result = run(candidate, desc, a, b, shape=c.shape)
                totals.append(float((result.astype(np.float64) * c).sum()))
    assert len(totals) >= 6 and len(set(totals)) == 1


def test_the_bias_of_outputs_without_a_tap():
    case = square("", 2, 3, 3, 8, 2, 1, 4)
    desc, x, w, _ = operands(case)
    b = ints(8, seed=3)
    for c in direct("fprop", desc):
        y = run(c, desc, x, w, shape=desc.y_shape, bias=b)
        assert_equal_at(y[:, 0, 0], np.broadcast_to(b, (2, 8)), name=f"corner of {c.name}")


@pytest.mark.parametrize("width", [6, 8])
def test_infinity_in_x_does_not_reach_outputs_that_do_not_read_it(width):
    case = Case("", 1, (6, width), 3, 8, (3, 3), (1, 1), (1, 1))
    desc, x, w, _ = operands(case)
    x[0, 0, 0, 0] = np.inf
    w[:] = 1
    for c in direct("fprop", desc):
        y = run(c, desc, x, w, shape=desc.y_shape)
        assert np.isinf(y[0, :2, :2]).all() and np.isfinite(y[0, 2:]).all() and np.isfinite(y[0, :, 2:]).all()


@pytest.mark.parametrize("width", [6, 8])
def test_infinity_in_w_does_not_meet_the_padding(width):
    """An infinite tap times a zero of the padding would be NaN; relu leaves a NaN that is one."""
    case = Case("", 1, (6, width), 3, 8, (3, 3), (1, 1), (1, 1))
    desc, x, w, _ = operands(case)
    x[:] = 1
    w[:] = 1
    w[0, 0, 0, 0], w[0, 2, 2, 0], w[1, 1, 1, 0] = np.inf, np.inf, np.nan
    outside = np.ones((6, width), bool)
    outside[1:, 1:] = False
    outside[:-1, :-1] = False
    for c in direct("fprop", desc):
        y = run(c, desc, x, w, shape=desc.y_shape, activation="relu")
        assert (np.isfinite(y[0, ..., 0]) == outside).all() and not np.isnan(y[..., 0]).any(), c.name
        assert np.isnan(y[..., 1]).all() and np.isfinite(y[..., 2:]).all(), c.name


def dgrad_by_taps(desc, g, w):
    """Returns dx in float64, without a product of what does not exist: infinities meet no padding."""
    dx = np.zeros(desc.x_shape)
    with np.errstate(invalid="ignore"):
        for fh, out_h, in_h in desc.h.runs:
            for fw, out_w, in_w in desc.w.runs:
                for oc in range(desc.oc):
                    dx[:, in_h, in_w] += g[:, out_h, out_w, oc, None].astype(np.float64) * w[oc, fh, fw]
    return dx


@pytest.mark.parametrize("case", [
    Case("whole", 1, (6, 8), 3, 64, (3, 3), (1, 1), (1, 1)), Case("several", 3, (5, 33), 4, 20, (3, 3)),
    Case("short", 2, (9, 6), 3, 8, (3, 3), (1, 1), (1, 1)), Case("wide", 1, (4, 17), 3, 64, (3, 3), (1, 1), (0, 2)),
    Case("narrow", 1, (3, 2), 3, 4, (3, 3), (1, 1), (1, 1))], ids=lambda case: case.name)
def test_weights_that_are_not_finite_do_not_meet_the_ends_of_lines(case):
    desc, g = case.desc, ints(*case.desc.y_shape, low=1, high=4)
    w = ints(*desc.w_shape, seed=1)
    w[0, 0, 0, 0], w[1, 1, 2, 1], w[2, 2, 0, 2] = np.inf, -np.inf, np.nan
    expected = dgrad_by_taps(desc, g, w).astype(np.float32)
    assert all(np.isfinite(expected[..., ic]).any() and not np.isfinite(expected[..., ic]).all() for ic in range(3))
    found = [c for c in candidates("dgrad", "fma") if not c.rejection(desc)]
    assert found
    for c in found:
        assert_equal_at(run(c, desc, g, w, shape=desc.x_shape), expected, name=f"dx of {c.name}")
