"""Results that backward makes again on a GPU: the bits of keeping them, as planes, in 16 bits, captured, in a limit."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.cuda.ops.pointwise import chain
from alpha.cuda.runtime import arena
from alpha.errors import OutOfMemoryError
from alpha.recompute import plan, recipe
from tests.cuda.lazy.test_deferred_training import googlenet, inceptions, resnet, vgg
from tests.cuda.process import COUNTS_LIVE
from tests.cuda.test_training import batches, live_bytes_of
from tests.recompute_plans import drawn

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device", "tensor_cores_first")]

NETWORKS = {"resnet": resnet, "googlenet": googlenet, "vgg": vgg, "inceptions": inceptions}
PIXELS, STEPS = 4, 2


@pytest.fixture(autouse=True)
def small_results_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LEAST", 1)
    for device in plan.WORTH:
        monkeypatch.setitem(plan.WORTH, device, 1)


def trained(name: str, setting: str, capture: bool, steps: int = STEPS) -> list[np.ndarray]:
    """Returns losses, gradients and running statistics of some steps."""
    alpha.manual_seed(3)
    model = NETWORKS[name]().to("cuda")
    parameters, found = list(model.parameters()), []

    def losses(x: alpha.Tensor, y: alpha.Tensor) -> alpha.Tensor:
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    step = alpha.capture(losses, model) if capture else losses
    for x, y in batches(8, steps, PIXELS):
        with alpha.config(recompute=setting):
            loss = step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
        found += [loss.numpy(), *(p.grad.numpy() for p in parameters)]
        for p in parameters:
            p.grad = None
    return found + [b.numpy() for _, b in model.named_buffers()]


@cache
def kept(name: str, mode: str, capture: bool, steps: int) -> list[Any]:
    """Returns what training gives that makes nothing again."""
    with alpha.precision(mode):
        return trained(name, "none", capture, steps)


def assert_same(a: list[Any], b: list[Any]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.long
@pytest.mark.parametrize("setting", ["cheap", "full", "auto"])
@pytest.mark.parametrize("mode", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_with_the_same_bits(name: str, mode: str, setting: str) -> None:
    expected, before = kept(name, mode, False, STEPS), recipe.count.times
    with alpha.precision(mode):
        found = trained(name, setting, False)
    assert recipe.count.times > before or setting == "auto"
    assert_same(expected, found)


@pytest.mark.long
@pytest.mark.parametrize("least, seed", [(1, 1), (1 << 60, 2)])
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["resnet", "inceptions"])
def test_bits_do_not_depend_on_the_plan(name: str, mode: str, least: int, seed: int,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """least: elements from which results of pointwise ops wait for others to join them."""
    monkeypatch.setattr(chain, "LEAST", least)
    with alpha.precision(mode):
        expected, before = trained(name, "none", False, 1), recipe.count.times
        drawn(monkeypatch, seed)
        found = trained(name, "auto", False, 1)
    assert recipe.count.times > before
    assert_same(expected, found)


@pytest.mark.long
@pytest.mark.parametrize("worth", [-1, 1 << 60])
@pytest.mark.parametrize("setting", ["cheap", "full", "auto"])
def test_a_captured_step_has_the_same_bits(setting: str, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded twice, with all arrays where alpha.lifetimes puts them, and recorded once."""
    monkeypatch.setattr(arena, "WORTH", worth)
    assert_same(kept("inceptions", "fp32", True, 4), trained("inceptions", setting, True, 4))


@pytest.mark.long
@pytest.mark.parametrize("setting", ["none", "cheap", "full", "auto"])
@COUNTS_LIVE
def test_training_leaks_no_memory(setting: str) -> None:
    with alpha.config(recompute=setting):
        live = live_bytes_of(resnet(), 6, 4, PIXELS)
    assert max(live[2:]) <= live[1], live
    assert not list(recipe.versions.recipes)


@pytest.mark.parametrize("window, each", [(2, 1), (20, 4)])
def test_an_index_counts_as_what_it_is_kept_in(window: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, where windows are small; nobody else keeps what the pool reads, so it is not made again."""
    monkeypatch.setattr(recipe.count, "kept", 0)
    x, w = alpha.randn((2, 20, 20, 8), device="cuda"), nn.Parameter(alpha.randn((8, 1, 1, 8)).to("cuda"))
    with alpha.config(recompute="cheap"):
        y = ops.max_pool2d(ops.conv2d(x, w), window)
    index = y._node[0].saved[0]
    assert recipe.count.kept == index.nbytes == each * y.size


def deep() -> nn.Module:
    """Many norms on maps that are large beside the parameters."""
    layers = [nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    for _ in range(8):
        layers += [nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


@pytest.mark.long
@COUNTS_LIVE
def test_a_batch_that_does_not_fit_trains_with_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(setting: str) -> tuple[float, int]:
        alpha.manual_seed(1)
        model, backend = deep().to("cuda"), get_backend("cuda")
        gc.collect()
        backend.reset_peak_memory()
        with alpha.config(recompute=setting, tensor_cores=False):
            x = alpha.zeros((32, 64, 64, 3), device="cuda") + 1.0
            loss = (model(x) * 2.0).sum()
            loss.backward()
        return loss.item(), backend.memory_stats()["peak"]

    expected, most = step("none")
    limit = most * 7 // 10 >> 20
    with alpha.config(cuda_memory_mib=limit):
        with pytest.raises(OutOfMemoryError, match="out of memory"):
            step("none")
        gc.collect()
        found, peak = step("auto")
    assert found == expected and peak <= limit << 20
