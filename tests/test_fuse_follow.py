"""alpha.fuse.follow: an op rides on the call that made its argument, however that is written."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.core.errors import ShapeError
from alpha.core.table import here
from alpha.fuse.follow import Step, Waiting, follow, later_function
from tests.called import implementations

SHAPE = (2, 6, 6, 4)


def images(seed: int = 0) -> alpha.Tensor:
    x = alpha.tensor(np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32))
    x.requires_grad_()
    return x


SPELLINGS: dict[str, Callable[..., alpha.Tensor]] = {
    "layers": lambda layer, x, r: nn.ReLU()(layer(x) if r is None else layer(x) + r),
    "functions": lambda layer, x, r: F.relu(layer(x) if r is None else r + layer(x)),
    "method": lambda layer, x, r: (layer(x) if r is None else layer(x).add(r)).relu(),
    "names": lambda layer, x, r: _by_names(layer, x, r),
    "Sequential": lambda layer, x, r: nn.Sequential(layer, nn.ReLU())(x) if r is None else ops.relu(layer(x) + r),
    "activation": lambda layer, x, r: layer(x, activation="relu") if r is None else layer(x, r, "relu"),
}


def _by_names(layer: nn.Module, x: alpha.Tensor, r: alpha.Tensor | None) -> alpha.Tensor:
    y = layer(x)
    if r is not None:
        y = y + r
    y = ops.relu(y)
    return y


def outcome(run: Callable[..., alpha.Tensor], layer: nn.Module, calls: list[Any], residual: bool, graph: bool
            ) -> tuple[list[Any], list[np.ndarray]]:
    """Returns the implementations that a pass forward and back calls, and all that it makes."""
    x, r = images(), images(1) if residual else None
    del calls[:]
    if not graph:
        with alpha.no_grad():
            values = [run(layer, x, r).numpy()]
    else:
        y = run(layer, x, r)
        y.backward(alpha.ones(y.shape))
        values = [y.numpy(), *[t.grad.numpy() for t in (x, r, *layer.parameters()) if t is not None]]
    return list(calls), [*values, *[b.numpy() for _, b in layer.named_buffers()]]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("mode", ["training", "inference", "no_grad"])
@pytest.mark.parametrize("make, residual, first", [
    (lambda: nn.BatchNorm2d(4), False, ("batch_norm_act", "relu")),
    (lambda: nn.BatchNorm2d(4), True, ("batch_norm_add_act", "relu")),
    (lambda: nn.Conv2d(4, 4, 3), False, ("conv2d_bias_act", "relu")),
    (lambda: nn.Conv2d(4, 4, 3, bias=False), False, ("conv2d_bias_act", "relu")),
    (lambda: nn.CoConv2d(4, 4, bias=True), False, ("coconv2d_bias_act", "relu")),
    (lambda: nn.Linear(4, 3), False, ("linear", "relu"))])
def test_each_spelling_of_a_relu_makes_the_same_calls(make: Callable[[], nn.Module], residual: bool, first: Any,
                                                      mode: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
                                                      ) -> None:
    layer = make().train(mode == "training")
    calls = implementations(monkeypatch)
    with alpha.config(cpu_kernels=kernels):
        found = {name: outcome(run, deepcopy(layer), calls, residual, mode != "no_grad")
                 for name, run in SPELLINGS.items()}
    wanted = found.pop("activation")
    assert wanted[0][0] == first and not [name for name, _ in wanted[0] if name == "relu"]
    for name, (made, values) in found.items():
        assert made == wanted[0], name
        assert all(np.array_equal(a, b) for a, b in zip(values, wanted[1])), name


def test_spellings_agree_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, calls = nn.BatchNorm2d(4), implementations(monkeypatch)
    with alpha.config(precision="fp16"):
        x = images().detach().astype("float16")
        found = []
        for run in SPELLINGS.values():
            del calls[:]
            y = run(deepcopy(layer), x, None)
            found.append((y.numpy(), list(calls)))
    assert all(np.array_equal(y, found[0][0]) and made == found[0][1] for y, made in found)


def test_a_max_pool_rides_where_no_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x, calls = nn.Conv2d(4, 8, 3, padding=1), images().detach(), implementations(monkeypatch)
    kept = ops.max_pool2d(ops.relu(conv(x)), 2)
    assert [name for name, _ in calls] == ["conv2d_bias_act", "max_pool2d"] and kept.requires_grad
    with alpha.no_grad():
        for run in (lambda: ops.max_pool2d(ops.relu(conv(x)), 2), lambda: ops.max_pool2d(conv(x, "relu"), 2),
                    lambda: nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2))(x)):
            del calls[:]
            assert np.allclose(run().numpy(), kept.numpy(), atol=1e-5)
            assert calls[0][0] == "conv_relu_pool" and "conv2d_bias_act" not in dict(calls)    # NumPy's calls a pool
        del calls[:]
        y, index = ops.max_pool2d.full(ops.relu(conv(x)), kernel_size=2)
        assert y.shape == index.shape and [name for name, _ in calls] == ["conv2d_bias_act", "max_pool2d"]


def test_a_norm_in_training_has_the_convolution_count_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for name in ("conv2d", "coconv2d"):
        run = getattr(ops, name).impls["cpu"]
        monkeypatch.setitem(getattr(ops, name).impls, "cpu",
                            lambda *a, _run=run, **k: asked.append(k["for_norm"]) or _run(*a, **k))
    norm, x = nn.BatchNorm2d(4), images()
    for conv in (nn.Conv2d(4, 4, 3, bias=False), nn.CoConv2d(4, 4)):
        for net in (nn.Sequential(conv, norm), lambda x, conv=conv: norm(conv(x)),
                    lambda x, conv=conv: ops.batch_norm(conv(x))):
            net(x).numpy()
    norm.eval()
    norm(conv(x)).numpy()
    ops.tanh(conv(x))
    assert asked == [True] * 6 + [False] * 2


def test_two_readers_of_a_result_get_the_same_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = implementations(monkeypatch)
    norm, x = nn.BatchNorm2d(4), images()
    between = norm(x)
    y = ops.relu(between + 1.0 * x)
    assert [name for name, _ in calls if "norm" in name] == ["batch_norm_act"]
    del calls[:]
    between = norm(x)
    y = ops.relu(between)       # `between` is there when y is read
    z = (y * between).sum()
    assert [name for name, _ in calls] == ["batch_norm_act", "relu", "mul", "sum"]
    z.backward()
    expected = np.maximum(between.numpy(), 0)
    assert np.array_equal(y.numpy(), expected) and x.grad is not None


def test_a_result_in_the_middle_that_somebody_has_is_computed_once() -> None:
    norm, x, r = nn.BatchNorm2d(4), images(), images(1)
    between = norm(x)
    y = ops.relu(between + r)   # the sum is gone, what the norm made is not
    got = y.numpy()
    assert np.allclose(got, np.maximum(between.numpy() + r.numpy(), 0), atol=1e-6)
    again = nn.BatchNorm2d(4)
    again(x).numpy()
    assert np.array_equal(norm.running_mean.numpy(), again.running_mean.numpy())    # moved once


def test_a_result_that_nobody_reads_is_computed() -> None:
    norm = nn.BatchNorm2d(4)
    norm(images())
    gc.collect()
    assert norm.running_mean.numpy().any() and here.call is None


def test_what_comes_between_is_seen_in_its_order() -> None:
    layer, x = nn.Linear(4, 3), images().detach()
    before = layer(x).numpy()
    y = layer(x)
    with alpha.no_grad():
        layer.weight.copy_(np.zeros((3, 4), np.float32))
    assert np.array_equal(y.numpy(), before)
    y = layer(x)
    with alpha.no_grad():
        layer.bias += 1.0
    assert np.array_equal(y.numpy() + 1.0, layer(x).numpy())


def test_a_graph_is_recorded_as_where_the_call_was() -> None:
    layer, x = nn.Linear(4, 3), images().detach()
    with alpha.no_grad():
        y = layer(x)
    z = ops.relu(y)
    assert not y.requires_grad and not z.requires_grad and z.is_leaf
    y = layer(x)
    with alpha.no_grad():
        z = ops.relu(y)
    assert y.requires_grad and not z.requires_grad
    y.sum().backward()
    assert layer.weight.grad is not None


def test_settings_are_those_of_the_call() -> None:
    layer, x = nn.Conv2d(4, 4, 3), images()
    with alpha.config(conv_algorithm="im2col"):
        y = layer(x)
        assert type(y) is Waiting
    assert type(y) is alpha.Tensor and y._node[0].attrs["algorithm"].name == "im2col"


def test_a_call_that_is_wrong_is_refused_at_once() -> None:
    with pytest.raises(ShapeError, match="x has 4 channels"):
        nn.Conv2d(3, 4, 3)(images())
    with alpha.no_grad(), pytest.raises(ShapeError, match=r"max_pool2d: .*\nhelp: "):
        ops.max_pool2d(ops.relu(nn.Conv2d(4, 4, 3)(images())), 2, padding=7)


def test_memory_that_others_see_is_read_at_once() -> None:
    shared = np.ones(SHAPE, np.float32)
    x, layer = alpha.from_dlpack(shared), nn.Linear(4, 3)
    y = layer(x)
    shared[:] = 0
    assert np.allclose(y.numpy(), layer(alpha.ones(SHAPE)).numpy())


def test_another_thread_may_read_a_result() -> None:
    y, found = nn.Linear(4, 3)(images()), []
    thread = threading.Thread(target=lambda: found.append(y.numpy()))
    thread.start()
    thread.join()
    assert np.array_equal(found[0], y.numpy()) and type(y) is alpha.Tensor


def test_hooks_see_what_is_between() -> None:
    norm, seen = nn.BatchNorm2d(4), []
    norm.register_forward_hook(lambda module, args, y: seen.append(y.min().item()))
    y = nn.Sequential(norm, nn.ReLU())(images())
    assert seen[0] < 0 and y.numpy().min() == 0


def test_what_nothing_does_in_one_call_is_two_calls() -> None:
    relu = Step("relu", [None], {})
    assert follow(Step("linear", [1, 2, 3], {"activation": "relu"}), relu) is None
    assert follow(Step("add", [1, 2], {}), relu) is None
    assert follow(Step("batch_norm_add_act", [1] * 6, {"activation": None}), Step("add", [None, 2], {})) is None
    assert follow(Step("conv2d", [1, 2], {"stride": 1}), relu) == Step("conv2d_bias_act", [1, 2, None],
                                                                      {"stride": 1, "activation": "relu"})


def test_a_relu_rides_on_a_function_that_takes_one() -> None:
    given = []

    def run(x: alpha.Tensor, scale: float, *, activation: str | None) -> alpha.Tensor:
        given.append(activation)
        y = x * scale
        return ops.relu(y) if activation else y

    x = images()
    y = ops.relu(later_function(run, x, 2.0))
    y.sum().backward()
    assert given == ["relu"] and np.array_equal(x.grad.numpy(), 2.0 * (x.numpy() > 0))
    between = later_function(run, x, 2.0)
    z = ops.relu(between)
    assert np.array_equal(z.numpy(), y.numpy()) and between.numpy().min() < 0 and given == ["relu", None]
