"""dgrad of the first layer on tensor cores, in every mode: bitwise on integers; specials; accuracy; determinism."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv.first_layer.mma import stem_mma
from alpha.cuda.conv.first_layer.mma.stem_mma import bands_of
from alpha.cuda.conv.planner import rank, serves
from alpha.cuda.runtime.context import context
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_dgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.conv.test_conv_stem_mma import LIMITS, each_mode
from tests.cuda.conv.test_conv_wgmma import fetched, stored

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

def rgb(name: str, n: int, height: int, width: int = 0, padding: int | tuple[int, int] = 1) -> Case:
    """Returns a first layer of 64 filters of 3x3x3."""
    both = padding if isinstance(padding, tuple) else (padding, padding)
    return Case(name, n, (height, width or height), 3, 64, (3, 3), (1, 1), both)


CASES = (
    rgb("first", 3, 32), rgb("31", 2, 31), rgb("33", 2, 33), rgb("5", 5, 5), rgb("map1", 2, 1), rgb("many", 70, 5),
    rgb("65", 1, 65, padding=0), rgb("3", 2, 3, padding=4), rgb("full", 2, 34, padding=0),
    rgb("wide_padding", 2, 30, padding=5), rgb("all_padding", 1, 2, padding=40), rgb("40x37", 2, 40, 37),
    rgb("64", 2, 5, 64), rgb("row", 2, 1, 300), rgb("column", 2, 300, 1), rgb("66", 2, 7, 66, (2, 0)),
    rgb("14x64", 3, 14, 64, (2, 1)), rgb("9x65", 2, 9, 65, (0, 3)), rgb("11x33", 2, 11, 33, (1, 0)))
FIRST = rgb("first", 512, 32)
CANDIDATES = tuple(c for c in stem_mma.CANDIDATES if c.pass_name == "dgrad")
each = each_mode(CANDIDATES)


def dgrad_by_taps(desc, g, w):
    """Returns dx in float64, without a product of what does not exist: infinities meet no padding."""
    dx = np.zeros(desc.x_shape)
    with np.errstate(invalid="ignore"):
        for fh, out_h, in_h in desc.h.runs:
            for fw, out_w, in_w in desc.w.runs:
                for oc in range(desc.oc):
                    dx[:, in_h, in_w] += g[:, out_h, out_w, oc, None].astype(np.float64) * w[oc, fh, fw]
    return dx


def dgrad(c, case: Case, g, w, w_dtype: str = "float32") -> np.ndarray:
    dx = stored(np.full(case.x_shape, np.nan, np.float32), c.writes)
    c.prepare(case.desc)(stored(g, c.reads), stored(w, w_dtype), dx)
    return fetched(dx)


def right(case: Case, g, w) -> np.ndarray:
    return conv_dgrad_padded(g, w, case.hw, **case.attrs).astype(np.float32)


def small(case: Case, bits: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Returns g and w whose products are integers that bfloat16 holds, if `bits` is 8."""
    low, high = (-1, 2) if bits == 8 else (-3, 4)
    g, w = ints(*case.desc.y_shape, seed=0, low=low, high=high), ints(*case.w_shape, seed=1, low=low, high=high)
    return g, w * np.random.default_rng(2).integers(0, 2, w.shape) if bits == 8 else w


@each
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_dgrad_is_exact(case, c):
    assert not c.rejection(case.desc)
    g, w = small(case, 8 if c.reads == "bfloat16" else 16)
    expected = right(case, g, w)
    assert np.abs(expected).max() <= (250 if c.reads == "bfloat16" else 2000)
    assert_equal_at(dgrad(c, case, g, w), expected, name="dx")


@each
def test_blocks_of_several_bands_are_exact(c, monkeypatch):
    """On few multiprocessors a warp has band after band, downwards and upwards."""
    monkeypatch.setattr(context, "sm_count", 1)
    for case in (rgb("several", 40, 11), rgb("several_38", 5, 38, padding=2), rgb("several_34", 20, 34, padding=0)):
        g, w = small(case, 8)
        assert_equal_at(dgrad(c, case, g, w), right(case, g, w), name="dx")


