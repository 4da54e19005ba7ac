"""ConvDesc against brute force: the classes of all three passes list exactly the pairs that meet a real input."""

from __future__ import annotations

from itertools import product

import pytest

from alpha.errors import ShapeError
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div
from tests.conv_cases import CASES, small_cases

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
GEOMETRY = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def axes():
    """Every axis with 1..9 inputs, 1..5 taps, stride 1..4, dilation 1..4 and padding 0..5 that has an output."""
    for i, f, s, d, p in product(range(1, 10), range(1, 6), range(1, 5), range(1, 5), range(6)):
        if (o := len(range(0, i + 2 * p - d * (f - 1), s))) > 0:
            yield Axis(i, o, f, s, p, d)


def brute_force(a: Axis) -> list[tuple[int, int, int]]:
    """All (output, tap, input) whose input is real."""
    everything = ((o, t, o * a.s + t * a.d - a.p) for o in range(a.o) for t in range(a.f))
    return sorted((o, t, i) for o, t, i in everything if 0 <= i < a.i)


def test_every_pass_walks_exactly_the_real_pairs():
    for a in axes():
        pairs = brute_force(a)
        fprop = [(o, t, start + j * c.step) for c in a.fprop_classes
                 for o, start in zip(c.positions, c.starts) for j, t in enumerate(c.taps)]
        dgrad = [(start + j * c.step, t, i) for c in a.dgrad_classes
                 for i, start in zip(c.positions, c.starts) for j, t in enumerate(c.taps)]
        wgrad = [(o, t, a.input_of(o, t)) for t in range(a.f) for o in range(*a.wgrad_range(t))]
        runs = [(o, t, i) for t, outs, ins in a.runs
                for o, i in zip(range(a.o)[outs], range(a.i)[ins], strict=True)]
        assert sorted(fprop) == sorted(dgrad) == sorted(wgrad) == sorted(runs) == pairs, a
        assert a.pairs == len(pairs), a


def test_classes_partition_the_positions_and_their_slices_describe_them():
    for a in axes():
        for classes, size in ((a.fprop_classes, a.o), (a.dgrad_classes, a.i)):
            assert sorted(k for c in classes for k in c.positions) == list(range(size)), a
            for c in classes:
                assert len(c.taps) == c.count and c.step > 0, a
                if c.count:
                    assert tuple(range(size)[c.position_slice]) == c.positions, a
                    last = c.starts[0] + len(c.starts) * c.start_step
                    assert c.start_step > 0 and tuple(range(c.starts[0], last, c.start_step)) == c.starts, a


def test_output_size_and_its_inverse():
    for a in axes():
        assert Axis.output_size(a.i, a.f, a.s, a.p, a.d) == a.o, a
        least = Axis.transposed_size(a.o, a.f, a.s, a.p, a.d)
        sizes = [i for i in range(least - 1, least + a.s + 1) if Axis.output_size(i, a.f, a.s, a.p, a.d) == a.o]
        assert sizes == list(range(least, least + a.s)), a


def test_ceil_div_rounds_up_for_any_sign():
    assert [ceil_div(a, 3) for a in (-4, -3, -1, 0, 1, 3, 4)] == [-1, -1, 0, 0, 1, 1, 2]


def test_there_are_positions_without_any_tap():
    assert [c.count for c in Axis(i=7, o=3, f=1, s=3, p=0, d=1).dgrad_classes] == [1, 0]
    assert 0 in [c.count for c in Axis(i=3, o=10, f=2, s=1, p=4, d=1).fprop_classes]


@pytest.mark.parametrize("size, useful", [(1, 1 / 9), (2, 4 / 9), (4, 25 / 36), (8, 121 / 144)])
def test_useful_share_of_a_padded_3x3_convolution(size, useful):
    desc = ConvDesc.fprop((4, size, size, 5), (7, 3, 3, 5), **{**GEOMETRY, "padding": (1, 1)})
    assert desc.nominal_flops == 2 * 4 * size * size * 7 * 9 * 5
    assert desc.useful_flops == pytest.approx(useful * desc.nominal_flops, rel=1e-12)


def test_without_padding_every_flop_is_useful():
    desc = ConvDesc.fprop((2, 9, 11, 6), (8, 3, 5, 3), stride=(2, 1), padding=(0, 0), dilation=(1, 2), groups=2)
    assert desc.y_shape == (2, 4, 3, 8)
    assert desc.useful_flops == desc.nominal_flops == 2 * 2 * 4 * 3 * 8 * 15 * 3


