"""load_run: what a checkpoint says of its model is enough to use it, and the figures are those of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import train.loop
import train.report
from alpha import checkpoint, nn, random
from alpha.core.config import config
from alpha.errors import CheckpointError, ConfigError, DataError, DeviceError
from alpha.training import load_run
from tests.op_checks import refused
from tests.tiny_run import TinyNet, flags, tiny
from train.__main__ import main

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs with a moving average."""
    output = tmp_path_factory.mktemp("run")
    with config(num_threads=1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.report, "can_plot", lambda: False)
        assert main(flags(output, epochs=3, ema=0.5)) == 0
    return output


def by_hand(path: Path, images: np.ndarray) -> np.ndarray:
    """The outputs of the averaged weights in a checkpoint, normalised by NumPy."""
    tensors, _ = checkpoint.load(path)
    model = TinyNet(4)
    model.load_state_dict({name.removeprefix("ema/"): t for name, t in tensors.items() if name.startswith("ema/")})
    x = (images.astype(np.float32) / 255 - np.float32(0.4)) / np.float32(0.25)
    with alpha.no_grad():
        return model.eval()(alpha.tensor(x)).numpy()


def test_a_run_predicts_what_its_weights_say_of_normalised_pictures(folder: Path) -> None:
    images = tiny(None, False, 0).test_images
    run = load_run(folder)
    assert run.classes == ("level 0", "level 1", "level 2", "level 3") and run.input_shape == (32, 32, 3)
    assert (run.model_name, run.dtype, run.loss, run.version) == ("tinynet", "uint8", "cross_entropy", "0.1.0")
    assert not run.model.training and "tinynet, 4 classes" in repr(run)
    wanted = by_hand(folder / "last.safetensors", images)
    assert np.allclose(run.outputs(images), wanted, rtol=1e-5, atol=1e-5)
    assert np.allclose(run.outputs(images, batch_size=5), wanted, rtol=1e-5, atol=1e-5)
    shares = np.exp(wanted - wanted.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    for guesses, share in zip(run.predict(images, top=3), shares):
        order = np.argsort(-share)[:3]
        assert [g.label for g in guesses] == list(order) and [g.name for g in guesses] == [f"level {k}" for k in order]
        assert [g.probability for g in guesses] == pytest.approx(share[order], rel=1e-4)
    assert len(run.predict(images[:1], top=99)[0]) == 4


def test_the_figures_are_those_of_the_run(folder: Path) -> None:
    data = tiny(None, False, 0)
    split = train.loop.split_off(data, 8, 0)
    for which in ("last", "best"):
        run = load_run(folder, which)
        right = [g[0].label for g in run.predict(split.val_images, top=1)] == split.val_labels
        assert np.mean(right) == pytest.approx(run.metrics["ema_val_accuracy"], abs=1e-6)
        assert run.metrics["epoch"] == run.metrics["step"] // 5 and load_run(run.path).metrics == run.metrics


def test_pictures_of_any_kind_become_the_same_samples(folder: Path, tmp_path: Path) -> None:
    image_of = pytest.importorskip("PIL.Image")
    run, (a, b) = load_run(folder), tiny(None, False, 0).test_images[:2]
    (tmp_path / "in").mkdir()
    for name, pixels in (("a.png", a), ("in/b.png", b)):
        image_of.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    wanted = run.outputs(np.stack([a, b]))
    for given in ([a, b], [image_of.fromarray(a), tmp_path / "in/b.png"], tmp_path, [str(tmp_path / "a.png"), b],
                  alpha.tensor(np.stack([a, b])), [np.dstack([a, a[..., :1]]), image_of.fromarray(b)]):
        assert np.array_equal(run.outputs(given), wanted)
    for given in (a, image_of.fromarray(a)):
        assert np.allclose(run.outputs(given), wanted[:1], rtol=1e-5, atol=1e-5)
    wide = np.repeat(np.repeat(a, 2, 0), 2, 1)      # scaled down and cut as a folder of pictures is
    from alpha.data.pictures import read
    image_of.fromarray(np.pad(wide, ((0, 0), (10, 10), (0, 0)))).save(tmp_path / "wide.png")
    sample = next(run.samples(str(tmp_path / "wide.png")))
    assert sample.shape == (32, 32, 3) and np.array_equal(sample, read(tmp_path / "wide.png", (32, 32)))
    grey = next(run.samples(a[..., 0]))
    assert np.array_equal(grey, np.repeat(a[..., :1], 3, 2))


def test_loading_draws_no_random_numbers_and_leaves_the_model_its_own(folder: Path) -> None:
    alpha.manual_seed(7)
    state = random.get_state()
    load_run(folder)
    assert random.get_state() == state
    net = TinyNet(4)
    assert load_run(folder, model=net).model is net


def test_what_cannot_be_a_run_is_refused(folder: Path, tmp_path: Path) -> None:
    with refused(CheckpointError, "there is no ", "--output of alpha train"):
        load_run(tmp_path / "none")
    with refused(CheckpointError, "is no path"):
        load_run("a\0b")
    with refused(CheckpointError, "has no last.safetensors, it has none"):
        load_run(tmp_path)
    with refused(ConfigError, 'which is "besst" (str); did you mean'):
        load_run(folder, "besst")
    with refused(ConfigError, "which='best' has no effect beside a file"):
        load_run(folder / "last.safetensors", "best")
    with refused(DeviceError, "tpu"):
        load_run(folder, device="tpu")
    checkpoint.save(tmp_path / "best.safetensors", {"w": np.ones(2, np.float32)})
    with refused(CheckpointError, "has no last.safetensors, it has best.safetensors"):
        load_run(tmp_path)
    with refused(CheckpointError, "is no checkpoint of a run"):
        load_run(tmp_path, "best")
    with refused(CheckpointError, "is a checkpoint of a run", "alpha.training.load_run("):
        alpha.load(folder / "last.safetensors")


def altered(folder: Path, where: Path, edit: Any) -> Path:
    tensors, metadata = checkpoint.load(folder / "last.safetensors")
    edit(metadata)
    checkpoint.save(where / "last.safetensors", tensors, metadata)
    return where


@pytest.mark.parametrize("edit, said", [
    (lambda m: m.pop("use"), "is of a run of an earlier version of alpha"),
    (lambda m: m["use"].pop("classes"), "has no classes"),
    (lambda m: m["use"]["inputs"].update(shape=[32, "x", 3]), "not an integer"),
    (lambda m: m["use"]["inputs"].update(std=[0.0] * 3), "not a finite number"),
    (lambda m: m["use"]["inputs"].update(mean=[0.5]), "its mean and std have"),
    (lambda m: m["use"]["model"].update(options={"a": {}}), "options.a is"),
])
def test_a_description_that_does_not_fit_is_refused(folder: Path, tmp_path: Path, edit: Any, said: str) -> None:
    with refused(CheckpointError, said):
        load_run(altered(folder, tmp_path, edit))


def test_a_model_of_ones_own_is_named_with_its_file(folder: Path, tmp_path: Path) -> None:
    place = altered(folder, tmp_path, lambda m: m["use"]["model"].update(name="my_net", imports=["my_file.py"]))
    with refused(ConfigError, "is called 'my_net', which is not registered here", "my_file.py"):
        load_run(place)
    place = altered(folder, tmp_path, lambda m: m["use"]["model"].update(name=None))
    with refused(ConfigError, "was not made by models.create", "model=net"):
        load_run(place)
    assert load_run(place, model=TinyNet(4)).classes[3] == "level 3"
    with refused(CheckpointError, "fc.weight"):
        load_run(place, model=nn.Sequential(nn.Linear(2, 2)))


def test_pictures_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    run = load_run(folder)
    with refused(DataError, "there is nothing to look at"):
        run.predict([])
    with refused(DataError, "there is no "):
        run.predict([tmp_path / "none.png"])
    with refused(DataError, "has no pictures"):
        run.predict(tmp_path)
    with refused(DataError, "an array of float32 (32, 32, 3), uint8 of shape (H, W, 3)"):
        run.predict(np.zeros((32, 32, 3), np.float32))
    (tmp_path / "bad.png").write_bytes(b"no picture")
    if pytest.importorskip("PIL"):
        with refused(DataError, "bad.png cannot be read"):
            run.predict([tmp_path / "bad.png"])


def test_alpha_models_is_the_package_beside_alpha_under_a_second_name(tmp_path: Path) -> None:
    import models
    import models.resnet
    from alpha.models.resnet import ResNet

    assert alpha.models is models and models.resnet.ResNet is ResNet
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("mine = 1\n")
    code = ("import sys; sys.path.insert(0, ''); sys.path.append(sys.argv[1])\n"
            "import alpha.models\nfrom alpha.models.resnet import ResNet\nimport models\n"
            "assert models.mine == 1 and type(alpha.models.create('resnet20')) is ResNet, models")
    subprocess.run([sys.executable, "-c", code, str(ROOT)], cwd=tmp_path, check=True,
                   env={**os.environ, "PYTHONPATH": ""})
