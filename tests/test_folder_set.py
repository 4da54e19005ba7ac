"""alpha.data.read_folder, and --dataset FOLDER: pictures of one's own as a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha.data.folder_set
import train.report
from alpha.core.config import config
from alpha.data import Dataset, read_folder, split
from alpha.data.pictures import read
from alpha.errors import DataError
from alpha.training import load_run
from tests.op_checks import refused
from tests.picture_folders import COLOURS, drawn, folder
from train.__main__ import main
from train.config import parse

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

Captured = pytest.CaptureFixture
pytest.importorskip("PIL")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures of a run take longer than the run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


def test_a_folder_of_classes_is_divided_and_the_classes_are_kept(tmp_path: Path) -> None:
    data = read_folder(folder(tmp_path / "shapes", 10), size=16)
    assert data.name == "shapes" and data.classes == ("blue", "green", "red") and data.val_images is None
    assert np.bincount(data.train_labels).tolist() == [8, 8, 8] and np.bincount(data.test_labels).tolist() == [2, 2, 2]
    assert data.image_shape == (16, 16, 3)
    every = {read(path, (16, 16)).tobytes() for path in tmp_path.rglob("*.png")}
    held = [image.tobytes() for image in (*data.train_images, *data.test_images)]
    assert len(held) == 30 and set(held) == every
    assert data.mean == pytest.approx(data.train_images.reshape(-1, 3).mean(0) / 255, abs=1e-4)
    again = read_folder(tmp_path / "shapes", size=16)
    assert np.array_equal(again.test_images, data.test_images)
    for image, label in zip(data.test_images, data.test_labels):
        assert image[8, 8].argmax() == ("red", "green", "blue").index(data.classes[label])


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_parts_that_are_there_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    folder(tmp_path / "train", 4)
    folder(tmp_path / name, 2, ("green", "red"), first=10)
    data = read_folder(tmp_path, size=(16, 20))
    assert len(data.train_labels) == 12 and data.val_labels is not None and data.val_labels.tolist() == [1, 1, 2, 2]
    assert np.array_equal(data.test_images, data.val_images) and data.image_shape == (16, 20, 3)
    part = split(data, 0, 0)
    assert len(part.train_labels) == 12 and np.array_equal(part.val_images, data.val_images)
    with refused(DataError, "has 4 validation images of its own, and val_size=0.1"):
        split(data, 0.1, 0)
    folder(tmp_path / "test", 1, first=20)
    data = read_folder(tmp_path, size=16)
    assert data.test_labels.tolist() == [0, 1, 2] and len(data.val_labels) == 4


def test_a_class_that_is_called_train_is_a_class(tmp_path: Path) -> None:
    folder(tmp_path, 5, ("blue", "red"))
    (tmp_path / "blue").rename(tmp_path / "train")
    assert read_folder(tmp_path, size=8).classes == ("red", "train")


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    folder(tmp_path, 10)
    for k in range(12):
        (tmp_path / "red" / f"bad{k:02}.png").write_bytes(b"nothing")
    with refused(DataError, "12 of 42 pictures cannot be used:", "bad00.png cannot be read", "bad09.png", "and 2 more",
                 "--skip-bad"):
        read_folder(tmp_path)
    data = read_folder(tmp_path, skip_bad=True)
    assert len(data.train_labels) + len(data.test_labels) == 30


def make(place: Path, what: str) -> Path:
    if what == "missing":
        return place / "none"
    if what == "file":
        (place / "file").write_text("")
        return place / "file"
    if what == "one class":
        return folder(place, 3, ("red",))
    if what == "empty class":
        (folder(place, 3) / "empty").mkdir()
    if what == "train alone":
        folder(place / "train", 3)
    if what == "unknown class":
        folder(place / "train", 3, ("blue", "red"))
        folder(place / "val", 1)
    if what == "twice":
        for name in ("train", "val", "valid"):
            folder(place / name, 2)
    if what == "all bad":
        folder(place, 4, ("blue", "red"))
        for path in (place / "red").iterdir():
            path.write_bytes(b"")
    return place


@pytest.mark.parametrize(("what", "said"), [
    ("missing", "none does not exist, a folder of pictures is needed"), ("file", "file is a file"),
    ("one class", "has one class, 'red', at least two are needed"), ("empty class", "empty has no pictures"),
    ("train alone", "has train/ and neither val/ nor test/"),
    ("unknown class", "val has the class 'green', "), ("twice", "has val and valid, which mean the same"),
    ("all bad", "class 'red' has no picture to train on, of 4")])
def test_folders_that_cannot_be_used_are_refused(tmp_path: Path, what: str, said: str) -> None:
    place = make(tmp_path, what)
    with refused(DataError, said):
        read_folder(place, skip_bad=what == "all bad")


def test_pictures_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alpha.data.folder_set.os, "sysconf", lambda name: 100)
    with refused(DataError, "30 pictures of 64x64 take 0.0 GiB in memory, the machine has 0.0", "--image-size"):
        read_folder(folder(tmp_path, 10), size=64)


def test_a_data_set_may_have_validation_images_of_its_own() -> None:
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 2
    whole: list[Any] = ["mine", ("a", "b"), np.zeros(3, np.float32), np.ones(3, np.float32), images, labels, images,
                        labels]
    assert Dataset(*whole, images[:2], labels[:2]).val_labels.tolist() == [0, 1]    # type: ignore[union-attr]
    with refused(DataError, "val_images is given and val_labels is None"):
        Dataset(*whole, images)
    with refused(DataError, "val_labels reach from 2 to 2, there are 2 classes"):
        Dataset(*whole, images[:1], np.array([2]))


def test_the_command_trains_on_a_folder_and_the_run_knows_its_classes(tmp_path: Path, capsys: Captured) -> None:
    place = folder(tmp_path / "own", 20)
    (place / "red" / "bad.png").write_bytes(b"nothing")
    line = ["--dataset", str(place), "--image-size", "32", "--epochs", "3", "--batch-size", "8", "--device", "cpu",
            "--lr", "0.05", "--output", str(tmp_path / "run")]
    assert main(line) == 2
    assert "1 of 61 pictures cannot be used" in capsys.readouterr().err
    assert main([*line, "--skip-bad"]) == 0
    found = capsys.readouterr()
    assert "1 pictures are left out" in found.err and "43 images to train, 5 to validate, 12 to test" in found.out
    run = load_run(tmp_path / "run")
    assert run.classes == tuple(sorted(COLOURS)) and run.input_shape == (32, 32, 3)
    assert run.predict(drawn(COLOURS["green"], 99), top=1)[0][0].name == "green"
    assert main(["--resume", str(tmp_path / "run"), "--epochs", "4"]) == 0
    assert "resuming with epochs 4, before it was 3" in capsys.readouterr().out
    assert main(["--resume", str(tmp_path / "run"), "--image-size", "48", "--model", "resnet20"]) == 1
    assert "image_size is 32 there, 48 here" in capsys.readouterr().err
    (place / "red").rename(place / "scarlet")
    assert main(["--resume", str(tmp_path / "run"), "--epochs", "5"]) == 1
    assert "has the classes blue, green, red, the data set has blue, green, scarlet" in capsys.readouterr().err


def test_validation_pictures_of_a_folder_are_those_that_are_validated(tmp_path: Path, capsys: Captured) -> None:
    folder(tmp_path / "own" / "train", 6)
    folder(tmp_path / "own" / "val", 3, first=50)
    line = ["--dataset", str(tmp_path / "own"), "--epochs", "1", "--device", "cpu", "--output", str(tmp_path / "run")]
    assert main(line) == 0
    found = capsys.readouterr()
    assert "18 images to train, 9 to validate, 9 to test" in found.out and "has no test/" in found.err
    assert main([*line, "--val-size", "0.2"]) == 2
    assert "--val-size has no effect beside --dataset" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "said"), [
    (["--dataset", "./none"], "dataset: './none' is not allowed, expected the path of a folder"),
    (["--dataset", "digts"], "did you mean 'digits'"),
    (["--dataset", "digits", "--image-size", "64"], "--image-size has no effect beside --dataset digits"),
    (["--dataset", "digits", "--skip-bad"], "--skip-bad has no effect beside --dataset digits"),
    (["--dataset", "own", "--data-dir", "x"], "--data-dir has no effect beside --dataset"),
    (["--dataset", "own", "--image-size", "64"], "lenet5 does not take pictures of 64x64: linear: x has 2704 features"),
    (["--dataset", "own", "--image-size", "4"], "image_size: 4 is not allowed"),
    (["--dataset", "lone"], "has one class")])
def test_flags_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured,
                                           argv: list[str], said: str) -> None:
    folder(tmp_path / "own", 3)
    folder(tmp_path / "lone", 3, ("red",))
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "--device", "cpu", "--output", "out"]) == 2
    error = capsys.readouterr().err
    assert said in error and "\nhelp: " in error and not (tmp_path / "out" / "last.safetensors").exists()


def test_settings_of_a_folder_have_their_defaults(tmp_path: Path) -> None:
    found = parse(["--dataset", str(folder(tmp_path / "own", 2))])
    assert (found.image_size, found.augment, found.output) == (32, "crop", "runs/lenet5-own")
    assert parse([]).image_size is None
