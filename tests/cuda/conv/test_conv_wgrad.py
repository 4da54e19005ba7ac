"""The gradient of the filters on CUDA: every candidate, case by case, bitwise on integers; adjoints; determinism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import alpha
from alpha.cuda.conv.ffma import sk_dilated
from alpha.cuda.conv.planner import candidates as all_candidates
from alpha.cuda.conv.planner import rank
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import download, upload
from alpha.ops.conv_desc import ConvDesc
from tests.conv_cases import CASES as CATALOGUE
from tests.conv_cases import Case as Shape
from tests.conv_cases import small_cases, square
from tests.cuda.agree import Case, agree, floats, ints
from tests.cuda.conv.checks import check

pytestmark = pytest.mark.cuda


def candidates(pass_name: str) -> list:
    """Returns those in float32; tests/cuda/conv/test_conv_wgmma_wgrad.py has the others."""
    return [c for c in all_candidates(pass_name) if c.reads == "float32"]


def aligned(case: Shape) -> Shape:
    """Returns the case with channels that 16-byte copies can read, of which tiles have tails."""
    groups = min(case.groups, 2)
    return replace(case, groups=groups, ic=groups * 20, oc=groups * 36)


SMALL = small_cases()
ALIGNED = tuple({replace(aligned(case), name=""): aligned(case) for case in SMALL}.values())
TILES = (square("several tiles", 3, 4, 132, 148, 3, 1, 1), square("several tiles, unaligned", 2, 4, 70, 133, 3, 2, 1),
         square("several slices", 9, 24, 8, 12, 3, 1, 1), square("several slices, unaligned", 9, 24, 5, 7, 3, 1, 1),
         square("slices and groups", 5, 20, 24, 48, 3, 1, 1, 1, 2))

KINDS = pytest.mark.parametrize("cases", [
    SMALL, *(pytest.param(cases, marks=pytest.mark.long) for cases in (ALIGNED, TILES))],
    ids=["small", "aligned", "tiles"])


def dw_of(candidate, desc: ConvDesc, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Returns the result of one candidate; the output starts as NaN."""
    dw = upload(np.full(desc.w_shape, np.nan, np.float32))
    candidate.prepare(desc)(upload(x), upload(g), dw)
    return download(dw, "float32")


@KINDS
@pytest.mark.parametrize("candidate", candidates("wgrad"), ids=lambda c: c.name)
def test_every_candidate_is_bitwise_right_on_integers(candidate, cases):
    for case in cases:
        if not candidate.rejection(case.desc):
            check(case, candidate)


@KINDS
def test_every_case_is_served(cases):
    for case in cases:
        assert not rank("wgrad", case.desc)[0].reason, case.name


@pytest.mark.parametrize("case", CATALOGUE, ids=lambda case: case.name)
def test_every_layer_of_the_catalogue_is_served(case):
    best = rank("wgrad", case.desc)[0]
    assert not best.reason and 0 < best.time_us < 1e6


def test_taps_without_an_output_are_zero():
    case = square("", 2, 1, 16, 24, 3, 1, 1)
    desc, x, g = case.desc, ints(*case.x_shape), ints(*case.desc.y_shape, seed=1)
    for candidate in candidates("wgrad"):
        if not candidate.rejection(desc):
            dw = dw_of(candidate, desc, x, g)
            assert not dw[:, 0].any() and not dw[:, :, 2].any() and dw[:, 1, 1].any(), candidate.name


def test_an_infinity_where_the_sum_ends_stays_one():
    """A line beyond the end would add 0 * inf."""
    for ic, groups in ((3, 1), (8, 1), (8, 8)):
        case = square("", 1, 5, ic, 8, 3, 1, 1, 1, groups)
        desc = case.desc
        x, g = ints(*desc.x_shape), np.ones(desc.y_shape, np.float32)
        x[0, -1, -1] = np.inf
        for candidate in candidates("wgrad"):
            if not candidate.rejection(desc):
                dw = dw_of(candidate, desc, x, g)
                assert np.isinf(dw[:, 1:, 1:]).all() and np.isfinite(dw[:, 0]).all() and np.isfinite(dw[:, :, 0]).all()


@pytest.mark.long
def test_wgrad_is_adjoint_to_fprop_to_the_last_bit():
    for case in ALIGNED:
        x, w, g = (ints(*shape, seed=k) for k, shape in enumerate((case.x_shape, case.w_shape, case.desc.y_shape)))
        on_device = [alpha.tensor(a, device="cuda") for a in (x, w, g)]
        y = alpha.ops.conv2d(on_device[0], on_device[1], **case.attrs).numpy().astype(np.float64)
        dw = alpha.ops.conv2d_wgrad(on_device[0], on_device[2], f=case.f, **case.attrs).numpy().astype(np.float64)
        assert (y * g).sum() == (w * dw).sum(), case.name


@pytest.mark.long
def test_two_runs_give_the_same_bits():
    case = square("", 7, 20, 12, 20, 3, 1, 1)
    x, g = floats(*case.x_shape), floats(*case.desc.y_shape, seed=1)
    for candidate in candidates("wgrad"):
        if not candidate.rejection(case.desc):
            assert np.array_equal(dw_of(candidate, case.desc, x, g), dw_of(candidate, case.desc, x, g)), candidate.name


@pytest.mark.long
def test_tiles_cut_into_slices_are_reached(as_h100):
    """Else the sum kernel would go untested."""
    cut = sum(bool(c.schedule(case.desc).slots) for case in TILES for c in candidates("wgrad")
              if isinstance(c, sk_dilated.WgradTile) and not c.rejection(case.desc))
    assert cut > 10


@pytest.mark.parametrize(("case", "fragment"), [
    (square("odd", 2, 8, 6, 8, 3), "6 input and 8 output channels of a group are no multiples of 4"),
    (square("large", 1, 50000, 4, 4, 1), "an image of x: 10000000000 >= 2^31"),
], ids=lambda v: getattr(v, "name", ""))
def test_sk_dilated_says_why_it_cannot(case, fragment):
    first = next(c for c in candidates("wgrad") if c.name.startswith("sk_dilated"))
    assert fragment in first.rejection(case.desc)


def test_a_small_device_refuses_a_large_tile(monkeypatch):
    monkeypatch.setattr(context, "max_shared", 48 << 10)
    desc = square("", 1, 8, 8, 8, 3).desc
    reasons = [c.rejection(desc) for c in candidates("wgrad") if c.name.startswith("sk_dilated 128x128")]
    assert reasons and all("bytes of shared memory, the device has 49152" in (reason or "") for reason in reasons)


CASES = [
    Case("conv2d_wgrad", ints(2, 7, 6, 4), ints(2, 4, 3, 8, seed=1), exact=True, f=(3, 3), stride=2, padding=1),
    Case("conv2d_wgrad", ints(2, 7, 6, 6), ints(2, 5, 4, 9, seed=1), exact=True, f=(3, 2), padding=(1, 0), dilation=2,
         groups=3),
    Case("conv2d_wgrad", ints(2, 9, 9, 3), ints(2, 9, 9, 8, seed=1), exact=True, f=(3, 3), padding=1),
    Case("conv2d_wgrad", ints(2, 9, 9, 8), ints(2, 9, 9, 8, seed=1), exact=True, f=(3, 3), padding=1, groups=8),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case):
    agree(case)
