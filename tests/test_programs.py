"""alpha predict, evaluate and export: what a run is good for, by command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import alpha
import train.report
from alpha import nn, ops
from alpha.__main__ import main as alpha_main
from alpha.core.config import config
from alpha.errors import ConfigError, DataError
from alpha.training import fit, load_run, per_class
from tests.op_checks import refused
from tests.picture_folders import COLOURS, drawn, folder
from tests.tiny_run import flags
from train.__main__ import main

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

Captured = pytest.CaptureFixture
image_of = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with config(num_threads=1):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, `own`, and a run on it, `run`; and a run on another data set, `tiny`."""
    where = tmp_path_factory.mktemp("runs")
    with config(num_threads=1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.report, "can_plot", lambda: False)
        assert main(["--dataset", str(folder(where / "own", 20)), "--epochs", "3", "--batch-size", "8", "--device",
                     "cpu", "--lr", "0.05", "--output", str(where / "run")]) == 0
        assert main(flags(where / "tiny", epochs=2)) == 0
    return where


def told(capsys: Captured, *argv: str | Path, status: int = 0) -> str:
    """Runs the command, and returns what it prints; or its error where another status than 0 is expected."""
    capsys.readouterr()
    assert alpha_main([str(part) for part in argv]) == status
    found = capsys.readouterr()
    assert status == 0 or "\nhelp: " in found.err, found.err
    return found.out if status == 0 else found.err


# ---- predict ---------------------------------------------------------------------------------------------------------


def test_predict_names_the_classes_of_files_and_of_folders(place: Path, tmp_path: Path, capsys: Captured) -> None:
    image_of.fromarray(drawn(COLOURS["green"], 77)).save(tmp_path / "leaf.png")
    folder(tmp_path / "more", 1, ("red",), first=60)
    lines = told(capsys, "predict", place / "run", tmp_path / "leaf.png", tmp_path / "more", "--top", "2").splitlines()
    assert len(lines) == 2 and lines[0].startswith(str(tmp_path / "leaf.png")) and "  green " in lines[0]
    assert lines[1].partition("  ")[2].split()[0] == "red" and lines[1].count("%") == 2
    found = json.loads(told(capsys, "predict", place / "run", tmp_path / "leaf.png", "--json", "--which", "best"))
    guesses = load_run(place / "run", "best").predict(tmp_path / "leaf.png")[0]
    assert found == [{"file": str(tmp_path / "leaf.png"), "classes": [
        {"name": g.name, "label": g.label, "probability": g.probability} for g in guesses]}]
    assert sum(g.probability for g in guesses) == pytest.approx(1)


def test_predict_looks_at_every_file_first(place: Path, tmp_path: Path, capsys: Captured) -> None:
    folder(tmp_path / "in", 2, ("red",))
    (tmp_path / "in" / "bad.png").write_bytes(b"nothing")
    error = told(capsys, "predict", place / "run", tmp_path / "in", status=2)
    assert "1 of 3 pictures cannot be used:" in error and "bad.png cannot be read" in error and "--skip-bad" in error
    assert told(capsys, "predict", place / "run", tmp_path / "in", "--skip-bad").count("red ") == 2
    error = told(capsys, "predict", place / "run", tmp_path / "in" / "bad.png", "--skip-bad", status=2)
    assert "1 of 1 pictures cannot be used" in error


@pytest.mark.parametrize(("argv", "status", "said"), [
    (["none", "a.png"], 2, "there is no a.png"), (["{run}", "{own}", "--top", "0"], 2, "--top is '0'"),
    (["{own}", "{own}"], 1, "has no last.safetensors, it has none"), (["{run}"], 2, "required: PICTURE"),
    (["{run}", "{own}", "--which", "worst"], 2, "invalid choice: 'worst'"),
    (["{run}", "{own}", "--device", "tpu"], 1, "tpu"), (["{run}", "{own}", "--import", "no.py"], 2, "no file"),
    (["{run}", "{own}", "--batch-size", "x"], 2, "--batch-size is 'x'")])
