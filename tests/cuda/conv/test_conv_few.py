"""First layers on FMA units, eight outputs at a time: bitwise on small integers, in every dtype."""

import numpy as np
import pytest

from alpha.cuda.conv.first_layer import few
from alpha.cuda.conv.planner import plan
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import upload
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, small_cases, square
from tests.conv_oracle import conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.conv.test_conv_wgmma import fetched, stored

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

LENET = square("lenet", 3, 32, 3, 6, 5)
# Beside the catalogue: taps for two warps, tiles that end inside an image, each way to leave the map.
CASES = (LENET, *(case for case in small_cases() if case.ic <= 4 and case.oc <= 64 and case.groups == 1),
         square("grey", 2, 28, 1, 6, 5, 1, 2), square("7x7", 2, 20, 3, 8, 7, 2, 3),
         square("dilated", 2, 19, 3, 5, 3, 1, 2, 3), Case("wide", 2, (3, 1100), 1, 7, (3, 5), (1, 1), (1, 0)),
         Case("high", 2, (300, 9), 3, 1, (3, 3), (2, 1), (0, 1)), square("wide_padding", 2, 3, 3, 8, 2, 1, 4),
         square("two_channels", 2, 9, 2, 9, 3, 1, 1), square("four_channels", 2, 9, 4, 16, 3, 1, 1),
         square("64", 2, 32, 3, 64, 3, 1, 1), square("tail", 2, 18, 4, 68, 7, 2, 3),
         square("11x11", 1, 31, 3, 24, 11, 4, 2))
# Of wgrad: every number of channels, groups of outputs that end inside a block and beyond it, tiles of columns.
MORE = (*(square(f"{ic}_channels", 2, 9, ic, 16, 3, 1, 1) for ic in range(5, 17)), square("lenet_2", 3, 14, 6, 16, 5),
        square("31_outputs", 2, 9, 4, 31, 2), square("ends", 2, 19, 8, 13, 3, 2, 1), square("column", 2, 9, 3, 40, 1),
        square("many_taps", 1, 11, 4, 8, 19, 1, 9), Case("line", 2, (1, 64), 16, 35, (1, 3), (1, 1), (0, 1)),
        square("dilated_9", 2, 13, 9, 24, 3, 2, 2, 3))
SERVED = {c: [case for case in (*CASES, *MORE) if not c.rejection(case.desc)] for c in few.CANDIDATES}


def of(pass_name):
    return pytest.mark.parametrize("c", [c for c in few.CANDIDATES if c.pass_name == pass_name], ids=lambda c: c.name)


def cases_of(pass_name):
    return pytest.mark.parametrize(("c", "case"), [
        pytest.param(c, case, marks=[pytest.mark.long] if case.name == "many_taps" else [])
        for c in few.CANDIDATES if c.pass_name == pass_name for case in SERVED[c]], ids=lambda v: v.name)


def fprop(c, case, x, w, b=None, relu=False):
    y = stored(np.full(case.desc.y_shape, np.nan, np.float32), c.writes)
    bias = None if b is None else upload(b)
    c.prepare(case.desc)(stored(x, c.reads), upload(w), y, Epilogue.of(bias, "relu" if relu else None))
    return fetched(y)


def wgrad(c, case, x, g):
    dw = upload(np.full(case.desc.w_shape, np.nan, np.float32))
    c.prepare(case.desc)(stored(x, c.reads), stored(g, c.reads), dw)
    return fetched(dw)


def in_dtype(a, dtype):
    """Returns the numbers as the dtype has them."""
    return fetched(convert(upload(a), dtype)) if dtype != "float32" else a


@pytest.fixture(params=[None, 1], ids=["whole device", "one multiprocessor"])
def sm_count(request, monkeypatch):
    """On few multiprocessors a block has tile after tile."""
    if request.param:
        monkeypatch.setattr(context, "sm_count", request.param)


def test_all_cases_are_served_but_forward_in_16_bits():
    for c, served in SERVED.items():
        if c.pass_name == "wgrad":
            assert served == [*CASES, *MORE], c.name
        else:
            assert (set(CASES) <= set(served)) == (c.reads == "float32") and len(served) > 10


@cases_of("fprop")
def test_fprop_is_exact(case, c, sm_count):
    x, w, b = (ints(*shape, seed=seed, low=-1, high=2) for seed, shape in enumerate(
        (case.desc.x_shape, case.desc.w_shape, (case.oc,))))
    plain = conv_fprop_padded(x, w, **case.attrs).astype(np.float32)
    assert_equal_at(fprop(c, case, x, w), plain, name="y")
    assert_equal_at(fprop(c, case, x, w, b, True), np.maximum(plain + b, 0), name="y with bias and relu")


