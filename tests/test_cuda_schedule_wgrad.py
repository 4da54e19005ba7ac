"""The work list of wgrad, carried out in NumPy: what a kernel that follows it must get."""

import numpy as np
import pytest

from alpha.cuda.conv.ffma.schedule_wgrad import LEAST_SLABS, WORKSPACE_BYTES, Tiling, schedule
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv_desc import ConvDesc
from tests.conv_cases import CASES, small_cases, square
from tests.conv_oracle import conv_wgrad_padded

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
TILINGS = (Tiling(8, 4, 2, 7, 1.0), Tiling(64, 64, 16, 132, 0.1), Tiling(4, 8, 1, 3, 1.0), Tiling(2, 2, 1, 500, 0.01))


def carry_out(desc, tiling, plan, x, g):
    """Returns dw: block by block, unit by unit, line by line, by the tables alone."""
    ocg, icg = desc.oc // desc.groups, desc.ic // desc.groups
    dw_row = desc.h.f * desc.w.f * icg
    dw = np.full(desc.oc * dw_row, np.nan)
    work = np.full((plan.slots, tiling.rows, tiling.columns), np.nan)
    x_image, g_image = x[0].size, g[0].size
    x, g = x.ravel(), g.ravel()
    for begin, end in zip(plan.first, plan.first[1:]):
        for tap, group, row, col, k0, k1, slot, _ in plan.units[begin:end]:
            pixels, width, g0, x0, w0, *_ = plan.taps[tap]
            k = np.arange(k0, k1)
            image, pixel = np.divmod(k, max(pixels, 1))
            h, w = np.divmod(pixel, width)
            rows, cols = min(tiling.rows, ocg - row), min(tiling.columns, icg - col)
            of_g = image * g_image + g0 + (h * desc.w.o + w) * desc.oc + group * ocg + row
            of_x = image * x_image + x0 + (h * desc.h.s * desc.w.i + w * desc.w.s) * desc.ic + group * icg + col
            tile = g[of_g[:, None] + np.arange(rows)].T @ x[of_x[:, None] + np.arange(cols)]
            if slot >= 0:
                assert np.isnan(work[slot]).all(), "a slot is written twice"
                work[slot] = 0
                work[slot, :rows, :cols] = tile
            else:
                _put(dw, (group * ocg + row) * dw_row + w0 + col, dw_row, tile)
    for slot, count, out, rows, cols, *_ in plan.sums:
        _put(dw, out, dw_row, work[slot:slot + count].sum(axis=0)[:rows, :cols])
    return dw.reshape(desc.w_shape)


def _put(dw, start, stride, tile):
    at = start + np.arange(tile.shape[0])[:, None] * stride + np.arange(tile.shape[1])
    assert np.isnan(dw[at]).all(), "an element of dw is written twice"
    dw[at] = tile


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("case", small_cases(), ids=lambda case: case.name)
def test_carried_out_it_is_wgrad_bit_for_bit(case, tiling):
    rng = np.random.default_rng(0)
    desc = case.desc
    x, g = (rng.integers(-4, 5, shape).astype(float) for shape in (desc.x_shape, desc.y_shape))
    dw = carry_out(desc, tiling, schedule(desc, tiling), x, g)
    assert_equal_at(dw, conv_wgrad_padded(x, g, case.f, **case.attrs).astype(float), name="dw")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_product_with_a_padded_zero_is_scheduled(case):
    desc, tiling = case.desc, Tiling(64, 64, 16, 264, 0.5)
    plan = schedule(desc, tiling)
    ocg, icg = desc.oc // desc.groups, desc.ic // desc.groups
    products = sum((k1 - k0) * min(64, ocg - row) * min(64, icg - col)
                   for _, _, row, col, k0, k1, _, _ in plan.units.tolist())
    assert 2 * products == desc.useful_flops
    assert plan.slots * 64 * 64 * 4 <= WORKSPACE_BYTES


def test_a_layer_of_one_tile_per_tap_is_shared_by_all_blocks():
    desc = square("", 512, 32, 64, 64, 3, 1, 1).desc
    plan = schedule(desc, Tiling(64, 64, 16, 528, 0.5))
    load = np.add.reduceat(plan.units[:, 5] - plan.units[:, 4], plan.first[:-1])
    assert 500 < len(load) <= 528
    assert load.max() < 1.08 * load.mean()


def test_taps_of_unequal_length_make_equal_shares():
    desc = square("", 512, 4, 512, 512, 3, 2, 1).desc  # the sums of its taps are as 1 : 2 : 4
    plan = schedule(desc, Tiling(128, 128, 16, 264, 1.0))
    load = np.add.reduceat(plan.units[:, 5] - plan.units[:, 4], plan.first[:-1])
    assert len(load) == 264
    assert load.max() < 1.1 * load.mean()


def test_small_layers_do_not_get_blocks_without_work():
    desc = ConvDesc.fprop((2, 5, 5, 8), (8, 1, 1, 8), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    plan = schedule(desc, Tiling(64, 64, 16, 264, 1.0))
    assert len(plan.units) == 1 and plan.slots == 0
    assert LEAST_SLABS * 16 > 2 * 25