def test_bytes_are_those_of_the_three_tensors():
    desc = ConvDesc.fprop((2, 5, 5, 6), (8, 3, 3, 3), **{**GEOMETRY, "groups": 2})
    assert desc.nbytes() == 4 * (2 * 25 * 6 + 8 * 9 * 3 + 2 * 9 * 8)
    assert desc.nbytes(2) == desc.nbytes() // 2


def test_all_three_constructors_agree():
    for case in small_cases():
        desc = case.desc
        assert ConvDesc.dgrad(desc.y_shape, desc.w_shape, case.hw, **case.attrs) == desc, case.name
        assert ConvDesc.wgrad(desc.x_shape, desc.y_shape, case.f, **case.attrs) == desc, case.name


def test_the_catalogue_has_distinct_names_and_small_variants_keep_the_geometry():
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        small = case.small()
        assert (small.f, small.attrs | {"groups": 0}) == (case.f, case.attrs | {"groups": 0})
        assert max(small.desc.x_shape[:3]) <= 17 and small.groups == min(case.groups, 3), case.name


def check(error, *parts):
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\nhelp: " in str(error.value)


def test_rank_errors():
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((8, 8, 3), (4, 3, 3, 3), **GEOMETRY)
    check(error, "conv2d: x has shape (8, 8, 3)", "N IH IW IC", "leading axis of 1")
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((2, 8, 8, 3), (4, 0, 3, 3), **GEOMETRY)
    check(error, "conv2d: w has shape (4, 0, 3, 3)", "OC FH FW IC/groups")
    with pytest.raises(ShapeError) as error:
        ConvDesc.dgrad((8, 8, 4), (4, 3, 3, 3), (10, 10), **GEOMETRY)
    check(error, "conv2d_dgrad: g has shape (8, 8, 4)", "N OH OW OC")
    with pytest.raises(ShapeError) as error:
        ConvDesc.wgrad((2, 8, 8, 3), (6, 6), (3, 3), **GEOMETRY)
    check(error, "conv2d_wgrad: g has shape (6, 6)")


def test_channel_errors_name_both_and_see_through_nchw():
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((8, 32, 32, 3), (64, 3, 3, 16), **GEOMETRY)
    check(error, "x has 3 channels, w expects 16", "(8, 32, 32, 3) NHWC", "(64, 3, 3, 16) OHWI",
          "make in_channels of the layer 3")
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((8, 3, 32, 30), (64, 3, 3, 3), **GEOMETRY)
    check(error, "x looks like NCHW", "permute(0, 2, 3, 1) gives (8, 32, 30, 3)")


@pytest.mark.parametrize("groups", [0, -1, 2, 4])
def test_group_errors(groups):
    attrs = {**GEOMETRY, "groups": groups}
    expected = f"groups={groups} does not divide"
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((2, 8, 8, 6), (3, 3, 3, 3), **attrs)
    check(error, "conv2d: " + expected, "6 input and 3 output channels")
    with pytest.raises(ShapeError) as error:
        ConvDesc.wgrad((2, 8, 8, 6), (2, 6, 6, 3), (3, 3), **attrs)
    check(error, "conv2d_wgrad: " + expected)
    with pytest.raises(ShapeError) as error:
        ConvDesc.dgrad((2, 6, 6, 3), (3, 3, 3, 3), (8, 8), **attrs)
    check(error, "conv2d_dgrad: " + expected)


@pytest.mark.parametrize("bad", [{"stride": (0, 1)}, {"dilation": (1, 0)}, {"padding": (-1, 0)}])
def test_geometry_out_of_range(bad):
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((2, 8, 8, 3), (4, 3, 3, 3), **{**GEOMETRY, **bad})
    check(error, "stride", "at least 1", str(*bad.values()))


def test_a_filter_that_does_not_fit():
    with pytest.raises(ShapeError) as error:
        ConvDesc.fprop((2, 8, 3, 3), (4, 3, 3, 3), stride=(2, 2), padding=(0, 0), dilation=(1, 2), groups=1)
    check(error, "a filter of 3 taps (dilation 2) does not fit into 3 + 2*0 inputs along W", "padding of at least 1")


def test_gradients_of_another_convolution():
    with pytest.raises(ShapeError) as error:
        ConvDesc.dgrad((2, 6, 6, 4), (4, 3, 3, 3), (9, 8), **GEOMETRY)
    check(error, "conv2d_dgrad: g has shape (2, 6, 6, 4), this geometry gives (2, 7, 6, 4)")
    with pytest.raises(ShapeError) as error:
        ConvDesc.wgrad((2, 8, 8, 3), (1, 6, 6, 4), (3, 3), **GEOMETRY)
    check(error, "conv2d_wgrad: g has shape (1, 6, 6, 4), this geometry gives (2, 6, 6, 4)")