@each
@pytest.mark.parametrize("height", [1, 2, 3, 5])
def test_bands_of_any_height_are_exact(c, height, monkeypatch):
    monkeypatch.setattr(stem_mma, "bands_of", lambda desc, warps: bands_of(desc, warps)._replace(
        height=height, per_height=-(-desc.h.i // height)))
    for case in (rgb("cut", 2, 11), rgb("cut_10", 2, 10), rgb("cut_bare", 2, 13, padding=0)):
        g, w = small(case, 8)
        assert_equal_at(dgrad(c, case, g, w), right(case, g, w), name="dx")


@each
def test_filters_of_16_bits_are_converted(c):
    case = rgb("filters", 2, 6)
    g, w = small(case, 8)
    for dtype in ("bfloat16", "float16"):
        assert_equal_at(dgrad(c, case, g, w, dtype), right(case, g, w), name=f"dx of {dtype} filters")


@each
def test_digits_beyond_tf32_count_in_fp32_alone(c):
    """Integers of 20 bits by small ones: exact where an operand's two halves are multiplied, else within a rounding."""
    if c.reads != "float32":
        return
    long, short = {"low": -(1 << 18), "high": 1 << 18}, {"low": -1, "high": 2}
    case = rgb("digits", 1, 6)
    for of_g, of_w in ((long, short), (short, long)):
        g, w = ints(*case.desc.y_shape, seed=0, **of_g), ints(*case.w_shape, seed=1, **of_w)
        assert np.array_equal(dgrad(c, case, g, w), right(case, g, w)) == (c.mode.precision == "fp32")


@each
def test_dgrad_is_as_accurate_as_promised(c):
    case = rgb("", 3, 32)
    g, w = (fetched(stored(floats(*shape, seed=shape[-1]), c.reads)) for shape in (case.desc.y_shape, case.w_shape))
    expected = conv_dgrad_padded(g.astype(np.float64), w.astype(np.float64), case.hw, **case.attrs)
    error = np.linalg.norm(dgrad(c, case, g, w) - expected) / np.linalg.norm(expected)
    assert 0 < error < LIMITS[c.mode.precision]


@each
def test_special_values_stay_where_they_belong(c):
    """Infinities come out as such, padding times infinity is no product, and neither reaches what does not read it."""
    case = rgb("special", 2, 24)
    g, w = ints(*case.desc.y_shape, seed=0, low=1, high=3), ints(*case.w_shape, seed=1, low=-2, high=0)
    g[0, 0, 0, 0], g[0, 12, 3, 1], g[1, 23, 23, 2] = np.inf, -np.inf, np.nan
    w[3, 0, 0, 0] = np.inf  # of a line that the first one of dx has not got
    g[0, 5, 5, 3] = 0
    if c.reads == "float32":
        g[1, 2, 2, 5], w[5] = 3.4e38, 2.0 ** -10  # its upper half would be infinite
    expected = dgrad_by_taps(case.desc, g, w)
    assert all(test(expected).any() for test in (np.isposinf, np.isneginf, np.isnan, np.isfinite))
    limit = LIMITS[c.mode.precision]
    assert_equal_at(dgrad(c, case, g, w), expected.astype(np.float32), rtol=limit, atol=limit, name="dx")


@each
def test_the_same_bits_every_time(c):
    case = rgb("again", 5, 17)
    g, w = floats(*case.desc.y_shape, seed=0), floats(*case.w_shape, seed=1)
    results = [dgrad(c, case, g, w) for _ in range(2)]
    assert np.array_equal(*results) and np.isfinite(results[0]).all()


@pytest.mark.parametrize(("case", "fragment"), [
    (square("wide", 2, 8, 5, 8, 3), "5 input channels in 1 groups"),
    (square("grouped", 2, 8, 4, 8, 3, groups=2), "in 2 groups"),
    (square("strided", 2, 8, 3, 8, 3, 2), "strides and dilations of 1"),
    (square("dilated", 2, 8, 3, 8, 3, 1, 1, 2), "strides and dilations of 1"),
    (square("long", 2, 9, 1, 64, 6), "64 filters of 6x6x1"), (square("broad", 2, 9, 4, 64, 3), "64 filters of 3x3x4"),
    (square("deep", 2, 9, 3, 72, 3), "72 filters of 3x3x3"),
], ids=lambda v: getattr(v, "name", v))
def test_what_does_not_fit_says_why(case, fragment):
    for c in CANDIDATES:
        assert fragment in (c.rejection(case.desc) or "")
        assert [p for p in ("fma", "fp32", "tf32", "bf16", "fp16") if serves(c, p)] == [c.mode.precision]


def test_the_first_layer_is_planned_so(as_h100):
    for c in CANDIDATES:
        assert rank("dgrad", FIRST.desc, c.mode.precision)[0].candidate is c


def test_all_warps_have_one_band():
    """Of the first layer, on an H100."""
    for warps, bands in ((132 * 12, 3), (132 * 8, 2)):
        assert bands_of(FIRST.desc, warps) == (-(-32 // bands), bands, 1, 0)
