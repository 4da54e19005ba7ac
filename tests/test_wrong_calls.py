"""Mistakes in calls of training, data, inference, profiler, ONNX and layers: refused with both values and the fix."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, onnx, ops, optim
from alpha.data import DataLoader, register_dataset
from alpha.errors import AlphaError
from alpha.training import fit, register_loss, register_optimizer
from tests.loader_sets import IMAGES, LABELS, Items

DATA = IMAGES, LABELS
X = np.ones((2, 12, 10, 3), np.float32)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12 * 10 * 3, 5))


def trained(**settings: Any) -> None:
    fit(settings.pop("model", None) or net(), DATA, progress=False, **settings)


def first(data: Any = DATA, **settings: Any) -> Any:
    return next(iter(DataLoader(data, **settings)))


class Bare:
    def __init__(self, params: Any) -> None: ...


class Length:
    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length

    def __getitem__(self, k: int) -> Any:
        return IMAGES[0], 0


class Batches:
    """Batches that are there as they are."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return iter(self.batches)


class Branches(nn.Module):
    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        return x if x.sum().item() > 0 else -x


def refused(call: Callable[[], Any], *said: str) -> None:
    with pytest.raises(AlphaError) as caught:
        call()
    text = str(caught.value)
    assert "\nhelp: " in text
    for part in said:
        assert part in text, text


