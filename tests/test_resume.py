"""Runs that are killed, stopped or damaged, and go on as if nothing had happened."""

from __future__ import annotations

import csv
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train.loop
import train.report
from alpha import checkpoint
from alpha.core.config import config
from tests import tiny_run
from tests.tiny_run import flags
from train.__main__ import main
from train.lock import OutputLock
from train.trainer import Trainer

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
EPOCHS, STEPS = 4, 5
TIMED = {"seconds", "images_per_second", "peak_memory_mib"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


@pytest.fixture(scope="module")
def spawn() -> Any:
    """Starts a run in a process of its own, forked from one that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.tiny_run"])

    def start(argv: list[str], kernels: str, log: Path, die_at: int = 0, pause: float = 0.0) -> Any:
        process = context.Process(target=tiny_run.child, args=(argv, kernels == "compiled", die_at, pause, str(log)))
        process.start()
        return process
    return start


def final(output: Path) -> tuple[dict[str, np.ndarray], Any, list[dict[str, str]]]:
    """Returns all that a run leaves and that does not depend on the clock."""
    tensors, metadata = checkpoint.load(output / "last.safetensors")
    state = {key: metadata[key] for key in ("identity", "optimizer", "random")}
    progress = {key: value for key, value in metadata["progress"].items() if key not in TIMED | {"history"}}
    with open(output / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in TIMED} for row in csv.DictReader(file)]
    return {name: t.numpy() for name, t in tensors.items()}, (state, progress), rows


def assert_same(a: Path, b: Path) -> None:
    (tensors, state, rows), (tensors_b, state_b, rows_b) = final(a), final(b)
    assert tensors.keys() == tensors_b.keys() and len(tensors) > 5
    for name in tensors:
        assert tensors[name].tobytes() == tensors_b[name].tobytes(), name
    assert state == state_b
    assert rows == rows_b and [row["epoch"] for row in rows] == [str(k + 1) for k in range(EPOCHS)]


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, signum: int) -> None:
    """Makes this process get a signal during a step."""
    real = Trainer.step

    def train_step(session: Any, x: Any, y: Any) -> Any:
        if session.progress.step + 1 == step:
            os.kill(os.getpid(), signum)
        return real(session, x, y)
    monkeypatch.setattr(Trainer, "step", train_step)


ONE_KIND = pytest.mark.parametrize("cpu_kernels", ["compiled"], indirect=True)  # what is written when is alike for both


@ONE_KIND
def test_killed_at_any_write(cpu_kernels: str, spawn: Any, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    first = spawn(flags(whole, ema=0.9), cpu_kernels, tmp_path / "log")
    first.join()
    assert first.exitcode == 0, (tmp_path / "log").read_text()
    for count in range(1, 100):  # each run dies one write later than the one before
        process = spawn(flags(torn, ema=0.9, resume="auto"), cpu_kernels, tmp_path / "log", die_at=count)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert process.exitcode == 0 and count > 10
    assert_same(whole, torn)
    assert not list(torn.glob(".*"))


def test_killed_at_random_moments(cpu_kernels: str, spawn: Any, tmp_path: Path) -> None:
    whole, torn, log = tmp_path / "whole", tmp_path / "torn", tmp_path / "log"
    first = spawn(flags(whole), cpu_kernels, log)
    first.join()
    rng = random.Random(3)
    pause, killed = 0.02, 0  # 20 steps take 0.4 s at least, so that the first two processes cannot end by themselves
    for _ in range(6):
        process = spawn(flags(torn, resume="auto"), cpu_kernels, log, pause=pause)
        process.join(rng.uniform(2, 10) * pause)
        killed += process.is_alive()
        process.kill()
        process.join()
    last = spawn(flags(torn, resume="auto"), cpu_kernels, log)
    last.join()
    assert (first.exitcode, last.exitcode) == (0, 0), log.read_text()
    assert killed >= 1
    assert_same(whole, torn)


@pytest.mark.parametrize("signum, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", [1, 8, 10])
def test_a_signal_ends_the_run_after_its_step(step: int, signum: int, status: int, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(tmp_path / "whole", ema=0.9)) == 0
    with monkeypatch.context() as patch:
        stop_at(patch, step, signum)
        before = signal.getsignal(signum)
        assert main(flags(tmp_path / "torn", ema=0.9)) == status
        assert signal.getsignal(signum) is before
    assert f"interrupted by {signal.Signals(signum).name} after step {step}: saved" in capsys.readouterr().out
    assert checkpoint.load(tmp_path / "torn" / "last.safetensors")[1]["progress"]["step"] == step
    assert main(flags(tmp_path / "torn", ema=0.9, resume="auto")) == 0
    assert f"{(step - 1) // STEPS if step % STEPS == 0 else step // STEPS} epochs" in capsys.readouterr().out
    assert_same(tmp_path / "whole", tmp_path / "torn")


@ONE_KIND
def test_ctrl_c_in_a_process_of_its_own(cpu_kernels: str, spawn: Any, tmp_path: Path) -> None:
    """Wherever SIGINT comes, the run ends with 130 and a sound checkpoint, and leaves the directory to the next one."""
    whole, torn, log = tmp_path / "whole", tmp_path / "torn", tmp_path / "log"
    first = spawn(flags(whole), cpu_kernels, log)
    first.join()
    rng, steps = random.Random(5), [0]
    for _ in range(3):
        begun = log.read_text().count(tiny_run.STEP)
        process = spawn(flags(torn, resume="auto"), cpu_kernels, log, pause=0.2)
        while process.is_alive() and log.read_text().count(tiny_run.STEP) == begun:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.15))
        os.kill(process.pid, signal.SIGINT)
        process.join()
        assert process.exitcode == 130 and "Traceback" not in log.read_text(), log.read_text()
        steps.append(checkpoint.load(torn / "last.safetensors")[1]["progress"]["step"])
        with OutputLock(torn):
            pass    # nobody has it
    assert sorted(set(steps)) == steps and steps[-1] < EPOCHS * STEPS, steps
    last = spawn(flags(torn, resume="auto"), cpu_kernels, log)
    last.join()
    assert (first.exitcode, last.exitcode) == (0, 0), log.read_text()
    assert_same(whole, torn)
    assert not list(torn.glob(".*"))


def test_a_signal_in_the_middle_of_an_epoch_without_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(flags(tmp_path / "whole", val_size=0, batch_size=20)) == 0
    with monkeypatch.context() as patch:
        stop_at(patch, 7, signal.SIGTERM)
        assert main(flags(tmp_path / "torn", val_size=0, batch_size=20)) == 143
    assert len(checkpoint.load(tmp_path / "torn" / "last.safetensors")[1]["progress"]["history"]) == 1
    assert main(flags(tmp_path / "torn", val_size=0, batch_size=20, resume="auto")) == 0
    assert_same(tmp_path / "whole", tmp_path / "torn")


@pytest.mark.parametrize("images", [8, tiny_run.TEST], ids=["validation", "test"])
def test_a_signal_during_an_evaluation_loses_nothing(images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                     ) -> None:
    assert main(flags(tmp_path / "whole")) == 0
    real = train.loop.evaluate

    def evaluate(model: Any, x: Any, *rest: Any, **more: Any) -> Any:
        if len(x) == images:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(model, x, *rest, **more)
    with monkeypatch.context() as patch:
        patch.setattr(train.loop, "evaluate", evaluate)
        assert main(flags(tmp_path / "torn")) == 143
    assert checkpoint.load(tmp_path / "torn" / "last.safetensors")[1]["progress"]["step"] == (5 if images == 8 else 20)
    assert main(flags(tmp_path / "torn", resume="auto")) == 0
    assert_same(tmp_path / "whole", tmp_path / "torn")


def test_max_steps_ends_an_epoch_early_and_more_of_them_finish_it(tmp_path: Path) -> None:
    assert main(flags(tmp_path / "whole")) == 0
    for limit in (2, 5, 8, 13):
        assert main(flags(tmp_path / "torn", resume="auto", max_steps=limit)) == 0
        rows = final(tmp_path / "torn")[2]
        assert [row["step"] for row in rows] == [str(s) for s in range(STEPS, limit, STEPS)] + [str(limit)]
    assert main(flags(tmp_path / "torn", resume="auto")) == 0
    assert_same(tmp_path / "whole", tmp_path / "torn")


def test_resume_from_a_path_into_another_directory(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(tmp_path / "whole")) == 0
    assert main(flags(tmp_path / "a", max_steps=10)) == 0
    assert main(flags(tmp_path / "b", epochs=1)) == 0  # is in the way
    capsys.readouterr()
    assert main(flags(tmp_path / "b", resume=tmp_path / "a" / "last.safetensors")) == 0
    assert "2 epochs and 0 steps are done" in capsys.readouterr().out
    assert_same(tmp_path / "whole", tmp_path / "b")
    assert (tmp_path / "b" / "best.safetensors").exists()
    assert (tmp_path / "b" / "earlier" / "last.safetensors").exists()


def test_lost_metrics_come_back_from_the_checkpoint(tmp_path: Path) -> None:
    assert main(flags(tmp_path)) == 0
    before = (tmp_path / "metrics.csv").read_text()
    for damage in (before[:-20], before + before, ""):
        (tmp_path / "metrics.csv").write_text(damage)
        assert main(flags(tmp_path, resume="auto")) == 0
        assert (tmp_path / "metrics.csv").read_text() == before


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(tmp_path / "whole")) == 0
    assert main(flags(tmp_path / "torn", max_steps=12)) == 0
    newest = tmp_path / "torn" / "last.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    capsys.readouterr()
    assert main(flags(tmp_path / "torn", resume="auto")) == 0
    out = capsys.readouterr().out
    assert "notice: passed over" in out and "damaged" in out and "2 epochs and 0 steps are done" in out
    assert_same(tmp_path / "whole", tmp_path / "torn")


def test_without_an_intact_checkpoint_there_is_an_error_and_without_any_a_new_run(
        tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(flags(tmp_path / "x", epochs=2, resume="auto")) == 0
    for path in (tmp_path / "x" / "last.safetensors", tmp_path / "x" / "last.safetensors.prev"):
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    capsys.readouterr()
    assert main(flags(tmp_path / "x", resume="auto")) == 1
    error = capsys.readouterr().err
    assert "last.safetensors.prev is intact" in error and "help: start again" in error
    assert main(flags(tmp_path / "x", resume=tmp_path / "x" / "last.safetensors")) == 1
    assert "is damaged" in capsys.readouterr().err
    monkeypatch.setattr(train.loop, "load", lambda *args, **more: pytest.fail("the data set was loaded"))
    assert main(flags(tmp_path / "x", resume=tmp_path / "nowhere.safetensors")) == 1
    assert "nowhere.safetensors cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("changes, both", [
    ({"model": "lenet5"}, "model is 'tinynet' there, 'lenet5' here"),
    ({"dataset": "synthetic"}, "dataset is 'tiny' there, 'synthetic' here"),
    ({"optimizer": "adam"}, "optimizer is 'sgd' there, 'adam' here"),
    ({"seed": 1}, "seed is 0 there, 1 here"),
    ({"batch_size": 8}, "batch_size is 16 there, 8 here"),
    ({"ema": 0.5}, "ema is 0.0 there, 0.5 here"),
    ({"val_size": 16}, "val_size is 8.0 there, 16.0 here"),
])
def test_resume_from_another_run_names_both(changes: dict[str, Any], both: str, tmp_path: Path,
                                            capsys: pytest.CaptureFixture) -> None:
    assert main(flags(tmp_path, epochs=1)) == 0
    before = (tmp_path / "last.safetensors").read_bytes()
    capsys.readouterr()
    assert main(flags(tmp_path, resume="auto", **changes)) == 1
    error = capsys.readouterr().err
    assert "last.safetensors is of another run" in error and both in error and "help: continue it with --" in error
    assert (tmp_path / "last.safetensors").read_bytes() == before


def test_resume_from_a_foreign_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint.save(tmp_path / "foreign.safetensors", {"x": np.zeros(2, np.float32)})
    assert main(flags(tmp_path / "x", resume=tmp_path / "foreign.safetensors")) == 1
    assert "was not written by the training program" in capsys.readouterr().err


def test_settings_that_may_change_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(tmp_path, epochs=2)) == 0
    capsys.readouterr()
    assert main(flags(tmp_path, epochs=3, lr=0.01, resume=tmp_path)) == 0
    out = capsys.readouterr().out
    assert "resuming with epochs 3, before it was 2" in out and "resuming with lr 0.01, before it was 0.05" in out
    assert len([line for line in out.splitlines() if line.startswith("resuming with")]) == 2


def test_a_new_run_in_the_same_directory_sets_the_earlier_one_aside(tmp_path: Path, capsys: pytest.CaptureFixture
                                                                    ) -> None:
    assert main(flags(tmp_path, epochs=2)) == 0
    before = (tmp_path / "last.safetensors").read_bytes()
    assert main(flags(tmp_path, epochs=1)) == 0
    assert "held an earlier run" in capsys.readouterr().out
    assert (tmp_path / "earlier" / "last.safetensors").read_bytes() == before
    assert len(final(tmp_path)[2]) == 1
