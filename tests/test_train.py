"""The training program: what it learns, what it leaves, what it says, and how it refuses."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import train.loop
import train.report
from alpha import checkpoint, nn
from alpha.core.config import config
from alpha.cpu.augment import normalized
from alpha.errors import DeviceError
from alpha.training.registries import OPTIMIZERS, SCHEDULES
from tests.tiny_run import CLASSES, TEST, flags, tiny
from train.__main__ import main
from train.config import Config, parse
from train.evaluation import Evaluation, evaluate
from train.trainer import Trainer, make_schedule, resolve_device

Captured = pytest.CaptureFixture


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step: only a test that asks for `pictures` draws."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


@pytest.fixture
def pictures() -> None:
    """Lets runs draw."""


def rows(output: Path) -> list[dict[str, str]]:
    with open(output / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def last_line(text: str) -> str:
    return text.splitlines()[-1]


# ---- what a run leaves -----------------------------------------------------------------------------------------------


def test_a_run_leaves_its_files_and_ends_with_the_accuracy(pictures: None, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    assert main(flags(tmp_path / "a" / "b", epochs=3)) == 0
    output, out = tmp_path / "a" / "b", capsys.readouterr().out
    names = {"config.toml", "metrics.csv", "curves.png", "confusion.png", "images.png", "summary.json",
             "last.safetensors", "best.safetensors", "last.safetensors.prev"}
    assert names <= {p.name for p in output.iterdir()}
    assert (output / "curves.png").read_bytes()[:4] == (output / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    summary = json.loads((output / "summary.json").read_text())
    assert last_line(out) == f"test accuracy {100 * summary['test_accuracy']:.2f} %"
    assert summary["test_accuracy"] == summary["last"]["accuracy"] and summary["best"].keys() == summary["last"].keys()
    assert out.count("train loss") == 3 and "epoch 3/3" in out and "cpu in fp32; tiny: 80 images to train, 8 to" in out


def test_metrics_have_a_line_per_epoch(tmp_path: Path) -> None:
    assert main(flags(tmp_path, epochs=3, schedule="step", step_size=1, lr=0.5)) == 0
    lines = rows(tmp_path)
    assert list(lines[0]) == list(train.report.COLUMNS)
    assert [(line["epoch"], line["step"]) for line in lines] == [("1", "5"), ("2", "10"), ("3", "15")]
    assert [float(line["lr"]) for line in lines] == pytest.approx([0.5, 0.05, 0.005])
    for line in lines:
        assert 0 <= float(line["train_accuracy"]) <= 1 and 0 <= float(line["val_accuracy"]) <= 1
        assert float(line["images_per_second"]) == pytest.approx(80 / float(line["seconds"]), rel=0.2)
        assert float(line["peak_memory_mib"]) > 0.1


def test_train_loss_and_accuracy_are_those_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, np.ndarray, np.ndarray]] = []
    real = Trainer.step

    def train_step(session: Trainer, x: Any, y: Any) -> Any:
        loss, predictions = real(session, x, y)
        seen.append((loss.item(), predictions.numpy(), y.numpy()))
        return loss, predictions
    monkeypatch.setattr(Trainer, "step", train_step)
    monkeypatch.setattr(alpha.training.steps, "READ_AFTER", 2)
    assert main(flags(tmp_path, epochs=1, batch_size=24)) == 0  # batches of 24, 24, 24, 8
    assert [len(y) for _, _, y in seen] == [24, 24, 24, 8]
    line = rows(tmp_path)[0]
    assert float(line["train_loss"]) == pytest.approx(sum(loss * len(y) for loss, _, y in seen) / 80, abs=1e-6)
    assert float(line["train_accuracy"]) == sum(int((p == y).sum()) for _, p, y in seen) / 80


def test_config_file_names_versions_and_is_read_back(tmp_path: Path) -> None:
    assert main(flags(tmp_path, epochs=1, lr=0.03, device="auto")) == 0
    text = (tmp_path / "config.toml").read_text()
    for name in ("date", "alpha", "python", "numpy"):
        assert re.search(rf"^# {name}: \S", text, re.M), name
    if sys.version_info >= (3, 11):
        read = parse(["--config", str(tmp_path / "config.toml")])
        assert (read.lr, read.epochs, read.model, read.device) == (0.03, 1, "tinynet", "cpu")


def test_without_matplotlib_the_run_goes_on(pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: Captured) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(flags(tmp_path, epochs=1)) == 0
    out = capsys.readouterr().out
    assert 'matplotlib is not installed (pip install ".[plot]")' in out and last_line(out).startswith("test accuracy")
    assert not (tmp_path / "curves.png").exists()


def test_without_validation_images_there_are_no_best_weights(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=2, val_size=0)) == 0
    out = capsys.readouterr().out
    assert "last weights, epoch 2" in out and "best weights" not in out
    assert not (tmp_path / "best.safetensors").exists() and rows(tmp_path)[1]["val_loss"] == ""


def test_best_are_the_weights_with_most_validation_images_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                capsys: Captured) -> None:
    accuracies = iter([0.9, 0.25, 0.1, 0.75, 0.1, 0.75, 0.1, 0.5])      # of the weights and of their average
    real = train.loop.validate

    def validate(*args: Any) -> Any:
        val, wanted = real(*args), next(accuracies)
        hits = int(8 * wanted)
        return Evaluation(val.loss, np.array([[hits, 8 - hits], [0, 0]]), val.predicted, val.confidence)
    monkeypatch.setattr(train.loop, "validate", validate)
    assert main(flags(tmp_path, ema=0.5)) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["best"]["epoch"], summary["last"]["epoch"]) == (3, 4)  # the later one of equals
    assert summary["test_accuracy"] == summary["last"]["accuracy"]
    tensors, metadata = checkpoint.load(tmp_path / "best.safetensors")
    assert metadata["progress"]["epoch"] == 3
    assert (tensors["ema/fc.weight"].numpy() != tensors["model/fc.weight"].numpy()).any()
    session = Trainer(parse(flags(tmp_path)), CLASSES, 80)
    session.load_weights((tensors, metadata), tmp_path)
    assert (session.model.fc.weight.numpy() == tensors["ema/fc.weight"].numpy()).all()
    capsys.readouterr()
    assert main([*flags(tmp_path, resume=tmp_path / "best.safetensors"), "--evaluate"]) == 0
    assert last_line(capsys.readouterr().out) == f"test accuracy {100 * summary['best']['accuracy']:.2f} %"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_lost_best_weights_are_reported_and_the_last_ones_tested(damage: Any, tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path)) == 0
    expected = last_line(capsys.readouterr().out)
    for path in tmp_path.glob("best.*"):
        damage(path)
    assert main(flags(tmp_path, resume="auto")) == 0
    out = capsys.readouterr().out
    assert "best.safetensors of epoch" in out and "so it is not tested" in out and last_line(out) == expected


def test_the_test_images_are_not_read_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = train.loop.evaluate

    def evaluate(model: Any, images: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(len(images))
        return real(model, images, *rest, **more)
    monkeypatch.setattr(train.loop, "evaluate", evaluate)
    assert main(flags(tmp_path, epochs=3)) == 0
    assert sizes == [8, 8, 8, TEST, TEST]  # at the end once for the last weights and once for the best


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(optimizer: str, tmp_path: Path) -> None:
    assert main(flags(tmp_path, optimizer=optimizer, epochs=8, lr={"adadelta": 1.0, "lars": 8.0}.get(optimizer, 0.05),
                      augment="none")) == 0
    losses = [float(line["train_loss"]) for line in rows(tmp_path)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name, first, last", [
    ("constant", 1, 1), ("step", 1, 0.001), ("multistep", 1, 0.01), ("exponential", 1, 0.1 ** 3.99), ("cosine", 1, 0),
    ("linear", 1, 0), ("polynomial", 1, 0), ("onecycle", 1 / 25, 0), ("triangular", 1 / 25, 1 / 25)])
def test_schedules_are_laid_out_over_the_epochs(name: str, first: float, last: float) -> None:
    settings = Config.from_dict({"schedule": name, "lr": 1.0, "epochs": 4, "gamma": 0.1, "step_size": 1.0})
    lr = make_schedule(settings, 100)
    assert lr(0) == pytest.approx(first) and lr(399) == pytest.approx(last, rel=1e-3, abs=0.01)
    warm = make_schedule(Config.from_dict({**settings.to_dict(), "warmup": 0.5}), 100)
    assert warm(0) <= first / 50 * 1.001 and warm(24) <= 0.51 * max(lr(24), first) and warm(200) > 0
    assert set(SCHEDULES) == {"constant", "step", "multistep", "exponential", "cosine", "linear", "polynomial",
                              "onecycle", "triangular"}


@pytest.mark.parametrize("changes", [{"clip": 0.01}, {"label_smoothing": 0.3}, {"ema": 0.9}, {"warmup": 2},
                                     {"weight_decay": 0.5}, {"momentum": 0}, {"augment": "none"}, {"seed": 5}])
def test_an_option_changes_the_run(changes: dict[str, Any], tmp_path: Path) -> None:
    assert main(flags(tmp_path / "a", epochs=2, max_steps=7)) == 0
    assert main(flags(tmp_path / "b", epochs=3, max_steps=7, **changes)) == 0
    weights = []
    for name in "ab":
        tensors = checkpoint.load(tmp_path / name / "best.safetensors")[0]
        weights.append(tensors["ema/fc.weight" if name == "b" and "ema" in changes else "model/fc.weight"].numpy())
    assert not np.array_equal(*weights)


def test_the_same_seed_gives_the_same_bits(tmp_path: Path) -> None:
    for name in "ab":
        assert main(flags(tmp_path / name, epochs=2)) == 0
    a, b = (checkpoint.load(tmp_path / name / "last.safetensors")[0] for name in "ab")
    assert all(a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a)


def test_several_runs_report_mean_and_deviation(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=2, runs=3, seed=4)) == 0
    out = capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    single = [json.loads((tmp_path / f"seed-{s}" / "summary.json").read_text())["test_accuracy"] for s in (4, 5, 6)]
    assert list(summary["runs"].values()) == single
    assert summary["test_accuracy"] == pytest.approx(np.mean(single))
    assert summary["standard_deviation"] == pytest.approx(np.std(single, ddof=1))
    assert last_line(out) == f"test accuracy {100 * np.mean(single):.2f} %" and "standard deviation" in out
    assert main(flags(tmp_path / "one", epochs=2, seed=5)) == 0  # a run of several is the run of its seed alone
    assert last_line(capsys.readouterr().out) == f"test accuracy {100 * single[1]:.2f} %"


def test_evaluate_only_tests(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=2, val_size=0)) == 0
    expected = last_line(capsys.readouterr().out)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert main([*flags(tmp_path), "--evaluate", "--resume"]) == 0
    assert last_line(capsys.readouterr().out) == expected
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
    assert main([*flags(tmp_path / "empty"), "--evaluate", "--resume"]) == 1
    error = capsys.readouterr().err
    assert f"evaluate: there is no checkpoint in {tmp_path / 'empty'}" in error and "help: name the file" in error
    assert main([*flags(tmp_path, model="lenet5"), "--evaluate", "--resume"]) == 1
    assert "model is 'tinynet' there, 'lenet5' here" in capsys.readouterr().err


def test_list_models_needs_nothing_else(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--list-models"])
    assert stop.value.code == 0 and "resnet18" in capsys.readouterr().out.split()


def test_device_auto_falls_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_backend(device: str) -> None:
        if device != "cpu":
            raise DeviceError("device: no GPU here\nhelp: use the cpu")
    monkeypatch.setattr("train.trainer.get_backend", get_backend)
    assert resolve_device(Config()).device == "cpu"
    with pytest.raises(alpha.errors.ConfigError, match="no GPU here"):
        resolve_device(Config.from_dict({"device": "cuda"}))
    with pytest.raises(alpha.errors.ConfigError, match=r"precision: 'bf16' is not allowed, expected fp32, tf32 or"):
        resolve_device(Config.from_dict({"precision": "bf16"}))


# ---- evaluation ------------------------------------------------------------------------------------------------------


class Brightness(nn.Module):
    """Tells a class from the mean of the pixels: logits are the closeness to each level."""

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        levels = alpha.tensor(np.array([[0.0, 0.2, 0.5, 0.9]], np.float32))
        return -abs(x.mean(axis=(1, 2, 3)).reshape(-1, 1) - levels)


@pytest.mark.parametrize("batch_size", [1, 7, 24, 100])
def test_evaluate_counts_by_hand(batch_size: int) -> None:
    data = tiny(None, False, 0)
    result = evaluate(Brightness(), data.test_images, data.test_labels, data, batch_size=batch_size, device="cpu")
    mean = normalized(data.test_images, data.mean, data.std).mean(axis=(1, 2, 3), dtype=np.float64)
    logits = -np.abs(mean[:, None] - np.array([0, 0.2, 0.5, 0.9]))
    confusion = np.zeros((CLASSES, CLASSES), int)
    for y, logit in zip(data.test_labels, logits):
        confusion[y, logit.argmax()] += 1
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(TEST), data.test_labels]
    assert (result.confusion == confusion).all() and len(np.unique(logits.argmax(1))) > 2
    assert result.accuracy == np.trace(confusion) / TEST and result.loss == pytest.approx(losses.mean(), rel=1e-5)


def test_evaluate_leaves_no_graph_and_uses_inference_mode() -> None:
    seen = []

    class Probe(Brightness):
        def forward(self, x: alpha.Tensor) -> alpha.Tensor:
            seen.append((self.training, alpha.grad_enabled()))
            return super().forward(x)
    data = tiny(None, False, 0)
    evaluate(Probe(), data.test_images, data.test_labels, data, batch_size=24, device="cpu")
    assert seen == [(False, False)] and alpha.grad_enabled()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, text", [
    (["--epoch", "3"], "unknown argument '--epoch'; did you mean '--epochs'?"),
    (["--model", "resnet8"], "'resnet8'"),
    (["--device", "cpu", "--precision", "bf16"], "precision: 'bf16'"),
    (["--model", "tinynet", "--dataset", "tiny", "--val-size", "88"], "val_size 88"),
    (["--dataset", "cifar10", "--data-dir", "/nonexistent"], "--data-dir /nonexistent does not exist"),
])
def test_bad_input_is_one_message_and_status_2(arguments: list[str], text: str, tmp_path: Path,
                                               capsys: Captured) -> None:
    assert main([*arguments, "--output", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert text in captured.err and "\nhelp: " in captured.err and "Traceback" not in captured.err
    assert "test accuracy" not in captured.out


def test_an_output_that_cannot_be_written_is_refused_before_anything_loads(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(train.loop, "load", lambda *args, **more: pytest.fail("the data set was loaded"))
    (tmp_path / "file").write_text("in the way")
    assert main(flags(tmp_path / "file" / "run")) == 2
    error = capsys.readouterr().err
    assert f"output: cannot write to {tmp_path / 'file' / 'run'}: Not a directory" in error and "--output DIR" in error


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(
        clip: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    real = alpha.ops.cross_entropy
    calls = iter(range(1, 1000))

    def cross_entropy(logits: Any, target: Any, **more: Any) -> Any:
        step = next(calls) if alpha.grad_enabled() else 0
        return real(logits, target, **more) * (float("nan") if step == 8 else 1.0)
    monkeypatch.setattr(alpha.ops, "cross_entropy", cross_entropy)
    with alpha.config(capture=False):   # a recorded step would not call the function again
        assert main(flags(tmp_path, clip=clip)) == 1
    error = capsys.readouterr().err
    assert "at step 8, in epoch 2" in error and f"{tmp_path / 'last.safetensors'} is the last good checkpoint" in error
    assert "help: lower --lr, now 0.05" in error
    tensors, metadata = checkpoint.load(tmp_path / "last.safetensors")
    assert metadata["progress"]["step"] == 5 and all(np.isfinite(t.numpy()).all() for t in tensors.values())


def test_a_weight_that_is_not_a_number_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
                                                      ) -> None:
    real = Trainer.step

    def train_step(session: Trainer, x: Any, y: Any) -> Any:
        result = real(session, x, y)
        if session.progress.step + 1 == 5:  # the last one of the epoch: its loss does not know yet
            session.model.fc.weight.array[0, 0] = np.nan
        return result
    monkeypatch.setattr(Trainer, "step", train_step)
    assert main(flags(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "fc.weight has become NaN at step 5, in epoch 1; there is no checkpoint before it" in error
    assert not (tmp_path / "last.safetensors").exists()


def test_a_full_disk_is_one_message_and_the_checkpoint_before_stays(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert main(flags(tmp_path, max_steps=10)) == 0
    before = (tmp_path / "last.safetensors").read_bytes()

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(flags(tmp_path, resume="auto")) == 1
    error = capsys.readouterr().err
    assert "cannot be written: No space left on device" in error and "\nhelp: free space" in error
    with monkeypatch.context() as patch:
        patch.setattr(train.report, "write", full)
        assert main(flags(tmp_path, resume="auto")) == 1
    error = capsys.readouterr().err
    assert error.startswith("train: somewhere: No space left on device\nhelp: free space")
    assert (tmp_path / "last.safetensors").read_bytes() == before


def test_ctrl_c_before_the_first_step_is_status_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt
    monkeypatch.setattr(train.loop, "load", load)
    assert main(flags(tmp_path)) == 130


def test_digits_are_learned(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("sklearn")
    assert main(["--epochs", "4", "--output", str(tmp_path), "--device", "cpu"]) == 0
    assert float(last_line(capsys.readouterr().out).split()[2]) > 90
