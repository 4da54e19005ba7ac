"""Boxes of positions in the place of pixels of many images: bitwise on integers, by every tile in every mode."""

from __future__ import annotations

import pytest

from tests.conv_cases import Case as Shape
from tests.conv_cases import square
from tests.cuda.conv.checks import with_long
from tests.cuda.conv.test_conv_wgmma import check, check_joined, tiles
from tests.cuda.process import CHECKED, EMULATED

pytestmark = pytest.mark.cuda
SHARE = 4 if EMULATED else 1  # each shape of boxes meets another one of so many parts of the tiles

CASES = (  # several tiles, remainders of boxes along each axis, tails of images, columns and channels
    square("one image", 1, 13, 72, 136, 3, 1, 1), square("images", 5, 5, 16, 40, 3, 1, 1),
    square("33 images of a pixel row", 33, 3, 8, 8, 3, 1, 1), square("stride 2", 3, 11, 64, 72, 3, 2, 1),
    square("stride 4, dilation 2", 2, 14, 24, 16, 3, 4, 2, 2), square("7x7", 1, 9, 16, 16, 7, 2, 3),
    square("groups", 2, 6, 48, 96, 3, 1, 1, groups=2), square("one tap, stride 2", 2, 7, 72, 80, 1, 2),
    Shape("flat", 2, (2, 21), 40, 24, (1, 5), (1, 2), (0, 2)))


@pytest.fixture
def only_boxes(monkeypatch, fresh_schedules):
    """Has all tiles take boxes of one shape or kind: (height, width, most images), trimmed."""
    from alpha.cuda.conv import wgmma
    from alpha.cuda.conv.wgmma.boxes import LEAST_ROWS, MOST_PIXELS, Box, boxed, shapes
    boxes = wgmma.tile_boxes

    def take(side: tuple[int, int, int], trimmed: bool) -> None:
        height, width, images = side

        def one(pass_name, desc, rows, pixels, *which):
            if height * width > rows or not shapes(pass_name, desc, rows):
                yield from boxes(pass_name, desc, rows, pixels, *which)
                return
            of_tile = min(images, rows // (height * width))
            while height * width * of_tile < max(rows // MOST_PIXELS, LEAST_ROWS):
                of_tile *= 2
            yield Box(of_tile, height, width), boxed(pass_name, desc, height, width, trimmed)
        wgmma._estimate.cache_clear()
        monkeypatch.setattr(wgmma, "tile_boxes", one)
    yield take
    wgmma._estimate.cache_clear()


def of_boxes(pass_name: str) -> list:
    """Returns the tiles that may have boxes."""
    return [tile for tile in tiles(pass_name) if not tile.tile.held]


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
@pytest.mark.parametrize("case", with_long(CASES[::4] if CHECKED else CASES, "one image", "images",
                                           "33 images of a pixel row"), ids=lambda case: case.name)
def test_boxes_are_right_in_every_mode(device, only_boxes, pass_name, case, trimmed):
    for number, side in enumerate(((8, 16, 1), (4, 4, 4), (1, 8, 1), (2, 8, 8))):
        only_boxes(side, trimmed)
        for tile in of_boxes(pass_name)[(number + CASES.index(case)) % SHARE::SHARE]:
            if not tile.rejection(case.desc):
                check(tile, case, bias=pass_name == "fprop")
                if tile.joins and number == 1:
                    check_joined(tile, case)