@pytest.mark.parametrize("call, said", [
    (lambda: DataLoader(DATA, augment=3), ("augment is 3", 'augment="crop=4,flip"')),
    (lambda: DataLoader(DATA, mean="half"), ('mean is "half" (str), finite numbers', "mean=0.5")),
    (lambda: DataLoader(DATA, mean=[[0.5]]), ("mean is", "one number for each channel")),
    (lambda: DataLoader(DATA, std=float("nan")), ("std is nan, finite numbers",)),
    (lambda: DataLoader(DATA, std=0.0), ("std=0.0 is not above 0",)),
    (lambda: DataLoader(DATA, std=(1.0, -1.0, 1.0)), ("std=(1.0, -1.0, 1.0) is not above 0",)),
    (lambda: first(mean=(0, 0, 0, 0)), ("mean has 4 elements, the images have 3 channels",)),
    (lambda: first(resident=False, std=(1, 1)), ("std has 2 elements, the images have 3 channels",)),
    (lambda: DataLoader(Length(-1)), ("no number of items", "an int of at least 0")),
    (lambda: DataLoader(Length(2.5)), ("no number of items", "'float'")),
    (lambda: DataLoader(Items(), processes=True), ("processes=True, and workers=0", "workers=4")),
    (lambda: DataLoader(DATA).batches("a"), ("epoch", '"a"')),
    (lambda: DataLoader(DATA).batches(0, -1), ("epoch 0, step -1 does not exist",)),
    (lambda: first(batch_size=len(IMAGES) + 1, drop_last=True), ("make no batch of", "choose a batch_size")),
    (lambda: DataLoader(DATA, augment=np.ones(3)), ("augment is a float64 NumPy array", "crop=4,flip")),
    (lambda: DataLoader(DATA, augment=[]), ("augment is []",)),
    (lambda: DataLoader(DATA, mean=1j), ("mean is 1j",)),
    (lambda: DataLoader(DATA, std=np.datetime64("2020")), ("std is",)),
    (lambda: DataLoader(DATA, mean=10 ** 400), ("mean is", "finite numbers")),
    (lambda: first([[], []], batch_size=2), ("item 0 is []", "return (sample, target)")),
    (lambda: alpha.data.TensorDataset(IMAGES, shuffle=True), ("TensorDataset", "'shuffle'")),
    (lambda: register_dataset(augment=None), ("augment is None", "a str is needed")),
    (lambda: first(Items(), transform=lambda a: 1 // 0), ("transform failed on item 0: ZeroDivisionError",)),
])
def test_data(call: Callable[[], Any], said: tuple[str, ...]) -> None:
    refused(call, *said)


@pytest.mark.parametrize("call, said", [
    (lambda: trained(optimizer=optim.SGD(net().parameters(), lr=0.1)),
     ("the SGD has none of the model's 2 parameters", "model.parameters()")),
    (lambda: trained(loss=lambda outputs: outputs.sum()), ("does not take (outputs, targets)", "take both")),
    (lambda: trained(loss=nn.ReLU()), ("does not take (outputs, targets)",)),
    (lambda: trained(loss=lambda outputs, targets: 1.0), ("it returned 1.0, a Tensor of shape ()", "ops.mean")),
    (lambda: trained(loss=lambda outputs, targets: outputs), ("it returned a float32 tensor of shape", "ops.mean")),
    (lambda: fit(net(), IMAGES, progress=False), ("a batch is 1 parts, two are needed: (inputs, targets)",)),
    (lambda: fit(net(), (*DATA, LABELS), progress=False), ("a batch is 3 parts",)),
    (lambda: fit(net(), DATA, Batches([IMAGES[:4]]), progress=False), ("a batch is a uint8 NumPy array", "two are")),
    (lambda: trained(metrics=[lambda outputs: outputs.sum()]), ("does not take (outputs, targets)", "take both")),
    (lambda: trained(metrics=[lambda outputs, targets: outputs]), ("a Tensor of shape () or (N,) is needed",)),
    (lambda: trained(metrics=[lambda outputs, targets: outputs[:0, 0]]), ("a Tensor of shape () or (N,) is needed",)),
    (lambda: trained(optimizer=None), ("None is no function and no class", "a registered name")),
    (lambda: trained(optimizer=int), ("the class int", "written in Python")),
    (lambda: trained(optimizer=lambda: 1), ("optimizer", "does not take what it is given: too many positional",)),
    (lambda: trained(optimizer=lambda params, lr=0.1: 1), ("the optimizer made is 1, which has no step", "optim.Opt")),
    (lambda: register_loss(nn.ReLU()), ("has no name", 'register_loss("name")')),
    (lambda: register_loss("a", "b"), ("register_loss", "it takes (make)")),
    (lambda: trained(loss="ce"), ("there is no loss 'ce'", "cross_entropy")),
    (lambda: trained(optimizer="sdg"), ("did you mean 'sgd'?",)),
    (lambda: trained(momentun=0.9), ("there is no setting 'momentun'", "momentum")),
    (lambda: trained(ema=2.0), ("2.0",)),
    (lambda: trained(model=nn.Linear), ("Linear",)),
    (lambda: register_optimizer(Bare), ("Bare takes (params), and no lr", "lr=1e-3")),
    (lambda: register_optimizer(lr=-1.0)(optim.SGD), ("lr is -1.0", "at least 0")),
    (lambda: register_optimizer(lr="fast")(optim.SGD), ('lr is "fast"',)),
    (lambda: register_loss(3), ("3 is no function",)),
])
def test_training(call: Callable[[], Any], said: tuple[str, ...]) -> None:
    refused(call, *said)


@pytest.mark.parametrize("call, said", [
    (lambda run, x: run(input=x), ("by name, input", "run(x)")),
    (lambda run, x: run(x, x), ("2 inputs are given, the example had 1",)),
    (lambda run, x: run(x.permute(0, 3, 1, 2)), ("shape (2, 3, 12, 10), the example had (2, 12, 10, 3)",)),
    (lambda run, x: run(x.numpy()), ("a Tensor is needed",)),
    (lambda run, x: alpha.inference(Branches(), x), ("help: ",)),
])
def test_inference(call: Callable[[Any, alpha.Tensor], Any], said: tuple[str, ...]) -> None:
    x = alpha.tensor(X)
    run = alpha.inference(net(), x)
    refused(lambda: call(run, x), *said)


@pytest.mark.parametrize("call, said", [
    (lambda p: p.save("/nowhere/trace.json"), ("/nowhere/trace.json cannot be written", "make the folder first")),
    (lambda p: p.save(None), ("path", "None")),
    (lambda p: p.table("kernels"), ("kernels", "kernel")),
    (lambda p: p.table("op", rows=3), ("rows", "limit")),
    (lambda p: p.__enter__(), ("has been used already", "make a new one")),
])
def test_profiler(call: Callable[[Any], Any], said: tuple[str, ...]) -> None:
    with alpha.profiler() as p:
        ops.relu(alpha.tensor(X))
    refused(lambda: call(p), *said)


@pytest.mark.skipif(not importlib.util.find_spec("onnx"), reason="the package onnx is not installed")
@pytest.mark.parametrize("call, said", [
    (lambda path: onnx.export(net(), alpha.tensor(X), None), ("path", "None")),
    (lambda path: onnx.export(net(), X, path), ("help: ",)),
    (lambda path: onnx.export(net(), alpha.tensor(X), path / "none" / "a.onnx"), ("cannot be written",)),
    (lambda path: onnx.load(7), ("path", "7")),
    (lambda path: onnx.load(path, channels_first="no"), ("channels_first", '"no"')),
    (lambda path: onnx.load(path / "none.onnx"), ("cannot be read",)),
])
def test_onnx(call: Callable[[Path], Any], said: tuple[str, ...], tmp_path: Path) -> None:
    refused(lambda: call(tmp_path), *said)


@pytest.mark.parametrize("layer, sizes", [
    (lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False), "3"),
    (lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False), "3"),
    (lambda: nn.LayerNorm(3, affine=False), "3"), (lambda: nn.LayerNorm((4, 3), affine=False), "4, 3"),
    (lambda: nn.GroupNorm(2, 4, affine=False), "4"), (lambda: nn.InstanceNorm2d(3), "3")])
