"""Results that backward makes again: the same bits as with everything kept, less memory, the same errors."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.cpu import memory
from alpha.errors import GraphError
from alpha.recompute import plan, recipe
from tests.op_checks import refused
from tests.recompute_plans import drawn

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
SETTINGS = ("cheap", "full", "auto")
LONG = 2 * sys.getrecursionlimit()
Results = list[np.ndarray]


@pytest.fixture(autouse=True)
def small_results_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LEAST", 1)
    for device in plan.WORTH:
        monkeypatch.setitem(plan.WORTH, device, 1)


def image(seed: int, *shape: int) -> alpha.Tensor:
    return alpha.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def step(model: Callable[..., alpha.Tensor], x: alpha.Tensor, parameters: Any, setting: str) -> Results:
    """Returns loss and gradients of one step."""
    with alpha.config(recompute=setting):
        y = model(x)
        loss = (y * y).mean()
    loss.backward()
    found = [loss.numpy(), *(p.grad.numpy() for p in parameters)]
    for p in parameters:
        p.grad = None
    return found


def assert_same(a: Results, b: Results) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)


def made() -> int:
    return recipe.count.times


# ---- the same bits ---------------------------------------------------------------------------------------------------


def two_steps(name: str, setting: str) -> tuple[Results, Results]:
    """Returns losses and gradients of two steps of a network, and its buffers after them."""
    alpha.manual_seed(3)
    side = 16 if name in ("resnet18", "googlenet") else 32  # the others need all of it
    model, x = models.create(name, 10).train(), image(1, 2, side, side, 3)
    found = [step(model, x, list(model.parameters()), setting) for _ in range(2)]
    return [a for one in found for a in one], [b.numpy() for _, b in model.named_buffers()]


@lru_cache(maxsize=1)
def kept(name: str) -> tuple[Results, Results]:
    """Returns what two steps give that keep everything: it is compared with every setting."""
    return two_steps(name, "none")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["lenet5", "resnet18", "vgg11", "googlenet"])
def test_networks_train_with_the_same_bits(name: str, setting: str) -> None:
    expected, before = kept(name), made()
    found = two_steps(name, setting)
    assert made() > before, "nothing was made again"
    assert_same(expected[0], found[0])
    assert_same(expected[1], found[1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_bits_do_not_depend_on_the_plan(mode: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(setting: str) -> Results:
        alpha.manual_seed(5)
        model = Mixed().train()
        with alpha.precision(mode):
            return step(model, image(2, 4, 8, 8, 3), list(model.parameters()), setting)

    expected, before = run("none"), made()
    drawn(monkeypatch, seed, ("offer", "offer", "cheap", "full"))
    assert_same(expected, run("auto"))
    assert made() > before


class Mixed(nn.Module):
    """Every kind of cheap op behind a convolution: norms, residuals, pools, joins, dropout, smooth activations."""

    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.ln, self.gn = nn.LayerNorm((8,)), nn.GroupNorm(2, 8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        x = self.bn1(self.conv1(x), activation="relu")
        y = ops.concat([ops.dropout(x, 0.3, self.training), ops.max_pool2d(x, 3, 1, 1)], -1)
        y = self.bn2(self.conv2(y), residual=x, activation="relu")
        y = ops.silu(self.ln(y)) + ops.gelu(self.gn(y)) * ops.sigmoid(x)
        y = self.bn3(ops.avg_pool2d(y, 2) - ops.max_pool2d(y, 2)).clip(-2.0, 2.0)
        y = ops.pad(y, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, 1:]
        return self.linear(ops.elu(ops.where(y > 0.0, y, y * 0.1)).mean((1, 2)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("setting", SETTINGS)
def test_all_cheap_ops_are_made_again_with_the_same_bits(setting: str, kernels: bool, training: bool) -> None:
    def run(setting: str) -> Results:
        alpha.manual_seed(5)
        model = Mixed().train(training)
        return step(model, image(2, 4, 8, 8, 3), list(model.parameters()), setting)

    with alpha.config(cpu_kernels=kernels):
        expected, before = run("none"), made()
        assert_same(expected, run(setting))
    assert made() > before or setting == "auto"  # whose share of the time is small


@pytest.mark.parametrize("setting", SETTINGS)
def test_sixteen_bits(setting: str) -> None:
    def run(setting: str) -> Results:
        alpha.manual_seed(5)
        model = models.create("resnet20", 10).train()
        with alpha.precision("fp16"):
            return step(model, image(2, 2, 16, 16, 3), list(model.parameters()), setting)

    assert_same(run("none"), run(setting))


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_of_gradients(setting: str) -> None:
    def run(setting: str) -> Results:
        alpha.manual_seed(5)
        model, x = Mixed(), image(2, 4, 8, 8, 3).requires_grad_()
        with alpha.config(recompute=setting):
            g, = alpha.grad((model(x) ** 2.0).sum(), x, create_graph=True)
            (g * g).sum().backward()
        return [x.grad.numpy(), *(p.grad.numpy() for p in model.parameters() if p.grad is not None)]

    assert_same(run("none"), run(setting))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_retained_graph_gives_the_same_gradients_twice(setting: str) -> None:
    model, x = Mixed(), image(2, 4, 8, 8, 3)
    with alpha.config(recompute=setting):
        loss = (model(x) ** 2.0).sum()
    parameters, found = list(model.parameters()), []
    for k in range(3):
        before = made()
        loss.backward(retain_graph=k < 2)
        assert made() > before or setting == "auto"
        found.append([p.grad.numpy() for p in parameters])
        for p in parameters:
            p.grad = None
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
    with refused(GraphError, "were freed by an earlier backward"):
        loss.backward()


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_a_result_is_made_once_and_goes_after_its_last_reader() -> None:
    x = image(1, 4, 8).requires_grad_()
    with alpha.config(recompute="cheap"):
        h = ops.exp(x)
        data = weakref.ref(h.array)
        y = ops.tanh(h) + h * h
        del h
    assert data() is None
    before, kept = made(), y._node[0].edges[1][0]
    shared = kept.saved[0].recipe
    assert kept.saved[0] == kept.saved[1] and shared.readers > 1
    y.sum().backward()
    assert made() == before + 2 and shared.data is None and shared.sources is None  # exp and tanh
    e = np.exp(x.numpy())
    np.testing.assert_allclose(x.grad.numpy(), e * (1 - np.tanh(e) ** 2) + 2 * e * e, rtol=1e-4)


def test_what_only_an_activation_would_read_is_not_kept() -> None:
    """A convolution with a bias saves its result for the mask of a relu, and lets it go where there is none."""
    conv = nn.Conv2d(3, 4, 3)
    plain, masked = (ops.conv2d_bias_act(image(1, 2, 8, 8, 3), conv.weight, conv.bias, activation=activation)
                     for activation in (None, "relu"))
    assert plain._node[0].saved[-1] is None and masked._node[0].saved[-1] is masked.array
    data = weakref.ref(plain.array)
    loss = (plain + 0.0).sum()
    del plain
    assert data() is None
    loss.backward()
    np.testing.assert_allclose(conv.bias.grad.numpy(), 72.0)


def test_a_result_whose_input_nobody_keeps_is_kept() -> None:
    """relu behind a convolution: its input is as large, and nobody has it."""
    conv, before = nn.Conv2d(3, 4, 3, bias=False), made()
    with alpha.config(recompute="cheap"):
        y = ops.relu(ops.conv2d(image(1, 2, 8, 8, 3), conv.weight))
    assert y._node[0].saved[0] is y.array
    y.sum().backward()
    assert made() == before


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_long_chain_needs_no_recursion(setting: str) -> None:
    x = image(1, 4, 8).requires_grad_()
    y, before = x, made()
    with alpha.config(recompute=setting):
        for _ in range(LONG):
            y = ops.tanh(y * 1.01)
    y.sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and (made() > before or setting == "auto")
    with alpha.config(recompute=setting):
        y = alpha.recompute(lambda y: [y := ops.tanh(y) for _ in range(LONG)][-1])(x)
    y.sum().backward()


@pytest.mark.parametrize("name, live, peak, full", [("resnet18", 0.75, 0.95, 0.95), ("googlenet", 0.5, 0.6, 0.8)])
def test_memory(name: str, live: float, peak: float, full: float) -> None:
    """Bytes after the forward pass, and at the peak, against those of keeping everything; full: against cheap's."""
    backend, found = get_backend("cpu"), {}
    for setting in ("none", "cheap", "full"):
        alpha.manual_seed(1)
        model, x = models.create(name, 10).train(), image(1, 8, 32, 32, 3)
        gc.collect()
        before = backend.memory_stats()["live"]
        backend.reset_peak_memory()
        with alpha.config(recompute=setting):
            loss = model(x).sum()
        there = backend.memory_stats()["live"] - before
        loss.backward()
        found[setting] = there, backend.memory_stats()["peak"] - before
        del model, x, loss
    assert found["cheap"][0] < live * found["none"][0] and found["cheap"][1] < peak * found["none"][1]
    assert found["full"][0] < 0.75 * found["cheap"][0] and found["full"][1] < full * found["cheap"][1]


