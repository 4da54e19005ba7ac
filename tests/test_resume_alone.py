"""alpha train --resume RUN: the run says all that is needed; changes are told, contradictions are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import train.report
from alpha import checkpoint
from alpha.core.config import config
from tests.test_resume import assert_same
from tests.tiny_run import flags
from train.__main__ import main
from train.config import parse

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

Captured = pytest.CaptureFixture


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


def test_the_folder_alone_continues_a_run_to_the_same_bits(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path / "whole", ema=0.5)) == 0
    assert main(flags(tmp_path / "part", ema=0.5, max_steps=7)) == 0
    capsys.readouterr()
    assert main(["--resume", str(tmp_path / "part")]) == 0
    out = capsys.readouterr().out
    assert "1 epochs and 2 steps are done" in out and "resuming with max_steps None, before it was 7" in out
    assert out.count("resuming with") == 1
    assert_same(tmp_path / "whole", tmp_path / "part")


def test_what_a_flag_changes_is_told_and_what_it_contradicts_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=2, max_steps=7)) == 0
    before = (tmp_path / "last.safetensors").read_bytes()
    for flag, value, said in (("--model", "lenet5", "model is 'tinynet' there, 'lenet5' here"),
                              ("--optimizer", "adam", "optimizer is 'sgd' there, 'adam' here")):
        capsys.readouterr()
        assert main(["--resume", str(tmp_path), flag, value]) == 1
        error = capsys.readouterr().err
        assert said in error and "help: continue it with --" in error
    assert (tmp_path / "last.safetensors").read_bytes() == before
    assert main(["--resume", str(tmp_path / "last.safetensors"), "--lr", "0.01", "--max-steps", "8"]) == 0
    out = capsys.readouterr().out
    assert "resuming with lr 0.01, before it was 0.05" in out and "resuming with max_steps 8, before it was 7" in out
    found = parse(["--resume", str(tmp_path)])
    assert (found.model, found.batch_size, found.lr, found.output) == ("tinynet", 16, 0.01, str(tmp_path))
    assert found.max_steps is None and found.device == "auto"
    assert main(["--resume", str(tmp_path), "--evaluate"]) == 0
    assert "test accuracy" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert main(["--resume", str(tmp_path / "none")]) == 1
    assert "none cannot be read: No such file or directory\nhelp: " in capsys.readouterr().err
    checkpoint.save(tmp_path / "last.safetensors", {}, {"use": {}})
    assert main(["--resume", str(tmp_path), "--output", str(tmp_path / "b")]) == 1
    assert "was not written by the training program\nhelp: " in capsys.readouterr().err
