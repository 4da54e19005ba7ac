"""Recipes of the training program, and what they ask for: a whitening layer, mirroring in turn, several views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
import models
import train.loop
from alpha import nn, ops, optim
from alpha.data import Augment, DataLoader, Dataset, Images, load
from alpha.data.sets import split
from alpha.errors import ConfigError
from models.airbench import whitening
from train.config import Config, parse, recipes

from .tiny_run import flags

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")


def some_images(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((n, 9, 9, 3)) @ rng.standard_normal((3, 3))).cumsum(1).astype(np.float32)


def test_outputs_of_the_whitening_filters_are_uncorrelated() -> None:
    images = some_images()
    y = ops.conv2d(alpha.tensor(images), alpha.tensor(whitening(images, 2))).numpy().reshape(-1, 12).astype(float)
    np.testing.assert_allclose(y.T @ y / len(y), np.eye(12), atol=0.02)


def test_the_first_layer_is_made_of_images_and_stays() -> None:
    model = models.create("airbench94")
    model.init_from_data(alpha.tensor(some_images()))
    before = [p.numpy().copy() for p in model.parameters()]
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    ops.cross_entropy(model(ops.randn((2, 32, 32, 3))), alpha.tensor([0, 1])).backward()
    optimizer.step()
    changed = {name: not np.array_equal(a, p.numpy()) for a, (name, p) in zip(before, model.named_parameters())}
    assert not changed.pop("0.weight") and changed["0.bias"] and all(changed.values())
    weight = model[0].weight.numpy()
    assert np.array_equal(weight[:12], -weight[12:])


def test_the_program_shows_a_model_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Net(nn.Module):
        def init_from_data(self, x: alpha.Tensor) -> None:
            seen.append(x.shape)
    data = load("digits")
    parts = split(data, 0.0, 0)
    train.loop.init_from_data(Net(), parts, data, "cpu")
    train.loop.init_from_data(nn.Linear(2, 2), parts, data, "cpu")
    assert seen == [(1437, 32, 32, 3)]


def test_altflip_mirrors_each_image_in_every_second_epoch() -> None:
    images = np.random.default_rng(0).integers(0, 255, (64, 4, 4, 3)).astype(np.uint8)
    labels, ones = np.arange(64), np.ones(3, np.float32)
    data = Dataset("own", tuple(map(str, range(64))), 0 * ones, ones, images, labels, images, labels)
    plain = {k: image.astype(np.float32) / 255 for k, image in enumerate(images)}
    sides = []
    loader = DataLoader((images, labels), batch_size=24, augment="altflip", seed=5, shuffle=True)
    for epoch in range(3):
        turned, again = {}, {}
        for found, batches in ((turned, Images(images, labels, data, "cpu").batches(24, seed=5, epoch=epoch,
                                                                                    augment=Augment(altflip=True))),
                               (again, loader.batches(epoch, 0))):
            for x, y in batches:
                for k, image in zip(y.numpy(), x.numpy()):
                    found[int(k)] = not np.allclose(image, plain[int(k)], atol=1e-6)
                    assert np.allclose(image[:, ::-1] if found[int(k)] else image, plain[int(k)], atol=1e-6)
        assert turned == again
        sides.append([turned[k] for k in range(64)])
    assert sides[0] == sides[2] == [not s for s in sides[1]] and 16 < sum(sides[0]) < 48


def test_flip_is_one_or_the_other() -> None:
    assert Augment.parse("crop=2,altflip") == Augment(crop=2, altflip=True)
    with pytest.raises(ConfigError, match="flip and altflip are both named"):
        Augment.parse("flip,altflip")


def test_views_are_moved_and_mirrored() -> None:
    x = ops.randn((2, 5, 6, 3))
    a = x.numpy()
    assert train.evaluation.views(x, "none") == [x]
    _, up, down, mirrored, *rest = (v.numpy() for v in train.evaluation.views(x, "mirror_shift"))
    assert len(rest) == 2 and np.array_equal(mirrored, a[:, :, ::-1]) and np.array_equal(rest[0], up[:, :, ::-1])
    assert np.array_equal(up[:, 1:, 1:], a[:, :-1, :-1]) and np.array_equal(down[:, :-1, :-1], a[:, 1:, 1:])
    assert np.array_equal(up[:, 0, 1:], a[:, 1, :-1]), "what comes in is reflected"
    assert [len(train.evaluation.views(x, name)) for name in ("mirror", "shift")] == [2, 3]


def test_the_test_averages_over_views(tmp_path: Path) -> None:
    from train.__main__ import main
    assert main(flags(tmp_path, epochs=1, tta="mirror")) == 0


def test_averaged_outputs_are_means() -> None:
    layer = nn.Linear(3, 2)
    x = [ops.randn((4, 3)) for _ in range(3)]
    want = np.mean([layer(v).numpy() for v in x], 0)
    np.testing.assert_allclose(train.evaluation.averaged(layer, x).numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["airbench", "resnet18", "vgg16"])
def test_recipes_are_valid_and_flags_beat_them(name: str) -> None:
    assert recipes() == ["airbench", "resnet18", "vgg16"]
    config = parse(["--config", name, "--epochs", "3"])
    assert isinstance(config, Config) and config.epochs == 3 and config.dataset == "cifar10"
    assert config.model == {"airbench": "airbench94"}.get(name, name)
