"""alpha train --import: models, data sets, optimizers, schedules and losses of a user's own, and their resume."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import train.report
from alpha import checkpoint
from alpha.core.config import config
from alpha.data.sets import DATASETS
from alpha.errors import ConfigError
from alpha.training import registries
from tests.op_checks import refused
from tests.test_resume import assert_same
from train.__main__ import main
from train.config import parse

MINE = '''
import numpy as np
from alpha import nn, ops, optim
from alpha.optim import schedule
from alpha.training import (
    register_dataset, register_loss, register_model, register_optimizer, register_schedule)


@register_model
def my_net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 4, num_classes))


@register_dataset(augment="crop=1")
def my_data(seed):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 200, (100, 4, 4)).astype(np.uint8)
    labels = np.arange(100) % 3
    images += (20 * labels).astype(np.uint8)[:, None, None]
    return (images[:80], labels[:80]), [(image, label) for image, label in zip(images[80:], labels[80:])]


@register_optimizer(lr=0.125)
class Signs(optim.Optimizer):
    """p = p - lr sign(m), m = momentum m + g."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, lr=lr, momentum=momentum)

    def slots(self, group):
        return ("momentum",)

    def update(self, group, params, grads, states, lr, step, factor):
        for p, g, m in zip(params, grads, states["momentum"]):
            m.copy_(m * group["momentum"] + g)
            p.copy_(p - ops.sign(m) * (lr * 0.1))


@register_schedule
def falling(lr, total_steps, power=2.0):
    return lambda t: lr * (1 - t / total_steps) ** power


@register_loss("steep")
def steep_loss(outputs, targets):
    return ops.cross_entropy(outputs * 1.5, targets)
