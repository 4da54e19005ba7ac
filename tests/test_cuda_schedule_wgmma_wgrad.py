"""The work list of wgrad on tensor cores, carried out in NumPy: what a kernel that follows it must get."""

from itertools import cycle, pairwise
from math import prod

import numpy as np
import pytest

from alpha.cuda.conv.costs import time_us
from alpha.cuda.conv.wgmma.schedule import at_a_time
from alpha.cuda.conv.wgmma.schedule_wgrad import UNIT_FIELDS, WORKSPACE_BYTES, cut, memory_us, schedule
from alpha.cuda.conv.wgmma.taps import BLOCK, Tiling, consumers, longest_chain
from alpha.cuda.conv.wgmma.wgrad import CANDIDATES
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv_desc import Axis
from benchmarks.shapes import SHAPES
from tests.conv_cases import small_cases, square
from tests.conv_oracle import conv_wgrad_padded

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
HEAD = len(UNIT_FIELDS)
TILINGS = (Tiling(128, 64, 1, 132, 0.4), Tiling(64, 64, 4, 7, 0.4), Tiling(128, 64, 3, 3, 100.0),
           Tiling(128, 32, 3, 40, 1e-3), Tiling(192, 64, 3, 7, 0.4), Tiling(256, 64, 1, 132, 0.4),
           Tiling(64, 128, 1, 7, 0.4))
STRIPS = (Tiling(64, 64, 3, 132, 0.4, strip=3), Tiling(128, 64, 2, 7, 0.4, strip=2),
          Tiling(128, 32, 3, 40, 1e-3, strip=4), Tiling(192, 64, 3, 132, 0.4, strip=2))
CLUSTERS = (Tiling(128, 64, 1, 33, 0.1, cluster=4), Tiling(192, 64, 3, 3, 0.1, cluster=2),
            Tiling(128, 64, 2, 2, 0.1, strip=2, cluster=8), Tiling(64, 128, 1, 7, 0.1, cluster=2))
BATCHES = tuple(square(f"batch {n}", n, 5, 8, 16, 3, 1, 1) for n in (1, 7, 33, 130, 200))
WIDE = (square("5x5 stride 2", 70, 9, 8, 8, 5, 2, 2), square("3x3 stride 2", 66, 12, 8, 16, 3, 2, 1),
        square("3x3", 65, 8, 8, 8, 3, 1, 1), square("dilation", 2, 11, 8, 8, 3, 4, 2, 2))
CASES = (*small_cases(), *BATCHES, square("groups", 9, 3, 48, 160, 3, 1, 1, groups=2))
CHAINED = tuple(case for case in (*CASES, *WIDE) if longest_chain(case.desc.w) > 1)


def dealt(cases, tilings, each=1):
    """Returns pairs in which every case meets `each` of the tilings, and every tiling its share of the cases."""
    pairs = zip([case for case in cases for _ in range(each)], cycle(tilings))
    return [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}") for pair in pairs]


