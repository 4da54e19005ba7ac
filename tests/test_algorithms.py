"""The family of algorithms: matrices, the pipeline of transformed tiles, im2col and Strassen, the promise of each."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cpu.algorithms import products, tiles
from alpha.gradcheck import assert_equal_at
from alpha.ops.algorithms.family import Way
from alpha.ops.algorithms.tile_transform import PAIRS, WINOGRAD_ERRORS, Winograd, fft_edges
from tests.conv_cases import Case, small_cases, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded

pytestmark = pytest.mark.same_without_kernels("it tests what is written in NumPy")
TILES = [Winograd(m, r) for m, r in WINOGRAD_ERRORS]
MAPS = [(1, 1), (2, 3), (4, 4), (5, 9), (8, 7), (13, 12), (3, 13)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def floats(rng, case: Case, dtype="float64"):
    """Returns x, w, g of a case."""
    return [rng.standard_normal(shape).astype(dtype) for shape in (case.x_shape, case.w_shape, case.desc.y_shape)]


def passes(module, case: Case, x, w, g, *way):
    """Returns y, dx, dw by the three functions of a module."""
    y, dx, dw = (np.full(a.shape, np.nan, x.dtype) for a in (g, x, w))
    module.fprop(*way, case.desc, x, w, y)
    module.dgrad(*way, case.desc, g, w, dx)
    module.wgrad(*way, case.desc, x, g, dw)
    return y, dx, dw


def oracle(case: Case, x, w, g):
    geometry = tuple(case.attrs.values())
    return (conv_fprop_padded(x, w, *geometry), conv_dgrad_padded(g, w, case.hw, *geometry),
            conv_wgrad_padded(x, g, case.f, *geometry))


def error(got, expected) -> float:
    return float(np.linalg.norm(got - expected) / (np.linalg.norm(expected) or 1))


# ---- matrices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_matrices_are_exact(tile):
    """A^T [(G w) * (B^T d)] is the correlation, in fractions; so is it in two dimensions, rows of columns."""
    at, g, bt = tile.exact
    draw = random.Random(0)
    d = [Fraction(draw.randint(-9, 9)) for _ in range(tile.n)]
    w = [Fraction(draw.randint(-9, 9)) for _ in range(tile.r)]
    v = [sum(a * b for a, b in zip(row, d)) for row in bt]
    u = [sum(a * b for a, b in zip(row, w)) for row in g]
    y = [sum(row[k] * u[k] * v[k] for k in range(tile.n)) for row in at]
    assert y == [sum(w[j] * d[i + j] for j in range(tile.r)) for i in range(tile.m)]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_table_of_the_kernels_makes_the_matrices(tile):
    """Rows of B^T from Z, Q and p; columns of A^T and rows of G from their powers."""
    at, g, bt = (np.array([[float(v) for v in row] for row in matrix]) for matrix in tile.exact)
    q, m, r = len(PAIRS[tile.n]), tile.m, tile.r
    table = tile.table.astype(float)
    z, pairs, first = [*table[:q], 1.0], table[q:-1].reshape(q, q + m + r), table[-1]
    rows = np.zeros_like(bt)
    rows[0, 0:2 * q + 1:2], rows[-1, 1:2 * q + 2:2] = z, z
    for k, row in enumerate(pairs):
        even, p = [*row[:q - 1], 1.0], row[q - 1]
        for sign in (1, -1):
            where = 2 + 2 * k - (sign == 1)
            rows[where, 2:2 * q + 1:2] = even
            rows[where, 1:2 * q:2] = sign * p * np.array(even)
            powers = np.array([sign ** i for i in range(max(m, r))])
            np.testing.assert_allclose(at[:, where], row[q:q + m] * powers[:m], rtol=1e-6)
            np.testing.assert_allclose(g[where], row[q + m:] * powers[:r], rtol=1e-6)
    np.testing.assert_allclose(rows, bt, rtol=1e-6)
    np.testing.assert_allclose(first, g[0, 0], rtol=1e-6)


def test_edges_of_fft_tiles_hold_the_filter_and_are_not_much_too_large():
    assert fft_edges(7, 56)[0] == 8 and fft_edges(7, 56)[-1] == 64
    assert fft_edges(3, 4) == (8,) and fft_edges(31, 4)[0] == 32
    assert all(edge > 31 for edge in fft_edges(31, 224))


# ---- the pipeline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m, r", WINOGRAD_ERRORS)
def test_winograd_equals_the_padded_oracle(m, r, rng):
    for hw, padding in product(MAPS, range(r)):
        case = Case("", 2, hw, 3, 5, (r, r), padding=(padding, r - 1 - padding))
        if min(i + 2 * p for i, p in zip(hw, case.padding)) < r:
            continue
        x, w, g = floats(rng, case)
        got = passes(tiles, case, x, w, g, Way("winograd", m))
        for name, a, b in zip(("y", "dx", "dw"), got, oracle(case, x, w, g)):
            assert_equal_at(a, b, name=f"{hw} {padding} {name}", rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("f, edge", [((3, 3), 8), ((7, 7), 16), ((5, 5), 32), ((1, 4), 8), ((6, 2), 16),
                                     ((19, 19), 32)])
@pytest.mark.parametrize("depthwise", [False, True])
def test_fft_equals_the_padded_oracle(f, edge, depthwise, rng):
    for hw in MAPS:
        padding = tuple(k // 2 for k in f)
        case = Case("", 3, hw, 4, 4 if depthwise else 6, f, padding=padding, groups=4 if depthwise else 1)
        if min(i + 2 * p - k for i, p, k in zip(hw, padding, f)) < 0:
            continue
        x, w, g = floats(rng, case)
        got = passes(tiles, case, x, w, g, Way("fft", edge))
        for name, a, b in zip(("y", "dx", "dw"), got, oracle(case, x, w, g)):
            assert_equal_at(a, b, name=f"{hw} {name}", rtol=1e-9, atol=1e-9)


def test_small_blocks_of_images_and_channels_change_no_result(rng, monkeypatch):
    case = square("", 5, 9, 6, 7, 3, 1, 1)
    x, w, g = floats(rng, case)
    whole = [passes(tiles, case, x, w, g, way) for way in (Way("winograd", 4), Way("fft", 16))]
    monkeypatch.setattr("alpha.ops.algorithms.family.CHUNK_BYTES", 1)
    monkeypatch.setattr("alpha.ops.algorithms.family.LEAST_TILES", 1)
    monkeypatch.setattr("alpha.ops.algorithms.family.FILTER_BYTES", 10000)
    for way, expected in zip((Way("winograd", 4), Way("fft", 16)), whole):
        for a, b in zip(passes(tiles, case, x, w, g, way), expected):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_f23_is_exact_on_small_integers():
    """Its filters are quarters: nothing is rounded."""
    for hw in MAPS:
        case = Case("", 2, hw, 5, 6, (3, 3), padding=(1, 1))
        x, w, g = (np.random.randint(-3, 4, shape).astype(np.float32)
                   for shape in (case.x_shape, case.w_shape, case.desc.y_shape))
        for a, b in zip(passes(tiles, case, x, w, g, Way("winograd", 2)), oracle(case, x, w, g)):
            assert_equal_at(a, b)


def test_im2col_equals_the_padded_oracle(monkeypatch):
    monkeypatch.setattr("alpha.ops.algorithms.family.FILTER_BYTES", 4000)
    for case in small_cases():
        x, w, g = (np.random.randint(-3, 4, shape).astype(np.float32)
                   for shape in (case.x_shape, case.w_shape, case.desc.y_shape))
        for name, a, b in zip(("y", "dx", "dw"), passes(products, case, x, w, g), oracle(case, x, w, g)):
            assert_equal_at(a, b, name=f"{case.name}: {name}")


def test_a_wrong_entry_of_a_matrix_shows(rng, monkeypatch):
    case = square("", 2, 9, 4, 5, 3, 1, 1)
    x, w, g = floats(rng, case)
    at, wg, bt = (m.copy() for m in Winograd(4, 3).rounded(np.dtype("float64")))
    bt[2, 3] *= 1.01
    monkeypatch.setattr(Winograd, "rounded", lambda self, dtype: (at, wg, bt))
    assert error(passes(tiles, case, x, w, g, Way("winograd", 4))[0], oracle(case, x, w, g)[0]) > 1e-4


# ---- errors against float64 ------------------------------------------------------------------------------------------


def data(kind: str, rng, shape):
    """One of five kinds of data for x or g."""
    a = rng.standard_normal(shape)
    return {"relu": np.maximum(a, 0), "normal": a, "offset": a + 3, "uniform": rng.uniform(-1, 1, shape),
            "lognormal": rng.lognormal(0, 2, shape) * rng.choice([-1, 1], shape)}[kind].astype(np.float32)


def he(rng, case: Case):
    ic = case.ic * case.f[0] * case.f[1]
    w = rng.standard_normal(case.w_shape) * np.sqrt(2 / ic)
    return (w - w.mean((1, 2, 3), keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("kind", ["relu", "normal", "offset", "uniform", "lognormal"])
@pytest.mark.parametrize("way, f", [(Way("winograd", 2), 3), (Way("winograd", 4), 3), (Way("winograd", 2), 5),
                                    (Way("fft", 16), 7), (Way("winograd", 6), 3)], ids=str)
def test_errors_keep_the_promise(kind, way, f, rng):
    case = square("", 2, 12, 512, 8, f, 1, f // 2)
    x, w, g = data(kind, rng, case.x_shape), he(rng, case), data(kind, rng, case.desc.y_shape)
    y, dx, dw = passes(tiles, case, x, w, g, way)
    back = square("", 2, 12, 8, 512, f, 1, f // 2)      # dgrad sums over 512 channels, too
    wide = np.ascontiguousarray(w.transpose(3, 1, 2, 0))
    far = np.empty(back.x_shape, np.float32)
    tiles.dgrad(way, back.desc, x, wide, far)
    geometry = tuple(case.attrs.values())
    expected = oracle(case, *(a.astype(np.float64) for a in (x, w, g)))
    bound = 4e-7 if way.name == "fft" else WINOGRAD_ERRORS[way.tile, f]
    found = [error(a, b) for a, b in zip((y, dx, dw), expected)]
    found.append(error(far, conv_dgrad_padded(x.astype(np.float64), wide.astype(np.float64), case.hw, *geometry)))
    assert max(found) <= bound, found
    if way == Way("winograd", 4) and kind == "relu":
        assert max(found[0], found[1], found[3]) <= 1e-6, found


def test_the_error_of_wgrad_does_not_grow_with_the_tiles(rng):
    """32,768 tiles: one level of sums of 64 would have twice the error."""
    case = square("", 8, 256, 2, 2, 3, 1, 1)
    x, g = data("relu", rng, case.x_shape), data("normal", rng, case.desc.y_shape)
    dw = np.empty(case.w_shape, np.float32)
    tiles.wgrad(Way("winograd", 4), case.desc, x, g, dw)
    assert error(dw, conv_wgrad_padded(x, g, case.f, *case.attrs.values())) <= 1.5e-6


def test_strassen_keeps_the_promise(rng):
    for m, k, n in ((512, 512, 512), (255, 301, 129), (2, 2, 2), (3, 2, 5)):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        assert error(products.strassen(a, b), a.astype(np.float64) @ b) <= 1.3e-6


@pytest.mark.parametrize("transpose_a, transpose_b", list(product((False, True), repeat=2)))
def test_strassen_of_matmul_and_linear(transpose_a, transpose_b, rng):
    a, b, w, bias = (alpha.tensor(rng.standard_normal(shape), requires_grad=True)
                     for shape in (((7, 9) if transpose_a else (9, 7)), ((11, 7) if transpose_b else (7, 11)),
                                   (11, 7), (11,)))
    got = ops.matmul(a, b, transpose_a, transpose_b, algorithm="strassen")
    np.testing.assert_allclose(got.numpy(), ops.matmul(a, b, transpose_a, transpose_b).numpy(), rtol=1e-10)
    assert alpha.gradcheck(lambda a, b: ops.matmul(a, b, transpose_a, transpose_b, algorithm="strassen"), (a, b))
    x = a.transpose() if transpose_a else a
    np.testing.assert_allclose(ops.linear(x, w, bias, activation="relu", algorithm="strassen").numpy(),
                               ops.linear(x, w, bias, activation="relu").numpy(), rtol=1e-10)
