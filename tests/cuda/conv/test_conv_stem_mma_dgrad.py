"""dgrad of the first layer on tensor cores, in every mode: bitwise on integers; specials; accuracy; determinism."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv.first_layer.mma import stem_mma_dgrad
from alpha.cuda.conv.first_layer.mma.stem_mma_dgrad import bands_of
from alpha.cuda.conv.planner import rank, serves
from alpha.cuda.runtime.context import context
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_dgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.conv.test_conv_stem_mma import LIMITS, each_mode
from tests.cuda.conv.test_conv_wgmma import fetched, stored

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

CASES = (
    square("first", 3, 32, 3, 64, 3, 1, 1), square("31", 2, 31, 3, 64, 3, 1, 1), square("33", 2, 33, 3, 16, 3, 1, 1),
    square("5", 5, 5, 3, 24, 3, 1, 1), square("point", 2, 1, 3, 8, 1), square("map1", 2, 1, 3, 8, 3, 1, 1),
    square("1x1", 2, 9, 4, 40, 1), square("2x2", 2, 8, 3, 16, 2, 1, 1), square("4x4", 2, 12, 4, 16, 4, 1, 2),
    square("5x5", 2, 36, 3, 48, 5, 1, 2), square("many_images", 70, 4, 3, 8, 3, 1, 1),
    square("one_channel", 2, 12, 1, 32, 5, 1, 2), square("narrow_channel", 2, 12, 1, 32, 3, 1, 1),
    square("two_channels", 3, 34, 2, 56, 3, 1, 1), square("four_channels", 3, 13, 4, 64, 3, 1, 1),
    square("many_rgb", 70, 5, 3, 64, 3, 1, 1), square("rgb_65", 1, 65, 3, 64, 3),
    square("rgb_3", 2, 3, 3, 64, 3, 1, 4), square("full", 2, 34, 3, 16, 3), square("full_rgb", 2, 34, 3, 64, 3),
    square("full_5x5", 2, 36, 3, 16, 5), square("wide_padding", 2, 30, 3, 16, 3, 1, 5),
    square("all_padding", 1, 2, 3, 16, 3, 1, 40), square("wide_padding_1x1", 2, 3, 3, 16, 1, 1, 4),
    Case("40x37", 2, (40, 37), 3, 64, (3, 3), (1, 1), (1, 1)), Case("64", 2, (5, 64), 3, 32, (3, 3), (1, 1), (1, 1)),
    Case("row", 2, (1, 300), 3, 16, (1, 3), (1, 1), (0, 1)), Case("column", 2, (300, 1), 1, 16, (3, 1), (1, 1), (1, 0)),
    Case("5x3", 3, (14, 64), 3, 24, (5, 3), (1, 1), (2, 1)), Case("3x5", 2, (9, 65), 3, 24, (3, 5), (1, 1), (0, 3)),
    Case("2x3", 2, (11, 33), 3, 24, (2, 3), (1, 1), (1, 0)), Case("1x3", 2, (11, 32), 3, 24, (1, 3), (1, 1), (3, 1)),
    Case("4x1", 2, (11, 32), 4, 24, (4, 1), (1, 1), (3, 0)), Case("3x2", 2, (7, 66), 2, 8, (3, 2), (1, 1), (2, 0)))
FIRST = square("first", 512, 32, 3, 64, 3, 1, 1)
each = each_mode(stem_mma_dgrad.CANDIDATES)


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
    assert not c.rejection(case.desc) or (c.vector == 8 and case.oc % 8)
    g, w = small(case, 8 if c.reads == "bfloat16" else 16)
    expected = right(case, g, w)
    assert np.abs(expected).max() <= (250 if c.reads == "bfloat16" else 2000)
    assert_equal_at(dgrad(c, case, g, w), expected, name="dx")


@each
def test_blocks_of_several_bands_are_exact(c, monkeypatch):
    """On few multiprocessors a warp has band after band, downwards and upwards."""
    monkeypatch.setattr(context, "sm_count", 1)
    for case in (square("several", 40, 11, 3, 64, 3, 1, 1), square("several_5x5", 5, 38, 3, 16, 5, 1, 2),
                 square("several_2x2", 20, 34, 4, 16, 2)):
        g, w = small(case, 8)
        assert_equal_at(dgrad(c, case, g, w), right(case, g, w), name="dx")


@each
@pytest.mark.parametrize("height", [1, 2, 3, 5])
def test_bands_of_any_height_are_exact(c, height, monkeypatch):
    monkeypatch.setattr(stem_mma_dgrad, "bands_of", lambda desc, warps: bands_of(desc, warps)._replace(
        height=height, per_height=-(-desc.h.i // height)))
    for case in (square("cut", 2, 11, 3, 16, 3, 1, 1), square("cut_rgb", 2, 10, 3, 64, 3, 1, 1),
                 square("cut_2x2", 2, 9, 3, 16, 2, 1, 1),
                 square("cut_5x5", 2, 13, 2, 16, 5, 1, 1), square("cut_1x1", 2, 7, 3, 16, 1, 1, 1)):
        g, w = small(case, 8)
        assert_equal_at(dgrad(c, case, g, w), right(case, g, w), name="dx")


@each
def test_filters_of_16_bits_are_converted(c):
    case = square("filters", 2, 6, 3, 16, 3, 1, 1)
    g, w = small(case, 8)
    for dtype in ("bfloat16", "float16"):
        assert_equal_at(dgrad(c, case, g, w, dtype), right(case, g, w), name=f"dx of {dtype} filters")


@each
def test_digits_beyond_tf32_count_in_fp32_alone(c):
    """Integers of 20 bits by small ones: exact where an operand's two halves are multiplied, else within a rounding."""
    if c.reads != "float32":
        return
    long, short = {"low": -(1 << 18), "high": 1 << 18}, {"low": -1, "high": 2}
    for f in (3, 5):
        case = square("digits", 1, 6, 3, 64, f, 1, 1)
        for of_g, of_w in ((long, short), (short, long)):
            g, w = ints(*case.desc.y_shape, seed=0, **of_g), ints(*case.w_shape, seed=1, **of_w)
            assert np.array_equal(dgrad(c, case, g, w), right(case, g, w)) == (c.mode.precision == "fp32")


