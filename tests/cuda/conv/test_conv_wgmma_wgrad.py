"""The gradient of the filters on tensor cores: every candidate, case by case, bitwise on integers; planes; specials."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from alpha.cuda.conv.wgmma import wgrad as wgmma_wgrad
from alpha.cuda.conv.wgmma.schedule_wgrad import UNIT_FIELDS
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import download, upload
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv_desc import ConvDesc
from tests.conv_cases import Case as Shape
from tests.conv_cases import small_cases, square
from tests.conv_oracle import conv_wgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.process import CHECKED, EMULATED

pytestmark = pytest.mark.cuda

CANDIDATES = wgmma_wgrad.CANDIDATES


def aligned(case: Shape) -> Shape:
    """Returns the case with channels that TMA can read, of which boxes have tails."""
    return replace(case, groups=1, ic=24, oc=40)


GEOMETRIES = tuple({replace(aligned(case), name=""): aligned(case) for case in small_cases()}.values())
BATCHES = tuple(square(f"batch {n}", n, 3, 8, 16, 3, 1, 1) for n in (1, 7, 33, 130, 200))
CHANNELS = (square("several tiles", 8, 2, 136, 144, 3, 1, 1), square("boxes of all channels", 64, 2, 64, 128, 3, 1, 1),
            square("tail boxes", 8, 3, 320, 72, 3, 2, 1), square("several units", 40, 6, 16, 8, 3, 1, 1),
            square("groups", 8, 2, 48, 144, 2, groups=2), square("groups of boxes", 64, 2, 128, 128, 2, groups=2))
MANY = square("many tiles", 8, 2, 520, 1032, 3, 1, 1)  # more than a GPU has multiprocessors
CASES = (*GEOMETRIES, *BATCHES, *CHANNELS, MANY)
SHARES = 11
STRIPS = (  # widths that strips divide and do not; taps of a row that overlap
    Shape("3x3", 3, (5, 8), 24, 40, (3, 3), (1, 1), (1, 1)), Shape("1 wide", 3, (6, 1), 16, 8, (3, 3), (1, 1), (1, 1)),
    Shape("5x5 stride 2", 3, (5, 13), 24, 40, (5, 5), (2, 2), (2, 2)),
    Shape("3x3 stride 2", 3, (7, 12), 72, 136, (3, 3), (2, 2), (1, 1)),
    Shape("asymmetric", 2, (5, 7), 16, 8, (3, 5), (1, 1), (0, 3)),
    Shape("dilation 2, stride 2", 2, (4, 13), 16, 8, (3, 3), (1, 2), (2, 2), (2, 2)),
    Shape("dilation 2, stride 4", 2, (4, 19), 16, 8, (3, 3), (1, 4), (2, 2), (2, 2)),
    Shape("batch tail", 70, (3, 5), 64, 64, (3, 3), (1, 1), (1, 1)),
    Shape("batch tail, stride 2", 70, (2, 9), 64, 128, (2, 5), (1, 2), (0, 2)),
    Shape("groups of boxes", 66, (2, 5), 128, 128, (1, 3), (1, 1), (0, 1), groups=2),
    Shape("groups", 6, (2, 5), 48, 144, (1, 5), (1, 2), (0, 2), groups=2))

ROWS = (  # tiles of more rows than there are channels, of as many, and two; with and without slots
    square("slots", 40, 6, 40, 160, 1), square("boxes of all channels", 64, 3, 64, 192, 1),
    square("3x3", 5, 4, 24, 160, 3, 1, 1), square("3x3, stride 2", 3, 7, 72, 192, 3, 2, 1),
    square("3x3, slots", 64, 5, 64, 192, 3, 1, 1), square("two tiles", 6, 3, 16, 264, 1))


@pytest.fixture(autouse=True)
def hopper(device) -> None:
    if context.arch != "sm_90a":
        pytest.skip("needs sm_90a")


def dw_of(candidate, desc: ConvDesc, x: np.ndarray, g: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Returns the result of one candidate; the output starts as NaN."""
    dw = upload(np.full(desc.w_shape, np.nan, np.float32))
    candidate.prepare(desc)(convert(upload(x), dtype), convert(upload(g), dtype), dw)
    return download(dw, "float32")


