"""The work lists of the tensor-core convolutions, interpreted in NumPy: what the kernel would do, without a GPU."""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from alpha.cuda.conv import wgmma
from alpha.cuda.conv.wgmma import schedule_held
from alpha.cuda.conv.wgmma.boxes import ROWS, Box
from alpha.cuda.conv.wgmma.pixels import CHUNK, CLASS, STEP, field, pixels_of
from alpha.cuda.conv.wgmma.schedule import (
    END,
    ITEM,
    ITEM_SIZE,
    Costs,
    Tiles,
    estimate,
    last_load,
    longest_first,
    work_list,
)
from alpha.cuda.conv.wgmma.schedule_held import held_list, held_makespan
from alpha.gradcheck import assert_equal_at
from benchmarks.shapes import SHAPES
from tests.conv_cases import CASES, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
SMALL = (*small_cases(), square("rows of 24", 3, 5, 24, 16, 3, 1, 1), square("rows of 16", 3, 7, 16, 16, 5, 2, 2),
         square("rows of 80", 2, 4, 80, 48, 2, 2), square("dilated", 2, 7, 16, 16, 3, 1, 2, 2),
         replace(square("dilated as strided", 2, 9, 48, 16, 3, 1, 0, 2), stride=(2, 2)),
         square("groups", 2, 5, 48, 96, 3, 1, 1, groups=3))
TILES = ((8, 4, 1000, ROWS), (128, 64, 3, ROWS), (16, 4, 3, 2 * ROWS))  # images, columns, multiprocessors, rows
PAIRS = (square("neighbours", 5, 6, 64, 128, 3, 1, 1), square("odd width", 3, 7, 128, 64, 5, 1, 2),
         square("of one tap", 9, 5, 64, 64, 1), square("strided", 3, 9, 64, 64, 5, 2, 2),
         square("groups of 64", 2, 6, 128, 128, 3, 1, 1, groups=2))
fprop_pixels, dgrad_pixels = (partial(pixels_of.__wrapped__, pass_name) for pass_name in ("fprop", "dgrad"))
PASSES = {"fprop": fprop_pixels, "dgrad": dgrad_pixels}


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape)


def entries(work):
    """Returns what the lists have, as dictionaries, list by list."""
    for block in work.items.tolist():
        for entry in block:
            if entry[0] == END:
                break
            yield dict(zip(ITEM, entry))


SUM = ("block", "blocks", "whole", "length", "run", "runs_h", "runs_w", "pair", "tap_h", "tap_h_step", "tap_w",
       "tap_w_step")  # of an entry: what its sum is made of, wherever its outputs are


def terms(entry, second, pixels, row_channels):
    """Yields, block by block, what is read for every output of an entry: (th, column, tap, k, fh, fw) of each value.

    second: of a pair's second output, whose first tap meets the second pixel.
    """
    c = dict(zip(SUM, entry))
    for b in range(c["block"], c["block"] + c["blocks"]):
        chunk, at = divmod(b, c["runs_h"] * c["runs_w"])
        th, column = divmod(at, c["runs_w"])
        tw = column - second
        if not 0 <= tw < c["runs_w"] - (c["pair"] > 0):
            continue
        k = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, c["length"]))
        assert (len(k) > CHUNK - STEP) == (b - c["block"] < c["whole"])
        tap, k = np.divmod(k, pixels.channels)
        assert tap[-1] < c["run"]
        fh, fw = (c["tap_" + a] + t * c[f"tap_{a}_step"] for a, t in (("h", th), ("w", tw + tap)))
        assert (np.diff(tap * row_channels + k) == 1).all(), "not side by side"
        units = [set(tap[u:u + pixels.unit]) for u in range(0, len(k), pixels.unit)]
        assert (np.diff(fw * pixels.channels + k) == 1).all() or max(map(len, units)) == 1, "not a box of filters"
        yield np.broadcast_arrays(th, column, tap, k, fh, fw)