@each
@pytest.mark.parametrize("f", [3, 5])
def test_dgrad_is_as_accurate_as_promised(c, f):
    case = square("", 3, 32, 3, 64, f, 1, 1)
    g, w = (fetched(stored(floats(*shape, seed=shape[-1]), c.reads)) for shape in (case.desc.y_shape, case.w_shape))
    expected = conv_dgrad_padded(g.astype(np.float64), w.astype(np.float64), case.hw, **case.attrs)
    error = np.linalg.norm(dgrad(c, case, g, w) - expected) / np.linalg.norm(expected)
    assert 0 < error < LIMITS[c.mode.precision]


@each
@pytest.mark.parametrize(("f", "oc"), [(3, 64), (3, 24), (5, 24)])
def test_special_values_stay_where_they_belong(c, f, oc):
    """Infinities come out as such, padding times infinity is no product, and neither reaches what does not read it."""
    case = square("special", 2, 24, 3, oc, f, 1, f // 2)
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
    for case in (square("again", 5, 17, 3, 64, 3, 1, 1), square("again_24", 5, 17, 3, 24, 3, 1, 1)):
        g, w = floats(*case.desc.y_shape, seed=0), floats(*case.w_shape, seed=1)
        results = [dgrad(c, case, g, w) for _ in range(2)]
        assert np.array_equal(*results) and np.isfinite(results[0]).all()


@pytest.mark.parametrize(("case", "fragment"), [
    (square("wide", 2, 8, 5, 8, 3), "5 input channels in 1 groups"),
    (square("grouped", 2, 8, 4, 8, 3, groups=2), "in 2 groups"),
    (square("strided", 2, 8, 3, 8, 3, 2), "strides and dilations of 1"),
    (square("dilated", 2, 8, 3, 8, 3, 1, 1, 2), "strides and dilations of 1"),
    (square("long", 2, 9, 1, 8, 6), "6x6x1 filters"), (square("broad", 2, 9, 4, 8, 5), "5x5x4 filters"),
    (square("odd", 2, 9, 3, 10, 3), "10 output channels"), (square("deep", 2, 9, 3, 72, 3), "72 output channels"),
], ids=lambda v: getattr(v, "name", v))
def test_what_does_not_fit_says_why(case, fragment):
    for c in stem_mma_dgrad.CANDIDATES:
        assert fragment in (c.rejection(case.desc) or "")
        assert [p for p in ("fma", "fp32", "tf32", "bf16", "fp16") if serves(c, p)] == [c.mode.precision]


def test_the_first_layer_is_planned_so(as_h100):
    for c in stem_mma_dgrad.CANDIDATES:
        assert rank("dgrad", FIRST.desc, c.mode.precision)[0].candidate is c
        assert rank("dgrad", square("", 512, 32, 3, 64, 5, 1, 2).desc, c.mode.precision)[0].candidate is c


def test_all_warps_have_one_band():
    """Of the first layer, on an H100."""
    for warps, bands in ((132 * 12, 3), (132 * 8, 2)):
        assert bands_of(FIRST.desc, warps) == (-(-32 // bands), bands, 1, 0)