def check(candidate, case: Shape, dtype: str) -> None:
    x, g = ints(*case.x_shape), ints(*case.desc.y_shape, seed=1)
    expected = conv_wgrad_padded(x, g, case.f, **case.attrs).astype(np.float32)
    assert_equal_at(dw_of(candidate, case.desc, x, g, dtype), expected, name=f"dw of {case.name} by {candidate.name}")


@pytest.mark.parametrize("candidate", CANDIDATES[::3 if CHECKED else 1], ids=lambda c: c.name)
def test_every_candidate_is_bitwise_right_on_integers(candidate):
    """On a GPU each candidate has every case; on the emulated driver they share them."""
    dtype = "bfloat16" if candidate.reads == "bfloat16" else "float32"
    turn = CANDIDATES.index(candidate)
    shared = (*GEOMETRIES[turn % SHARES::SHARES], BATCHES[turn % len(BATCHES)], *CHANNELS[turn % 3::3])
    for case in shared if EMULATED else CASES:
        if not candidate.rejection(case.desc):
            check(candidate, case, dtype)


@pytest.mark.parametrize("candidate", [c for c in CANDIDATES if c.tile.strip > 1], ids=lambda c: c.name)
def test_strips_are_bitwise_right_on_integers(candidate):
    dtype = "bfloat16" if candidate.reads == "bfloat16" else "float32"
    cases = [case for case in STRIPS if not candidate.rejection(case.desc)]
    assert len(cases) >= 4
    for case in cases[::2] if EMULATED and candidate.reads != "bfloat16" else cases:
        check(candidate, case, dtype)


@pytest.mark.parametrize("candidate", [c for c in CANDIDATES if c.tile.rows > 128], ids=lambda c: c.name)
def test_tiles_of_more_than_two_consumers_are_bitwise_right_on_integers(candidate, monkeypatch):
    monkeypatch.setattr(context, "sm_count", 132)  # for which the work is cut, whatever runs it
    dtype = "bfloat16" if candidate.reads == "bfloat16" else "float32"
    cases = [case for case in (*ROWS, square("not cut", 64, 1, 8, 136, 3, 1, 1)) if not candidate.rejection(case.desc)]
    slots = {candidate.schedule(case.desc).slots > 0 for case in cases}
    assert slots == {True, False} or candidate.tile.cluster > 1
    for case in cases:
        check(candidate, case, dtype)


@pytest.mark.parametrize("candidate", [c for c in CANDIDATES if c.tile.cluster > 1], ids=lambda c: c.name)
def test_clusters_are_bitwise_right_on_integers(candidate, monkeypatch):
    """Tiles that one cluster has, whole and in part, and one that several share: then it goes through slots."""
    monkeypatch.setattr(context, "sm_count", 132)  # for which the work is cut, whatever runs it
    dtype, tile = "bfloat16" if candidate.reads == "bfloat16" else "float32", candidate.tile
    cases = [square(f"{rows} x {columns}", 64, 3, columns, rows, 1) for rows, columns in (
        (tile.rows, tile.tap_columns), (24, 40), (tile.rows + 8, tile.tap_columns + 8))]
    cases.append(square("shared", 64 * 32 * tile.cluster, 1, 16, 40, 1))
    assert [candidate.schedule(case.desc).slots > 0 for case in cases] == [False, False, False, True]
    for case in cases:
        check(candidate, case, dtype)


def test_the_modes_read_what_they_are_given():
    for candidate in [c for c in CANDIDATES[::3] if not c.rejection(BATCHES[1].desc)]:
        check(candidate, BATCHES[1], {"float16": "float16"}.get(candidate.reads, "float32"))