def test_norms_without_parameters_know_their_channels(layer: Callable[[], nn.Module], sizes: str) -> None:
    """Six channels are groups of three, or have statistics of their own: an answer, and none to what was meant."""
    refused(lambda: layer()(alpha.tensor(np.ones((2, 4, 4, 6), np.float32))),
            f"x has shape (2, 4, 4, 6), the layer was made for x of shape (..., {sizes})")
    fitting = np.arange(2 * 4 * 4 * 12, dtype=np.float32).reshape(2, 4, 4, 12)[..., :int(sizes[-1])]
    assert layer()(alpha.tensor(fitting)).shape == fitting.shape


def test_instance_norm_of_one_pixel() -> None:
    refused(lambda: nn.InstanceNorm2d(3)(alpha.tensor(np.ones((2, 1, 1, 3), np.float32))),
            "x of shape (2, 1, 1, 3) has 1 pixel in a sample", "at least 2 pixels")


def hooked(result: Any) -> None:
    x = alpha.ones((2,), requires_grad=True)
    x.register_hook(lambda g: result)
    (x * 2).sum().backward()


@pytest.mark.parametrize("call, said", [
    (lambda: hooked("x"), ('hook: a hook returned "x" (str), a Tensor or None is needed',)),
    (lambda: hooked(alpha.ones((2,), dtype="float16")), ("returned dtype float16 for a gradient of dtype float32",)),
    (lambda: nn.Linear(2, 2).to(""), ("device: '' is not a device",)),
    (lambda: alpha.zeros((2, 3)).__setitem__(2**63, 0), ("the key does not fit", "within the axes")),
    (lambda: [[1.0, 2.0]] @ alpha.ones((2, 3)), ("a is [[1.0, 2.0]], a Tensor is needed",)),
    (lambda: alpha.ones((2, 3)).view_as(6), ("view_as: other is 6, a Tensor is needed",)),
    (lambda: alpha.ones((2, 3)).expand_as(None), ("expand_as: other is None, a Tensor is needed",)),
    (lambda: net().zero_grad(set_to_none="no"), ('set_to_none is "no"',)),
    (lambda: optim.SGD(net().parameters(), lr=0.1).zero_grad(np.ones(2)), ("set_to_none is",)),
    (lambda: optim.Lookahead(optim.SGD(net().parameters(), lr=0.1)).step(closure=None), ("closure", "it takes")),
    (lambda: optim.ReduceLROnPlateau(optim.SGD(net().parameters(), lr=0.1)).step(1.0, epoch=3), ("epoch", "it takes")),
    (lambda: setattr(optim.SGD(net().parameters(), lr=0.1), "lr", 0.5), ("lr is a setting of", 'group["lr"]')),
    (lambda: setattr(optim.Adam(net().parameters(), lr=0.1), "betas", (0.5, 0.5)), ("betas is a setting", 'group["be')),
    (lambda: net().append(nn.ReLU(), nn.ReLU()), ("append", "it takes (value)")),
])
def test_tensors_modules_and_optimizers(call: Callable[[], Any], said: tuple[str, ...]) -> None:
    refused(call, *said)


def test_a_gradient_that_is_nan_is_overwritten_with_0() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = alpha.full((2, 2), float("nan"))
    model.zero_grad(set_to_none=False)
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[0.0, 0.0]] * 2
