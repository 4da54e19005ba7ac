"""Philox: the published vectors, ranges of a stream in any order, moments, permutations, saving and restoring."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import random
from alpha.errors import ConfigError
from alpha.gradcheck import assert_equal_at
from alpha.random import STREAMS

# Known answers of the reference implementation (Random123): counter, key, words.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize("counter, key, words", VECTORS)
def test_philox_gives_the_published_words(counter, key, words):
    block = np.array([counter[0] | counter[1] << 32], np.uint64)
    got = random.philox(block, counter[2], key[0] | key[1] << 32, counter[3])
    assert got.dtype == np.uint32
    assert_equal_at(got, [words])


def test_random_bits_are_the_words_of_philox_in_order():
    """The published vector of zeros is block 0 of stream 0 under seed 0."""
    assert tuple(random.random_bits(0, 0, 0, 4).tolist()) == VECTORS[0][2]
    blocks = random.philox(np.arange(5, 8, dtype=np.uint64), 3, 9)
    assert_equal_at(random.random_bits(9, 3, 20, 12), blocks.reshape(-1))
    high = 1 << 34  # beyond 32 bits of block number
    assert_equal_at(random.random_bits(9, 3, 4 * high, 4), random.philox(np.array([high], np.uint64), 3, 9)[0])


@given(offset=st.integers(0, 2 ** 66 - 200), cuts=st.lists(st.integers(0, 100), max_size=4),
       stream=st.integers(0, 2 ** 32 - 1), seed=st.integers(0, 2 ** 64 - 1))
def test_a_range_may_be_drawn_in_pieces(offset, cuts, stream, seed):
    whole = random.random_bits(seed, stream, offset, 100)
    ends = [0, *sorted(cuts), 100]
    parts = [random.random_bits(seed, stream, offset + a, b - a) for a, b in pairwise(ends)]
    assert_equal_at(np.concatenate(parts), whole)


def test_compiled_bits_are_numpys():
    from alpha.cpu import native
    if native.library() is None:
        pytest.skip("there are no compiled CPU kernels here (no C++ compiler?)")
    for seed, stream, offset, n in ((0, 0, 0, 4), (2 ** 64 - 1, 2 ** 32 - 1, 3, 1000), (5, 1, 2 ** 40 + 1, 131)):
        got = np.zeros(n, np.uint32)
        native.random_bits(seed, stream, offset, got)
        assert_equal_at(got, random.random_bits(seed, stream, offset, n))


def test_streams_and_seeds_differ():
    draws = [tuple(random.random_bits(seed, stream, 0, 8)) for seed in (0, 1, 1 << 32) for stream in STREAMS.values()]
    assert len(set(draws)) == len(draws)
    assert len(set(STREAMS.values())) == len(STREAMS)


def test_uniform_numbers_are_multiples_of_2_to_the_minus_24_with_the_right_moments():
    u = random.uniform(1, 0, 0, 200_000)
    assert u.dtype == np.float32 and u.min() >= 0 and u.max() < 1
    assert_equal_at(u * 2 ** 24 % 1, np.zeros(u.size))
    u = u.astype(np.float64)
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / u.size)
    counts = np.histogram(u, 64, (0, 1))[0]
    chi2 = np.sum((counts - u.size / 64) ** 2) / (u.size / 64)
    assert 30 < chi2 < 110  # 63 degrees of freedom: outside once in 10^4
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(u.size)


def test_normal_numbers_have_the_right_moments_and_no_infinities():
    z = random.normal(1, 0, 0, 200_001)
    assert z.shape == (200_001,) and np.isfinite(z).all()
    assert abs(z.mean()) < 4 / np.sqrt(z.size) and abs(z.var() - 1) < 4 * np.sqrt(2 / z.size)
    assert abs((z ** 4).mean() - 3) < 4 * np.sqrt(96 / z.size)
    assert abs((np.abs(z) > 1.959964).mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / z.size)


def test_a_permutation_holds_every_index_once_and_depends_on_seed_and_epoch():
    orders = {(seed, epoch): random.permutation(seed, epoch, 1000) for seed in (0, 1) for epoch in (0, 1)}
    for order in orders.values():
        assert order.dtype == np.int64
        assert_equal_at(np.sort(order), np.arange(1000))
        assert np.sum(order == np.arange(1000)) < 10
    assert len({tuple(order) for order in orders.values()}) == 4
    assert_equal_at(random.permutation(0, 1, 1000), orders[0, 1])
    assert random.permutation(0, 0, 0).shape == (0,)


def test_every_order_of_three_is_as_likely():
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(1200):
        order = tuple(random.permutation(seed, 0, 3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 and all(140 < n < 260 for n in counts.values())  # 200 expected, sigma 13


def test_reserve_hands_out_whole_blocks_once():
    random.manual_seed(5)
    assert [random.reserve(n) for n in (1, 4, 5, 0, 3)] == [(5, 0), (5, 4), (5, 8), (5, 16), (5, 16)]
    assert random.get_state() == (5, 20)


def test_a_saved_state_continues_where_it_was():
    random.manual_seed(7)
    alpha.ops.rand((3,))
    state = random.get_state()
    expected = alpha.ops.randn((5,)).numpy()
    random.manual_seed(8)
    random.set_state(*state)
    assert_equal_at(alpha.ops.randn((5,)), expected)
    assert random.get_state()[0] == 7


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ConfigError) as error:
        random.manual_seed(seed)
    assert f"manual_seed: seed is {seed}, an int of at least 0" in str(error.value) and "\nhelp: " in str(error.value)