@pytest.mark.parametrize("setting", ("none", *SETTINGS))
def test_training_leaks_no_memory(setting: str) -> None:
    model, x = Mixed(), image(2, 4, 8, 8, 3)
    parameters, counted = list(model.parameters()), []
    for k in range(6):
        step(model, x, parameters, setting)
        with alpha.config(recompute=setting):
            model(x)    # a graph that nobody follows
        gc.collect()
        counted.append((memory.pool.live, len(gc.get_objects())) if k > 1 else (0, 0))
    assert len({live for live, _ in counted[2:]}) == 1
    assert counted[-1][1] - counted[2][1] < 20
    assert not list(recipe.versions.recipes)


def test_no_garbage_is_left_to_the_collector() -> None:
    model, x = Mixed(), image(2, 4, 8, 8, 3)
    gc.collect()
    gc.disable()
    try:
        live = memory.pool.live
        with alpha.config(recompute="cheap"):
            y = model(x).sum()
        del y
        assert memory.pool.live == live and not list(recipe.versions.recipes)
    finally:
        gc.enable()


# ---- changes in place ------------------------------------------------------------------------------------------------


def test_what_a_result_is_made_of_may_change() -> None:
    """Without recomputation the op would not have kept it."""
    a, b = image(1, 4, 8).requires_grad_(), image(2, 4, 8).requires_grad_()
    with alpha.config(recompute="cheap"):
        y = ops.sigmoid(a + b)
        z = y * y
    expected = (y * (1.0 - y) * 2.0 * y).numpy()
    with alpha.no_grad():
        a += 1.0
        b.copy_(a)
    z.sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), expected, rtol=1e-5)


