"""conv2d_relu_pool: the convolution, relu and pool in one pass, and where alpha.inference takes it."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.errors import GraphError, ShapeError
from alpha.gradcheck import assert_equal_at
from tests.called import implementations
from tests.op_checks import refused

get_backend("cpu")
from alpha.cpu import native  # noqa: E402

compiled = pytest.mark.skipif(native.library() is None, reason="there are no compiled CPU kernels here")
# n, hw, ic, oc, f, stride, padding, window
CASES = [(2, (9, 11), 3, 5, 3, 1, 1, (2, 2, 0)), (3, (13, 8), 4, 9, 3, 1, 1, (3, 2, 1)),
         (1, (6, 7), 3, 8, 5, 2, 2, (2, 1, 0)),
         (2, (8, 8), 8, 8, 1, 1, 0, (3, 3, 1)), (1, (30, 30), 16, 16, 3, 1, 0, ((2, 3), (2, 1), (1, 0))),
         (3, (17, 24), 33, 35, 3, 1, 1, (2, 2, 0)), (1, (4, 2), 16, 16, 3, 1, 1, (2, 2, 0))]


def tensors(case):
    n, hw, ic, oc, f, stride, padding, window = case
    rng = np.random.default_rng(0)
    arrays = (rng.integers(-3, 4, s).astype(np.float32) for s in ((n, *hw, ic), (oc, f, f, ic), (oc,)))
    return [alpha.tensor(a) for a in arrays], (stride, padding), window


@pytest.mark.parametrize("name", ["direct", "winograd", "im2col"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_equals_the_two_ops(name, case):
    (x, w, b), geometry, window = tensors(case)
    with alpha.config(conv_algorithm=name):
        for bias in (b, None):
            y = ops.conv2d_bias_act(x, w, bias, *geometry, activation="relu")
            assert_equal_at(ops.conv2d_relu_pool(x, w, bias, *geometry, *window).numpy(),
                            ops.max_pool2d(y, *window).numpy())


def test_without_compiled_kernels_and_in_float64():
    (x, w, b), geometry, window = tensors(CASES[1])
    expected = ops.max_pool2d(ops.conv2d_bias_act(x, w, b, *geometry, activation="relu"), *window).numpy()
    with alpha.config(cpu_kernels=False):
        assert_equal_at(ops.conv2d_relu_pool(x, w, b, *geometry, *window).numpy(), expected)
    wide = [t.astype("float64") for t in (x, w, b)]
    assert_equal_at(ops.conv2d_relu_pool(*wide, *geometry, *window).numpy(), expected.astype(np.float64))


@pytest.mark.parametrize("name", ["direct", "winograd"])
def test_nan_is_the_maximum(name):
    x, w = ops.randn((1, 8, 8, 16)), ops.randn((16, 3, 3, 16))
    hot = x.numpy().copy()
    hot[0, 0, 0, 0] = np.nan
    with alpha.config(conv_algorithm=name):
        y = ops.conv2d_relu_pool(alpha.tensor(hot), w, padding=1).numpy()
    assert np.isnan(y[0, 0, 0]).all() and not np.isnan(y[0, 3, 3]).any()


def test_bad_calls():
    x, w = ops.randn((1, 8, 8, 3)), alpha.tensor(np.ones((4, 3, 3, 3), np.float32), requires_grad=True)
    with refused(GraphError, "conv2d_relu_pool: w requires a gradient", "alpha.no_grad()"):
        ops.conv2d_relu_pool(x, w)
    with alpha.no_grad():
        assert ops.conv2d_relu_pool(x, w).shape == (1, 3, 3, 4)
        with refused(ShapeError, "b has shape (3,), w has 4 filters"):
            ops.conv2d_relu_pool(x, w, ops.zeros((3,)))
        with refused(ShapeError, "conv2d_relu_pool: a window of 9 does not fit into 6"):
            ops.conv2d_relu_pool(x, w, pool_kernel_size=9)
        with refused(ShapeError, "conv2d: x has 5 channels"):
            ops.conv2d_relu_pool(ops.randn((1, 8, 8, 5)), w)


@compiled
@pytest.mark.parametrize("name, count", [("lenet5", 2), ("vgg16", 5)])
def test_inference_fuses_pools(name, count):
    model = models.create(name)
    x = alpha.randn((2, 32, 32, 3))
    run = alpha.inference(model, x)
    assert run.report().count("max pool fused") == count
    with alpha.no_grad():
        expected = model.eval()(x).numpy()
    assert np.abs(run(x).numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


@compiled
def test_a_pool_whose_map_others_read_stays():
    class Both(nn.Module):
        def __init__(self):
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x):
            y = ops.relu(self.conv(x))
            return ops.max_pool2d(y, 2), y
    model, x = Both(), alpha.randn((1, 8, 8, 3))
    run = alpha.inference(model, x)
    assert run.report().count("max pool fused") == 0
    for a, b in zip(run(x), model(x)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5)


@compiled
def test_inference_of_sparse_layers():
    """A convolution and a linear layer that skip zeros, by name and by the setting."""
    class Net(nn.Module):
        def __init__(self, algorithm):
            self.first = nn.Conv2d(3, 128, 3, padding=1)
            self.conv = nn.Conv2d(128, 128, 3, padding=1, algorithm=algorithm)
            self.linear = nn.Linear(128 * 64, 70)
            self.algorithm = algorithm

        def forward(self, x):
            y = ops.relu(self.conv(ops.relu(self.first(x) - 3.0))).flatten(1)
            return ops.linear(y, self.linear.weight, self.linear.bias, algorithm=self.algorithm)
    x = alpha.randn((1, 8, 8, 3))
    named = Net("sparse")
    run = alpha.inference(named, x)
    kinds = [what for _, what in run.report().launches]
    assert any("(sparse_run)" in kind for kind in kinds) and any("(linear_sparse)" in kind for kind in kinds)
    with alpha.no_grad():
        expected = named(x).numpy()
    assert np.abs(run(x).numpy() - expected).max() <= 1e-5 * np.abs(expected).max()
    free = Net(None)
    with alpha.config(conv_sparsity=True):
        counting = alpha.inference(free, x)
        assert any("(linear_sparse)" in what for _, what in counting.report().launches)
        for scale in (1.0, 100.0):      # many zeros, and few
            with alpha.no_grad(), alpha.config(conv_sparsity=False):
                expected = free(x * scale).numpy()
            assert np.abs(counting(x * scale).numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["whole", "hook", "groups", "dilated pool"])
def test_sequential_fuses_where_no_graph_is_recorded(name, monkeypatch):
    fused, seen = implementations(monkeypatch, "conv_relu_pool"), []
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, groups=2 if name == "groups" else 1), nn.ReLU(),
                        nn.MaxPool2d(2, dilation=2 if name == "dilated pool" else 1), nn.Conv2d(8, 8, 3), nn.ReLU())
    if name == "hook":
        net[1].register_forward_hook(lambda module, args, y: seen.append(y.numpy()))
    x = alpha.randn((2, 10, 12, 4))
    expected = net(x)
    assert not fused and expected.requires_grad
    with alpha.no_grad():
        y = net(x)
    assert len(fused) == (name == "whole")
    assert np.abs(y.numpy() - expected.detach().numpy()).max() <= 1e-5 * np.abs(expected.detach().numpy()).max()
