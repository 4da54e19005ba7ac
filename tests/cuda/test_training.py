"""Training on the GPU: the losses of the CPU and of PyTorch, the same bits twice, no leak, checkpoints on both devices.

The emulated driver gets small networks, and few steps where it checks every access; whole networks need a real GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import _lru_cache_wrapper
from typing import Any

import numpy as np
import pytest

import alpha
import train.report
from alpha import nn, ops, optim
from alpha.checkpoint import from_torch_state_dict, load
from alpha.core.device import get_backend
from alpha.core.op import registry
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, download
from models import create
from models.resnet import BasicBlock, ResNet
from tests.cuda.process import CHECKED
from tests.tiny_run import flags
from train.__main__ import main

pytestmark = [pytest.mark.cuda, pytest.mark.no_memcheck("trains for long; its kernels have tests of their own"),
              pytest.mark.long]

STEPS = 20
TOLERANCE = 1e-4  # of a loss after some steps, in which rounding has grown


@pytest.fixture
def emulated(device) -> bool:
    return context.name.startswith("emulated")


@pytest.fixture
def steps() -> int:
    return 4 if CHECKED else STEPS


@pytest.fixture
def real_gpu(emulated: bool) -> None:
    if emulated:
        pytest.skip("too much work for the emulated driver")


def small_vgg() -> nn.Module:
    # No biases before batch norm: their gradient is 0 but for rounding, which Adam would divide by its own size.
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Dropout(0.25), nn.Linear(64, 10))


def small_resnet() -> nn.Module:
    return ResNet(BasicBlock, (1, 1), 8, 10)


def small_lenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 20), nn.ReLU(),
                         nn.Linear(20, 10))


SMALL = {"lenet": small_lenet, "vgg": small_vgg, "resnet": small_resnet}


def batches(size: int, count: int, pixels: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields two batches in turn, so that there is something to learn."""
    rng = np.random.default_rng(0)
    made = [(rng.standard_normal((size, pixels, pixels, 3)).astype(np.float32), rng.integers(0, 10, size))
            for _ in range(2)]
    return (made[k % 2] for k in range(count))


def step_of(model: nn.Module, optimizer: optim.Optimizer) -> Callable[[alpha.Tensor, alpha.Tensor], alpha.Tensor]:
    def step(x: alpha.Tensor, y: alpha.Tensor) -> alpha.Tensor:
        loss = ops.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def trained(make: Callable[[], nn.Module], device: str, count: int, size: int = 4, pixels: int = 8,
            optimizer: str = "SGD", **settings) -> tuple[list[float], dict[str, np.ndarray]]:
    """Trains a new network, and returns its losses and its weights and statistics."""
    alpha.manual_seed(1)
    model = make().to(device)
    settings = settings or (dict(lr=0.02, momentum=0.9, weight_decay=5e-4) if optimizer == "SGD" else dict(lr=2e-3))
    step = step_of(model, getattr(optim, optimizer)(model.named_parameters(), **settings))
    losses = [step(alpha.tensor(x, device=device), alpha.tensor(y, device=device))
              for x, y in batches(size, count, pixels)]
    return [loss.item() for loss in losses], {name: t.numpy() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", SMALL)
def test_losses_and_weights_equal_those_of_the_cpu(name: str, optimizer: str, steps: int) -> None:
    expected, expected_weights = trained(SMALL[name], "cpu", steps, optimizer=optimizer)
    losses, weights = trained(SMALL[name], "cuda", steps, optimizer=optimizer)
    assert steps < STEPS or expected[-1] < 0.9 * expected[1], "nothing was learned, so nothing was tested"
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    for key, w in weights.items():
        assert np.abs(w - expected_weights[key]).max() <= 1e-3 * max(1e-2, np.abs(expected_weights[key]).max()), key


def parity_case(name: str, kind: str) -> tuple[str, dict]:
    """Returns the optimizer and its settings with which a whole network learns and is not chaotic."""
    from tests import test_parity as parity
    optimizer, settings = parity.OPTIMIZERS[kind]
    return optimizer, dict(settings, lr=parity.LR[name, kind])


WHOLE = pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in ("lenet5", "vgg11", "resnet18")
                                                   for kind in ("sgd", "adamw")])


@pytest.mark.slow
@pytest.mark.torch
@WHOLE
def test_whole_networks_have_the_losses_of_the_cpu(name: str, kind: str, real_gpu: None) -> None:
    optimizer, settings = parity_case(name, kind)
    case = dict(count=STEPS, size=16, pixels=32, optimizer=optimizer, **settings)
    expected, _ = trained(lambda: create(name), "cpu", **case)
    losses, _ = trained(lambda: create(name), "cuda", **case)
    assert losses == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.torch
@WHOLE
def test_whole_networks_have_the_losses_of_torch(name: str, kind: str, real_gpu: None) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_models import TWINS
    from tests import test_parity as parity
    optimizer, settings = parity_case(name, kind)
    torch.manual_seed(0)
    theirs, ours = TWINS[name](), create(name)
    from_torch_state_dict(theirs.state_dict(), ours)
    ours.to("cuda")
    expected = parity.torch_losses(theirs, getattr(torch.optim, optimizer)(theirs.parameters(), **settings), STEPS)
    step = step_of(ours, getattr(optim, optimizer)(ours.named_parameters(), **settings))
    losses = [step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda")).item()
              for x, y in parity.batches(STEPS)]
    assert expected[-1] < 0.97 * expected[1], "nothing was learned, so nothing was tested"
    assert losses == pytest.approx(expected, rel=TOLERANCE)


