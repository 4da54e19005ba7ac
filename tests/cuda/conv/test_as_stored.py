"""TF32 of float32 as it is stored, for inference: bitwise on integers, its error on others, and where it is taken."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn
from alpha.core.precision import PRECISIONS
from alpha.cuda import lazy
from alpha.cuda.conv import as_stored
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.memory import download, empty, upload
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_fprop_padded
from tests.cuda.agree import ints
from tests.cuda.conv.test_conv_wgmma import EVERY_TILE, GEOMETRIES
from tests.cuda.lazy.deferred_oracle import cuda
from tests.cuda.lazy.operand_oracle import normal
from tests.cuda.process import CHECKED

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]
CASES = (*EVERY_TILE, square("four channels", 3, 5, 4, 16, 3, 1, 1), square("one image", 1, 7, 64, 72, 3, 1, 1))


def convolved(tile: as_stored.AsStored, case: Case, x: np.ndarray, w: np.ndarray, *rest, **more) -> np.ndarray:
    y = empty(case.desc.y_shape, "float32")
    tile.prepare(case.desc)(upload(x.astype(np.float32)), upload(w.astype(np.float32)), y, *rest, **more)
    return download(y, "float32")


def serving(case: Case) -> list[as_stored.AsStored]:
    with lazy.inferring():
        found = [tile for tile in as_stored.CANDIDATES if not tile.rejection(case.desc)]
    assert len(found) >= len(as_stored.CANDIDATES) - 1
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_tile_is_right_on_integers(case: Case) -> None:
    """Of 11 bits; with bias and relu, and with a map that is added before that."""
    x, w, b = ints(*case.x_shape, low=-1024, high=1025), ints(*case.w_shape, seed=1), ints(case.oc, seed=2)
    other = ints(*case.desc.y_shape, seed=3)
    sums = conv_fprop_padded(x, w, **case.attrs) + b
    for tile in serving(case)[CASES.index(case) % 2::2] if CHECKED else serving(case):
        got = convolved(tile, case, x, w, Epilogue.of(upload(b), "relu"))
        assert_equal_at(got, np.maximum(sums, 0).astype(np.float32), name=tile.name)
        got = convolved(tile, case, x, w, Epilogue.of(upload(b), "relu"), residual=upload(other))
        assert_equal_at(got, np.maximum(sums + other, 0).astype(np.float32), name=tile.name)


def test_every_geometry_is_right_on_integers() -> None:
    for case in GEOMETRIES:
        x, w = ints(*case.x_shape, low=-1024, high=1025), ints(*case.w_shape, seed=1)
        got = convolved(as_stored.CANDIDATES[1], case, x, w)
        assert_equal_at(got, conv_fprop_padded(x, w, **case.attrs).astype(np.float32), name=case.name)


def test_x_is_cut_and_w_rounded() -> None:
    case = square("cut", 5, 4, 64, 64, 3, 1, 1)
    x, w = normal(*case.x_shape).astype(np.float32), normal(*case.w_shape, seed=1).astype(np.float32)
    cut = (x.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32)
    nearest = (w.view(np.uint32) + np.uint32(0x1000) & ~np.uint32(0x1FFF)).view(np.float32)
    assert np.array_equal(download(as_stored.rounded(upload(w)), "float32"), nearest)
    expected = conv_fprop_padded(cut.astype(np.float64), nearest.astype(np.float64), **case.attrs)
    exact = conv_fprop_padded(x.astype(np.float64), w.astype(np.float64), **case.attrs)
    for tile in serving(case):
        y = convolved(tile, case, x, w)
        assert np.linalg.norm(y - expected) <= 2e-5 * np.linalg.norm(expected)
        promise = PRECISIONS["tf32"].promise
        assert 2e-4 * np.linalg.norm(exact) < np.linalg.norm(y - exact) < promise * np.linalg.norm(exact)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_special_values_reach_what_reads_them(value: float) -> None:
    case = square("special", 2, 5, 32, 16, 3, 1, 1)
    x, w = ints(*case.x_shape).astype(np.float32), np.abs(ints(*case.w_shape, seed=1)).astype(np.float32) + 1
    x[1, 2, 3, 5] = value
    with np.errstate(all="ignore"):
        expected = conv_fprop_padded(x, w, **case.attrs).astype(np.float32)
    for tile in serving(case):
        got = convolved(tile, case, x, w)
        assert np.array_equal(np.isfinite(got), np.isfinite(expected))
        assert np.array_equal(np.isnan(got), np.isnan(expected))


def test_it_is_taken_in_inference_in_tf32_alone(launches: list[str], tensor_cores_first: None) -> None:
    net = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1)).to("cuda").eval()
    x = cuda(normal(2, 16, 17, 24).astype(np.float32))
    with alpha.config(capture=False):
        for precision in ("tf32", "fp32"):
            with alpha.precision(precision):
                run = alpha.inference(net, x)
                launches.clear()
                y = run(x).numpy()
                assert any("split" in entry for entry in launches) == (precision == "fp32")
                launches.clear()
                with alpha.no_grad():
                    expected = net(x).numpy()
                assert any("split" in entry for entry in launches) or precision == "fp32"
            np.testing.assert_allclose(y, expected, atol=2e-3 if precision == "tf32" else 1e-5)
    refused = {tile.rejection(square("training", 2, 5, 32, 16, 3, 1, 1).desc) for tile in as_stored.CANDIDATES}
    assert refused == {"is for alpha.inference: see its file"}
