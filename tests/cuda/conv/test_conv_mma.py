"""Convolutions by mma.sync: every tile in every mode, case by case, bitwise on integers; specials; accuracy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from alpha.cuda.conv.mma import mma
from alpha.cuda.lazy import operands
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context, lacks
from alpha.cuda.runtime.memory import download, empty, upload
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case as Shape
from tests.conv_cases import small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import floats
from tests.cuda.conv import test_conv_wgmma as wgmma
from tests.cuda.conv import test_conv_wgmma_wgrad as wgmma_wgrad
from tests.cuda.conv.checks import cut_into
from tests.cuda.conv.test_conv_wgmma import fetched, stored
from tests.cuda.process import EMULATED

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

PASSES = ("fprop", "dgrad", "wgrad")
UNSPLIT = tuple(cut_into(c, 1) if isinstance(c, mma.MmaSlab) else c for c in mma.CANDIDATES)
SMALLEST = {p: next(c for c in UNSPLIT if c.pass_name == p and c.reads == "float16" and c.writes == "float32"
                    and c.tile.rows == 64) for p in PASSES}


def eights(case: Shape) -> Shape:
    """Returns the case with channels that can be copied: less than a slab of k in each group, and one with a tail."""
    groups = min(case.groups, 2)
    return replace(case, groups=groups, ic=groups * 24, oc=groups * 40)


GEOMETRIES = tuple({replace(eights(case), name=""): eights(case)
                    for case in small_cases() if max(case.hw) <= 13}.values())
EVERY_TILE = (  # several tiles, tails of rows, columns and channels
    square("tails", 133, 1, 40, 136, 1), square("turned", 133, 1, 136, 40, 1), square("one pixel", 3, 1, 8, 8, 1),
    square("several pixels", 9, 5, 16, 24, 3, 2, 1), square("strided, no taps", 33, 4, 8, 40, 1, 2))
UNITS = (square("several tiles", 9, 2, 136, 144, 1), square("several units", 20, 8, 16, 8, 2, 1))
SLICED = (square("one tap", 3, 1, 264, 40, 1), square("one tap, turned", 3, 1, 40, 264, 1),
          square("unequal sums", 2, 3, 40, 40, 3, 1, 1))


def check(candidate, case: Shape, bias: bool = False) -> None:
    if candidate.pass_name == "wgrad":
        wgmma_wgrad.check(candidate, case, "bfloat16" if candidate.reads == "bfloat16" else "float32")
    else:
        wgmma.check(candidate, case, bias)


@pytest.mark.classes
@pytest.mark.parametrize("pass_name", PASSES)
def test_every_geometry_is_bitwise_right_on_integers(pass_name):
    """By every tile in every mode on a GPU, by one on the emulated driver."""
    for tile in (SMALLEST[pass_name],) if EMULATED else [c for c in UNSPLIT if c.pass_name == pass_name]:
        for case in GEOMETRIES:
            assert not tile.rejection(case.desc)
            check(tile, case)


@pytest.mark.parametrize("candidate", UNSPLIT, ids=lambda c: f"{c.pass_name} {c.name}")
def test_every_tile_is_right_in_every_mode(candidate):
    """Of the cases that tables alone know each has its share."""
    turn = UNSPLIT.index(candidate)
    for case in (*EVERY_TILE[:2], *EVERY_TILE[2 + turn % 3::3], *(UNITS if candidate.pass_name == "wgrad" else ())):
        check(candidate, case, bias=candidate.pass_name == "fprop")


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_sums_in_slices_get_bias_and_relu_too(pass_name):
    for candidate in (cut_into(c, 2) for c in mma.CANDIDATES
                      if c.pass_name == pass_name and c.writes != "float16" and not lacks(c.kernel.needs)):
        fitting = [case for case in SLICED if not candidate.rejection(case.desc)]
        assert fitting
        for case in fitting:
            assert candidate.cheapest(case.desc)[0] == 2
            check(candidate, case, bias=pass_name == "fprop")


def test_units_of_a_tile_are_reached():
    """Else the sum kernel would go untested."""
    plans = [c.schedule(case.desc) for case in UNITS for c in UNSPLIT if c.pass_name == "wgrad"]
    assert sum(plan.slots > 0 for plan in plans) >= 6 and any(plan.slots == 0 for plan in plans)


@pytest.mark.classes
@pytest.mark.parametrize("columns", [1, 10, 35])
def test_outputs_of_any_number_of_channels(columns):
    """Rows of them do not begin at aligned addresses."""
    for candidate in UNSPLIT:
        if candidate.pass_name == "fprop" and candidate.tile.rows == 64 and not lacks(candidate.kernel.needs):
            check(candidate, square("columns", 5, 3, 16, columns, 3, 1, 1), bias=True)
            check(candidate, square("columns in groups", 5, 2, 16, 2 * columns, 3, 1, 1, groups=2), bias=True)


def test_special_values_stay_where_they_belong():
    """NaN and infinities; NaN passes the relu."""
    case = square("special", 2, 3, 8, 8, 1)
    x = np.ones(case.x_shape, np.float16)
    x[0, 0, 0, 0], x[0, 1, 1, 2], x[1, 2, 2, 0] = np.nan, np.inf, -np.inf
    w = np.ones(case.w_shape, np.float16)
    w[1] = -1
    expected = x.astype(np.float32) @ w[:, 0, 0].T.astype(np.float32)
    for candidate in (c for c in UNSPLIT if c.writes == "float16"):
        for relu in (False, True) if candidate.pass_name == "fprop" else ():
            y = empty(case.desc.y_shape, "float16")
            candidate.prepare(case.desc)(stored(x, "float16"), stored(w, "float16"), y,
                                                Epilogue.of(None, "relu" if relu else None))
            assert_equal_at(fetched(y), np.where(expected < 0, 0, expected) if relu else expected, name="y")


def test_an_infinity_in_a_sum_over_images_stays_where_it_belongs(monkeypatch):
    """A product with a padded or missing element would be 0 * inf."""
    monkeypatch.setattr(wgmma_wgrad, "CANDIDATES", [c for c in UNSPLIT if c.pass_name == "wgrad"])
    wgmma_wgrad.test_an_infinity_stays_where_it_belongs()


LIMITS = {"float16x2": 1e-6, "float16": 6e-4, "bfloat16": 5e-3}  # docs/explanation/numerics.md; two planes do better


@pytest.mark.long
@pytest.mark.parametrize("pass_name", PASSES)
def test_every_mode_is_as_accurate_as_it_promises(pass_name):
    case = square("", 8, 4, 64, 32, 3, 1, 1)
    x, w, g = floats(*case.x_shape), floats(*case.w_shape, seed=1) * 1e-3, floats(*case.desc.y_shape, seed=2) * 1e-6
    exact = {"fprop": lambda: conv_fprop_padded(x.astype(float), w.astype(float), **case.attrs),
             "dgrad": lambda: conv_dgrad_padded(g.astype(float), w.astype(float), case.hw, **case.attrs),
             "wgrad": lambda: conv_wgrad_padded(x.astype(float), g.astype(float), case.f, **case.attrs)}[pass_name]()
    for candidate in UNSPLIT:
        if candidate.pass_name == pass_name and candidate.writes == "float32":
            out = empty(exact.shape, "float32")
            arguments = {"fprop": (x, w, out), "dgrad": (g, w, out), "wgrad": (x, g, out)}[pass_name]
            candidate.prepare(case.desc)(*(upload(a) if isinstance(a, np.ndarray) else a for a in arguments))
            error = np.linalg.norm(download(out, "float32") - exact) / np.linalg.norm(exact)
            assert error < LIMITS[candidate.reads], candidate.name


@pytest.mark.long
@pytest.mark.parametrize("pass_name", PASSES)
def test_two_runs_are_equal_to_the_bit(pass_name):
    case = square("again", 5, 2, 104, 104, 3, 1, 1)
    a, b = (upload(floats(*shape, seed=k)) for k, shape in enumerate(
        (case.x_shape, case.desc.y_shape if pass_name == "wgrad" else case.w_shape)))
    for candidate in mma.CANDIDATES:
        if (candidate.pass_name == pass_name and candidate.reads == "float16x2" and candidate.tile.rows == 64
                and not candidate.rejection(case.desc)):
            launch, results = candidate.prepare(case.desc), []
            for _ in range(2):
                out = empty(case.w_shape if pass_name == "wgrad" else case.desc.y_shape, "float32")
                launch(a, b, out)
                results.append(download(out, "float32"))
            assert np.array_equal(*results), candidate.name


def test_scales_far_from_one_do_not_overflow_on_the_way():
    """The product of two scales may be out of float32's range where the result is not."""
    case = square("scales", 2, 1, 8, 8, 1)
    x, w = np.zeros(case.x_shape, np.float16), np.ones(case.w_shape, np.float16)
    x[0], w[:4] = 2.0 ** -14, 2.0 ** -14
    given = [operands.Operand(a.ptr, "float16", upload(np.array([scale], np.float32)), a, a)
             for a, scale in ((upload(x), 2.0 ** 100), (upload(w), 2.0 ** 30))]
    y = empty(case.desc.y_shape, "float32")
    SMALLEST["fprop"].on_operands(case.desc)(*given, y)
    expected = np.zeros(case.desc.y_shape, np.float32)
    expected[0, ..., :4], expected[0, ..., 4:] = 8 * 2.0 ** 102, 8 * 2.0 ** 116
    assert_equal_at(fetched(y), expected, name="y")