def differences(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, float]]:
    """Has every gradient of a convolution made by the FMA units too, from the same tensors, and returns where it is
    kept by how much the two differ, in relation to their norm, and how large the largest element is."""
    found: list[tuple[str, float, float]] = []

    def twice(name: str, implementation: Callable[..., Array]) -> Callable[..., Array]:
        def run(*args: Array, **attrs: Any) -> Array:
            out = implementation(*args, **attrs)
            with alpha.config(tensor_cores=False):
                exact = download(implementation(*args, **attrs), "float32")
            off = np.linalg.norm(download(out, "float32") - exact) / np.linalg.norm(exact)
            found.append((f"{name} {exact.shape}", off, np.abs(exact).max()))
            return out
        return run
    for name in ("conv2d_dgrad", "conv2d_wgrad"):
        monkeypatch.setitem(registry[name].impls, "cuda", twice(name, registry[name].impls["cuda"]))
    return found


def test_real_gradients_stay_in_range(emulated: bool, request: pytest.FixtureRequest) -> None:
    """Gradients shrink by orders of magnitude while two batches are learned by heart: planes must hold them all along.

    Each is held against that of the FMA units from the same tensors: in a whole network a unit whose input is nearly 0
    would be on in one of them and off in the other, which is 1e-3 of a gradient, in PyTorch too.
    """
    network, count, every, size, pixels = (small_resnet, 3, 2, 4, 8) if emulated else (
        lambda: create("resnet18"), 1000, 100, 64, 32)
    if emulated:  # so small a network would stay on the FMA units
        request.getfixturevalue("tensor_cores_first")
    alpha.manual_seed(1)
    model = network().to("cuda")
    step = step_of(model, optim.SGD(model.named_parameters(), lr=0.05, momentum=0.9))
    sizes = []
    for k, (x, y) in enumerate(batches(size, count, pixels)):
        with pytest.MonkeyPatch.context() as patch:
            found = differences(patch) if k % every == 0 else None
            assert np.isfinite(step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda")).item()), k
        if found is not None:
            offs = [off for _, off, _ in found]
            assert len(offs) > 10 and 0 < max(offs) < 1e-5, (k, found)
            sizes.append(max(largest for _, _, largest in found))
    assert emulated or min(sizes) < 1e-2 * sizes[0], "gradients did not shrink, so nothing was tested"


# ---- the same bits, the same memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_two_runs_with_one_seed_give_the_same_bits(name: str, steps: int) -> None:
    first, again = (trained(SMALL[name], "cuda", steps)[1] for _ in range(2))
    different = [key for key, w in first.items() if w.tobytes() != again[key].tobytes()]
    assert not different


@pytest.mark.parametrize("name", ["lenet5", "vgg16", "resnet18"])
def test_two_runs_of_a_whole_network_give_the_same_bits(name: str, real_gpu: None) -> None:
    first, again = (trained(lambda: create(name), "cuda", 10, size=64, pixels=32)[1] for _ in range(2))
    different = [key for key, w in first.items() if w.tobytes() != again[key].tobytes()]
    assert not different


def forget_maps() -> None:
    """Drops the maps of TMA, of which new ones are kept wherever an array has a new address."""
    for cached in gc.get_objects():
        if isinstance(cached, _lru_cache_wrapper) and cached.__name__ == "maps":
            cached.cache_clear()


def live_bytes_of(model: nn.Module, count: int, size: int, pixels: int) -> list[int]:
    """Trains, without Python's garbage collector, and returns the live bytes after each step.

    But for tensor maps: so many are kept, one for each address at which a tensor has been.
    """
    step = step_of(model.to("cuda"), optim.SGD(model.named_parameters(), lr=0.01, momentum=0.9))
    live = []
    gc.collect()
    gc.disable()
    try:
        for x, y in batches(size, count, pixels):
            loss = step(alpha.tensor(x, device="cuda"), alpha.tensor(y, device="cuda"))
            assert np.isfinite(loss.item())
            del loss
            forget_maps()
            live.append(get_backend("cuda").memory_stats()["live"])
    finally:
        gc.enable()
    return live


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_training_leaks_no_memory(name: str, emulated: bool) -> None:
    live = live_bytes_of(SMALL[name](), 8 if emulated else 200, 4, 8)
    assert len(set(live[1:])) == 1, live


def test_training_a_whole_network_leaks_no_memory(real_gpu: None) -> None:
    live = live_bytes_of(create("resnet18"), 200, 64, 32)
    assert len(set(live[1:])) == 1, live


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_run_is_resumed_on_the_other_device(first: str, then: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(train.report, "can_plot", lambda: False)  # pictures take longer than the run
    assert main(flags(tmp_path / "whole", device="cpu", epochs=2)) == 0
    assert main(flags(tmp_path / "halves", device=first, epochs=2, max_steps=5)) == 0
    assert main([*flags(tmp_path / "halves", device=then, epochs=2), "--resume", "auto"]) == 0
    (expected, _), (tensors, metadata) = (load(tmp_path / name / "last.safetensors") for name in ("whole", "halves"))
    assert metadata["config"]["device"] == then and metadata["progress"]["step"] == 10
    for key, t in expected.items():
        assert np.allclose(tensors[key].numpy(), t.numpy(), rtol=1e-3, atol=1e-5), key


def test_a_model_on_the_gpu_is_saved_as_on_the_cpu(tmp_path) -> None:
    model = small_resnet()
    before = {name: t.numpy() for name, t in model.state_dict().items()}
    alpha.checkpoint.save(tmp_path / "model.safetensors", model.to("cuda").state_dict(), {})
    tensors, _ = load(tmp_path / "model.safetensors")
    assert {name: t.numpy().tobytes() for name, t in tensors.items()} == {k: v.tobytes() for k, v in before.items()}
    assert all(t.device == "cpu" for t in tensors.values())
