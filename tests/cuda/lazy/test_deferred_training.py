"""Training where batch norm leaves its results to the convolutions that read them: losses, bits and memory."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import alpha
from alpha import nn
from alpha.core.device import get_backend
from alpha.cuda.lazy import operands
from alpha.cuda.lazy.deferred import LazyStorage
from models.googlenet import Inception
from models.resnet import BasicBlock, Bottleneck, ResNet
from tests.cuda.process import CHECKED
from tests.cuda.test_training import batches, forget_maps, step_of, trained

pytestmark = [pytest.mark.cuda, pytest.mark.no_memcheck("trains for long; its kernels have tests of their own"),
              pytest.mark.usefixtures("device", "tensor_cores_first"), pytest.mark.long]

LARGEST_FILTERS = 8192  # elements; maps have more


def resnet() -> nn.Module:
    """Shortcuts of both kinds, and a block whose residual is a block's result."""
    return ResNet(BasicBlock, (1, 1), 8, 10)


def googlenet() -> nn.Module:
    """Branches that meet in a concatenation, and convolutions with biases."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                         Inception(8, 8, 8, 8, 8, 8, 8), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(32, 10))


def vgg() -> nn.Module:
    """Pools between stages, of a maximum and of a mean."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2),
                         nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(16, 10))


def inceptions() -> nn.Module:
    """Two blocks, of which the second reads what the first has joined, and a pool between."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                         Inception(8, 8, 8, 8, 8, 8, 8), nn.MaxPool2d(3, stride=2, padding=1),
                         Inception(32, 16, 8, 16, 8, 8, 8), Inception(48, 8, 8, 8, 8, 8, 8), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(32, 10))


NETWORKS = {"resnet": resnet, "googlenet": googlenet, "vgg": vgg}
PIXELS = 4  # of a side: the tensor cores of the emulated device are slow


@pytest.fixture
def steps() -> int:
    return 2 if CHECKED else 3


@pytest.mark.parametrize("mode", ["fp32", "tf32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_those_of_the_fma_units(name: str, mode: str, steps: int, launches: list[str]) -> None:
    with alpha.config(tensor_cores=False):
        expected, _ = trained(NETWORKS[name], "cuda", steps, pixels=PIXELS)
    launches.clear()
    with alpha.precision(mode):
        losses, weights = trained(NETWORKS[name], "cuda", steps, pixels=PIXELS)
        again, same = trained(NETWORKS[name], "cuda", steps, pixels=PIXELS)
    assert losses == pytest.approx(expected, rel=2e-5 if mode == "fp32" else 2e-2)
    assert losses == again and all(w.tobytes() == same[key].tobytes() for key, w in weights.items())
    assert {"conv_v2_wgmma", "apply_planes", "gradient_planes_relu"} <= set(launches)


def deep_resnet() -> nn.Module:
    return ResNet(BasicBlock, (2, 2), 8, 10)


def bottlenecks() -> nn.Module:
    return ResNet(Bottleneck, (2, 1), 8, 10)


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each array that is split by itself: padded filters, features and maps."""
    sizes: list[int] = []
    split = operands._split
    monkeypatch.setattr(operands, "_split", lambda x, form: (sizes.append(x.size), split(x, form))[1])
    return sizes


@pytest.mark.parametrize("mode", ["fp32", "tf32"])
def test_a_residual_network_splits_no_map(mode: str, no_products: None, launches: list[str], splits: list[int]
                                          ) -> None:
    """In a step every activation and gradient is written once, as planes, and nothing but weights is measured."""
    model = deep_resnet().to("cuda")
    step = step_of(model, alpha.optim.SGD(model.parameters(), lr=0.1))
    for x, y in batches(64, 2, 8):
        launches.clear(), splits.clear()
        with alpha.precision(mode):
            step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    written = {name: sum(entry.startswith(name) and "planes" in entry for entry in launches)
               for name in ("apply", "gradient", "chain_norm")}
    assert written["gradient"] == norms and written["apply"] + written["chain_norm"] == norms - 2, "a shortcut, a mean"
    assert launches.count("relu_grad_float32") == 4 and launches.count("chain_norm_add_relu_planes") == 2
    assert sum(size > LARGEST_FILTERS for size in splits) <= 2, "of the images, for filters and their gradient"


@pytest.mark.parametrize("mode", ["fp32", "tf32"])
@pytest.mark.parametrize("make", [vgg, inceptions])
def test_pools_and_joined_maps_are_not_split(make: Callable[[], nn.Module], mode: str, no_products: None,
                                             launches: list[str], splits: list[int], monkeypatch) -> None:
    """What convolutions read is written as planes once, by the pool or the concatenation itself."""
    model, merges, merge = make().to("cuda"), [], LazyStorage._merge
    monkeypatch.setattr(LazyStorage, "_merge", lambda self, y, header: (merges.append(y.shape), merge(self, y, header)))
    step = step_of(model, alpha.optim.SGD(model.parameters(), lr=0.1))
    for x, y in batches(64, 2, 8):
        launches.clear(), splits.clear()
        with alpha.precision(mode):
            step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
    pools = {vgg: {"max_pool_planes": 1, "avg_pool_planes": 1}, inceptions: {"max_pool_rows_planes": 4}}[make]
    assert {entry: launches.count(entry) for entry in pools} == pools
    assert "concat_planes" not in launches, "parts are written where they belong"
    assert not merges
    assert sum(size > LARGEST_FILTERS for size in splits) <= 2, "of the images, for filters and their gradient"


def memory_of_a_step(make: Callable[[], nn.Module]) -> list[int]:
    """Returns live bytes after the forward pass and after the step, and the peak, of a second step."""
    model = make().to("cuda")
    optimizer = alpha.optim.SGD(model.parameters(), lr=0.1)
    backend, found = get_backend("cuda"), []
    gc.collect()
    gc.disable()
    try:
        for x, y in batches(64, 2, 8):
            x, y = alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda")
            forget_maps()
            base = backend.memory_stats()["live"]
            backend.reset_peak_memory()
            loss = alpha.ops.cross_entropy(model(x), y)
            forget_maps()
            after = backend.memory_stats()["live"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del loss
            forget_maps()
            found = [after - base, backend.memory_stats()["live"] - base, backend.memory_stats()["peak"] - base]
    finally:
        gc.enable()
    return found


@pytest.mark.parametrize("make", [deep_resnet, bottlenecks, googlenet, vgg, inceptions])
def test_a_step_takes_no_more_memory(make: Callable[[], nn.Module], no_products: None, monkeypatch) -> None:
    """But for a header per map, of 64 bytes behind a multiple of 256, and some filters' planes."""
    ours = memory_of_a_step(make)
    monkeypatch.setattr("alpha.cuda.lazy.planes_are_read", lambda: False)
    before = memory_of_a_step(make)
    headers = 320 * 2 * sum(isinstance(m, nn.BatchNorm2d) for m in make().modules())
    assert all(a <= b + headers for a, b in zip(ours[:2], before)), (ours, before)
    assert ours[2] <= before[2] + headers + 64 * 8 * 8 * 32 * 4, "a map of the widest layer"


def test_nothing_leaks(no_products: None) -> None:
    model = deep_resnet().to("cuda")
    step, live = step_of(model, alpha.optim.SGD(model.parameters(), lr=0.01)), []
    gc.collect()
    gc.disable()
    try:
        for x, y in batches(4, 5, 8):
            step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
            forget_maps()
            live.append(get_backend("cuda").memory_stats()["live"])
    finally:
        gc.enable()
    assert max(live[2:]) <= live[1], live
