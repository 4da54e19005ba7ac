"""--profile, --tensorboard, the callbacks behind them, and the picture of images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from alpha import nn
from alpha.data import load
from alpha.errors import ArgumentError, ConfigError
from alpha.training import Profile, TensorBoard, fit
from train.__main__ import main
from train.report import plot_images

from .tiny_run import flags

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def data() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32), np.arange(24) % 3


def test_a_profile_of_some_steps_is_written(tmp_path: Path) -> None:
    callback = Profile(tmp_path / "p", steps=2, after=1)
    fit(nn.Linear(6, 3), data(), batch_size=6, epochs=2, callbacks=[callback], progress=False)
    events = json.loads((tmp_path / "p" / "profile.json").read_text())["traceEvents"]
    assert sum(e["name"] == "sgd_step" for e in events) == 2
    assert "calls of ops" in (tmp_path / "p" / "profile.txt").read_text()


def test_an_epoch_that_is_short_ends_the_profile(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Profile: 9 steps are to be profiled behind 0 others, 2 were made"):
        fit(nn.Linear(6, 3), data(), batch_size=12, epochs=2, callbacks=[Profile(tmp_path, steps=9, after=0)],
            progress=False)
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert sum(e["name"] == "sgd_step" for e in events) == 2


def events_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the scalars in the files of a folder, by tag."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]} | {
        tag: [] for tag in found.Tags()["images"]}


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path, every=3)
    history = fit(nn.Linear(6, 3), data(), data(), batch_size=6, epochs=2, callbacks=[board], progress=False)
    board.close()
    found = events_of(tmp_path)
    for tag, column in (("loss/train", "train_loss"), ("accuracy/val", "val_accuracy"), ("run/lr", "lr")):
        assert [step for step, _ in found[tag]] == [4, 8]
        assert np.allclose([value for _, value in found[tag]], history[column], rtol=1e-6)
    assert [step for step, _ in found["step/loss"]] == [3, 6]


def test_the_program_writes_both(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert main([*flags(tmp_path, epochs=1), "--profile", "2", "--tensorboard"]) == 0
    assert "conv2d" in (tmp_path / "profile.txt").read_text() and (tmp_path / "profile.json").exists()
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert {"loss/train", "accuracy/val"} <= events_of(folder).keys()


def test_without_its_library_tensorboard_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ConfigError, match=r'not installed\nhelp: pip install "\.\[tensorboard\]"'):
        TensorBoard(tmp_path)


@pytest.mark.parametrize("made", [TensorBoard, Profile])
@pytest.mark.parametrize("folder", [None, 3])
def test_a_folder_is_a_path(made: type, folder: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TensorBoard(None) wrote into a folder named None."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=f"folder is {folder}"):
        made(folder)
    assert not list(tmp_path.iterdir())


def test_images_are_drawn_with_what_they_were_taken_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    digits = load("synthetic")
    predicted = digits.test_labels.copy()
    for wrong in (0, 30):
        predicted[:wrong] = (predicted[:wrong] + 1) % 10
        plot_images(tmp_path, digits, predicted, np.linspace(0, 1, len(predicted), dtype=np.float32))
        assert (tmp_path / "images.png").read_bytes()[:4] == b"\x89PNG"
