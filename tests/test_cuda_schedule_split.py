"""Sums cut into slices: the entries of the work list, when a split pays, what a launch costs, and what is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.conv.costs import H100, time_us
from alpha.cuda.conv.ffma.gemm import TILES, Tile, makespan
from alpha.cuda.conv.ffma.slab import SlabTile
from alpha.cuda.conv.split import LEAST_SLABS, MOST_WAVES, SPLITS, Share, cut, refusal, shares, slices_of
from benchmarks.shapes import SHAPES
from tests.conv_cases import square
from tests.cuda.conv.checks import cut_into

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
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


def cost(tile: Tile, *work: tuple[int, ...]) -> float:
    made = makespan(tile.clocks(0.8), tile.threads, [Share(*share) for share in work])
    return time_us(made, H100)


def test_the_cost_model_ranks_what_is_plain():
    tile, small = Tile(128, 128, 16, 8, 8, 3, 2), Tile(32, 32, 16, 4, 4, 3, 8)
    times = [cost(tile, work) for work in ((132, 100), (133, 100), (264, 101))]
    assert times == sorted(set(times))
    assert cost(tile, (1320, 100)) < cost(small, (1320 * 16, 100))
    assert cost(small, (16, 100)) < cost(tile, (1, 100))
    simulated, estimated = (cost(tile, (tiles, 100)) / tiles for tiles in (4000, 5000))
    assert estimated == pytest.approx(simulated, rel=0.05)
    assert cost(tile, (1, 0)) > H100.launch_us
    assert cost(tile, (10, 100)) > cost(tile, (40, 25, 4)) > cost(tile, (40, 25))
    assert cost(tile, (1320, 100)) < cost(tile, (5280, 25, 4))
    assert tile.clocks(0.4) == 2 * tile.clocks(0.8)
    for tile in TILES:
        kmajor = H100.table.ffma.tiles[tile.key].kmajor
        assert tile.slab_clocks(b_kmajor=True) == pytest.approx(tile.slab_clocks() / kmajor)


# ---- what is chosen --------------------------------------------------------------------------------------------------

LAYERS = (*(shape.desc for shape in SHAPES), *(square("", n, hw, ic, ic, 3, 1, 1).desc for n, hw, ic in (
    (1, 4, 512), (32, 4, 512), (8, 2, 512), (128, 2, 512), (8, 8, 256), (32, 8, 256))))


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_a_tile_takes_the_split_with_the_least_estimate(pass_name):
    seen = set()
    for desc in LAYERS:
        for tile in TILES:
            if desc.ic % 4 == 0 or tile.vector == 1:
                free = SlabTile(pass_name, tile)
                cut = [cut_into(free, split) for split in SPLITS]
                costs = {c.splits[0]: c.cost(desc) for c in cut if c.splits == (1,) or not refusal(
                    c.sums(desc), *c.splits, c.resident * 132)}
                assert time_us(free.cost(desc)) == min(map(time_us, costs.values()))
                assert free.cost(desc) == costs[free.cheapest(desc)[0]]
                seen.add(free.cheapest(desc)[0])
    assert len(seen) > 5
