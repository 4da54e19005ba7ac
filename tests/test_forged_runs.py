"""Checkpoints of runs whose digest is right and whose metadata is not: --resume and --evaluate say so in a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import alpha
import train.report
from alpha import checkpoint, random
from alpha.core.config import config
from alpha.errors import AlphaError, CheckpointError
from tests.forged import forged_metadata
from tests.fuzz import checkpoints
from tests.tiny_run import CLASSES, flags
from train.__main__ import main
from train.config import parse
from train.stored import environment, find, load
from train.trainer import Trainer

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
Edit = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The last checkpoint of a run of seven steps."""
    output = tmp_path_factory.mktemp("run")
    with config(num_threads=1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.report, "can_plot", lambda: False)
        assert main(flags(output, max_steps=7, ema=0.5)) == 0
    return (output / "last.safetensors").read_bytes()


def at(*keys: Any, value: Any) -> Edit:
    """Returns an edit that puts `value` at a place of the metadata, or removes what is there if it is `...`."""
    def edit(metadata: Any) -> None:
        for key in keys[:-1]:
            metadata = metadata[key]
        if value is ...:
            del metadata[keys[-1]]
        else:
            metadata[keys[-1]] = value
    return edit


def deep(levels: int) -> Any:
    made: Any = []
    for _ in range(levels):
        made = [made]
    return made


FORGED = [
    (at("identity", value=...), "was not written by the training program"),
    (at("identity", value=[]), "the metadata.identity is a list of length 0, not a dict"),
    (at("identity", "model", value=5), "model is 5 there, 'tinynet' here"),
    (at("identity", "model", value="\x1b[2J"), r"identity.model is '\\x1b\[2J', not a text"),
    (at("identity", "seed", value=[1]), "identity.seed is a list of length 1, not a finite number"),
    (at("progress", value=...), "the metadata has no progress"),
    (at("progress", value=7), "metadata.progress is 7, not a dict"),
    (at("progress", "step", value="7"), "progress.step is '7', not an integer in"),
    (at("progress", "step", value=7.0), "progress.step is 7.0, not an integer in"),
    (at("progress", "step", value=-7), "progress.step is -7, not an integer in"),
    (at("progress", "step", value=True), "progress.step is True, not an integer in"),
    (at("progress", "step", value=10 ** 400), "progress.step is an integer of 1329 bits, not an integer in"),
    (at("progress", "step", value=9), "contradicts itself: it is at step 9, its optimizer at step 7"),
    (at("progress", "epoch", value=2), "contradicts itself: 2 epochs of 5 steps, and 32 images of the next"),
    (at("progress", "epoch", value=9), "contradicts itself: it has 9 epochs and a history of 2"),
    (at("progress", "images", value=81), "contradicts itself: 1 epochs of 5 steps, and 81 images"),
    (at("progress", "correct", value=40), "contradicts itself: 40 of 32 images are correct"),
    (at("progress", "loss_sum", value=float("nan")), "progress.loss_sum is nan, not a finite number"),
    (at("progress", "loss_sum", value=10 ** 400), "progress.loss_sum is an integer of 1329 bits, not a finite number"),
    (at("progress", "seconds", value=None), "progress.seconds is None, not a finite number"),
    (at("progress", "more", value=1), "metadata.progress has 'more', which is unknown"),
    (at("progress", "history", value={}), "progress.history is a dict of length 0, not a list"),
    (at("progress", "history", value=[]), "contradicts itself: it has 1 epochs and a history of 0"),
    (at("progress", "history", 0, value=None), r"progress.history\[0\] is None, not a dict"),
    (at("progress", "history", 0, "epoch", value=2), "the epochs and steps of its history do not follow each other"),
    (at("progress", "history", 0, "step", value=8), "the epochs and steps of its history do not follow each other"),
    (at("progress", "history", 1, "step", value=8), "it is at step 7, its history at step 8"),
    (at("progress", "history", 0, "val_accuracy", value="x"), r"history\[0\].val_accuracy is 'x', not a finite number"),
    (at("progress", "history", 0, "val_loss", value=None), "a row of its history has half of a pair"),
    (at("progress", "history", 0, "loss_scale", value=2.0), "a row of its history has half of a pair"),
    (at("progress", "history", 0, "lr", value=...), r"history\[0\] has no lr"),
    (at("progress", "history", 0, "x", value=1), r"history\[0\] has 'x', which is unknown"),
    (at("optimizer", value=...), "the metadata has no optimizer"),
    (at("optimizer", "counts", "conv.weight", value=[]), "optimizer.counts.conv.weight is a list of length 0"),
    (at("optimizer", "counts", value={}), "SGD: tensors of the state do not fit"),
    (at("optimizer", "names", 0, value="x"), "SGD: the state has .* parameters"),
    (at("random", value=None), "metadata.random is None, not a dict"),
    (at("random", value=[1]), "metadata.random is a list of length 1, not a dict"),
    (at("random", value=[-1, 0]), "metadata.random.seed is -1, not an integer in"),
    (at("random", value=[0, 1 << 64]), "metadata.random.counter is 18446744073709551616, not an integer in"),
    (at("random", value=[0, "x"]), "metadata.random.counter is 'x', not an integer in"),
    (at("config", value="x"), "metadata.config is 'x', not a dict"),
    (at("config", "lr", value={}), "metadata.config.lr is a dict of length 0, not a finite number"),
    (at("config", "lr", value="\ud800"), "metadata.config.lr is .*, not a text of at most 1000 printable"),
    (at("config", "lr", value=deep(50)), "metadata.config.lr is a list of length 1, not a finite number"),
    (at("environment", value=3), "metadata.environment is 3, not a dict"),
    (at("unknown", value=3), "the metadata has 'unknown', which is unknown"),
]


