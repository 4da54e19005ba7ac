"""The first layer on tensor cores, in every mode: bitwise on integers; specials; accuracy; determinism."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv.first_layer.mma import stem_mma
from alpha.cuda.conv.planner import rank, serves
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, empty, upload
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, small_cases, square
from tests.conv_oracle import conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.conv.checks import with_long
from tests.cuda.conv.test_conv_wgmma import fetched, stored
from tests.cuda.process import CHECKED

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

# Beside the catalogue: several tiles of an image, tiles that end beyond it, tails of channels, short and long filters.
MORE = (square("two_tiles", 2, 20, 3, 64, 3, 1, 1), square("two_column_tiles", 1, 9, 3, 130, 3, 1, 1),
        square("7x7", 2, 18, 3, 64, 7, 2, 3), square("11x11", 1, 31, 3, 24, 11, 4, 2),
        square("5x5", 2, 9, 4, 68, 5, 1, 2), square("one_channel", 2, 12, 1, 33, 5, 1, 2),
        square("two_channels", 3, 8, 2, 1, 3, 1, 1), square("dilated", 2, 13, 2, 24, 3, 2, 2, 3),
        square("many_images", 70, 3, 3, 8, 3, 1, 1), square("wide_padding", 2, 3, 3, 8, 2, 1, 4),
        Case("row", 2, (1, 300), 3, 16, (1, 3), (1, 1), (0, 1)),
        Case("column", 2, (300, 1), 1, 12, (3, 1), (1, 1), (1, 0)),
        Case("uneven", 3, (14, 11), 3, 20, (3, 5), (2, 1), (0, 2), (1, 2)))
CASES = (*(case for case in small_cases() if case.ic <= 4 and case.groups == 1), *MORE)
CANDIDATES = stem_mma.CANDIDATES
LIMITS = {"fp32": 5e-7, "tf32": 6e-4, "bf16": 5e-3, "fp16": 6e-4}  # docs/explanation/numerics.md; fp32 does better


def of(pass_name: str):
    return [c for c in CANDIDATES if c.pass_name == pass_name]


def each(pass_name: str):
    """Where every access is checked, the modes whose accesses differ."""
    found = [c for c in of(pass_name) if not CHECKED or c.mode.name in ("fp32", "bf16")]
    return pytest.mark.parametrize("c", found, ids=lambda c: c.name)


def fprop(c, case: Case, x, w, b=None, relu=False, w_dtype: str = "float32") -> np.ndarray:
    y = stored(np.full(case.desc.y_shape, np.nan, np.float32), c.writes)
    bias = None if b is None else upload(b)
    c.prepare(case.desc)(stored(x, c.reads), stored(w, w_dtype), y, Epilogue.of(bias, "relu" if relu else None))
    return fetched(y)


@each("fprop")
@pytest.mark.parametrize("case", with_long(CASES, "many_images"), ids=lambda case: case.name)
def test_fprop_is_exact(case, c):
    desc, low, high = case.desc, *((-1, 2) if c.reads == "bfloat16" else (-3, 4))  # so that 8 bits hold the result
    assert not c.rejection(desc)
    x, w = ints(*desc.x_shape, seed=0, low=low, high=high), ints(*desc.w_shape, seed=1, low=low, high=high)
    if c.reads == "bfloat16" and case.name == "11x11":
        w *= np.random.default_rng(2).integers(0, 2, w.shape)
    b, plain = ints(desc.oc, seed=3), conv_fprop_padded(x, w, **case.attrs).astype(np.float32)
    if c.reads == "bfloat16":
        assert np.abs(plain).max() <= 250
    assert_equal_at(fprop(c, case, x, w), plain, name="y")
    assert_equal_at(fprop(c, case, x, w, b, True), np.maximum(plain + b, 0), name="y with bias and relu")


@each("fprop")
def test_blocks_of_several_tiles_are_exact(c, monkeypatch):
    """On few multiprocessors a block has tile after tile, and copies what the next one reads."""
    monkeypatch.setattr(context, "sm_count", 1)
    for case in (square("several", 7, 19, 3, 64, 3, 1, 1), square("several_7x7", 3, 26, 3, 20, 7, 2, 3)):
        x, w = ints(*case.x_shape, seed=4, low=-1, high=2), ints(*case.w_shape, seed=5, low=-1, high=2)
        assert_equal_at(fprop(c, case, x, w), conv_fprop_padded(x, w, **case.attrs).astype(np.float32), name="y")


@each("fprop")
def test_filters_of_16_bits_are_converted(c):
    case = square("filters", 2, 6, 3, 16, 3, 1, 1)
    x, w = ints(*case.x_shape, seed=0, low=-2, high=3), ints(*case.w_shape, seed=1, low=-2, high=3)
    plain = conv_fprop_padded(x, w, **case.attrs).astype(np.float32)
    for dtype in ("bfloat16", "float16"):
        assert_equal_at(fprop(c, case, x, w, w_dtype=dtype), plain, name=f"y of {dtype} filters")


@each("fprop")
def test_digits_beyond_tf32_count_in_fp32_alone(c):
    """Integers of 20 bits by small ones: exact where an operand's two halves are multiplied, else within a rounding."""
    case = square("digits", 1, 6, 3, 16, 3, 1, 1)
    if c.reads != "float32":
        return
    long, short = {"low": -(1 << 19), "high": 1 << 19}, {"low": -1, "high": 2}
    for of_x, of_w in ((long, short), (short, long)):
        x, w = ints(*case.x_shape, seed=0, **of_x), ints(*case.w_shape, seed=1, **of_w)
        expected, y = conv_fprop_padded(x.astype(np.float64), w.astype(np.float64), **case.attrs), fprop(c, case, x, w)
        assert np.array_equal(y, expected) == (c.mode.name == "fp32")


