"""The work lists of the CUDA convolutions, interpreted in NumPy: what a kernel would do with them, without a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from alpha.cuda.conv.schedule import FIELDS, Slabs, dgrad_slabs, fprop_slabs, oversized
from alpha.cuda.conv.split import cut
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv_desc import ConvDesc
from tests.coconv_cases import CASES as CO_CASES
from tests.coconv_cases import oracle
from tests.conv_cases import CASES, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
TILES = (((8, 4, 2), 1), ((8, 4, 2), 3), ((128, 128, 16), 1), ((128, 128, 4), 40))  # rows, columns, k of a slab; split


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape)


def offsets(slabs: Slabs, number, group, slab_k, w_is_column_major):
    """Yields, slab by slab of a sum, where its terms stand in what is read and in w."""
    segments = [dict(zip(FIELDS, row)) for row in slabs.classes[number:].tolist()]
    for s in segments[:segments[0]["segments"]]:
        for tap_h, tap_w, k0 in itertools.product(range(s["taps_h"]), range(s["taps_w"]),
                                                  range(0, s["channels"], slab_k)):
            k = np.arange(k0, min(k0 + slab_k, s["channels"]))
            of_k = k if w_is_column_major else (group * s["channels"] + k) * slabs.w_row
            yield (s["in_"] + tap_h * s["tap_in_h"] + tap_w * s["tap_in_w"] + group * s["channels"] + k,
                   s["w"] + tap_h * s["tap_w_h"] + tap_w * s["tap_w_w"] + of_k)


def interpret(slabs: Slabs, read, w, out_shape, tile, w_is_column_major, split):
    """Runs a work list; asserts that every element is written once.  Offsets are those of conv_slab.cuh."""
    out, written = np.zeros(np.prod(out_shape), np.int64), np.zeros(np.prod(out_shape), np.int64)
    read, w = read.ravel().astype(float), w.ravel().astype(float)  # whole numbers are exact, and BLAS multiplies
    counts, lengths = zip(*slabs.slabs(*tile))
    work, slots = cut(slabs.work(*tile[:2]), np.repeat(lengths, counts), split)
    partial: list = [None] * slots
    none, sums = np.zeros((2, 0), int), {}  # of a class and a group: where each slab of them is read
    for number, row_tile, column_tile, group, slot, slice_, slices, _ in work.tolist():
        c = dict(zip(FIELDS, slabs.classes[number].tolist()))
        m = np.arange(row_tile * tile[0], min((row_tile + 1) * tile[0], c["rows"]))
        pixel, image = m // slabs.images, m % slabs.images
        h, v = pixel // c["width"], pixel % c["width"]
        column = np.arange(column_tile * tile[1], min((column_tile + 1) * tile[1], c["columns"]))
        start = image * slabs.in_image + h * c["in_h"] + v * c["in_w"]
        of_column = (group * c["columns"] + column) * slabs.w_row if w_is_column_major else column
        if (number, group) not in sums:
            sums[number, group] = [*offsets(slabs, number, group, tile[2], w_is_column_major)]
        terms = sums[number, group]
        share, more = divmod(len(terms), slices)  # the first ones have one more
        first = slice_ * share + min(slice_, more)
        of_a, of_b = np.concatenate([none, *terms[first:first + share + (slice_ < more)]], axis=1)
        a, b = start[:, None] + of_a, of_column[:, None] + of_b
        assert (a >= 0).all() and (b >= 0).all()
        total = read[a] @ w[b].T
        if slices > 1:
            assert partial[slot + slice_] is None, "a slot is written twice"
            partial[slot + slice_] = total
            if any(part is None for part in partial[slot:slot + slices]):
                continue
            total = np.sum(partial[slot:slot + slices], axis=0)
        to = image * slabs.out_image + c["out"] + h * c["out_h"] + v * c["out_w"] + group * c["columns"]
        out[to[:, None] + column] = total
        written[to[:, None] + column] += 1
    assert_equal_at(written, np.ones_like(written), name="times an element is written")
    return out.reshape(out_shape)


@pytest.mark.parametrize(("tile", "split"), TILES, ids=str)
def test_fprop_work_lists_give_the_convolution(tile, split):
    for case in small_cases():
        x, w = integers(case.x_shape, 1), integers(case.w_shape, 2)
        y = interpret(fprop_slabs(case.desc), x, w, case.desc.y_shape, tile, True, split)
        assert_equal_at(y, conv_fprop_padded(x, w, **case.attrs), name=f"y of {case.name}")


@pytest.mark.parametrize(("tile", "split"), TILES, ids=str)
def test_dgrad_work_lists_give_the_gradient(tile, split):
    for case in small_cases():
        g, w = integers(case.desc.y_shape, 1), integers(case.w_shape, 2)
        dx = interpret(dgrad_slabs(case.desc), g, w, case.x_shape, tile, False, split)
        assert_equal_at(dx, conv_dgrad_padded(g, w, case.hw, **case.attrs), name=f"dx of {case.name}")


@pytest.mark.parametrize(("tile", "split"), TILES[:2], ids=str)
@pytest.mark.parametrize("case", CO_CASES, ids=lambda case: case.name)
def test_lists_over_levels_give_the_contextual_convolution(case, tile, split):
    x, w, g = (integers(shape, seed) for seed, shape in enumerate((case.x_shape, case.w_shape, case.desc.y_shape)))
    y, dx, _ = oracle(case, x, w, g)
    slabs = fprop_slabs(case.desc)
    assert not (slabs.classes[:, FIELDS.index("first")] % slabs.columns).any() and case.oc % slabs.columns == 0
    assert_equal_at(interpret(slabs, x, w, y.shape, tile, True, split), y, name="y")
    assert_equal_at(interpret(dgrad_slabs(case.desc), g, w, dx.shape, tile, False, split), dx, name="dx")


@pytest.mark.parametrize("make", [fprop_slabs, dgrad_slabs])
def test_no_product_with_a_padded_or_inserted_zero_is_made(make):
    for case in (*CASES, *CO_CASES):
        slabs = make(case.desc)
        c = dict(zip(FIELDS, slabs.classes.T.astype(np.int64)))
        products = (c["rows"] * c["taps_h"] * c["taps_w"] * c["channels"] * c["columns"]).sum() * slabs.groups
        assert 2 * products == case.desc.useful_flops, case.name


@pytest.mark.parametrize("make", [fprop_slabs, dgrad_slabs])
def test_the_longest_sums_come_first_and_counts_match_the_list(make):
    for case in (*CASES, *CO_CASES):
        slabs = make(case.desc)
        counts = slabs.slabs(64, 32, 16)
        lengths = [sum(taps * channels for taps, channels in terms) for *_, terms in slabs.sums]
        assert lengths == sorted(lengths, reverse=True)
        work = slabs.work(64, 32)
        assert [(work[:, 0] == head).sum() for head, *_ in slabs.sums] == [count for count, _ in counts]
        assert sum(count for count, _ in counts) == len(work) == len(np.unique(work, axis=0))


def test_numbers_beyond_32_bits_are_named():
    assert oversized(square("", 512, 32, 64, 64, 3, 1, 1).desc) is None
    large = ConvDesc.fprop((1, 50000, 50000, 4), (4, 1, 1, 4), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    assert oversized(large) == ("an image of x: 10000000000 >= 2^31, an image of y: 10000000000 >= 2^31, "
                                "positions: 2500000000 >= 2^31")
