"""The same recipe trained by both libraries, over several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")  # which what is tested here needs to be imported
pytest.importorskip("sklearn")

from alpha.data import load, split  # noqa: E402
from alpha.data.public import cifar  # noqa: E402
from alpha.errors import ConfigError  # noqa: E402
from benchmarks import accuracy, digits_archive, results  # noqa: E402
from benchmarks.torch_recipe import TorchRun  # noqa: E402
from train.config import parse  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]

SHORT = ["--device", "cpu", "--epochs", "2", "--batch-size", "64", "--label-smoothing", "0.1"]


def test_both_libraries_follow_one_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--recipes", "digits", "--seeds", "2", *SHORT, "--val-size", "1000", "--augment", "crop=2", "--output",
             str(tmp_path)]
    assert accuracy.main(flags) == 0
    rows = results.read(tmp_path / "accuracy.jsonl")
    assert [(row["recipe"], row["seed"]) for row in rows] == [("digits", 0), ("digits", 1)]
    assert all(row["config"]["epochs"] == 2 for row in rows)
    for row in rows:
        assert row["alpha"]["train_loss"] == pytest.approx(row["torch"]["train_loss"], rel=1e-5)
        assert abs(row["difference_points"]) < 1 and {"date", "torch_version", "command"} <= row.keys()
    assert rows[0]["alpha"]["train_loss"] != rows[1]["alpha"]["train_loss"]
    assert (tmp_path / "accuracy.png").exists()
    assert "| digits | lenet5 | fp32 | 2 | " in capsys.readouterr().out
    assert accuracy.main([*flags, "--resume"]) == 0 and len(results.read(tmp_path / "accuracy.jsonl")) == 2


def test_the_archive_is_made_where_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "ARCHIVE", tmp_path / "digits")
    write = digits_archive.write
    monkeypatch.setattr(digits_archive, "write", lambda place, form: write(place, form, train_images=1100,
                                                                           test_images=50))
    assert accuracy.main(["--recipes", "archive", "--seeds", "1", *SHORT, "--output", str(tmp_path / "results")]) == 0
    row = results.read(tmp_path / "results" / "accuracy.jsonl")[0]
    assert row["config"]["dataset"] == "cifar10" and row["alpha"]["accuracy"] == row["torch"]["accuracy"]
    made = cifar.find("cifar10", tmp_path / "digits")
    assert made is not None
    before = made.stat().st_mtime_ns
    assert "--data-dir" in accuracy.recipe("archive", "cuda", None) and made.stat().st_mtime_ns == before


def test_mean_and_deviation_stand_side_by_side() -> None:
    config = {"model": "lenet5", "precision": "fp32"}
    rows = [{"recipe": "digits", "seed": k, "config": config, "alpha": {"accuracy": a, "epoch_seconds": [1.0, 3.0]},
             "torch": {"accuracy": b, "epoch_seconds": [4.0]}} for k, (a, b) in enumerate([(0.98, 0.97), (0.96, 0.97)])]
    again = {**rows[1], "alpha": {"accuracy": 0.98, "epoch_seconds": [2.0]}}
    assert accuracy.summary([*rows, again])[2] == (
        "| digits | lenet5 | fp32 | 2 | 98.00 +- 0.00 % | 97.00 +- 0.00 % | 1.00 points | 2.00 / 4.00 | "
        "MISSED, 0.50 are allowed |")
    assert "97.00 +- 1.41 % | 97.00 +- 0.00 % | 0.00 points" in accuracy.summary(rows)[2]
    assert "ok, 2.00 are allowed" in accuracy.summary(rows)[2]  # two standard errors: 2 * sqrt(2 / 2)
    named = [{**row, "config": {**config, "algorithm": "winograd"}} for row in rows]
    assert [line.split(" | ")[2] for line in accuracy.summary([*rows, *named])[2:]] == ["fp32", "fp32 winograd"]


def test_deep_networks_warm_up() -> None:
    from train.config import parse
    for device in ("cpu", "cuda"):
        config = parse(accuracy.recipe("digits", device, None, "vgg11"))
        assert (config.model, config.lr, config.warmup) == ("vgg11", 0.05, 1.0)
    assert parse(accuracy.recipe("digits", "cpu", None)).warmup == 0


def test_cifar10_is_trained_where_it_is_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert accuracy.present(None) == ["digits", "archive"]
    assert accuracy.main(["--recipes", "cifar10", "--device", "cpu", "--output", str(tmp_path)]) == 1
    assert "accuracy: data does not hold CIFAR-10\nhelp: point --data-dir" in capsys.readouterr().err
    digits_archive.write(tmp_path / "here", cifar.FORMS["cifar10"][0], train_images=50, test_images=10)
    assert accuracy.present(tmp_path / "here") == ["digits", "archive", "cifar10"]
    assert parse(accuracy.recipe("cifar10", "cuda", tmp_path / "here")).model == "resnet18"


def test_an_archive_has_its_name_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = cifar.FORMS["cifar10"][0]
    made = digits_archive.files

    def stopping(*args: object) -> object:
        for k, file in enumerate(made(*args)):
            assert k or len(list(tmp_path.iterdir())) == 1
            yield file
            if k == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(digits_archive, "files", stopping)
    with pytest.raises(KeyboardInterrupt):
        digits_archive.write(tmp_path, form, train_images=50, test_images=10)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(digits_archive, "files", made)
    path = digits_archive.write(tmp_path, form, train_images=50, test_images=10)
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", [["--optimizer", "adam"], ["--swa", "0.5"], ["--sam", "0.05"], ["--ema", "0.9"],
                                   ["--clip", "1"],
                                   ["--dataset", "cifar100"]])
def test_a_recipe_that_pytorch_does_not_have_is_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"accuracy: \w+ is .*, PyTorch's side has .*\nhelp: leave --\w+ out"):
        accuracy.train_both(parse([*flags, "--device", "cpu"]))


def test_networks_and_precisions_have_rows_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    trained, real = [], accuracy.recipe

    def train_both(config):
        trained.append((config.model, config.precision, config.lr, config.seed))
        side = {"accuracy": 0.9, "epoch_seconds": [1.0], "train_loss": [1.0, 0.5]}
        return {"alpha": side, "torch": side, "difference_points": 0.0}
    monkeypatch.setattr(accuracy, "train_both", train_both)
    monkeypatch.setattr(accuracy, "recipe", lambda name, device, place, model: real(name, "cuda", place, model))
    monkeypatch.setattr(accuracy.checks, "precision_of_device", lambda *_: None)
    flags = ["--recipes", "digits", "--models", "lenet5", "vgg16", "--precision", "fp32", "fp16", "--seeds", "2",
             "--device", "cpu", "--output", str(tmp_path)]
    assert accuracy.main(flags) == 0
    assert trained == [(m, p, lr, seed) for m, lr in (("lenet5", 0.02), ("vgg16", 0.05)) for p in ("fp32", "fp16")
                       for seed in (0, 1)]
    assert "| digits | vgg16 | fp16 | 2 | 90.00" in capsys.readouterr().out
    assert accuracy.main([*flags, "--resume", "--seeds", "3"]) == 0 and len(trained) == 8 + 4


def test_a_precision_that_the_cpu_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy.main(["--precision", "bf16", "--device", "cpu", "--output", str(tmp_path)]) == 1
    assert "accuracy: precision bf16 on the CPU, which computes fp32 alone\nhelp: " in capsys.readouterr().err


@pytest.mark.parametrize("precision, allowed", [("fp32", False), ("tf32", True), ("fp16", True)])
def test_pytorch_computes_in_the_precision_asked_for(precision: str, allowed: bool) -> None:
    config = parse(["--device", "cpu", "--dataset", "digits", "--precision", precision])
    data = load(config.dataset, config.data_dir, seed=0)
    TorchRun(config, split(data, config.val_size, 0), data)
    assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is allowed
