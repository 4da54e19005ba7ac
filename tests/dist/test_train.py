"""python -m train on ranks of the CPU: the losses of one process, the same bits, checkpoints, faults, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from alpha import checkpoint
from alpha.errors import CheckpointError
from tests.dist import launch
from tests.dist.small import settings
from train import ranks, report
from train.loop import Run

pytestmark = [pytest.mark.skipif(bool(launch.MISSING), reason=launch.WHY),
              pytest.mark.same_without_kernels("ranks are what is tested")]
SMALL = ("--import", "tests/dist/small.py", "--model", "small_norm_net", "--dataset", "small_images", "--device", "cpu",
         "--batch-size", "25")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of 1, 2 and 4 ranks."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:     # pictures take longer than the runs
        patch.setattr(report, "can_plot", lambda: False)
        Run(settings(str(folder / "plain-1"))).run()
        Run(settings(str(folder / "exact-1"), exact_over=8)).run()
    for size in (2, 4):
        ended = launch.run(size, "tests.dist.runs", str(folder), str(size))
        assert ended.returncode == 0, ended.stderr[-3000:]
        (folder / f"said-{size}").write_text(ended.stdout)
    return folder


def rows(folder: Path) -> list[dict[str, float]]:
    return checkpoint.load(folder / "last.safetensors")[1]["progress"]["history"]


def test_losses_accuracies_and_weights_are_those_of_one_process(runs: Path) -> None:
    alone = rows(runs / "plain-1")
    for size in (2, 4):
        for mine, theirs in zip(rows(runs / f"plain-{size}"), alone):
            for name in ("train_loss", "val_loss", "ema_val_loss"):
                assert abs(mine[name] - theirs[name]) < 1e-3, (size, name)
            assert mine["epoch"] == theirs["epoch"] and mine["step"] == theirs["step"]
            assert abs(mine["train_accuracy"] - theirs["train_accuracy"]) < 0.02
    a, b = (checkpoint.load(runs / f"plain-{size}" / "last.safetensors")[0] for size in (1, 4))
    for name, t in a.items():
        assert np.allclose(t.numpy(), b[name].numpy(), rtol=1e-2, atol=1e-3), name


def test_one_rank_speaks_and_writes(runs: Path) -> None:
    said = (runs / "said-4").read_text()
    assert said.count("epoch 3/3") == 4 and said.count("test loss") == 9    # last and best of four runs, and one more
    names = {path.name for path in (runs / "plain-4").iterdir()}
    assert {"last.safetensors", "best.safetensors", "metrics.csv", "config.toml", "summary.json"} <= names
    assert not [name for name in names if name.startswith(".")]
    wanted = json.loads((runs / "plain-2" / "summary.json").read_text())["test_accuracy"]
    assert f"evaluated: {wanted!r}" in said


def test_exact_over_gives_the_same_bits_on_1_2_and_4_ranks_and_after_a_move(runs: Path) -> None:
    tensors, metadata = checkpoint.load(runs / "exact-1" / "last.safetensors")
    for name in ("exact-2", "exact-4", "moved"):
        mine, theirs = checkpoint.load(runs / name / "last.safetensors")
        assert mine.keys() == tensors.keys()
        for key, t in tensors.items():
            assert t.numpy().tobytes() == mine[key].numpy().tobytes(), (name, key)
        assert theirs["random"] == metadata["random"] and theirs["progress"]["step"] == 21
        for row, other in zip(theirs["progress"]["history"][1:], metadata["progress"]["history"][1:]):
            for column in ("train_loss", "train_accuracy", "val_loss", "ema_val_loss"):
                assert row[column] == other[column], (name, column)


def test_statistics_of_each_rank_by_itself_make_a_difference(runs: Path) -> None:
    mine, synced = rows(runs / "own-statistics"), rows(runs / "plain-4")
    assert 1e-3 < abs(mine[0]["train_loss"] - synced[0]["train_loss"]) < 0.5


@pytest.mark.parametrize("name, exact, text", [
    ("exact-1", 0, "exact_over is 8 there, 0 here\nhelp: continue it with --exact-over 8"),
    ("plain-1", 8, "exact_over is 0 there, 8 here\nhelp: continue it with --exact-over 0")])
def test_a_run_neither_becomes_exact_nor_ceases_to_be(runs: Path, name: str, exact: int, text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Run(settings(str(runs / name), exact_over=exact, resume="auto", epochs=4)).run()
    assert text in str(caught.value)


# ---- refusals and faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, text", [
    ({"gradient_dtype": "float16"}, "gradient_dtype: --gradient-dtype float16 has no effect on 1 rank"),
    ({"sync_batch_norm": False}, "sync_batch_norm: --no-sync-batch-norm has no effect on 1 rank"),
    ({"exact_over": 6}, "Slices: 6 slices on 1 ranks"),
    ({"exact_over": 8, "val_size": 0}, "the last batch of an epoch has 3 images, for 8 slices"),
    ({"exact_over": 8, "gradient_dtype": "float16"}, "--gradient-dtype float16 beside --exact-over 8"),
    ({"exact_over": 8, "sync_batch_norm": False}, "--no-sync-batch-norm beside --exact-over 8")])
def test_what_has_no_effect_or_no_place_is_refused(tmp_path: Path, changes: dict, text: str) -> None:
    with pytest.raises(ranks.ConfigError) as caught:
        Run(settings(str(tmp_path), **changes)).run()
    assert text in str(caught.value) and "\nhelp: " in str(caught.value)


def test_ranks_with_different_precisions_are_refused_once_with_both_values(tmp_path: Path) -> None:
    one = launch.command(1, "train", *SMALL, "--output", str(tmp_path / "run"))
    ended = subprocess.run([*one, ":", *one[1:], "--precision", "fp16"], cwd=launch.ROOT, env=launch.environment(),
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.count("train: rank 1 has precision 'fp16', rank 0 has 'fp32'\nhelp: ") == 1


class Started:
    """A run on two ranks that has made its first checkpoint."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.process = subprocess.Popen(
            launch.command(2, "tests.dist.impatient", *SMALL, "--epochs", "10000", "--output", str(output)), cwd=launch.ROOT,
            env=launch.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while not (output / "last.safetensors").exists():
            assert time.monotonic() < end and self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def pid_of_rank(self, rank: int) -> int:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.output).encode() in words and f"PMI_RANK={rank}".encode() in variables:
                return int(folder.name)
        raise AssertionError(f"there is no rank {rank}")

    def ended(self) -> tuple[int, str, str, float]:
        """Returns status, stdout, stderr, and the seconds until the end."""
        start = time.monotonic()
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err, time.monotonic() - start


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    begun = Started(tmp_path / "run")
    yield begun
    if begun.process.poll() is None:
        begun.process.kill()
        begun.process.communicate()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ranks are found in /proc")