@pytest.mark.long
def test_every_mode_is_as_accurate_as_it_promises():
    case = square("", 24 if EMULATED else 64, 4, 16, 16, 3, 1, 1)
    x, g = floats(*case.x_shape), floats(*case.desc.y_shape, seed=1) * 1e-6
    exact = conv_wgrad_padded(x.astype(float), g.astype(float), case.f, **case.attrs)
    for candidate in CANDIDATES:
        if not candidate.rejection(case.desc):
            dw = dw_of(candidate, case.desc, x, g)
            error = np.linalg.norm(dw - exact) / np.linalg.norm(exact)
            assert error < {"float16x2": 1e-6, "float16": 1e-3, "bfloat16": 5e-3}[candidate.reads], candidate.name


def test_an_infinity_stays_where_it_belongs():
    """A product with a padded or missing element would be 0 * inf."""
    case = square("", 5, 4, 8, 8, 3, 1, 1)
    for at in ((0, -1, -1), (4, 0, 0)):
        x, g = ints(*case.x_shape), np.ones(case.desc.y_shape, np.float32)
        x[at] = np.inf
        check_specials(case, x, g)
        x, g = np.ones(case.x_shape, np.float32), ints(*case.desc.y_shape)
        g[at] = -np.inf
        check_specials(case, x, g)


def check_specials(case: Shape, x: np.ndarray, g: np.ndarray) -> None:
    expected = conv_wgrad_padded(np.where(np.isfinite(x), x, 1e6), np.where(np.isfinite(g), g, 1e6), case.f,
                                 **case.attrs)
    infinite = np.abs(expected) > 1e5
    for candidate in CANDIDATES:
        if candidate.reads == "bfloat16" and not candidate.rejection(case.desc):
            dw = dw_of(candidate, case.desc, x, g, "bfloat16")
            assert np.array_equal(np.isinf(dw), infinite) and not np.isnan(dw).any(), candidate.name


def test_taps_without_an_output_are_zero():
    case = square("", 2, 1, 16, 24, 3, 1, 1)
    x, g = ints(*case.x_shape), ints(*case.desc.y_shape, seed=1)
    for candidate in [c for c in CANDIDATES if not c.rejection(case.desc)]:
        dw = dw_of(candidate, case.desc, x, g)
        assert not dw[:, 0].any() and not dw[:, :, 2].any() and dw[:, 1, 1].any(), candidate.name


def test_tiles_cut_into_units_are_reached():
    """Else the sum kernel would go untested."""
    plans = [c.schedule(case.desc) for case in (*CHANNELS, MANY) for c in CANDIDATES
             if not c.rejection(case.desc)]
    slot = UNIT_FIELDS.index("slot")
    assert sum(plan.slots > 0 for plan in plans) > 20 and sum((plan.units[:, slot] < 0).any() for plan in plans) > 20
    assert sum(len(plan.units) > plan.blocks for plan in plans) > 20


@pytest.mark.parametrize(("case", "fragment"), [
    (square("odd", 2, 8, 12, 16, 3), "12 input and 16 output channels are no multiples of 8"),
    (square("groups", 2, 8, 16, 8, 3, groups=2), "8 input and 4 output channels of a group are no multiples of 8"),
    (square("1x1", 2, 8, 16, 16, 1), "3 taps at a time, the filter has 1"),
    (square("overlap", 2, 8, 16, 16, 3, 3), "strips need 3 taps of a row that meet inputs a stride apart"),
    (square("dilated", 2, 8, 16, 16, 3, 1, 1, 2), "strips need 3 taps of a row that meet inputs a stride apart"),
    (square("large", 1, 50000, 8, 8, 1), "an image of x: 20000000000 >= 2^31"),
], ids=lambda v: getattr(v, "name", ""))
def test_it_says_why_it_cannot(case, fragment):
    assert any(fragment in (c.rejection(case.desc) or "") for c in CANDIDATES)


def test_other_devices_are_refused(monkeypatch):
    monkeypatch.setattr(context, "arch", "sm_89")
    assert {c.rejection(CHANNELS[0].desc) for c in CANDIDATES} == {"needs sm_90a, the device is sm_89"}
