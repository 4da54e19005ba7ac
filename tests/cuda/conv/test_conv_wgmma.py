"""ConvV2 and KS-deconv on tensor cores: every tile in every mode, case by case, bitwise on integers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case as Shape
from tests.conv_cases import small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded
from tests.cuda.agree import ints
from tests.cuda.process import CHECKED, EMULATED

pytestmark = pytest.mark.cuda


def eights(case: Shape) -> Shape:
    """Returns the case with channels of which rows of taps are made: of 24 and 48 values a tap."""
    return replace(case, name=case.name.removesuffix("."), ic=24, oc=48, groups=1)


GEOMETRIES = tuple({replace(eights(case), name=""): eights(case)
                    for case in small_cases() if max(case.hw) <= 13}.values())
EVERY_TILE = (  # each of them in every mode and tile: several tiles, tails of rows, columns and channels, slices
    square("one pixel", 3, 1, 8, 8, 1), square("batch tail", 70, 2, 72, 136, 3, 1, 1),
    square("several pixels", 9, 5, 16, 32, 3, 2, 1), square("strided, no taps", 33, 4, 8, 72, 1, 2),
    square("even columns", 9, 2, 192, 80, 2, 1, 1), square("groups", 9, 2, 48, 96, 3, 1, 1, groups=2),
    square("tile after tile", 33, 4, 136, 80, 3, 2, 1))  # that begin with 1, 2 and more whole blocks


PAIRS = (  # of outputs: of rows with an odd output, of one tap, across tails of batch and columns, without taps
    square("pairs", 9, 6, 64, 72, 3, 1, 1), square("odd width, tails", 66, 5, 64, 136, 3, 1, 1),
    square("pairs of one tap", 9, 4, 128, 40, 1, 2), square("strided pairs", 5, 8, 64, 64, 5, 2, 2),
    square("groups of 64", 3, 5, 128, 128, 2, 1, 1, groups=2))


@cache
def tiles(pass_name: str, pairs: bool = False):
    """Returns all tiles; of pairs of outputs they need channels of their own.  The emulated driver has one that writes
    float16: bfloat16's differ from it in a conversion."""
    from alpha.cuda.conv.wgmma import CANDIDATES, FP16
    found = [c for c in CANDIDATES if c.pass_name == pass_name and c.tile.pairs == pairs]
    least = min(c.tile.columns for c in found if c.mode == FP16)
    return tuple(c for c in found if not EMULATED or c.mode != FP16 or (c.tile.columns, c.tile.rows) == (least, 128))


def of_pairs(pass_name: str, case: Shape) -> Shape:
    """Returns the case with its channels the other way round for dgrad, which sums over those of y."""
    return case if pass_name == "fprop" else replace(case, ic=case.oc, oc=case.ic)


def stored(a: np.ndarray, dtype: str):
    """Returns the array on the device, in the dtype; its elements are integers that this dtype holds."""
    from alpha.cuda.runtime.memory import upload
    if dtype == "bfloat16":
        return upload((a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), "bfloat16")
    return upload(a.astype(dtype))


