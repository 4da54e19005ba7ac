"""The work lists of the tensor-core convolutions, interpreted in NumPy: what the kernel would do, without a GPU."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from alpha.cuda.conv import wgmma
from alpha.cuda.conv.schedule_wgmma import (
    CHUNK,
    CLASS,
    END,
    ITEM,
    ITEM_SIZE,
    ROWS,
    Costs,
    dgrad_pixels,
    fprop_pixels,
    longest_first,
    work_list,
)
from alpha.gradcheck import assert_equal_at
from benchmarks.shapes import SHAPES
from tests.conv_cases import CASES, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded

SMALL = tuple(case for case in small_cases() if case.groups == 1)
TILES = ((8, 4, 1000), (128, 64, 3))  # images, columns, multiprocessors
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


def interpret(work, images, columns, read, w, out_shape):
    """Runs a work list in coordinates, as the kernel does; asserts that every element is written once.

    `w` is (column, FH, FW, channel).
    """
    out, written = np.zeros(out_shape, np.int64), np.zeros(out_shape, np.int64)
    slots = {}
    for c in entries(work):
        number, count = divmod(c["slice"], 65536)
        rows, columns_of = (slice(c[name], c[name] + size) for name, size in (("image", images), ("column", columns)))
        for p in range(c["pixel"], min(c["pixel"] + ROWS // images, c["pixels"])):
            ph, pw = divmod(p, c["width"])
            total = np.zeros(out[rows, 0, 0, columns_of].shape, np.int64)
            for b in range(c["block"], c["block"] + c["blocks"]):
                chunk, tap = divmod(b, c["taps_h"] * c["taps_w"])
                th, tw = divmod(tap, c["taps_w"])
                h, v = (c["in_" + a] + q * c[f"in_{a}_step"] + t * c["tap_in_" + a]
                        for a, q, t in (("h", ph, th), ("w", pw, tw)))
                assert h >= 0 and v >= 0
                fh, fw = (c["tap_" + a] + t * c[f"tap_{a}_step"] for a, t in (("h", th), ("w", tw)))
                k = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
                total += read[rows, h, v, k] @ w[columns_of, fh, fw, k].T
            to = rows, c["out_h"] + ph * c["out_h_step"], c["out_w"] + pw * c["out_w_step"], columns_of
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


def check(case, pass_name, images, columns, sm_count):
    pixels = PASSES[pass_name](case.desc)
    work = work_list(pixels, images, columns, sm_count)
    a = integers(case.desc.x_shape if pass_name == "fprop" else case.desc.y_shape, 1)
    w = integers(case.w_shape, 2)
    if pass_name == "fprop":
        got = interpret(work, images, columns, a, w, case.desc.y_shape)
        assert_equal_at(got, conv_fprop_padded(a, w, **case.attrs), name=f"y of {case.name}")
    else:
        got = interpret(work, images, columns, a, w.transpose(3, 1, 2, 0), case.x_shape)
        assert_equal_at(got, conv_dgrad_padded(a, w, case.hw, **case.attrs), name=f"dx of {case.name}")
    return work


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("pass_name", PASSES)
def test_work_lists_give_the_convolution_and_its_gradient(pass_name, tile):
    for case in SMALL:
        check(case, pass_name, *tile)


@pytest.mark.parametrize("pass_name", PASSES)
def test_long_sums_are_cut_and_give_the_same(pass_name):
    work = check(square("long", 3, 4, 200, 200, 3, 1, 1), pass_name, 8, 64, 60)
    assert work.slots > 0 and max(entry["slice"] & 0xffff for entry in entries(work)) > 1


@pytest.mark.parametrize("pass_name", PASSES)
def test_no_product_with_a_padded_or_inserted_zero_is_made(pass_name):
    for case in CASES:
        if case.groups == 1:
            pixels = PASSES[pass_name](case.desc)
            c = dict(zip(CLASS, pixels.classes.T.astype(np.int64)))
            products = (c["pixels"] * c["taps_h"] * c["taps_w"]).sum() * case.n * case.ic * case.oc
            assert 2 * products == case.desc.useful_flops, case.name


def test_lists_are_whole_and_the_makespan_is_that_of_the_busiest_block():
    costs = Costs(2.0, 1.0, 0.25)
    for shape in SHAPES:
        if shape.ic % 8:
            continue
        work = work_list(dgrad_pixels(shape.desc), 128, 128, 132, costs)
        assert 1 <= len(work.items) <= 132 and work.items.shape[2] == ITEM_SIZE >= len(ITEM)
        load = []
        for block in work.items:
            end = np.flatnonzero(block[:, 0] == END)[0]
            assert end > 0 and (np.diff(block[:end, 0]) <= 0).all()
            load.append((block[:end, 0] + costs.tile).sum())
        added = 1.0 + 0.25 * work.slots if work.slots else 0.0
        assert max(load) + added == pytest.approx(work.makespan)
        assert work.sliced[:, ITEM.index("slice")].sum() == work.slots


def test_below_one_wave_sums_are_cut_where_that_is_faster():
    few = square("", 128, 2, 512, 512, 3, 1, 1).desc            # 16 tiles of 32 blocks
    whole = work_list(fprop_pixels(few), 128, 128, 132, Costs(3.0, 1e6, 0.0))
    cut = work_list(fprop_pixels(few), 128, 128, 132)
    assert whole.slots == 0 and whole.makespan == 35
    assert cut.slots == 128 and cut.makespan < 15
    many = work_list(fprop_pixels(replace(few, n=4096)), 128, 128, 132)
    assert many.slots == 0


def test_dealing_is_that_of_the_longest_first_rule():
    rng = np.random.default_rng(0)
    for units in (1, 3, 7):
        cost = rng.choice([3.0, 7.0, 12.0, 39.0], 50)
        loads = [(0.0, unit) for unit in range(units)]
        for each in np.sort(cost)[::-1]:
            load, unit = heapq.heappop(loads)
            heapq.heappush(loads, (load + each, unit))
        owner, makespan = longest_first(cost, units)
        assert makespan == max(loads)[0] == np.bincount(owner, cost).max()
        assert sorted(np.bincount(owner, cost)) == sorted(load for load, _ in loads)


# ---- the choice of a tile --------------------------------------------------------------------------------------------

# Microseconds of fprop on an H100 in bursts: float16x2 128x128, 128x64; float16 to float32 and bfloat16, each of them
# 128x128, 128x64, 128x256.
MEASURED = (
    ("v2", 151.8, 172.3, 64.4, 76.4, 153.4, 55.8, 67.3, 148.8),
    ("v3", 131.8, 139.8, 51.1, 62.5, 56.5, 46.6, 57.3, 51.4),
    ("v5", 25.5, 20.5, 15.3, 11.0, 19.3, 15.1, 10.4, 18.8), ("d32", 99.6, 103.6, 56.7, 57.1, 81.4, 43.2, 46.2, 79.5),
    ("d8", 76.4, 71.5, 29.5, 33.2, 29.5, 27.4, 30.3, 27.6), ("d4", 38.3, 43.0, 19.9, 18.4, 22.5, 20.4, 17.9, 22.4),
    ("p32", 43.3, 43.7, 35.9, 36.6, 38.0, 22.8, 24.8, 23.3), ("b128", 38.6, 40.1, 16.5, 19.6, 25.6, 15.5, 18.6, 25.3))


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row[0])
def test_the_tile_that_an_h100_finds_best_is_chosen(row):
    name, *measured = row
    desc = next(shape.desc for shape in SHAPES if shape.name == name)
    for mode in (wgmma.FP32, wgmma.TF32, wgmma.BF16):
        tiles = [c for c in wgmma.candidates() if c.pass_name == "fprop" and c.mode == mode]
        times, measured = measured[:len(tiles)], measured[len(tiles):]
        estimates = [tile.cost(desc, 132) for tile in tiles]
        assert times[int(np.argmin(estimates))] <= 1.05 * min(times)
        assert min(estimates) == pytest.approx(min(times), rel=0.15)