@each("fprop")
@pytest.mark.parametrize("case", [square("3x3", 4, 12, 3, 64, 3, 1, 1), square("11x11", 2, 31, 3, 16, 11, 4, 2)],
                         ids=lambda case: case.name)
def test_fprop_is_as_accurate_as_promised(case, c):
    x, w = floats(*case.x_shape, seed=0), floats(*case.w_shape, seed=1)
    x, w = (fetched(stored(a, c.reads)) for a in (x, w))
    expected = conv_fprop_padded(x.astype(np.float64), w.astype(np.float64), **case.attrs)
    error = np.linalg.norm(fprop(c, case, x, w) - expected) / np.linalg.norm(expected)
    assert 0 < error < LIMITS[c.mode.name]


@each("fprop")
@pytest.mark.parametrize("f", [3, 7])
def test_special_values_stay_where_they_belong(c, f):
    """Infinities come out as such, NaN passes the relu, padding times infinity is no product, and neither reaches
    outputs that do not read it."""
    case = square("special", 2, 24, 3, 24, f, 1, f // 2)
    x, w = ints(*case.x_shape, seed=0, low=1, high=3), ints(*case.w_shape, seed=1, low=-1, high=0)
    x[0, 0, 0, 0], x[0, 12, 3, 1], x[1, 23, 23, 2], w[3, 0, 0, 0] = np.inf, -np.inf, np.nan, np.inf
    if c.reads == "float32":
        x[1, 2, 2, 0], w[5] = 3.4e38, 2.0 ** -10  # its upper half would be infinite
    with np.errstate(invalid="ignore", over="ignore"):
        expected = direct_fprop(case, x, w)
    assert all(test(expected).any() for test in (np.isposinf, np.isneginf, np.isnan)) and np.isfinite(expected).any()
    limit = LIMITS[c.mode.name]
    assert_equal_at(fprop(c, case, x, w), expected, rtol=limit, atol=limit, name="y")
    assert_equal_at(fprop(c, case, x, w, None, True), np.where(expected < 0, 0, expected), rtol=limit, atol=limit,
                    name="y with relu")


def direct_fprop(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns y in float32, of products with elements that are there alone."""
    desc, y = case.desc, np.zeros(case.desc.y_shape, np.float64)
    x, w = x.astype(np.float64), w.astype(np.float64)
    for fh, out_h, in_h in desc.h.runs:
        for fw, out_w, in_w in desc.w.runs:
            for ic in range(desc.ic):  # NumPy's matrix product might multiply in blocks, with zeros
                y[:, out_h, out_w] += x[:, in_h, in_w, ic, None] * w[:, fh, fw, ic]
    return y.astype(np.float32)


def wgrad(c, case: Case, x, g) -> np.ndarray:
    dw = upload(np.full(case.w_shape, np.nan, np.float32))
    c.prepare(case.desc)(stored(x, c.reads), stored(g, c.reads), dw)
    return fetched(dw)


@each("wgrad")
@pytest.mark.parametrize("case", with_long(CASES, "many_images"), ids=lambda case: case.name)
def test_wgrad_is_exact(case, c):
    desc = case.desc
    if desc.oc % 4:
        assert "no multiple of 4" in (c.rejection(desc) or "")
        return
    assert not c.rejection(desc)
    x, g = ints(*desc.x_shape, seed=6), ints(*desc.y_shape, seed=7)
    assert_equal_at(wgrad(c, case, x, g), conv_wgrad_padded(x, g, case.f, **case.attrs).astype(np.float32), name="dw")


@each("wgrad")
def test_wgrad_of_blocks_of_several_tiles_is_exact(c, monkeypatch):
    monkeypatch.setattr(context, "sm_count", 1)
    for case in (square("several", 7, 19, 3, 64, 3, 1, 1), square("several_7x7", 3, 26, 3, 20, 7, 2, 3)):
        x, g = ints(*case.x_shape, seed=8), ints(*case.desc.y_shape, seed=9)
        expected = conv_wgrad_padded(x, g, case.f, **case.attrs).astype(np.float32)
        assert_equal_at(wgrad(c, case, x, g), expected, name="dw")


@each("wgrad")
def test_wgrad_is_as_accurate_as_promised(c):
    """Operands as they are stored: the sums of 16 bits are float32."""
    case = square("", 12, 24, 3, 16, 3, 1, 1)
    x, g = (fetched(stored(floats(*shape, seed=shape[-1]), c.reads)) for shape in (case.x_shape, case.desc.y_shape))
    expected = conv_wgrad_padded(x.astype(np.float64), g.astype(np.float64), case.f, **case.attrs)
    error = np.linalg.norm(wgrad(c, case, x, g) - expected) / np.linalg.norm(expected)
    assert 0 < error < (LIMITS["tf32"] if c.mode.name == "tf32" else 5e-7)


@each("wgrad")
def test_special_values_of_wgrad_stay_where_they_belong(c):
    """An infinity at a border meets no padding, and one behind an image's last tile nothing at all."""
    case = square("special", 2, 20, 3, 16, 3, 1, 1)
    x, g = ints(*case.x_shape, seed=0, low=1, high=3), ints(*case.desc.y_shape, seed=1, low=1, high=3)
    x[0, 0, 0, 0], x[1, 19, 19, 1] = np.inf, -np.inf
    g[0, 0, 7, 2], g[1, 19, 0, 5], g[1, 3, 3, 9] = np.inf, np.nan, -np.inf
    expected = np.zeros(case.w_shape)
    for fh, out_h, in_h in case.desc.h.runs:
        for fw, out_w, in_w in case.desc.w.runs:
            for ic in range(case.ic):
                with np.errstate(invalid="ignore"):
                    expected[:, fh, fw, ic] = (x[:, in_h, in_w, ic, None] * g[:, out_h, out_w]).sum((0, 1, 2))
    assert all(test(expected).any() for test in (np.isposinf, np.isneginf, np.isnan, np.isfinite))
    assert_equal_at(wgrad(c, case, x, g), expected.astype(np.float32), name="dw")


@pytest.mark.parametrize("c", CANDIDATES, ids=lambda c: f"{c.pass_name} {c.name}")
def test_the_same_bits_every_time(c):
    case = square("again", 5, 17, 3, 20, 3, 1, 1)
    other = (case.w_shape, "float32") if c.pass_name == "fprop" else (case.desc.y_shape, c.reads)
    a, b = stored(floats(*case.x_shape, seed=0), c.reads), stored(floats(*other[0], seed=1), other[1])
    results: list[np.ndarray] = []
    for _ in range(2):
        out: Array = empty(case.desc.y_shape if c.pass_name == "fprop" else case.w_shape, c.writes)
        c.prepare(case.desc)(a, b, out, *([Epilogue.of(None, "relu")] if c.pass_name == "fprop" else []))
        results.append(fetched(out))
    assert np.array_equal(*results) and np.isfinite(results[0]).all()


def test_a_mode_has_its_own_products():
    for c in CANDIDATES:
        served = [precision for precision in ("fma", "fp32", "tf32", "bf16", "fp16") if serves(c, precision)]
        assert served == [c.mode.name]


@pytest.mark.long
@pytest.mark.parametrize(("case", "fragment"), [
    (square("wide", 2, 8, 5, 8, 3), "5 input channels in 1 groups"),
    (square("grouped", 2, 8, 4, 8, 3, groups=2), "in 2 groups"),
    (square("far", 1, 200, 4, 8, 3, dilation=90), "does not fit into shared memory"),
    (Case("tall", 1, (40000, 1), 1, 8, (3, 1)), "39998 lines"),
    (Case("long", 2, (60, 60), 4, 8, (20, 20)), ""),
], ids=lambda v: getattr(v, "name", v))
def test_what_does_not_fit_says_why(case, fragment):
    for c in CANDIDATES:
        if fragment:
            assert fragment in (c.rejection(case.desc) or "")
    assert fragment or all("20x20x4 do not fit" in (c.rejection(case.desc) or "") for c in of("fprop"))


def test_the_first_layer_is_planned_so(as_h100):
    """Their estimate is below that of padded channels, and below that of the FMA units."""
    desc = square("first", 512, 32, 3, 64, 3, 1, 1).desc
    for pass_name in {c.pass_name for c in CANDIDATES}:
        for mode in stem_mma.MODES:
            found = rank(pass_name, desc, mode.name)[0].candidate.name
            assert found.startswith("conv_stem_mma"), found


@pytest.mark.parametrize("n", [128, 512])
def test_the_gradient_of_its_input_is_left_to_other_kernels(as_h100, n):
    """To padded channels on wgmma."""
    desc = square("first", n, 32, 3, 64, 3, 1, 1).desc
    for mode in stem_mma.MODES:
        found = rank("dgrad", desc, mode.name)[0].candidate.name
        assert found.startswith("conv_wgmma") and found.endswith(" padded"), found