@pytest.mark.long
@pytest.mark.parametrize(("pass_name", "case", "reason"), [
    ("fprop", square("", 2, 5, 12, 16, 3), "12 input channels of a group are no multiples of 8"),
    ("fprop", square("", 2, 5, 16, 12, 3), ""),
    ("dgrad", square("", 2, 5, 16, 12, 3), "16 input and 12 output channels of a group are no multiples of 8"),
    ("wgrad", square("", 2, 5, 8, 8, 3, groups=2), "4 input and 4 output channels of a group are no multiples of 8"),
    ("wgrad", square("", 1, 50000, 8, 8, 1), "an image of x: 20000000000 >= 2^31"),
], ids=str)
def test_what_does_not_fit_says_why(pass_name, case, reason):
    found = SMALLEST[pass_name].rejection(case.desc)
    assert reason in found if reason else found is None


def test_a_small_device_refuses_a_large_tile(monkeypatch):
    desc = square("", 2, 8, 64, 64, 3).desc
    monkeypatch.setattr(context, "max_shared", 99 << 10)  # of a GeForce card
    assert not any(c.rejection(desc) for c in UNSPLIT)
    monkeypatch.setattr(context, "max_shared", 64 << 10)
    refused = {c.name: c.rejection(desc) for c in UNSPLIT if c.rejection(desc)}
    assert {str(c.tile) for c in UNSPLIT if c.name not in refused} == {"64x64", "128x64"}
    assert {"conv_mma 128x64 float16x2 to float32", "sk_dilated_mma float16x2 128x64",
            "sk_dilated_mma float16 128x128"} <= set(refused)
    assert all("bytes of shared memory, the device has 65536" in reason for reason in refused.values())