def test_predict_refuses(place: Path, capsys: Captured, argv: list[str], status: int, said: str) -> None:
    names = {"run": place / "run", "own": place / "own"}
    assert said in told(capsys, "predict", *[part.format(**names) for part in argv], status=status)


# ---- evaluate --------------------------------------------------------------------------------------------------------


def test_evaluate_gives_the_figures_of_the_run_and_of_each_class(place: Path, capsys: Captured) -> None:
    for name in ("run", "tiny"):
        summary = json.loads((place / name / "summary.json").read_text())
        found = json.loads(told(capsys, "evaluate", place / name, "--json"))
        assert found["accuracy"] == pytest.approx(summary["test_accuracy"]) and found["images"] in (12, 24)
        assert found["loss"] == pytest.approx(summary["last"]["loss"], rel=1e-5)
        for figures in found["classes"]:
            theirs = summary["classes"][figures["name"]]
            assert figures["samples"] == theirs["images"] and figures["f1"] == pytest.approx(theirs["f1"])
    text = told(capsys, "evaluate", place / "run", "--dataset", place / "own")
    head, *lines = [line.split() for line in text.splitlines()[1:]]
    assert "60 pictures of " in text and head == ["class", "images", "precision", "recall", "f1"]
    assert [line[0] for line in lines] == sorted(COLOURS)


def test_evaluate_counts_pictures_as_a_loop_over_them_would(place: Path, tmp_path: Path, capsys: Captured) -> None:
    folder(tmp_path / "set" / "train", 2, ("green", "red"))
    folder(tmp_path / "set" / "test", 4, ("green", "red"), first=30)
    (tmp_path / "set" / "test" / "red" / "003.png").write_bytes(
        (tmp_path / "set" / "test" / "green" / "003.png").read_bytes())     # a picture in the wrong folder
    found = json.loads(told(capsys, "evaluate", place / "run", "--dataset", tmp_path / "set", "--json"))
    run = load_run(place / "run")
    files = sorted((tmp_path / "set" / "test").rglob("*.png"))
    right = [run.predict(file, top=1)[0][0].name == file.parent.name for file in files]
    assert found["images"] == 8 and found["accuracy"] == pytest.approx(np.mean(right)) and not all(right)


@pytest.mark.parametrize(("argv", "status", "said"), [
    (["{run}", "--dataset", "digits"], 2, "digits has the class '0', the run has 3 others: blue, green, red"),
    (["{run}", "--dataset", "digts"], 2, "there is no data set and no folder 'digts'"),
    (["{run}", "--dataset", "./none"], 2, "none does not exist"),
    (["{run}", "--dataset", "{own}", "--data-dir", "x"], 2, "--data-dir has no effect beside --dataset"),
    (["{tiny}", "--skip-bad"], 2, "--skip-bad has no effect beside tiny"),
    (["{tiny}", "--dataset", "{own}"], 2, "has the class 'blue', the run has 4 others"),
    (["{fit}"], 2, "is of fit, and does not say which data"), (["{mse}"], 2, "are no classes: its loss is mse")])
def test_evaluate_refuses(place: Path, tmp_path: Path, capsys: Captured, argv: list[str], status: int, said: str
                          ) -> None:
    names = {"run": place / "run", "own": place / "own", "tiny": place / "tiny", "fit": tmp_path, "mse": tmp_path}
    if argv[0] in ("{fit}", "{mse}"):
        fit(alpha.models.create("lenet5", 2), (np.zeros((4, 32, 32, 3), np.uint8), np.arange(4) % 2)
            if argv[0] == "{fit}" else (np.zeros((4, 32, 32, 3), np.uint8), np.zeros((4, 2), np.float32)),
            loss="cross_entropy" if argv[0] == "{fit}" else "mse", output=tmp_path, progress=False)
    assert said in told(capsys, "evaluate", *[part.format(**names) for part in argv], status=status)