@cases_of("wgrad")
def test_wgrad_is_exact(case, c, sm_count):
    x, g = ints(*case.desc.x_shape, seed=0), ints(*case.desc.y_shape, seed=2)
    assert_equal_at(wgrad(c, case, x, g), conv_wgrad_padded(x, g, case.f, **case.attrs).astype(np.float32), name="dw")


@pytest.mark.classes
@of("fprop")
def test_filters_are_rounded_as_x_is(c):
    """A model in 16 bits multiplies 16 bits, whatever kernel it gets."""
    x, w = floats(*LENET.x_shape, seed=0), floats(*LENET.w_shape, seed=1)
    x, rounded = (in_dtype(a, c.reads) for a in (x, w))
    expected = conv_fprop_padded(x.astype(np.float64), rounded.astype(np.float64), **LENET.attrs).astype(np.float32)
    y = fprop(c, LENET, x, w)
    if c.reads == "float32":
        assert np.linalg.norm(y - expected) < 5e-7 * np.linalg.norm(expected)
    else:
        assert (y == in_dtype(expected, c.reads)).mean() > 0.98


@pytest.mark.long
@of("wgrad")
def test_sums_over_many_tiles_are_accurate(c, monkeypatch):
    monkeypatch.setattr(context, "sm_count", 1)
    case = square("many", 40, 32, 1, 6, 5)
    x, g = (in_dtype(np.abs(floats(*shape, seed=3)), c.reads) for shape in (case.x_shape, case.desc.y_shape))
    expected = conv_wgrad_padded(x.astype(np.float64), g.astype(np.float64), case.f, **case.attrs)
    assert np.abs(wgrad(c, case, x, g) / expected - 1).max() < 5e-7


@pytest.mark.parametrize("c", few.CANDIDATES, ids=lambda c: c.name)
def test_infinity_does_not_reach_taps_that_meet_padding(c):
    case = square("", 2, 6, 3, 8, 3, 1, 1)
    x, w, corner = np.ones(case.x_shape, np.float32), np.ones(case.w_shape, np.float32), np.ones(case.desc.y_shape)
    if c.pass_name == "fprop":
        w[:, 0, 0] = np.inf  # reads nothing where an output is in the first line or column
        y = fprop(c, case, x, w)
        assert np.isposinf(y[:, 1:, 1:]).all() and np.isfinite(y[:, 0]).all() and np.isfinite(y[:, :, 0]).all()
        return
    corner[:, 0, 0] = np.inf
    dw = wgrad(c, case, x, corner.astype(np.float32))
    assert np.isposinf(dw[:, 1:, 1:]).all() and np.isfinite(dw[:, 0]).all() and np.isfinite(dw[:, :, 0]).all()
    x[:, 0, 0] = np.inf
    dw = wgrad(c, case, x, np.ones_like(corner, np.float32))
    assert np.isposinf(dw[:, :2, :2]).all() and np.isfinite(dw[:, 2]).all() and np.isfinite(dw[:, :, 2]).all()


@pytest.mark.parametrize(("case", "why"), [
    (square("", 2, 8, 3, 6, 3, groups=3), "in 3 groups"), (square("", 2, 8, 17, 8, 3), "17 input channels"),
    (square("", 1, 60, 3, 6, 45), "45x45 taps of 3 channels do not fit into shared memory"),
    (Case("", 1, (9000, 9000), 1, 1, (2, 2), (1, 1), (0, 0), (8000, 8000)), "do not fit into shared memory")])
def test_it_says_why_it_cannot(case, why):
    for c in few.CANDIDATES:
        assert why in (c.rejection(case.desc) or ""), c.name


@pytest.mark.parametrize("c", [c for c in few.CANDIDATES if c.narrow], ids=lambda c: c.name)
def test_more_outputs_are_left_to_others(c):
    assert c.rejection(square("", 2, 8, 2, 8, 3).desc) == "2 to 8 channels, 1 or 3 to at most 8 are served"
    assert c.rejection(square("", 2, 8, 3, 9, 3).desc) == "3 to 9 channels, 1 or 3 to at most 8 are served"


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fma"])
@pytest.mark.parametrize("pass_name", ["fprop", "wgrad"])
def test_lenet_takes_it(pass_name, precision):
    desc = square("", 512, 32, 3, 6, 5).desc
    assert plan(pass_name, desc, precision).chosen.name.startswith(f"few_{pass_name}")