@pytest.mark.parametrize("sent, said", [(signal.SIGKILL, "died without a word"),
                                        (signal.SIGSTOP, "is stopped: nothing was heard of it for")])
def test_a_rank_that_dies_or_hangs_ends_the_others_with_its_name(started: Started, sent: signal.Signals,
                                                                  said: str) -> None:
    pid = started.pid_of_rank(1)
    os.kill(pid, sent)
    status, _, err, seconds = started.ended()
    assert status not in (0, 2) and seconds < 30
    assert "alpha.dist: " in err and f"rank 1 (process {pid} on " in err and said in err and "it was in step" in err
    assert checkpoint.load(started.output / "last.safetensors")[1]["progress"]["step"] >= 8    # intact
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.large
def test_a_rank_that_hangs_ends_the_others_with_what_it_did(tmp_path: Path) -> None:
    ended = launch.run(2, "tests.dist.impatient", *SMALL, "--output", str(tmp_path / "run"), timeout_s=60, HANGS="1")
    assert ended.returncode not in (0, 2)
    assert "alpha.dist: rank 1 (process " in ended.stderr and " hangs: rank 0 has waited for it for " in ended.stderr
    assert "it was in step 13; all ranks end" in ended.stderr


@pytest.mark.large
def test_an_error_of_one_rank_ends_the_others_with_its_words(tmp_path: Path) -> None:
    ended = launch.run(2, "tests.dist.impatient", *SMALL, "--output", str(tmp_path / "run"), timeout_s=60, FAILS="1")
    assert ended.returncode != 0
    assert "alpha.dist: rank 1 (process " in ended.stderr and " failed: DataError: images: the file is gone" in ended.stderr
    assert ended.stderr.count("help: bring it back") == 1      # of the rank itself


def test_sigterm_to_mpirun_saves_and_ends_with_143(started: Started) -> None:
    started.process.send_signal(signal.SIGTERM)
    status, out, _, _ = started.ended()
    assert status == 143 and "interrupted by SIGTERM after step" in out
    step = int(out.rpartition("after step ")[2].partition(":")[0])
    assert checkpoint.load(started.output / "last.safetensors")[1]["progress"]["step"] == step
