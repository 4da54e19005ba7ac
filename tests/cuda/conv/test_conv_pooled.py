"""Convolution, relu and pool of 2 x 2 in one pass on CUDA: bitwise the two ops, by every tile; where it is taken."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.core.op import registry
from alpha.cuda.conv import pooled
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case, square
from tests.cuda.agree import ints

pytestmark = pytest.mark.cuda

CASES = (square("one image", 1, 18, 24, 72, 3, 1, 1), square("odd", 2, 13, 16, 64, 3, 1, 1),
         square("images of 4x4", 9, 4, 72, 136, 3, 1, 1), square("5x5, stride 2", 1, 33, 16, 16, 5, 2, 2),
         square("no padding", 1, 24, 8, 200, 3, 1, 0), Case("flat", 1, (3, 70), 16, 8, (1, 3), (1, 1), (0, 1)))


def half(a, dtype):
    return alpha.tensor(a).to("cuda").astype(dtype)


def two_ops(x, w, b, case):
    y = ops.conv2d_bias_act(x, w, b, case.stride, case.padding, activation="relu")
    return ops.max_pool2d(y, 2).astype("float32").numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_tile_gives_what_the_two_ops_give(case, dtype):
    desc, served = case.desc, 0
    x, (w, bias) = half(ints(*case.x_shape), dtype), [alpha.tensor(a).to("cuda") for a in (
        ints(*case.w_shape, seed=1), ints(case.oc, seed=2))]
    expected = two_ops(x, w, bias, case)
    for tile in pooled.CANDIDATES:
        if tile.reads == dtype and not tile.rejection(desc):
            y = alpha.zeros(expected.shape, device="cuda").astype(dtype)
            tile.prepare(desc)(x.array, w.array, y.array, Epilogue.of(bias.array, "relu"))
            assert_equal_at(y.astype("float32").numpy(), expected, name=tile.name)
            served += 1     # of small maps the sums are cut where a device has many multiprocessors
    assert served or case is not CASES[0], [tile.rejection(desc) for tile in pooled.CANDIDATES]


def test_nan_is_the_maximum_of_its_window():
    x = ints(1, 16, 16, 16).astype(np.float32)
    x[0, 8, 3, 5] = np.nan
    x, w = half(x, "bfloat16"), half(ints(16, 3, 3, 16, seed=1), "bfloat16")
    desc = square("", 1, 16, 16, 16, 3, 1, 1).desc
    y = alpha.zeros((1, 8, 8, 16), device="cuda").astype("bfloat16")
    tile = next(t for t in pooled.CANDIDATES if t.reads == "bfloat16" and not t.rejection(desc))
    tile.prepare(desc)(x.array, w.array, y.array, Epilogue.of(None, "relu"))
    with alpha.no_grad():
        expected = ops.max_pool2d(ops.relu(ops.conv2d(x, w, padding=1)), 2).astype("float32").numpy()
    assert np.isnan(expected).any() and np.array_equal(y.astype("float32").numpy(), expected, equal_nan=True)


def test_the_op_takes_it_where_it_pays(launches):
    x, w = half(ints(1, 96, 96, 16), "bfloat16"), half(ints(64, 3, 3, 16, seed=1), "bfloat16")
    with alpha.no_grad():
        y = ops.conv2d_relu_pool(x, w, padding=1)
        assert not any("pool" in entry for entry in launches)
        assert ops.conv2d_relu_pool(x, w, padding=1, pool_kernel_size=3).shape == (1, 32, 32, 64)
        assert any("pool" in entry for entry in launches)
        expected = ops.max_pool2d(ops.relu(ops.conv2d(x, w, padding=1)), 2)
    assert_equal_at(y.astype("float32").numpy(), expected.astype("float32").numpy())


def test_what_has_no_such_kernel_is_computed_by_two():
    case = CASES[0]
    for dtype in ("float32", "bfloat16"):
        x, w = half(ints(*case.x_shape), dtype), half(ints(*case.w_shape, seed=1), dtype)
        with alpha.no_grad():
            y = ops.conv2d_relu_pool(x, w, padding=1, pool_kernel_size=2, pool_stride=1)
            assert y.shape == (1, 17, 17, 72)
            z = ops.conv2d_relu_pool(x, w, padding=1)
        assert_equal_at(z.astype("float32").numpy(), two_ops(x, w, None, case))


def test_sequential_takes_it_without_a_graph(launches):
    model = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).to("cuda")
    x = half(ints(1, 96, 96, 16), "bfloat16")
    expected = model(x).astype("float32").numpy()
    launches.clear()
    with alpha.no_grad():
        y = model(x).astype("float32").numpy()
    assert_equal_at(y, expected)
    assert not any("pool" in entry for entry in launches)


@pytest.mark.long
def test_inference_fuses_the_pools_of_vgg():
    model = models.create("vgg11").to("cuda").eval()
    with alpha.precision("bf16"):
        x = alpha.randn((1, 32, 32, 3), device="cuda").astype("bfloat16")
        run = alpha.inference(model, x)
    assert run.report().count("max pool fused") == 5
    assert registry["conv_relu_pool"] in [call.op for call in run.program.calls]