def carry_out(desc, tiling, plan, x, g):
    """Returns dw: block by block, unit by unit, box by box, by the tables alone."""
    rows, cols, pixels, parts = tiling.rows, tiling.tap_columns, BLOCK // plan.box.rows, tiling.sums
    assert pixels == 1 or tiling.strip == 1
    dw = np.full(prod(desc.w_shape), np.nan)
    slots = np.full((plan.slots, parts, rows, tiling.taps, cols), np.nan)
    done = np.zeros(len(plan.units), int)
    for b in range(plan.blocks):
        if b % tiling.cluster == 0:
            together = 0.0  # what the blocks of a cluster have summed up
        while b >= 0:
            done[b] += 1
            last = b % tiling.cluster == tiling.cluster - 1
            segments = iter(plan.units[b, HEAD:].reshape(-1, 8).tolist())
            b, row, col, rows_left, cols_left, k0, k1, step, slot, taps, *columns = plan.units[b, :HEAD].tolist()
            shifts, outs = columns[:4], columns[4:]
            sums = np.zeros((parts, rows, cols * tiling.taps))
            turn = 0
            while k0 < k1:
                blocks, h0, w0, height, width, first, count, _ = next(segments)
                assert consumers(tiling.rows) == 2 or count in (1, tiling.taps)
                for k in range(k0, min(k1, blocks), step):
                    a, lines = _boxes(desc, plan, _positions(k, pixels, tiling.strip, width), (h0, w0, height, width),
                                      x, g, [(shifts[t], outs[t]) for t in range(first, first + count)])
                    to = sums[turn % parts]
                    for t, line in enumerate(lines, first):
                        to[:, t * cols:(t + 1) * cols] += _window(a, row, rows).T @ _window(line, col, cols)
                    turn += 1
                past = blocks + (k0 - blocks) % step if k0 < blocks else k0  # the first block behind the segment
                k0, k1 = past - blocks, k1 - blocks
            if tiling.cluster > 1:
                assert b == -1, "a cluster has one unit"
                together = sums = together + sums
                if not last:
                    continue
            if slot >= 0:
                assert np.isnan(slots[slot]).all(), "a slot is written twice"
                slots[slot] = sums.reshape(slots[slot].shape)
            else:
                _put(desc, dw, outs[:taps], rows_left, cols_left, cols, sums[0])
    assert (done == 1).all()
    part = tiling.part_columns  # the kernel stores [slot][consumer][tap], 64 rows by so many columns of each
    slots = slots.reshape(-1, rows // 64, 64, tiling.taps, cols // part, part).transpose(0, 1, 4, 3, 2, 5)
    slots = slots.reshape(-1, 64, part)
    for slot, count, out, rows_there, cols_there in plan.sums.tolist():
        there = slots[slot:slot + count * plan.apart:plan.apart]
        _put(desc, dw, [out], rows_there, cols_there, part, there.sum(axis=0))
    return dw.reshape(desc.w_shape)


def _positions(block, pixels, strip, width):
    """Returns the outputs of a block, or of a strip."""
    if strip == 1:
        return block * pixels + np.arange(pixels)
    strip = min(strip, width)
    assert width % strip == 0
    return block * strip + np.arange(strip)


def _boxes(desc, plan, positions, rectangle, x, g, taps):
    """Returns the lines of g, and of x for each tap: zeros beyond the batch; beyond the map is an error."""
    h0, w0, height, width = rectangle
    group, pixel = np.divmod(positions, height * width)
    h, w = np.divmod(pixel, width)
    if plan.box.height * plan.box.width > 1:
        assert (h0, w0) == (0, 0) and len(taps) == 1
        return _boxes_of_positions(desc, plan.box, group, h, w, x, g, taps[0][0])
    images = plan.box.images
    image = (group[:, None] * images + np.arange(images)).ravel()
    h, w = (np.repeat(v, images) for v in (h0 + h, w0 + w))
    there = (image < desc.n)[:, None]
    a = np.where(there, g[np.minimum(image, desc.n - 1), h, w], 0)
    b = []
    for shift, out in taps:
        fh, fw = divmod(out // desc.w_shape[3] % (desc.h.f * desc.w.f), desc.w.f)
        ih, iw = desc.h.input_of(h, fh), desc.w.input_of(w, fw)
        inside = (ih >= 0) & (ih < desc.h.i) & (iw >= 0) & (iw < desc.w.i)
        pixel = h * desc.h.s * desc.w.i + w * desc.w.s + shift
        assert (pixel == ih * desc.w.i + iw).all()
        line = x[np.minimum(image, desc.n - 1), ih % desc.h.i, iw % desc.w.i]
        b.append(np.where(there & inside[:, None], line, np.where(there, np.nan, 0)))
    return a, b


def _boxes_of_positions(desc, box, group, h, w, x, g, tap):
    """The same of boxes of positions, from the first output on that the tap meets; zeros in both operands beyond."""
    fh, fw = divmod(tap, desc.w.f)
    (h0, h1), (w0, w1) = desc.h.wgrad_range(fh), desc.w.wgrad_range(fw)
    image, down, right = (v.ravel() for v in np.indices((box.images, box.height, box.width)))
    image, oh, ow = ((at[:, None] * side + within).ravel() for at, side, within in (
        (group, box.images, image), (h, box.height, down), (w, box.width, right)))
    there = (image < desc.n) & (oh < h1 - h0) & (ow < w1 - w0)
    image, oh, ow = (np.where(there, v, 0) for v in (image, oh + h0, ow + w0))
    oh, ow = np.where(there, oh, h0), np.where(there, ow, w0)
    a, b = g[image, oh, ow], x[image, desc.h.input_of(oh, fh), desc.w.input_of(ow, fw)]
    return a * there[:, None], [b * there[:, None]]


def _window(lines, first, count):
    part = lines[:, first:first + count]
    if part.shape[1] == count:
        return part
    return np.hstack([part, np.zeros((len(part), count - part.shape[1]))])


def _put(desc, dw, outs, rows_left, cols_left, tap_columns, sums):
    rows, cols = min(len(sums), rows_left), min(tap_columns, cols_left)
    for t, out in enumerate(outs):
        at = out + np.arange(rows)[:, None] * prod(desc.w_shape[1:]) + np.arange(cols)
        assert np.isnan(dw[at]).all(), "an element of dw is written twice"
        dw[at] = sums[:rows, t * tap_columns:t * tap_columns + cols]


@pytest.mark.parametrize("case, tiling", dealt(CASES, TILINGS, 2))
def test_carried_out_it_is_wgrad_bit_for_bit(case, tiling):
    rng = np.random.default_rng(0)
    desc = case.desc
    x, g = (rng.integers(-4, 5, shape).astype(float) for shape in (desc.x_shape, desc.y_shape))
    dw = carry_out(desc, tiling, schedule(desc, tiling), x, g)
    assert_equal_at(dw, conv_wgrad_padded(x, g, case.f, **case.attrs).astype(float), name="dw")


@pytest.mark.parametrize("case, tiling", dealt(CHAINED, STRIPS))
def test_in_strips_too(case, tiling):
    test_carried_out_it_is_wgrad_bit_for_bit(case, tiling)


@pytest.mark.parametrize("case, tiling", dealt((*CASES[::3], *WIDE), CLUSTERS))
def test_in_clusters_too(case, tiling):
    if tiling.strip == 1 or longest_chain(case.desc.w) > 1:
        test_carried_out_it_is_wgrad_bit_for_bit(case, tiling)


def test_a_tile_that_one_cluster_has_needs_no_slot():
    desc = square("", 128, 8, 128, 128, 1).desc  # 128 blocks of k
    alone, together = (schedule(desc, Tiling(128, 128, 1, 8 // size, 0.4 / size, cluster=size)) for size in (1, 8))
    assert alone.slots == 8 and together.slots == 0 and len(together.units) == together.blocks == 8
    begin, end, step = (together.units[:, UNIT_FIELDS.index(name)] for name in ("begin", "end", "step"))
    assert begin.tolist() == list(range(8)) and (end == 128).all() and (step == 8).all()


def test_how_many_clusters_an_h100_runs_at_a_time():
    assert [at_a_time(132, size) for size in (1, 2, 4, 8)] == [132, 66, 30, 15]
    assert at_a_time(1, 8) == 1


@pytest.mark.parametrize("tiling", STRIPS, ids=str)
@pytest.mark.parametrize("case", CHAINED, ids=lambda case: case.name)
def test_the_taps_of_a_strip_are_neighbours(case, tiling):
    """Box number i of a strip is i boxes' distance behind where output (0, 0) meets the first tap."""
    w, row = case.desc.w, case.desc.w_shape[3]
    for unit in schedule(case.desc, tiling).units.tolist():
        taps, shifts, outs = unit[9], unit[10:14], unit[14:18]
        assert {b - a for a, b in pairwise(shifts[:taps])} <= {w.s}
        assert len({out % prod(case.desc.w_shape[1:]) // row // w.f for out in outs[:taps]}) == 1


@pytest.mark.parametrize(("stride", "dilation", "chain"), [
    (1, 1, 5), (2, 1, 3), (3, 1, 2), (1, 2, 1), (2, 2, 5), (4, 2, 3), (3, 2, 1)])
def test_which_taps_of_a_row_overlap(stride, dilation, chain):
    assert longest_chain(Axis(20, 6, 5, stride, 2, dilation)) == chain


def products_of(desc, tiling, plan):
    """Returns the number of products of each unit; a missing image counts."""
    found = []
    for unit in plan.units.tolist():
        _, _, _, rows, cols, begin, end, step = unit[:8]
        parts = np.reshape(unit[HEAD:], (-1, 8))
        ends = np.cumsum([0, *parts[:, 0]])
        blocks = np.diff([len(range(begin, min(end, stop), step)) for stop in ends])
        pixels = blocks * np.minimum(parts[:, 4], tiling.strip)
        size = min(tiling.rows, rows) * min(tiling.tap_columns, cols) * BLOCK
        found.append(size * int((pixels * parts[:, 6]).sum()))
    return np.array(found)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_product_with_a_padded_zero_is_scheduled(shape):
    desc = shape.desc
    overlapping = (tiling for tiling in STRIPS if longest_chain(desc.w) > 1)
    for tiling in (*TILINGS, *overlapping):
        plan = schedule(desc, tiling)
        assert 2 * products_of(desc, tiling, plan).sum() == desc.useful_flops
        assert plan.slots * tiling.slot_bytes <= WORKSPACE_BYTES and plan.box == (64, 1, 1)


@pytest.mark.parametrize("name", ["v1", "v3", "v4", "d16", "e8"])
def test_good_candidates_keep_all_multiprocessors_equally_busy(name):
    """One of the three cheapest that channels fill: rows that do not exist have no products, and take as long."""
    desc = next(shape for shape in SHAPES if shape.name == name).desc
    for reads in ("bfloat16", "float16x2"):
        filled = [c for c in CANDIDATES if c.reads == reads and c.tile.cluster == 1
                  and not (desc.oc % c.tile.rows or desc.ic % c.tile.tap_columns)]
        busiest = []
        for candidate in sorted(filled, key=lambda c: time_us(c.cost(desc)))[:3]:
            plan = candidate.schedule(desc)
            each, load = products_of(desc, candidate.tile, plan), []
            for b in range(plan.blocks):
                load.append(0)
                while b >= 0:
                    load[-1] += each[b]
                    b = plan.units[b, 0]
            busiest.append(max(load) / np.mean(load) if plan.blocks == 132 else np.inf)
        assert min(busiest) < 1.15, (reads, busiest)


def test_few_images_are_copied_as_positions_side_by_side():
    """A block of k that is four boxes of 16 images is four copies, which take longer than its products."""
    def box(n, hw, taps=1):
        return schedule(square("", n, hw, 8, 8, 3, 1, 1).desc, Tiling(128, 64, taps, 132, 0.3)).box
    assert [box(n, 8).images for n in (512, 130, 200, 96)] == [64] * 4 and box(128, 1) == (64, 1, 1)
    assert box(1, 8) == (1, 8, 8) and all(box(n, hw).rows == 64 for n in (4, 16, 32) for hw in (8, 14, 28))
    few, full = (cut(square("", n, 14, 512, 512, 3, 1, 1).desc, Tiling(128, 64, 3, 132, 0.3)) for n in (16, 64))
    assert few.time_us > 0.9 * full.time_us


def test_a_small_layer_is_not_cut():
    plan = schedule(square("", 2, 5, 8, 8, 1).desc, TILINGS[0])
    assert len(plan.units) == 1 and plan.slots == 0


def test_what_the_l2_cache_keeps_is_read_once():
    def us(n, rows, stride):
        return memory_us(square("", n, 32, 512, 192, 1, stride).desc, Tiling(rows, 128, 1, 132, 0.4))
    assert us(16, 128, 2) == us(16, 192, 2)
    assert us(512, 128, 2) > 1.25 * us(512, 192, 2)
    assert us(512, 128, 1) == us(512, 192, 1), "blocks of a product do not drift apart"
