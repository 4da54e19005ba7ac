"""dgrad at stride 1 as a forward pass by turned filters: bitwise on integers, and who is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alpha.cuda.conv import turned, wgmma
from tests.conv_cases import Case, square
from tests.cuda.process import CHECKED
from tests.cuda.test_conv_wgmma import check

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

CANDIDATES = turned.candidates(wgmma.candidates())
CASES = (  # more channels of x than a tile has columns, no padding, taps of other numbers, dilated rows
    square("16 channels", 9, 6, 72, 16, 3, 1, 1), square("32 channels", 66, 7, 136, 32, 3),
    Case("48 channels", 5, (6, 7), 24, 48, (2, 3), padding=(0, 2)),
    Case("dilated rows", 3, (8, 4), 8, 32, (3, 3), padding=(3, 1), dilation=(2, 1)))


@pytest.mark.parametrize("case", CASES[:2] if CHECKED else CASES, ids=lambda case: case.name)
def test_every_candidate_is_bitwise_right_on_integers(case: Case) -> None:
    assert CANDIDATES
    for candidate in CANDIDATES:
        assert not candidate.fits(case.desc)
        check(candidate, case)


@pytest.mark.parametrize("other, reason", [
    (dict(oc=64), "it is for"), (dict(groups=2, ic=32, oc=32), "it is for"), (dict(stride=(2, 1)), "stride 1"),
    (dict(padding=(3, 1)), "no more padding"), (dict(dilation=(1, 2)), "taps beside each other"),
    (dict(hw=(6, 1)), "no outputs beside each other")])
def test_it_says_why_it_cannot(other: dict, reason: str) -> None:
    assert reason in CANDIDATES[0].fits(replace(CASES[0], **other).desc)