def test_a_change_of_a_saved_result_is_refused() -> None:
    x = image(1, 4, 8).requires_grad_()
    with alpha.config(recompute="cheap"):
        y = ops.exp(x)
        z = (y * y).sum()
    y.detach().copy_(np.zeros((4, 8), np.float32))
    with refused(GraphError, "backward: a of mul was changed in place after the forward pass"):
        z.backward()


def test_a_change_through_another_library_is_refused() -> None:
    x = image(1, 4, 8).requires_grad_()
    other = alpha.from_dlpack(x.detach())
    with alpha.config(recompute="cheap"):
        z = ops.exp(x).sum()
    other.copy_(np.zeros((4, 8), np.float32))
    with refused(GraphError, "what exp has read was changed in place after the forward pass", "recompute=\"none\""):
        z.backward()


def test_auto_gives_way_as_memory_gets_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 % of the time it keeps most; towards the limit all that is cheap goes, then convolutions too."""
    backend = get_backend("cpu")

    def kept(limit: float) -> int:
        alpha.manual_seed(1)
        model, x = models.create("resnet18", 10).train(), image(1, 8, 32, 32, 3)
        gc.collect()
        before = backend.memory_stats()["live"]
        monkeypatch.setattr(type(backend), "memory_limit", lambda self: int(limit * before))
        recipe.count.planned = 0
        with alpha.config(recompute="auto"):
            loss = model(x).sum()
        del loss
        return recipe.count.planned

    plenty, scarce, short = kept(1e6), kept(2.8), kept(1.5)
    assert plenty < scarce < short
