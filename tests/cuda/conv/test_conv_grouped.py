"""Convolutions of narrow groups on tensor cores, in every mode: bitwise on integers; specials; accuracy; the choice."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv import grouped
from alpha.cuda.conv.grouped import dgrad_lines, pieces_of
from alpha.cuda.conv.planner import rank, serves
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import upload
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv_desc import Axis
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.conv.test_conv_stem_mma import LIMITS
from tests.cuda.conv.test_conv_wgmma import fetched, stored
from tests.cuda.process import CHECKED

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

CASES = (square("groups of 4", 2, 9, 32, 32, 3, 1, 1, 1, 8), square("stride 2", 3, 10, 32, 32, 3, 2, 1, 1, 4),
         square("groups of 2", 2, 7, 64, 64, 3, 1, 1, 1, 32), square("two filters", 3, 6, 16, 32, 3, 1, 1, 1, 16),
         square("two channel tiles", 2, 12, 128, 128, 3, 1, 1, 1, 32),
         square("part of a channel tile", 2, 6, 80, 80, 3, 1, 1, 1, 10),
         square("groups of 24", 3, 4, 96, 96, 3, 1, 1, 1, 4), square("groups of 32", 17, 4, 64, 64, 3, 1, 1, 1, 2),
         square("groups of 12", 2, 5, 48, 48, 3, 2, 1, 1, 4), square("8 to 16", 5, 6, 32, 64, 3, 2, 1, 1, 4),
         square("16 to 8", 5, 6, 64, 32, 3, 1, 1, 1, 4), square("5x5, stride 3", 2, 9, 32, 16, 5, 3, 2, 2, 2),
         square("1x1", 4, 5, 64, 64, 1, 1, 0, 1, 4), square("stride without taps", 4, 5, 64, 64, 1, 3, 0, 1, 4),
         square("several tiles", 2, 33, 32, 32, 3, 1, 1, 1, 8), square("wide padding", 2, 3, 32, 32, 2, 1, 4, 1, 4),
         Case("uneven", 3, (14, 11), 32, 32, (3, 5), (2, 1), (0, 2), (1, 2), 8),
         Case("row", 2, (1, 300), 16, 16, (1, 3), (1, 1), (0, 1), (1, 1), 4))
CANDIDATES = grouped.CANDIDATES


def each(*passes: str):
    """Where every access is checked, the modes whose accesses differ."""
    found = [c for c in CANDIDATES if c.pass_name in passes and (not CHECKED or c.mode.name in ("fp32", "bf16"))]
    return pytest.mark.parametrize("c", found, ids=lambda c: c.name)


def computed(c, case: Case, a, b, bias=None, relu=False) -> np.ndarray:
    """Returns the pass of a candidate: of (x, w), (g, w) or (x, g)."""
    shape = {"fprop": case.desc.y_shape, "dgrad": case.desc.x_shape, "wgrad": case.desc.w_shape}[c.pass_name]
    out = stored(np.full(shape, np.nan, np.float32), c.writes)
    epilogue = Epilogue.of(None if bias is None else upload(bias), "relu" if relu else None)
    more = () if c.pass_name == "wgrad" else (epilogue,)
    c.prepare(case.desc)(stored(a, c.reads), stored(b, c.reads if c.pass_name == "wgrad" else "float32"), out, *more)
    return fetched(out)


def operands(c, case: Case, make, **options) -> tuple[np.ndarray, np.ndarray]:
    first = case.desc.y_shape if c.pass_name == "dgrad" else case.desc.x_shape
    second = case.desc.y_shape if c.pass_name == "wgrad" else case.desc.w_shape
    return make(*first, seed=0, **options), make(*second, seed=1, **options)


def expected_of(c, case: Case, a, b) -> np.ndarray:
    if c.pass_name == "fprop":
        return conv_fprop_padded(a, b, **case.attrs)
    if c.pass_name == "dgrad":
        return conv_dgrad_padded(a, b, case.hw, **case.attrs)
    return conv_wgrad_padded(a, b, case.f, **case.attrs)


@each("fprop", "dgrad", "wgrad")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_pass_is_exact_on_integers(case, c):
    assert not c.rejection(case.desc)
    a, b = operands(c, case, ints, **({"low": -1, "high": 2} if c.reads == "bfloat16" else {"low": -3, "high": 4}))
    expected = expected_of(c, case, a, b).astype(np.float32)
    if c.writes == "bfloat16":
        assert np.abs(expected).max() <= 250
    assert_equal_at(computed(c, case, a, b), expected, name=c.pass_name)
    if c.pass_name == "fprop":
        bias = ints(case.oc, seed=3)
        assert_equal_at(computed(c, case, a, b, bias, True), np.maximum(expected + bias, 0), name="relu(y + b)")


@each("fprop", "dgrad", "wgrad")
def test_blocks_of_several_tiles_are_exact(c, monkeypatch):
    """On few multiprocessors a block has tile after tile, and copies the next patch."""
    monkeypatch.setattr(context, "sm_count", 1)
    case = square("several", 5, 21, 32, 32, 3, 1, 1, 1, 8)
    a, b = operands(c, case, ints, low=-1, high=2)
    assert_equal_at(computed(c, case, a, b), expected_of(c, case, a, b).astype(np.float32), name=c.pass_name)


@each("fprop", "dgrad", "wgrad")
@pytest.mark.parametrize("case", [square("4", 4, 12, 32, 32, 3, 1, 1, 1, 8),
                                  square("16", 4, 12, 64, 64, 3, 2, 1, 1, 4)],
                         ids=lambda case: case.name)
def test_every_pass_is_as_accurate_as_promised(case, c):
    a, b = (fetched(stored(v, c.reads)) for v in operands(c, case, floats))
    expected = expected_of(c, case, a.astype(np.float64), b.astype(np.float64))
    error = np.linalg.norm(computed(c, case, a, b) - expected) / np.linalg.norm(expected)
    limit = 5e-7 if c.pass_name == "wgrad" and c.mode.name != "tf32" else LIMITS[c.mode.name]
    assert 0 < error < limit


def of_real_products(c, case: Case, a, b) -> np.ndarray:
    """Returns a pass in float64, of products with elements that exist, of one group each."""
    desc, icg, ocg = case.desc, case.ic // case.groups, case.oc // case.groups
    shape = {"fprop": desc.y_shape, "dgrad": desc.x_shape, "wgrad": desc.w_shape}[c.pass_name]
    out = np.zeros(shape)
    with np.errstate(invalid="ignore"):
        for fh, out_h, in_h in desc.h.runs:
            for fw, out_w, in_w in desc.w.runs:
                for o in range(desc.oc):
                    for k in range(icg):
                        ic = o // ocg * icg + k
                        if c.pass_name == "fprop":
                            out[:, out_h, out_w, o] += a[:, in_h, in_w, ic] * b[o, fh, fw, k]
                        elif c.pass_name == "dgrad":
                            out[:, in_h, in_w, ic] += a[:, out_h, out_w, o] * b[o, fh, fw, k]
                        else:
                            out[o, fh, fw, k] += (a[:, in_h, in_w, ic] * b[:, out_h, out_w, o]).sum()
    return out.astype(np.float32)


@pytest.mark.classes
@each("fprop", "dgrad", "wgrad")
def test_infinities_meet_neither_padding_nor_other_groups(c):
    case = square("special", 2, 10, 16, 16, 3, 1, 1, 1, 4)
    a, b = operands(c, case, ints, low=1, high=3)
    a[0, 0, 0, 0], a[0, 5, 3, 5], a[1, 9, 9, 10] = np.inf, -np.inf, np.nan
    b.reshape(-1)[7] = np.inf
    expected = of_real_products(c, case, a, b)
    assert all(test(expected).any() for test in (np.isposinf, np.isneginf, np.isnan, np.isfinite))
    assert_equal_at(computed(c, case, a, b), expected, name=c.pass_name)


@each("fprop", "dgrad", "wgrad")
def test_the_same_bits_every_time(c):
    case = square("again", 3, 17, 32, 32, 3, 1, 1, 1, 8)
    a, b = operands(c, case, floats)
    assert np.array_equal(computed(c, case, a, b), computed(c, case, a, b))


def test_a_mode_has_its_own_precision():
    for c in CANDIDATES:
        assert [p for p in ("fma", "fp32", "tf32", "bf16", "fp16") if serves(c, p)] == [c.mode.name]


@pytest.mark.parametrize(("case", "fragment"), [
    (square("plain", 2, 8, 64, 64, 3), "one group"), (square("odd", 2, 8, 33, 33, 3, groups=11), "groups of 3 -> 3"),
    (square("wide", 2, 8, 256, 256, 3, groups=2), "groups of 128 -> 128"),
    (square("far", 1, 400, 32, 32, 3, dilation=190, groups=8), "do not fit into shared memory")],
    ids=lambda v: getattr(v, "name", v))
def test_a_refusal_names_the_reason(case, fragment):
    assert all(fragment in (c.rejection(case.desc) or "") for c in CANDIDATES)


def test_classes_of_dgrad_cover_each_position_once():
    for axis in (Axis(9, 3, 5, 3, 2, 2), Axis(10, 5, 3, 2, 1, 1), Axis(5, 2, 1, 3, 0, 1)):
        seen = {}
        for line in dgrad_lines(axis):
            for k in range(line.count):
                pairs = {(line.start + k * line.move + j * line.tap, line.w + j * line.w_step)
                         for j in range(line.taps)}
                seen[line.first + k * line.step] = sorted(t for o, t in pairs if 0 <= o < axis.o)
        assert seen == {i: sorted(axis.dgrad_taps(i)) for i in range(axis.i)}


def test_pieces_are_pairs_with_a_group_in_common():
    desc = square("24", 1, 4, 96, 96, 3, 1, 1, 1, 4).desc
    channels = grouped.CANDIDATES[-1].channels(desc)
    assert channels.tile_in == 48
    assert pieces_of(desc, channels).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 1], [2, 2]]


@pytest.mark.parametrize("shape", [(256, 32, 128, 32), (256, 16, 256, 32), (64, 56, 128, 32), (256, 32, 64, 32)])
def test_narrow_groups_are_planned_so(as_h100, shape):
    n, edge, channels, groups = shape
    desc = square("", n, edge, channels, channels, 3, 1, 1, 1, groups).desc
    for pass_name in ("fprop", "dgrad", "wgrad"):
        for mode in grouped.MODES:
            assert rank(pass_name, desc, mode.name)[0].candidate.name.startswith("conv_grouped")