@pytest.mark.parametrize("edit, text", FORGED, ids=[str(k) for k in range(len(FORGED))])
def test_forged_metadata_is_a_message(edit: Edit, text: str, whole: bytes, tmp_path: Path,
                                      capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "forged.safetensors"
    path.write_bytes(whole)
    forged_metadata(path, edit)
    assert main(flags(tmp_path / "out", ema=0.5, resume=path)) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error and error.count("\n") == 2
    with pytest.raises(CheckpointError, match=rf"(?s){text}.*\nhelp: "):
        raise CheckpointError(error)
    assert not (tmp_path / "out" / "last.safetensors").exists()


def test_what_is_not_forged_goes_on(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "same.safetensors"
    path.write_bytes(whole)
    forged_metadata(path, lambda metadata: metadata["progress"].update(loss_sum=1, seconds=0))
    forged_metadata(path, at("environment", value=...))      # as of an earlier version
    assert main(flags(tmp_path / "out", ema=0.5, max_steps=8, resume=path)) == 0


def test_a_forged_checkpoint_is_passed_over_for_the_one_before(whole: bytes, tmp_path: Path,
                                                               capsys: pytest.CaptureFixture) -> None:
    newest = tmp_path / "last.safetensors"
    for path in (newest, checkpoint.previous(newest)):
        path.write_bytes(whole)
    forged_metadata(newest, at("progress", value=None))
    found = find(tmp_path, "last.safetensors")
    assert found is not None and found[1] == checkpoint.previous(newest)
    assert "notice: passed over. resume: " in capsys.readouterr().out
    forged_metadata(checkpoint.previous(newest), at("random", value=None))
    assert main([*flags(tmp_path, ema=0.5), "--evaluate", "--resume"]) == 1
    assert "is intact\nhelp: start again" in capsys.readouterr().err


def test_tensors_that_do_not_fit_are_a_message(whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "forged.safetensors"
    path.write_bytes(whole)
    tensors, metadata = checkpoint.load(path)
    for name, where in (("model/fc.weight", "TinyNet.load_state_dict"), ("optimizer/fc.weight/v", "SGD"),
                        ("ema/fc.weight", "ExponentialMovingAverage")):
        assert name in tensors
        checkpoint.save(path, {**tensors, name: np.zeros((9, 9), np.float32)}, metadata)
        assert main(flags(tmp_path / "out", ema=0.5, resume=path)) == 1
        error = capsys.readouterr().err
        assert error.startswith(where) and "fc.weight" in error and "\nhelp: " in error


@pytest.mark.parametrize("place", ["optimizer/fc.weight/v", "ema/fc.weight", "scalars", "random"])
def test_a_checkpoint_that_does_not_fit_changes_nothing(whole: bytes, tmp_path: Path, place: str) -> None:
    path = tmp_path / "forged.safetensors"
    path.write_bytes(whole)
    tensors, metadata = checkpoint.load(path)
    if place in tensors:
        tensors[place] = alpha.zeros((9, 9))
    elif place == "random":
        metadata["random"] = [-1, 0]
    else:
        metadata["optimizer"]["step_count"] = -1
    session = Trainer(parse(flags(tmp_path / "out", ema=0.5)), CLASSES, 80)

    def state() -> list[Any]:
        assert session.ema is not None
        of = session.optimizer.state_dict()
        return [random.get_state(), session.progress, of["scalars"], *(
            t.tolist() for part in (session.model.state_dict(), of["tensors"], session.ema.state_dict())
            for t in part.values())]

    before = state()
    with pytest.raises(AlphaError):
        session.restore((tensors, metadata), path)
    assert state() == before
    session.restore(load(path), path)
    assert state() != before


def test_a_checkpoint_names_what_it_was_made_with(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole)
    assert load(tmp_path / "a")[1]["environment"] == {**environment(), "threads": 1}


def test_some_random_attacks_find_nothing(tmp_path: Path) -> None:
    done = [checkpoints.attempt(Random(k), tmp_path) for k in range(150)]
    assert {text.split(":")[0] for text in done} >= {"own", "run", "torch_safetensors", "states"}
    assert sum("refused" in text for text in done) > 50 and any("resumed" in text for text in done)
