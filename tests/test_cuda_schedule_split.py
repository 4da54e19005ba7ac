"""Sums cut into slices: the entries of the work list, when a split pays, what a launch costs, and what is chosen."""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np
import pytest

from alpha.cuda.conv.ffma import gemm
from alpha.cuda.conv.ffma.conv_v2 import ConvV2
from alpha.cuda.conv.ffma.gemm import LAUNCH_US, RATE_ALONE, TILES, Tile, makespan_us
from alpha.cuda.conv.ffma.ks_deconv import KsDeconv
from alpha.cuda.conv.split import LEAST_SLABS, MOST_WAVES, SPLITS, Share, cut, refusal, shares, slices_of
from benchmarks.shapes import SHAPES
from tests.conv_cases import square

SUMS = [(3, 288), (5, 192), (2, 100), (4, 7), (1, 0)]


@pytest.mark.parametrize("split", SPLITS)
def test_slices_are_no_longer_than_those_of_the_longest_sum(split):
    assert slices_of(288, 288, split) == split
    for slabs in range(289):
        slices = slices_of(slabs, 288, split)
        assert 1 <= slices <= max(1, slabs)
        assert -(-slabs // slices) <= -(-288 // split)


@pytest.mark.parametrize("split", SPLITS)
def test_every_slice_of_every_tile_has_an_entry_and_a_slot_of_its_own(split):
    tiles = np.arange(15 * 4, dtype=np.int32).reshape(15, 4)
    slabs = np.repeat([each for _, each in SUMS], [count for count, _ in SUMS])
    units, slots = cut(tiles, slabs, split)
    assert units.dtype == np.int32 and units.shape[1] == 8
    found = []
    for tile, slab in zip(tiles, slabs):
        mine = units[(units[:, :4] == tile).all(axis=1)]
        slices = slices_of(int(slab), 288, split)
        assert sorted(mine[:, 5]) == list(range(slices)) and (mine[:, 6] == slices).all()
        assert len(set(mine[:, 4].tolist())) == 1
        if slices > 1:
            found += (mine[:, 4] + mine[:, 5]).tolist()
    assert sorted(found) == list(range(slots))
    length = -(-slabs[units[:, 0] // 4] // units[:, 6])
    assert (np.diff(length) <= 0).all(), "the longest do not come first"
    counted = shares(SUMS, split)
    assert sum(share.blocks for share in counted) == len(units)
    assert sorted((np.repeat([s.slabs for s in counted], [s.blocks for s in counted])).tolist()) == sorted(length)


def test_a_split_that_does_not_pay_is_refused_with_the_numbers():
    assert refusal([(10, 4 * LEAST_SLABS)], 4, 100) is None
    assert refusal([(10, 4 * LEAST_SLABS - 1)], 4, 100) == (
        f"the longest sum has {4 * LEAST_SLABS - 1} slabs, and a slice of it at least {LEAST_SLABS}")
    assert refusal([(100 * MOST_WAVES // 4, 99)], 4, 100) is None
    assert refusal([(80, 99)], 4, 100) == "320 slices, and 100 blocks fill the device"


# ---- what a launch costs ---------------------------------------------------------------------------------------------


def one_by_one(work, queues, resident, together):
    """Returns what gemm._end does, each queue and each block on its own."""
    waiting = [each for count, each in work for _ in range(count)][::-1]
    held = [[] for _ in range(queues)]
    for queue in resident * held:
        if waiting:
            queue.append(waiting.pop())

    def end(now, number):
        queue = held[number]
        alone = RATE_ALONE if len(queue) == 1 else 1
        return (now + queue[0] / alone, sum(queue), number) if queue else (np.inf, 0, number)
    events = [end(0.0, number) for number in range(queues)]
    heapify(events)
    last = 0.0
    while events[0][0] < np.inf:
        last, _, number = events[0]
        held[number].pop(0)
        if len(held[number]) <= resident - together:
            for _ in range(together):
                if waiting:
                    held[number].append(waiting.pop())
        heapreplace(events, end(last, number))
    return last


@pytest.mark.parametrize("together", [1, 2])
def test_queues_followed_together_end_like_queues_followed_one_by_one(together):
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = sorted(rng.choice(1000, rng.integers(1, 6), replace=False) + 1.5, reverse=True)
        work = [(together * int(rng.integers(1, 30)), float(each)) for each in lengths]
        sizes = together * int(rng.integers(1, 9)), together * int(rng.integers(1, 5)), together
        assert gemm._end(work, *sizes) == pytest.approx(one_by_one(work, *sizes), rel=1e-9)


def cost(tile: Tile, *work: tuple[int, ...], sm_count: int = 132) -> float:
    return makespan_us(tile.slab_clocks(), tile.threads, tile.blocks, [Share(*share) for share in work], sm_count)


def test_the_cost_model_ranks_what_is_plain():
    tile, small = Tile(128, 128, 16, 8, 8, 3, 2, 0.8), Tile(32, 32, 16, 4, 4, 3, 8, 0.7)
    times = [cost(tile, work) for work in ((132, 100), (133, 100), (264, 101))]
    assert times == sorted(set(times))
    assert cost(tile, (1320, 100)) < cost(small, (1320 * 16, 100))
    assert cost(small, (16, 100)) < cost(tile, (1, 100))
    simulated, estimated = (cost(tile, (tiles, 100)) / tiles for tiles in (4000, 5000))
    assert estimated == pytest.approx(simulated, rel=0.05)
    assert cost(tile, (1, 0)) > LAUNCH_US
    assert cost(tile, (10, 100)) > cost(tile, (40, 25, 4)) > cost(tile, (40, 25))
    assert cost(tile, (1320, 100)) < cost(tile, (5280, 25, 4))
    assert tile.slab_clocks(b_kmajor=True) == tile.slab_clocks()
    assert tile._replace(kmajor=0.5).slab_clocks(b_kmajor=True) == 2 * tile.slab_clocks()


# ---- what is chosen --------------------------------------------------------------------------------------------------

LAYERS = {shape.name: shape.desc for shape in SHAPES} | {
    "4x4, 1": square("", 1, 4, 512, 512, 3, 1, 1).desc, "4x4, 32": square("", 32, 4, 512, 512, 3, 1, 1).desc,
    "2x2, 8": square("", 8, 2, 512, 512, 3, 1, 1).desc, "2x2, 128": square("", 128, 2, 512, 512, 3, 1, 1).desc,
    "8x8, 8": square("", 8, 8, 256, 256, 3, 1, 1).desc, "8x8, 32": square("", 32, 8, 256, 256, 3, 1, 1).desc}
# Microseconds on an H100: the fastest of each tile, "rows x columns / threads @ split".
MEASURED = (
    ("b128", "fprop", {"128x64/128@3": 228, "64x64/64@3": 231, "64x64/128@3": 215, "32x64/64@3": 222,
        "32x32/64@1": 254, "16x64/64@1": 287, "64x64/128@1": 219}),
    ("b128", "dgrad", {"128x64/128@3": 199, "64x64/64@3": 195, "64x64/128@3": 206, "32x64/64@3": 205,
        "32x32/64@1": 226, "16x64/64@1": 226, "64x64/128@1": 214}),
    ("b128d", "fprop", {"128x64/128@1": 128, "64x64/64@1": 125, "64x64/128@1": 114, "32x64/64@2": 130,
        "32x32/64@1": 143, "16x64/64@1": 169}),
    ("b128d", "dgrad", {"128x64/128@2": 119, "64x64/64@1": 120, "64x64/128@1": 114, "32x64/64@2": 117,
        "32x32/64@1": 123, "16x64/64@1": 122}),
    ("d4", "fprop", {"128x64/128@4": 177, "64x64/64@4": 178, "64x64/128@8": 186, "32x64/64@8": 192, "32x32/64@3": 200,
        "16x64/64@4": 241, "32x64/64@1": 232}),
    ("d4", "dgrad", {"128x64/128@3": 168, "64x64/64@3": 167, "64x64/128@1": 173, "32x64/64@3": 173, "32x32/64@1": 182,
        "16x64/64@1": 182}),
    ("e4", "fprop", {"128x64/128@12": 331, "64x64/64@12": 328, "64x64/128@6": 342, "32x64/64@6": 354,
        "32x32/64@3": 387, "16x64/64@3": 461, "32x64/64@1": 425}),
    ("e4", "dgrad", {"128x64/128@1": 307, "64x64/64@1": 306, "64x64/128@1": 336, "32x64/64@1": 335, "32x32/64@1": 347,
        "16x64/64@1": 346}),
    ("v5", "fprop", {"128x64/128@3": 116, "64x64/64@3": 117, "64x64/128@2": 118, "32x64/64@2": 123, "32x32/64@2": 134,
        "16x64/64@1": 155, "128x64/128@1": 126}),
    ("v5", "dgrad", {"128x64/128@3": 108, "64x64/64@3": 108, "64x64/128@2": 113, "32x64/64@2": 113, "32x32/64@1": 120,
        "16x64/64@1": 119, "64x64/64@1": 108}),
    ("v4", "fprop", {"128x64/128@3": 656, "64x64/64@1": 641, "64x64/128@1": 680, "32x64/64@1": 687, "32x32/64@1": 798,
        "16x64/64@1": 886}),
    ("v4", "dgrad", {"128x64/128@3": 621, "64x64/64@1": 582, "64x64/128@1": 640, "32x64/64@1": 643, "32x32/64@1": 714,
        "16x64/64@1": 701}),
    ("v1", "fprop", {"128x64/128@1": 886, "64x64/64@1": 884, "64x64/128@1": 919, "32x64/64@1": 1051,
        "32x32/64@1": 1191, "16x64/64@1": 1675}),
    ("v1", "dgrad", {"128x64/128@1": 821, "64x64/64@1": 803, "64x64/128@1": 885, "32x64/64@1": 882, "32x32/64@1": 964,
        "16x64/64@1": 971}),
    ("4x4, 1", "fprop", {"128x64/128@16": 103, "64x64/64@16": 59.2, "64x64/128@16": 58.4, "32x64/64@16": 35.6,
        "32x32/64@16": 47.4, "16x64/64@16": 26.3, "16x64/64@1": 86.7}),
    ("4x4, 1", "dgrad", {"128x64/128@16": 96.4, "64x64/64@16": 53.5, "64x64/128@16": 53.4, "32x64/64@16": 30.7,
        "32x32/64@16": 38.7, "16x64/64@16": 21.0, "16x64/64@1": 82.5}),
    ("4x4, 32", "fprop", {"128x64/128@8": 92.1, "64x64/64@12": 65.7, "64x64/128@12": 61.2, "32x64/64@8": 55.1,
        "32x32/64@4": 59.0, "16x64/64@4": 64.9, "32x32/64@1": 92.2}),
    ("4x4, 32", "dgrad", {"128x64/128@8": 85.8, "64x64/64@24": 61.6, "64x64/128@12": 59.0, "32x64/64@8": 49.6,
        "32x32/64@4": 54.0, "16x64/64@4": 54.7, "16x64/64@1": 85.3}),
    ("2x2, 8", "fprop", {"128x64/128@4": 40.2, "64x64/64@8": 26.3, "64x64/128@8": 24.7, "32x64/64@8": 17.1,
        "32x32/64@6": 18.6, "16x64/64@8": 12.9, "16x64/64@1": 40.2}),
    ("2x2, 8", "dgrad", {"128x64/128@4": 37.4, "64x64/64@8": 22.9, "64x64/128@12": 23.0, "32x64/64@8": 15.4,
        "32x32/64@12": 17.1, "16x64/64@8": 11.8, "16x64/64@1": 38.3}),
    ("2x2, 128", "fprop", {"128x64/128@8": 38.7, "64x64/64@8": 39.2, "64x64/128@8": 37.0, "32x64/64@4": 38.7,
        "32x32/64@4": 39.5, "16x64/64@3": 44.7, "32x32/64@1": 46.0}),
    ("2x2, 128", "dgrad", {"128x64/128@4": 36.6, "64x64/64@4": 34.5, "64x64/128@6": 35.2, "32x64/64@6": 34.7,
        "32x32/64@4": 35.6, "16x64/64@4": 36.3, "16x64/64@1": 40.5}),
    ("8x8, 8", "fprop", {"128x64/128@8": 40.3, "64x64/64@12": 32.0, "64x64/128@12": 29.1, "32x64/64@12": 26.3,
        "32x32/64@6": 26.7, "16x64/64@4": 27.9, "16x64/64@1": 45.5}),
    ("8x8, 8", "dgrad", {"128x64/128@8": 37.8, "64x64/64@6": 28.3, "64x64/128@12": 28.0, "32x64/64@12": 23.7,
        "32x32/64@6": 23.6, "16x64/64@8": 22.8, "16x64/64@1": 43.9}),
    ("8x8, 32", "fprop", {"128x64/128@6": 69.6, "64x64/64@6": 69.6, "64x64/128@4": 66.6, "32x64/64@4": 68.6,
        "32x32/64@3": 68.3, "16x64/64@6": 83.8, "32x64/64@1": 82.3}),
    ("8x8, 32", "dgrad", {"128x64/128@6": 64.9, "64x64/64@6": 64.1, "64x64/128@4": 64.2, "32x64/64@8": 60.8,
        "32x32/64@3": 60.1, "16x64/64@6": 67.0, "32x64/64@1": 72.5}),)


def named(name: str, kind: type) -> ConvV2 | KsDeconv | None:
    """Returns the candidate "64x64/128@3"; None: of a tile that was measured too, and is not chosen from."""
    size, split = name.split("@")
    tiles = [tile for tile in TILES if f"{tile.rows}x{tile.columns}/{tile.threads}" == size and tile.vector == 4]
    return kind(tiles[0], int(split)) if tiles else None


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_candidate_that_an_h100_finds_best_is_chosen(row):
    layer, pass_name, measured = row
    kind = {"fprop": ConvV2, "dgrad": KsDeconv}[pass_name]
    found = {name: named(name, kind) for name in measured}
    estimates = {name: candidate.cost(LAYERS[layer], 132) for name, candidate in found.items() if candidate}
    chosen = min(estimates, key=estimates.__getitem__)
    assert measured[chosen] <= 1.1 * min(measured.values()), estimates


@pytest.mark.parametrize("kind", [ConvV2, KsDeconv])
def test_a_tile_takes_the_split_with_the_least_estimate(kind):
    seen = set()
    for desc in LAYERS.values():
        for tile in TILES:
            if desc.ic % 4 == 0 or tile.vector == 1:
                free = kind(tile)
                whole = free.whole()
                cut = [c for c in (kind(tile, split) for split in SPLITS) if c.split == 1 or not refusal(
                    c.sums(desc), c.split, c.resident * 132)]
                assert free.cost(desc, 132) == min(c.cost(desc, 132) for c in cut)
                assert free.cost(desc, 132) == kind(tile, free.split_of(desc, 132)).cost(desc, 132)
                assert (whole.split_of(desc, 132), whole.cost(desc, 132)) == (1, kind(tile, 1).cost(desc, 132))
                seen.add(free.split_of(desc, 132))
    assert len(seen) > 5
