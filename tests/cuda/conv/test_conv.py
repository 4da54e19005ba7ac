"""Convolution on CUDA: every candidate kernel, case by case, bitwise on integers; the ops; the choice of a kernel."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import alpha
from alpha.core.config import config
from alpha.errors import AlphaError
from tests.conv_cases import CASES as CATALOGUE
from tests.conv_cases import Case as Shape
from tests.conv_cases import small_cases, square
from tests.cuda.agree import Case, agree, ints
from tests.cuda.conv.checks import check, cut_into
from tests.cuda.process import EMULATED

pytestmark = pytest.mark.cuda


def aligned(case: Shape) -> Shape:
    """Returns the case with channels that 16-byte copies can read: a slab of k and a part of one, and column tails."""
    groups = min(case.groups, 2)
    return replace(case, groups=groups, ic=groups * 20, oc=groups * 36)


SMALL = small_cases()
LONG = (  # sums that are worth a split: within a tap, over taps, of unequal length, with tails, in groups
    square("one tap", 2, 1, 1540, 20, 1), square("one tap, turned", 2, 1, 20, 1540, 1),
    square("one tap, unaligned", 2, 1, 1541, 7, 1), square("one tap, unaligned, turned", 2, 1, 7, 1541, 1),
    square("unequal sums", 3, 2, 100, 100, 3, 1, 1), square("unequal sums, unaligned", 3, 3, 50, 53, 3, 1, 1),
    square("stride", 2, 5, 72, 76, 5, 2, 2), square("groups", 2, 3, 80, 88, 3, 1, 1, 1, 2))
ALIGNED = tuple({replace(aligned(case), name=""): aligned(case) for case in SMALL}.values())


PASSES = ("fprop", "dgrad")  # test_conv_wgrad.py has the third


def in_float32(pass_name: str) -> list:
    """Returns the candidates of this file, with every split of those that may cut their sums; test_conv_wgmma.py has
    those on tensor cores."""
    from alpha.cuda.conv import planner
    from alpha.cuda.conv.ffma.slab import SlabTile
    from alpha.cuda.conv.split import SPLITS
    found = [c for c in planner.candidates(pass_name) if c.reads == "float32"]
    return [each for c in found for each in (
        [cut_into(c, split) for split in SPLITS] if isinstance(c, SlabTile) else [c])]


@pytest.mark.parametrize("cases", [SMALL, pytest.param(ALIGNED, marks=pytest.mark.long),
                                   pytest.param(LONG, marks=pytest.mark.long)], ids=["small", "aligned", "long"])
@pytest.mark.parametrize("pass_name", PASSES)
def test_every_candidate_is_bitwise_right_on_integers(device, pass_name, cases):
    served = set()
    for candidate in in_float32(pass_name):
        if EMULATED and getattr(candidate, "splits", (1,)) != (1,) and cases is not LONG:
            continue  # its tile is there without slices too
        for case in cases:
            if not candidate.rejection(case.desc):
                check(case, candidate)
                served.add(case)
    assert served == set(cases)


@pytest.mark.long
@pytest.mark.parametrize("pass_name", PASSES)
def test_many_rows_and_columns_fill_several_tiles(device, pass_name):
    """Sizes beyond every tile, with tails in rows, columns and channels."""
    for case in (square("tiles", 37, 3, 36, 140, 3, 1, 1), square("tiles, unaligned", 37, 3, 35, 70, 3, 2, 1)):
        if pass_name == "dgrad":
            case = replace(case, ic=case.oc, oc=case.ic)
        for candidate in in_float32(pass_name):
            if not candidate.rejection(case.desc):
                check(case, candidate)


@pytest.mark.classes
@pytest.mark.parametrize("pass_name", PASSES)
def test_every_split_is_reached(device, pass_name):
    """Else its slices would go untested."""
    from alpha.cuda.conv.ffma.slab import SlabTile
    split = [c for c in in_float32(pass_name) if isinstance(c, SlabTile) and c.splits != (1,)]
    assert len(split) > 50
    assert [c.name for c in split if all(c.rejection(case.desc) for case in LONG)] == []


CASES = [
    Case("conv2d", ints(2, 7, 6, 4), ints(8, 3, 3, 4, seed=1), exact=True, stride=2, padding=1),
    Case("conv2d", ints(2, 7, 6, 6), ints(9, 3, 2, 2, seed=1), exact=True, padding=(1, 0), dilation=2, groups=3),
    Case("conv2d_dgrad", ints(2, 4, 3, 8), ints(8, 3, 3, 4, seed=1), exact=True, hw=(7, 6), stride=2, padding=1),
    Case("conv2d_dgrad", ints(2, 3, 3, 5), ints(5, 1, 1, 3, seed=1), exact=True, hw=(7, 8), stride=3, label="no taps"),
    Case("conv2d_dgrad_add", ints(2, 4, 3, 8), ints(8, 3, 3, 4, seed=1), ints(2, 7, 6, 4, seed=2), exact=True,
         hw=(7, 6), stride=2, padding=1),
    Case("conv2d_bias_act", ints(2, 5, 5, 4), ints(8, 3, 3, 4, seed=1), ints(8, seed=2), exact=True, activation="relu"),
    Case("conv2d_bias_act", ints(2, 5, 5, 3), ints(7, 3, 3, 3, seed=1), ints(7, seed=2), exact=True, padding=2),
    Case("conv2d_bias_act", ints(2, 5, 5, 3), ints(7, 3, 3, 3, seed=1), None, exact=True, padding=4, activation="relu"),
    Case("conv2d_bias_act", np.full((1, 3, 3, 4), np.nan, np.float32), ints(4, 1, 1, 4), None, exact=True,
         activation="relu", label="NaN stays"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case):
    agree(case)


@pytest.mark.long
def test_fprop_and_dgrad_are_adjoint(device):
    for case in ALIGNED:
        x, w = ints(*case.x_shape), ints(*case.w_shape, seed=1)
        g = ints(*case.desc.y_shape, seed=2)
        on_device = [alpha.tensor(a, device="cuda") for a in (x, w, g)]
        y = alpha.ops.conv2d(on_device[0], on_device[1], **case.attrs).numpy().astype(np.float64)
        dx = alpha.ops.conv2d_dgrad(on_device[2], on_device[1], hw=case.hw, **case.attrs).numpy().astype(np.float64)
        assert (y * g).sum() == (x * dx).sum(), case.name


# ---- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pass_name", PASSES)
def test_every_layer_of_the_catalogue_is_served(device, pass_name):
    from alpha.cuda.conv import planner
    for case in CATALOGUE:
        best = planner.rank(pass_name, case.desc)[0]
        assert not best.reason and 0 < best.time_us < 1e6, case.name


def test_a_plan_shows_what_was_chosen_and_why_not_the_others(device):
    from alpha.cuda.conv import planner
    lines = str(planner.plan("dgrad", square("", 2, 4, 5, 8, 3, 1, 1).desc)).splitlines()
    assert lines[0] == "plan of dgrad 2 x (4->4 f3 s1 p1 d1, 4->4 f3 s1 p1 d1) 5->8 groups 1 in fp32, estimated:"
    assert len(lines) == 1 + len(planner.candidates("dgrad", "fp32", ("direct", "winograd", "fft")))
    assert sum(line.startswith("* ks_deconv") and line.endswith(" us") for line in lines) == 1
    assert sum("5 input and 8 output channels of a group are no multiples of 4" in line for line in lines) > 1
    unaligned = next(c for c in in_float32("dgrad") if getattr(c, "splits", ()) == (8,) and c.tile.vector == 1)
    reason = unaligned.rejection(square("", 2, 4, 5, 8, 3, 1, 1).desc)
    assert re.fullmatch(r"the longest sum has 9 slabs, and a slice of it at least \d", reason)


def test_oversized_tensors_are_refused_by_every_candidate(device, monkeypatch):
    from alpha.cuda.conv import planner
    from alpha.cuda.conv.ffma import slab
    from alpha.cuda.conv.ffma.gemm import TILES
    desc = square("", 1, 50000, 4, 4, 1).desc
    tiles = [slab.SlabTile("fprop", tile) for tile in TILES]
    monkeypatch.setattr(planner, "_candidates", {(type(desc), "fprop"): tiles})
    with pytest.raises(AlphaError, match=r"(?s)none of its \d+ CUDA kernels fits.*10000000000 >= 2\^31.*\nhelp: .*CPU"):
        planner.plan("fprop", desc)


@pytest.mark.long
def test_tuning_times_the_candidates_once_and_keeps_the_choice(device, tmp_path, monkeypatch):
    from alpha.cuda.conv import planner
    desc = square("", 1, 3, 4, 4, 3, 1, 1).desc
    timed = []
    clock = planner._time
    monkeypatch.setattr(planner, "_time", lambda *args: timed.append(args) or clock(*args))
    with config(tune=True, cache_dir=str(tmp_path)):
        for _ in range(2):
            monkeypatch.setattr(planner, "_plans", {})
            made = planner.plan("fprop", desc, "fma")  # whose kernels are few
            assert made.measured and made.chosen is made.options[0].candidate
    fitting = [option for option in made.options if not option.reason]
    assert len(timed) == len(fitting) > 1
    assert [option.time_us for option in fitting] == sorted(option.time_us for option in fitting)
    for damaged in tmp_path.glob("tuning-*.json"):
        damaged.write_text("{")
    with config(tune=True, cache_dir=str(tmp_path)):
        monkeypatch.setattr(planner, "_plans", {})
        planner.plan("fprop", desc, "fma")
    assert len(timed) == 2 * len(fitting)