def fetched(x) -> np.ndarray:
    from alpha.cuda.runtime.memory import download
    if x.dtype == "bfloat16":
        return (download(x, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return download(x, x.dtype).astype(np.float32)


def inputs(tile, *shape: int, seed: int = 0):
    """Returns small integers, and their array as the tile's mode has it; with two planes the second is not empty."""
    a = ints(*shape, seed=seed, low=-1, high=2) if tile.writes != "float32" else ints(*shape, seed=seed)
    if tile.mode.planes == 2 and seed == 0:
        a = a * 4097  # 13 bits: more than float16 holds
    return a, stored(a, "float32" if tile.writes == "float32" else tile.writes)


def run(tile, case: Shape, bias: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the tile computes and what is right."""
    from alpha.cuda.runtime.memory import empty, upload
    w, w_there = inputs(tile, *case.w_shape, seed=1)
    launch = tile.prepare(case.desc)
    if tile.pass_name == "dgrad":
        g, g_there = inputs(tile, *case.desc.y_shape)
        dx = empty(case.x_shape, tile.writes)
        launch(g_there, w_there, dx)
        return fetched(dx), conv_dgrad_padded(g, w, case.hw, **case.attrs)
    x, x_there = inputs(tile, *case.x_shape)
    y, sums = empty(case.desc.y_shape, tile.writes), conv_fprop_padded(x, w, **case.attrs)
    if not bias:
        launch(x_there, w_there, y)
        return fetched(y), sums
    b = ints(case.oc, seed=2)
    launch(x_there, w_there, y, Epilogue.of(upload(b), "relu"))
    return fetched(y), np.maximum(sums + b, 0)


def check_added(tile, case: Shape) -> None:
    """dgrad adds to what the memory of dx holds."""
    (g, g_there), (w, w_there) = inputs(tile, *case.desc.y_shape), inputs(tile, *case.w_shape, seed=1)
    onto, dx = inputs(tile, *case.x_shape, seed=2)
    tile.prepare(case.desc)(g_there, w_there, dx, adds=True)
    expected = conv_dgrad_padded(g, w, case.hw, **case.attrs) + onto
    assert_equal_at(fetched(dx), expected.astype(np.float32), name=f"{case.name} added by {tile.name}")


def check_joined(tile, case: Shape, flagged: bool = False) -> None:
    """fprop adds another map to what it would store, before relu.  flagged: planes do not hold x."""
    from alpha.cuda.runtime.memory import empty, upload
    (x, x_there), (_, w_there) = inputs(tile, *case.x_shape), inputs(tile, *case.w_shape, seed=1)
    if flagged:
        x = x.astype(np.float32)
        x[0, 0, 0, 0] = 2.0 ** 60
        x_there = stored(x, "float32")
    _, other = inputs(tile, *case.desc.y_shape, seed=2)
    launch, b = tile.prepare(case.desc), upload(ints(case.oc, seed=3))
    alone, both = empty(case.desc.y_shape, tile.writes), empty(case.desc.y_shape, tile.writes)
    launch(x_there, w_there, alone, Epilogue.of(b, None))
    launch(x_there, w_there, both, Epilogue.of(b, "relu"), residual=other)
    expected = np.maximum(fetched(alone) + fetched(other), 0)
    assert (np.abs(fetched(alone)).max() > 2.0 ** 59) == flagged
    assert_equal_at(fetched(both), expected.astype(np.float32), name=f"{case.name} joined by {tile.name}")


def fitting(pass_name: str, case: Shape) -> list:
    """Returns the tiles that serve a case: all but those that have all of its columns or none."""
    found = [tile for tile in tiles(pass_name) if not tile.rejection(case.desc)]
    columns = case.oc if pass_name == "fprop" else case.ic
    assert {t.tile.columns for t in tiles(pass_name)} - {t.tile.columns for t in found} <= {96 if columns > 96 else 0}
    return found


def check(tile, case: Shape, bias: bool = False) -> None:
    got, expected = run(tile, case, bias)
    exact = 2 ** {"float32": 24, "float16": 11, "bfloat16": 8}[tile.writes]
    assert np.abs(expected).max() <= exact
    assert_equal_at(got, expected.astype(np.float32), name=f"{tile.pass_name} of {case.name} by {tile.name}")


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_every_geometry_is_bitwise_right_on_integers(device, pass_name):
    """By every tile in every mode on a GPU, by one on the emulated driver."""
    one = next(t for t in tiles(pass_name) if t.mode.name == "tf32" and t.tile.columns == 64)
    for tile in (one,) if EMULATED else tiles(pass_name):
        for case in GEOMETRIES:
            assert tile.tile.held or not tile.rejection(case.desc)
            if not tile.rejection(case.desc):
                check(tile, case)


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
@pytest.mark.parametrize("case", EVERY_TILE, ids=lambda case: case.name)
def test_every_tile_is_right_in_every_mode(device, pass_name, case):
    """Where every access is checked, by another half of the tiles for each case."""
    for tile in fitting(pass_name, case)[EVERY_TILE.index(case) % 2::2] if CHECKED else fitting(pass_name, case):
        check(tile, case)


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_pairs_of_outputs_share_what_they_read(device, pass_name):
    cases, shared = PAIRS[1:3] if CHECKED else PAIRS, 0
    for case in cases:
        case = of_pairs(pass_name, case)
        for tile in tiles(pass_name, pairs=True):
            if not tile.rejection(case.desc):
                check(tile, case, bias=pass_name == "fprop")
                shared += 1
    assert shared >= len(tiles(pass_name, pairs=True)) * (len(cases) - 1)  # at stride 2 fprop has those of one tap


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_sums_in_slices_get_bias_and_relu_too(device, monkeypatch, fresh_schedules, pass_name):
    from alpha.cuda.conv.costs import TABLES
    from alpha.cuda.conv.costs.records import changed
    from alpha.cuda.conv.wgmma import boxes
    from alpha.cuda.runtime.context import context
    monkeypatch.setattr(boxes, "shapes", lambda *_: ())  # boxes of positions, with which sums are short
    monkeypatch.setattr(context, "sm_count", 4)
    # else sums as short as a test's are not cut
    monkeypatch.setitem(TABLES, "h100", changed(TABLES["h100"], "wgmma.sum_us", 0.0))
    case = square("slices", 3, 1, *((648, 40) if pass_name == "fprop" else (40, 648)), 1)
    width, ic, oc, padding = (3, 208, 40, 0) if pass_name == "fprop" else (1, 40, 208, 2)
    rows = Shape("a row in slices", 3, (1, width), ic, oc, (1, 3), padding=(0, padding))  # 9 whole blocks, 48 values
    groups = replace(case, name="groups in slices", ic=2 * case.ic, oc=2 * case.oc, groups=2)
    for tile in (t for t in tiles(pass_name) if not t.tile.held and t.tile.cluster == 1):
        for each in (case, rows, groups) if tile.tile.columns == 64 else (case,):
            assert tile.work_list(each.desc).slots > 0
            check(tile, each, bias=pass_name == "fprop")
            if tile.adds:
                check_added(tile, each)
            if tile.joins:
                check_joined(tile, each)


@pytest.mark.parametrize("case", EVERY_TILE, ids=lambda case: case.name)
def test_dgrad_adds_to_what_is_there(device, case):
    found = [tile for tile in fitting("dgrad", case) if tile.adds]
    assert found
    for tile in found[EVERY_TILE.index(case) % 4::4] if CHECKED else found:
        check_added(tile, case)


@pytest.mark.parametrize("case", EVERY_TILE, ids=lambda case: case.name)
def test_fprop_adds_another_map_before_relu(device, case):
    found = fitting("fprop", case)
    assert found and all(tile.joins for tile in found)
    for tile in found[EVERY_TILE.index(case) % 4::4] if EMULATED else found:
        check_joined(tile, case)
        if tile.mode.planes == 2:
            check_joined(tile, case, flagged=True)


def test_bias_and_relu(device):
    for tile in tiles("fprop"):
        check(tile, square("bias", 9, 3, 8, 72, 3, 1, 1), bias=True)


def test_zeros_without_taps_and_special_values(device):
    """NaN and infinities stay in the outputs that they belong to; -0 and NaN pass the relu."""
    from alpha.cuda.runtime.memory import empty
    case = square("special", 2, 3, 8, 8, 1)
    tile = next(t for t in tiles("fprop") if t.mode.name == "fp16")
    x = np.ones(case.x_shape, np.float16)
    x[0, 0, 0, 0], x[0, 1, 1, 2], x[1, 2, 2, 0] = np.nan, np.inf, -np.inf
    w = np.ones(case.w_shape, np.float16)
    w[1] = -1
    for relu in (False, True):
        y, epilogue = empty(case.desc.y_shape, "float16"), Epilogue.of(None, "relu" if relu else None)
        tile.prepare(case.desc)(stored(x, "float16"), stored(w, "float16"), y, epilogue)
        expected = x.astype(np.float32) @ w[:, 0, 0].T.astype(np.float32)
        assert_equal_at(fetched(y), np.where(expected < 0, 0, expected) if relu else expected, name="y")


@pytest.mark.long
def test_what_does_not_fit_says_why(device, monkeypatch):
    from alpha.cuda.conv import wgmma
    tile = tiles("fprop")[0]
    assert tile.rejection(square("", 2, 5, 12, 16, 3).desc) == "12 input and 16 output channels are no multiples of 8"
    assert tile.rejection(square("", 2, 5, 48, 16, 3, groups=4).desc) == (
        "12 input and 4 output channels of a group are no multiples of 8")
    pair = tiles("fprop", pairs=True)[0]
    for other in (square("", 2, 5, 96, 16, 3), square("", 2, 5, 64, 16, 3, 2), square("", 2, 1, 64, 16, 1)):
        assert pair.rejection(other.desc) == "no outputs beside each other share what they read in chunks of 64"
    monkeypatch.setattr(wgmma.context, "arch", "sm_80")
    assert tile.rejection(square("", 2, 5, 16, 16, 3).desc) == "needs sm_90a, the device is sm_80"


def test_scales_far_from_one_do_not_overflow_on_the_way(device):
    """The product of two scales may be out of float32's range where the result is not."""
    from alpha.cuda.lazy.operands import Operand
    from alpha.cuda.runtime.memory import empty, upload
    case = square("scales", 2, 1, 8, 8, 1)
    tile = next(t for t in tiles("fprop") if t.mode.name == "tf32")
    x, w = np.zeros(case.x_shape, np.float16), np.ones(case.w_shape, np.float16)
    x[0], w[:4] = 2.0 ** -14, 2.0 ** -14
    operands = [Operand(a.ptr, "float16", upload(np.array([scale], np.float32)), a, a)
                for a, scale in ((upload(x), 2.0 ** 100), (upload(w), 2.0 ** 30))]
    y = empty(case.desc.y_shape, "float32")
    tile.on_operands(case.desc)(*operands, y)
    expected = np.zeros(case.desc.y_shape, np.float32)
    expected[0, ..., :4], expected[0, ..., 4:] = 8 * 2.0 ** 102, 8 * 2.0 ** 116
    assert_equal_at(fetched(y), expected, name="y")


def test_results_of_16_bits_are_scaled_too(device):
    """Where float32 weights were made small for float16; a scale of 1 is left out."""
    from alpha.cuda.lazy.operands import Operand
    from alpha.cuda.runtime.memory import empty, upload
    case = square("scaled", 2, 3, 8, 8, 1)
    tile = next(t for t in tiles("fprop") if t.mode.name == "fp16")
    x, w = (ints(*shape, seed=seed, low=-1, high=2).astype(np.float16)
            for seed, shape in enumerate((case.x_shape, case.w_shape)))
    operands = [Operand(a.ptr, "float16", upload(np.array([scale], np.float32)), a, a)
                for a, scale in ((upload(x), 1.0), (upload(w), 0.25))]
    y = empty(case.desc.y_shape, "float16")
    tile.on_operands(case.desc)(*operands, y)
    assert_equal_at(fetched(y), conv_fprop_padded(x, w, **case.attrs).astype(np.float32) / 4, name="y")
