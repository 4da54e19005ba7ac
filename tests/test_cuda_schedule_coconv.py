"""Work lists of contextual convolutions, walked on the host as levels.cuh walks them: every output once, right sums."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv.coconv.schedule import LEVEL_FIELDS, dgrad_slabs, fprop_slabs
from tests.coconv_cases import CASES, CoCase, oracle

ids = [case.name for case in CASES]


def walked(slabs, read: np.ndarray, w: np.ndarray, fprop: bool, size: int) -> np.ndarray:
    """Returns what the table says, flat: sums by row, pixel and segment."""
    out, written = np.zeros(size), np.zeros(size, int)
    read, w = read.ravel(), w.ravel()
    for head, *_ in slabs.sums:
        c = dict(zip(LEVEL_FIELDS, slabs.classes[head].tolist()))
        m = np.arange(c["rows"])
        pixel, image = m // slabs.images, m % slabs.images
        h, wide = pixel // c["width"], pixel % c["width"]
        for group in range(slabs.groups):
            columns = np.arange(c["columns"])
            total = np.zeros((c["rows"], c["columns"]))
            for number in range(head, head + c["segments"]):
                s = dict(zip(LEVEL_FIELDS, slabs.classes[number].tolist()))
                channels = np.arange(s["channels"])
                start = (image * slabs.in_image + s["in_"] + h * c["in_h"] + wide * c["in_w"] + group * s["channels"])
                for th in range(s["taps_h"]):
                    for tw in range(s["taps_w"]):
                        at = start + th * s["tap_in_h"] + tw * s["tap_in_w"]
                        tap = s["w"] + th * s["tap_w_h"] + tw * s["tap_w_w"]
                        rows = group * (c["columns"] if fprop else s["channels"]) * slabs.w_row
                        weight = (tap + rows + columns * slabs.w_row + channels[:, None] if fprop else
                                  tap + rows + channels[:, None] * slabs.w_row + columns)
                        total += read[at[:, None] + channels] @ w[weight]
            to = (image * slabs.out_image + c["out"] + h * c["out_h"] + wide * c["out_w"] + group * c["columns"])
            out[to[:, None] + columns] = total
            written[to[:, None] + columns] += 1
    assert (written == 1).all()
    return out


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_every_output_is_written_once_with_its_sum(case: CoCase) -> None:
    rng = np.random.default_rng(0)
    desc = case.desc
    x, w, g = (rng.integers(-3, 4, s).astype(np.float64) for s in (case.x_shape, case.w_shape, desc.y_shape))
    y, dx, _ = oracle(case, x, w, g)
    assert np.array_equal(walked(fprop_slabs(desc), x, w, True, y.size), y.ravel())
    assert np.array_equal(walked(dgrad_slabs(desc), g, w, False, dx.size), dx.ravel())


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_work_lists_cover_every_tile_the_longest_sums_first(case: CoCase) -> None:
    for slabs in (fprop_slabs(case.desc), dgrad_slabs(case.desc)):
        counts = slabs.slabs(64, 32, 16)
        work = slabs.work(64, 32)
        assert len(work) == sum(count for count, _ in counts) and len(counts) == len(slabs.sums)
        assert len(np.unique(work, axis=0)) == len(work)
        flops = [dict(zip(LEVEL_FIELDS, slabs.classes[head].tolist())) for head, *_ in slabs.sums]
        assert sum(f["rows"] * f["columns"] for f in flops) * slabs.groups in (np.prod(case.desc.y_shape),
                                                                             np.prod(case.x_shape))