def test_figures_of_classes_are_those_of_their_definition() -> None:
    wanted, taken = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 0])
    found = per_class(alpha.tensor(taken), wanted, ["a", "b", "c", "d"])
    for k, figures in enumerate(found):
        right = ((wanted == k) & (taken == k)).sum()
        assert figures.samples == (wanted == k).sum() and figures.predicted == (taken == k).sum()
        assert figures.recall == pytest.approx(right / max((wanted == k).sum(), 1))
        assert figures.precision == pytest.approx(right / max((taken == k).sum(), 1))
    assert [f.f1 for f in found] == pytest.approx([4 / 7, 0.5, 0, 0])
    with refused(DataError, "predicted is"):
        per_class(taken[:3], wanted, ["a"])
    with refused(DataError, "a number is 2, there are 2 classes"):
        per_class(taken, wanted, ["a", "b"])


# ---- export ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags_", [[], ["--normalise"], ["--channels-last"], ["--normalise", "--channels-last"]])
def test_an_exported_file_computes_what_the_run_does(place: Path, tmp_path: Path, capsys: Captured, flags_: list[str]
                                                     ) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path = tmp_path / "out.onnx"
    text = told(capsys, "export", place / "run", path, *flags_)
    assert "3 classes" in text and ("pixels from 0 to 255" in text) == ("--normalise" in flags_)
    run = load_run(place / "run")
    x = np.stack([*run.samples([drawn(COLOURS[name], 5) for name in COLOURS])])
    given = x.astype(np.float32)
    if "--normalise" not in flags_:
        given = (given / 255 - run.mean) / run.std
    if "--channels-last" not in flags_:
        given = given.transpose(0, 3, 1, 2)
    found = runtime.InferenceSession(str(path)).run(None, {"input": given})[0]
    assert np.allclose(found, run.outputs(x), rtol=1e-4, atol=1e-4)
    facts = {p.key: json.loads(p.value) for p in onnx.load(str(path)).metadata_props}
    assert facts["classes"] == sorted(COLOURS) and facts["input_shape"] == [32, 32, 3] and facts["scale"] == 255
    assert facts["mean"] == pytest.approx(run.mean.tolist()) and facts["std"] == pytest.approx(run.std.tolist())
    assert facts["normalised_in_the_graph"] == ("--normalise" in flags_) and facts["model"] == "lenet5"


def test_export_refuses(place: Path, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("onnx")
    assert "out.onnx cannot be written" in told(capsys, "export", place / "run", tmp_path / "no" / "out.onnx", status=2)
    assert "required: OUT.onnx" in told(capsys, "export", place / "run", status=2)
    x = np.ones((4, 3), np.float32)
    fit(nn.Linear(3, 1), (x, x[:, :1]), loss="mse", output=tmp_path / "line", progress=False)
    run = load_run(tmp_path / "line", model=nn.Linear(3, 1))
    with refused(ConfigError, "normalise=True, and the samples of", "which no mean and std go with"):
        run.export(tmp_path / "line.onnx", normalise=True)
    run.export(tmp_path / "line.onnx")
    with refused(alpha.errors.ArgumentError, "metadata is"):
        from alpha.onnx import export
        export(nn.Linear(3, 1), ops.zeros((1, 3)), tmp_path / "a.onnx", metadata={"a": 1})  # type: ignore[dict-item]


def test_the_command_knows_them(capsys: Captured) -> None:
    assert "alpha predict RUN" in told(capsys, "--help")
    assert "did you mean alpha predict?" in told(capsys, "predic", status=2)
    for name in ("predict", "evaluate", "export"):
        with pytest.raises(SystemExit):
            alpha_main([name, "--help"])
        assert f"usage: alpha {name}" in capsys.readouterr().out
