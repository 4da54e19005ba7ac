"""The gradient of the filters from boxes of positions: bitwise on integers; infinities stay where they belong."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv.wgmma import schedule_wgrad, wgrad
from alpha.cuda.conv.wgmma.boxes import Box
from tests.conv_cases import Case as Shape
from tests.conv_cases import square
from tests.cuda.conv.test_conv_wgmma_wgrad import check, check_specials
from tests.cuda.process import CHECKED, EMULATED

pytestmark = pytest.mark.cuda

CANDIDATES = tuple(c for c in wgrad.CANDIDATES if c.tile.taps == 1)
CASES = (  # remainders of boxes, tails of images and channels, boxes with all channels, taps without products
    square("one image", 1, 13, 72, 136, 3, 1, 1), square("whole channels", 1, 9, 128, 192, 3, 1, 1),
    square("images", 5, 5, 16, 40, 3, 1, 1), square("33 images", 33, 3, 8, 8, 3, 1, 1),
    square("stride 2", 3, 11, 64, 72, 3, 2, 1), square("stride 3, dilation 2", 2, 14, 24, 16, 3, 3, 2, 2),
    square("7x7 over the map", 2, 3, 16, 16, 7, 1, 3), square("groups", 2, 6, 128, 128, 3, 1, 1, groups=2),
    square("one tap, stride 2", 2, 7, 72, 80, 1, 2), Shape("flat", 2, (2, 21), 40, 24, (1, 5), (1, 2), (0, 2)))
BOXES = (Box(1, 8, 8), Box(4, 4, 4), Box(1, 2, 16), Box(2, 4, 1), Box(1, 1, 8))


@pytest.fixture
def only_boxes(device, monkeypatch):
    """Has all sums run over boxes of one shape."""
    cut = schedule_wgrad._cut
    caches = schedule_wgrad.schedule, schedule_wgrad.cut

    def take(box: Box) -> None:
        for cache in caches:
            cache.cache_clear()
        monkeypatch.setattr(schedule_wgrad, "wgrad_box", lambda desc, rows: box)
        monkeypatch.setattr(schedule_wgrad, "_cut", lambda desc, tiling, one: cut(desc, tiling, one)._replace(
            time_us=cut(desc, tiling, one).time_us + 1e6 * (one != box)))
    yield take
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("candidate", CANDIDATES[::3 if CHECKED else 1], ids=lambda c: c.name)
def test_boxes_are_bitwise_right_on_integers(only_boxes, candidate):
    turn = CANDIDATES.index(candidate)
    for number, box in enumerate(BOXES):
        only_boxes(box)
        for case in CASES[(turn + number) % 5::5] if EMULATED else CASES:
            if not candidate.rejection(case.desc):
                assert candidate.schedule(case.desc).box == box
                check(candidate, case, "bfloat16" if candidate.reads == "bfloat16" else "float32")


@pytest.mark.parametrize("box", [BOXES[0], BOXES[2]], ids=str)
def test_infinities_stay_where_they_belong(only_boxes, box):
    """Boxes that reach beyond what a tap meets have zeros there in both operands."""
    only_boxes(box)
    case = square("", 1, 5, 8, 8, 3, 1, 1)
    for which in (0, 1):
        pair = [np.ones(case.x_shape, np.float32), np.ones(case.desc.y_shape, np.float32)]
        pair[which][0, 4, 4, 3] = np.inf
        check_specials(case, *pair)