'''


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run; what a test has registered goes."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    tables = [registries.MODELS, registries.OPTIMIZERS, registries.SCHEDULES, registries.LOSSES, DATASETS]
    before, modules, path = [dict(table) for table in tables], set(sys.modules), list(sys.path)
    with config(num_threads=1):
        yield
    forget(tables, before)
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


def forget(tables: list[dict], before: list[dict]) -> None:
    for table, had in zip(tables, before):
        table.clear()
        table.update(had)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "work" / "my_file.py"
    path.parent.mkdir()
    path.write_text(MINE)
    monkeypatch.chdir(path.parent)
    return path


NAMES = ["--model", "my_net", "--dataset", "my_data", "--optimizer", "signs", "--schedule", "falling",
         "--loss", "steep"]


def line(output: Path, *more: str) -> list[str]:
    return [*NAMES, "--batch-size", "16", "--epochs", "4", "--val-size", "8", "--device", "cpu", "--warmup", "1",
            "--output", str(output), *more]


def test_everything_of_ones_own_is_trained_named_and_resumed(mine: Path, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert main(line(whole, "--import", "my_file.py", "--ema", "0.5")) == 0
    text = (whole / "config.toml").read_text()
    for part in ('imports = ["my_file.py"]', 'model = "my_net"', 'dataset = "my_data"', 'optimizer = "signs"',
                 'schedule = "falling"', 'loss = "steep"', "lr = 0.125", 'augment = "crop=1"'):
        assert part in text
    named = checkpoint.load(whole / "last.safetensors")[1]
    assert (named["identity"]["model"], named["config"]["schedule"], named["config"]["imports"]) == (
        "my_net", "falling", ["my_file.py"])
    assert main(line(torn, "--import", "my_file.py", "--ema", "0.5", "--max-steps", "7")) == 0
    assert main(line(torn, "--import", "my_file.py", "--ema", "0.5", "--resume", "auto")) == 0
    assert_same(whole, torn)
    if sys.version_info >= (3, 11):
        assert parse(["--config", str(whole / "config.toml")]).imports == ("my_file.py",)


def test_a_run_whose_file_is_not_imported_says_which(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tables = [registries.MODELS, registries.OPTIMIZERS, registries.SCHEDULES, registries.LOSSES, DATASETS]
    before = [dict(table) for table in tables]
    assert main(line(tmp_path / "x", "--import", "my_file.py", "--epochs", "2")) == 0
    forget(tables, before)
    for resume in ("auto", str(tmp_path / "x" / "last.safetensors"), str(tmp_path / "x")):
        capsys.readouterr()
        assert main(line(tmp_path / "x", "--resume", resume)) == 2
        error = capsys.readouterr().err
        assert "is not allowed" in error
        assert "--import the file that registers it; the run was started with --import my_file.py" in error
    assert main(["--resume", "auto", "--output", str(tmp_path / "x"), "--model", "lenet5", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert "model is 'my_net' there" in error and "--import my_file.py" in error


@pytest.mark.parametrize("flag", ["--model", "--dataset", "--optimizer", "--schedule", "--loss"])
def test_an_unknown_name_is_refused_with_the_way_out(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([flag, "my_thing", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "'my_thing' is not allowed" in error and "--import the file that registers it" in error


@pytest.mark.parametrize("name, text, part", [
    ("gone.py", None, "import: there is no file "), ("no_such_module", None, "ModuleNotFoundError"),
    ("bad.py", "x = 1\ny = z\n", "NameError: name 'z' is not defined (line 2 of "),
    ("bad.py", "def f(:\n", "SyntaxError"), ("bad.py", "import sys\nsys.exit(0)\n", "SystemExit: 0"),
    ("bad.py", "from alpha.training import register_model\n@register_model('lenet5')\ndef f(n): pass\n",
     "register_model: a model called 'lenet5' is registered already")])
def test_a_file_that_cannot_be_imported(name: str, text: str | None, part: str, mine: Path,
                                        capsys: pytest.CaptureFixture) -> None:
    if text:
        Path(name).write_text(text)
    assert main(["--import", name, "--list-models"]) == 2
    error = capsys.readouterr().err
    assert part in error and "\nhelp: " in error


def test_models_of_an_imported_file_are_listed(mine: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--import", "my_file.py", "--list-models"])
    assert "my_net" in capsys.readouterr().out.split()


def test_what_a_registered_thing_needs_is_named(mine: Path) -> None:
    @registries.register_schedule
    def odd(lr, width):
        return lambda t: lr

    @registries.register_schedule("flat")
    def flat_(lr):
        return lr

    from alpha.errors import DataError
    with refused(ConfigError, "fit: schedule odd: it needs 'width'; it may take warmup_steps, lr"):
        registries.make_schedule("fit", "odd", lr=0.1)
    with refused(ConfigError, "fit: the schedule 'flat' returned 0.1", "return a function of the step"):
        registries.make_schedule("fit", "flat", lr=0.1)
    with refused(ConfigError, "fit: there is no optimizer 'sdg'; did you mean 'sgd'?"):
        registries.make_optimizer("fit", "sdg", [], 0.1)
    with refused(ConfigError, "the loss 'mse' takes no label_smoothing, it is 0.1"):
        registries.find_loss("fit", "mse", 0.1)
    with refused(ConfigError, "fit: loss is 3"):
        registries.find_loss("fit", 3)
    with refused(ConfigError, "fit: the optimizer made is None, which has no step", "super().__init__(params"):
        registries.make_optimizer("fit", lambda params: None, [], None)
    with refused(ConfigError, "register_model: 3 is no function and no class"):
        registries.register_model("x")(3)
    from alpha.data import load, register_dataset

    @register_dataset
    def nothing():
        return np.zeros(3)
    with refused(DataError, "data set nothing: its function returned a float64 NumPy array of shape (3,)"):
        load("nothing")


def test_a_module_of_the_folder_can_be_imported_too(mine: Path, capsys: pytest.CaptureFixture,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    with pytest.raises(SystemExit):
        main(["--import", "my_file", "--list-models"])
    assert "my_net" in capsys.readouterr().out.split()


def test_a_file_of_a_taken_name_is_imported_beside_it(mine: Path, capsys: pytest.CaptureFixture) -> None:
    other = mine.with_name("json.py")
    other.write_text(MINE)
    with pytest.raises(SystemExit):
        main(["--import", "json.py", "--list-models"])
    assert "my_net" in capsys.readouterr().out.split()
    import json
    assert json.dumps([]) == "[]"


def test_a_folder_whose_name_is_too_long_leaves_the_error_as_it_is() -> None:
    with refused(ConfigError, "loss: 'mine' is not allowed"):
        parse(["--loss", "mine", "--output", "x" * 300, "--resume", "auto"])