def interpret(work, pixels, images, columns, read, w, out_shape, tile_rows=ROWS):
    """Runs a work list in coordinates, as the kernel does; asserts that every element is written once.

    `w` is (column of all groups, FH, FW, channel).
    """
    out, written = np.zeros(out_shape, np.int64), np.zeros(out_shape, np.int64)
    read, w = read.astype(float), w.astype(float)  # whole numbers are exact, and BLAS multiplies
    slots, channels, none = {}, pixels.channels, np.zeros((6, 0), int)

    @cache
    def terms_of(*entry):
        return np.concatenate([none, *terms(*entry, pixels, read.shape[3])], axis=1)

    for c in entries(work):
        number, count = divmod(c["slice"], 65536)
        first, last = c["group"] * pixels.columns + c["column"], (c["group"] + 1) * pixels.columns
        rows, columns_of = slice(c["image"], c["image"] + images), slice(first, min(first + columns, last))
        places = range(c["pixel"], min(c["pixel"] + tile_rows // images, c["pixels"]))
        for second in range(1 + (c["pair"] > 0)):
            th, column, tap, k, fh, fw = terms_of(tuple(c[name] for name in SUM), second)
            filters = w[columns_of, fh, fw, k].T
            for p in places:
                ph, pw = divmod(p, c["width"])
                h, v = (c["in_" + a] + q * c[f"in_{a}_step"] + t * c["tap_in_" + a]
                        for a, q, t in (("h", ph, th), ("w", pw, column)))
                assert (h >= 0).all() and (v >= 0).all()
                total = read[rows, h, v + tap, c["group"] * channels + k] @ filters
                to = (rows, c["out_h"] + ph * c["out_h_step"], c["out_w"] + pw * c["out_w_step"] + second * c["pair"],
                      columns_of)
                if count > 1:
                    done = slots.setdefault((c["slot"], p), {})
                    assert number not in done
                    done[number] = total
                    if len(done) < count:
                        continue
                    total = sum(done.values())
                out[to] = total
                written[to] += 1
    assert_equal_at(written, np.ones_like(written), name="times an element is written")
    return out


def check(case, pass_name, images, columns, sm_count, rows=ROWS, pairs=False, make=work_list):
    pixels = PASSES[pass_name](case.desc, pairs)
    work = make(Tiles(pixels, Box(images), columns, sm_count, rows=rows))
    a = integers(case.desc.x_shape if pass_name == "fprop" else case.desc.y_shape, 1)
    w = integers(case.w_shape, 2)
    if pass_name == "fprop":
        got = interpret(work, pixels, images, columns, a, w, case.desc.y_shape, rows)
        assert_equal_at(got, conv_fprop_padded(a, w, **case.attrs), name=f"y of {case.name}")
    else:
        by_group = w.reshape(case.groups, -1, *w.shape[1:]).transpose(0, 4, 2, 3, 1)  # (group, ic, FH, FW, oc)
        got = interpret(work, pixels, images, columns, a, by_group.reshape(-1, *by_group.shape[2:]), case.x_shape,
                        rows)
        assert_equal_at(got, conv_dgrad_padded(a, w, case.hw, **case.attrs), name=f"dx of {case.name}")
    return work


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("pass_name", PASSES)
def test_work_lists_give_the_convolution_and_its_gradient(pass_name, tile):
    for case in SMALL:
        check(case, pass_name, *tile)


@pytest.mark.parametrize("images", [8, 128])
@pytest.mark.parametrize("pass_name", PASSES)
def test_pairs_of_outputs_share_what_they_read(pass_name, images):
    """Each pair reads a pixel more in a row than one output; no product is made that one output does not make."""
    shared = 0
    for case in (*SMALL, *PAIRS):
        found = [*entries(check(case, pass_name, images, 64, 3, pairs=True))]
        shared += any(c["pair"] for c in found)
        c = dict(zip(CLASS, PASSES[pass_name](case.desc, pairs=True).classes.T.astype(np.int64)))
        outputs = np.where(c["pair"] > 0, 2 * (c["runs_w"] - 1), c["runs_w"]) * c["pixels"] * c["runs_h"] * c["length"]
        assert 2 * outputs.sum() * case.n * PASSES[pass_name](case.desc).columns * case.groups == case.desc.useful_flops
    assert shared >= len(PAIRS) - 1  # the strided one in dgrad alone
    long = check(square("too long to be cut", 3, 4, 256, 256, 3, 1, 1), pass_name, images, 64, 60, pairs=True)
    assert long.slots == 0


def test_pairs_are_made_where_taps_are_as_far_apart_as_outputs():
    """At stride 2 neighbouring outputs share no tap's input but in a gradient, whose outputs are two apart."""
    near, far = square("", 2, 9, 64, 64, 3, 1, 1), square("", 2, 9, 64, 64, 3, 2, 1)
    dilated, one = square("", 2, 9, 64, 64, 3, 1, 2, 2), square("", 2, 9, 64, 64, 1, 2)
    for case, fprop, dgrad in ((near, 1, 1), (far, 0, 2), (dilated, 0, 0), (one, 1, 2)):
        for pixels, distance in ((fprop_pixels, fprop), (dgrad_pixels, dgrad)):
            apart = field(pixels(case.desc, pairs=True).classes, "pair")
            assert apart.max() == distance, case
    narrow = replace(near, ic=96, oc=96)  # the rows of its chunks are not those of one tap
    assert not field(fprop_pixels(narrow.desc, pairs=True).classes, "pair").any()


@pytest.mark.parametrize("pass_name", PASSES)
def test_long_sums_are_cut_and_give_the_same(pass_name):
    work = check(square("long", 3, 4, 200, 200, 3, 1, 1), pass_name, 8, 64, 60)
    assert work.slots > 0 and max(entry["slice"] & 0xffff for entry in entries(work)) > 1


# ---- filters that are held -------------------------------------------------------------------------------------------

NARROW = (square("1x1", 5, 6, 128, 208, 1), square("three taps of 16", 9, 5, 16, 40, 3, 1, 1),
          square("groups", 6, 4, 96, 72, 1, groups=3), square("strided", 5, 6, 32, 48, 3, 2, 1))


def filters_of(entry):
    return tuple(entry[name] for name in ("group", "column", *schedule_held.FILTERS))


@pytest.mark.parametrize("turn", range(len(TILES)))
def test_lists_of_held_filters_give_the_convolution_and_its_gradient(turn):
    """Tiles take turns at the cases, and at each the gradient has another than the convolution."""
    for k, case in enumerate((*SMALL, *NARROW)):
        if k % len(TILES) == turn:
            check(case, "fprop", *TILES[k // 3 % len(TILES)], make=held_list)
            check(case, "dgrad", *TILES[(k // 3 + 1) % len(TILES)], make=held_list)


@pytest.mark.parametrize("pass_name", PASSES)
def test_held_filters_are_those_that_an_entry_reads(pass_name):
    """They are loaded where a list begins and where they change, which they do as rarely as they can."""
    for case in (*SMALL, *NARROW):
        pixels = PASSES[pass_name](case.desc)
        for units in (1, 7, 132):
            work, loads = held_list(Tiles(pixels, Box(8), 64, units)), 0
            assert work.slots == 0 and work.sliced.shape == (0, ITEM_SIZE)
            for block in work.items:
                held = None
                for entry in entries(work._replace(items=block[None])):
                    assert entry["slot"] == (filters_of(entry) != held)
                    held, loads = filters_of(entry), loads + entry["slot"]
            kinds = {filters_of(entry) for entry in entries(work)}
            assert len(kinds) <= loads <= len(kinds) + len(work.items) - 1


def test_multiprocessors_have_as_much_to_do_as_each_other():
    """But for a tile, and for the filters that they load; most of them hold the same ones throughout."""
    costs = Costs(2.0, filters=3.0)
    for case in (square("", 512, 16, 160, 528, 1), square("", 512, 8, 128, 512, 1), square("", 8, 16, 96, 528, 1),
                 square("", 64, 16, 16, 48, 3, 1, 1)):
        pixels = fprop_pixels(case.desc)
        tiles = Tiles(pixels, Box(128), 192, 132, costs)
        work, load, kinds = held_list(tiles), [], []
        for block in work.items:
            found = [*entries(work._replace(items=block[None]))]
            kinds.append(sum(c["slot"] for c in found))
            share = [min(pixels.columns - c["column"], 192) / min(pixels.columns, 192) for c in found]
            tails = [0.3 + 0.7 * (c["length"] % CHUNK) / CHUNK for c in found]
            load.append(sum(c["whole"] + (c["blocks"] - c["whole"]) * tail + 1 + s
                            for c, tail, s in zip(found, tails, share)) + 3.0 * kinds[-1])
        makespan, mean = held_makespan(tiles)
        assert (makespan, mean) == pytest.approx((max(load), np.mean(load)))
        if case.f == 1:
            assert makespan - mean <= pixels.most_blocks + costs.tile + costs.filters
            assert np.mean(kinds) < 1.1


def test_multiprocessors_are_at_the_same_images():
    """Of 16 images of each of three tiles of columns, which 12 multiprocessors go through side by side."""
    work = held_list(Tiles(fprop_pixels(square("", 128 * 16, 1, 64, 576, 1).desc), Box(128), 192, 12))
    images = [[c["image"] // 128 for c in entries(work._replace(items=block[None]))] for block in work.items]
    assert images == [[k, 4 + k, 8 + k, 12 + k] for k in range(4)] * 3
    assert {c["column"] for c in entries(work._replace(items=work.items[4:8]))} == {192}
    for units in (5, 7):  # some change to other columns on the way
        work = held_list(Tiles(fprop_pixels(square("", 128 * 64, 1, 64, 576, 1).desc), Box(128), 192, units))
        for block in work.items:
            images = np.array([c["image"] // 128 for c in entries(work._replace(items=block[None]))])
            assert np.abs((images + 0.5) / 64 - (np.arange(images.size) + 0.5) / images.size).max() < 0.2


def test_filters_are_held_where_they_have_room(monkeypatch):
    tile = next(c for c in wgmma.CANDIDATES if c.pass_name == "fprop" and c.tile.held == 6 and c.tile.rows == ROWS)
    assert fprop_pixels(square("", 64, 8, 32, 32, 3, 1, 1).desc).most_blocks == 6
    assert fprop_pixels(square("", 64, 8, 40, 32, 3, 1, 1).desc).most_blocks == 6
    assert fprop_pixels(square("", 64, 8, 384, 32, 1).desc).most_blocks == 6
    monkeypatch.setitem(wgmma.context.__dict__, "arch", "sm_90a")
    assert not tile.rejection(square("", 64, 8, 384, 32, 1).desc)
    assert tile.rejection(square("", 64, 8, 392, 32, 1).desc) == "the filters of a sum are 7 blocks, room is for 6"


@pytest.mark.parametrize("pass_name", PASSES)
def test_no_product_with_a_padded_or_inserted_zero_is_made(pass_name):
    for case in CASES:
        pixels = PASSES[pass_name](case.desc)
        c = dict(zip(CLASS, pixels.classes.T.astype(np.int64)))
        products = (c["pixels"] * c["runs_h"] * c["runs_w"] * c["length"]).sum() * case.n * pixels.columns * case.groups
        assert 2 * products == case.desc.useful_flops, case.name


@pytest.mark.parametrize("pass_name", PASSES)
@pytest.mark.parametrize(("channels", "filter_size", "blocks"), [
    (16, 3, 3 * 1), (32, 3, 3 * 2), (96, 3, 3 * 5), (112, 3, 3 * 6), (208, 3, 3 * 10), (64, 3, 9), (192, 3, 27),
    (16, 5, 5 * 2), (96, 1, 2), (528, 1, 9)])
def test_rows_of_taps_are_summed_over_in_as_few_blocks_as_hold_them(pass_name, channels, filter_size, blocks):
    case = square("", 8, 9, channels, channels, filter_size, 1, filter_size // 2)
    inner = PASSES[pass_name](case.desc)
    found = [*entries(work_list(Tiles(inner, Box(8), 64, 1)))]
    assert {entry["blocks"] for entry in found if entry["pixels"] == (10 - filter_size) ** 2} == {blocks}


def test_what_is_left_of_a_chunk_costs_its_share():
    """48 of 64 values, in each of three rows."""
    one, costs = square("", 8, 1, 16, 16, 1).desc, Costs(0.0, block=0.2)
    assert estimate(Tiles(fprop_pixels(one), Box(8), 64, 1, costs))[0] == pytest.approx(0.2 + 0.8 / 4)
    row = replace(one, w=replace(one.w, i=3, f=3))
    assert estimate(Tiles(fprop_pixels(row), Box(8), 64, 1, costs))[0] == pytest.approx(0.2 + 0.8 * 3 / 4)


def test_lists_are_whole_and_the_makespan_is_that_of_the_busiest_block():
    costs = Costs(2.0, 1.0, 0.25)
    for shape in SHAPES:
        if shape.desc.oc % CHUNK:
            continue
        by_image = shape.desc.h.s > 1
        whole = Tiles(dgrad_pixels(shape.desc), Box(128), 128, 132, costs)
        work = work_list(whole, by_image)
        assert 1 <= len(work.items) <= 132 and work.items.shape[2] == ITEM_SIZE >= len(ITEM)
        load = []
        for block in work.items:
            end = np.flatnonzero(block[:, 0] == END)[0]
            cost = block[:end, 0] + costs.tile  # all of its blocks are whole
            assert end > 0 and (block[:end, ITEM.index("whole")] == block[:end, 0]).all()
            image = block[:end, ITEM.index("image")] * by_image
            assert (np.lexsort((np.arange(end), -cost, image)) == np.arange(end)).all()
            load.append(cost.sum())
        added = 1.0 + 0.25 * work.slots if work.slots else 0.0
        assert max(load) + added == pytest.approx(estimate(whole)[0])
        assert work.sliced[:, ITEM.index("slice")].sum() == work.slots


def test_below_one_wave_sums_are_cut_where_that_is_faster():
    few = square("", 128, 2, 512, 512, 3, 1, 1).desc            # 16 tiles of 32 blocks
    cut = Tiles(fprop_pixels(few), Box(128), 128, 132)
    whole = cut._replace(costs=Costs(3.0, 1e6, 0.0))
    assert work_list(whole).slots == 0 and estimate(whole)[0] == 35
    assert work_list(cut).slots == 128 and estimate(cut)[0] < 15
    many = work_list(Tiles(fprop_pixels(replace(few, n=4096)), Box(128), 128, 132))
    assert many.slots == 0


def test_dealing_is_that_of_the_longest_first_rule():
    rng = np.random.default_rng(0)
    for units in (1, 3, 7):
        cost = rng.choice([3.0, 7.0, 12.0, 39.0], 50)
        loads = [(0.0, unit) for unit in range(units)]
        for each in np.sort(cost)[::-1]:
            load, unit = heapq.heappop(loads)
            heapq.heappush(loads, (load + each, unit))
        owner = longest_first(cost, units)
        each, count = np.unique(cost, return_counts=True)
        assert last_load(each, count, units) == max(loads)[0] == np.bincount(owner, cost).max()
        assert sorted(np.bincount(owner, cost)) == sorted(load for load, _ in loads)


def test_pixels_of_a_product_are_images() -> None:
    """1x1 filters that move by one; what strides, pads or has taps stays as it is."""
    case = square("", 3, 7, 24, 48, 1)
    flat = wgmma.pixels_as_images(case.desc)
    assert (flat.x_shape, flat.w_shape, flat.y_shape) == ((147, 1, 1, 24), (48, 1, 1, 24), (147, 1, 1, 48))
    assert flat.useful_flops == case.desc.useful_flops and flat.groups == 1
    for other in (square("", 3, 7, 24, 48, 1, 2), square("", 3, 7, 24, 48, 1, 1, 1), square("", 3, 7, 24, 48, 3),
                  square("too many for 32 bits", 2 ** 14, 256, 8, 8, 1)):
        assert wgmma.pixels_as_images(other.desc) is other.desc
