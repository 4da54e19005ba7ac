"""The step that a GPU takes while images are read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import alpha
from alpha.errors import DataError
from train import loop
from train.config import parse
from train.trainer import Trainer


@pytest.mark.parametrize(("device", "dataset", "slow", "steps"), [
    ("cuda", "cifar10", True, [10]), ("cuda", "cifar100", True, [100]), ("cuda", "cifar10", False, []),
    ("cpu", "cifar10", True, []), ("cuda", "digits", True, [])])
def test_a_gpu_takes_a_step_while_images_are_read(monkeypatch: pytest.MonkeyPatch, device: str, dataset: str,
                                                  slow: bool, steps: list[int]) -> None:
    taken: list[int] = []
    go = threading.Event()

    def load(name: str, *args: Any, **options: Any) -> str:
        if slow:
            go.wait(0.05 if not steps else 10)
        return name

    def step(config: Any, classes: int) -> None:
        taken.append(classes)
        go.set()
    monkeypatch.setattr(loop, "load", load)
    monkeypatch.setattr(loop, "PATIENCE_S", 0.02 if slow else 10)
    monkeypatch.setattr("train.loop.step_ahead", step)
    assert loop.loaded(parse(["--dataset", dataset, "--device", device])) == dataset    # type: ignore[comparison-overlap]
    assert taken == steps


def test_a_run_after_such_a_step_has_the_bits_of_one_without() -> None:
    config = parse(["--model", "lenet5", "--batch-size", "4", "--device", "cpu", "--dataset", "synthetic"])
    found = []
    for before in (False, True):
        if before:
            loop.step_ahead(config)
        session = Trainer(config, 10, 8)
        found.append([*[p.numpy().tobytes() for p in session.model.parameters()], alpha.random.get_state()])
    assert found[0] == found[1]


def test_what_is_wrong_with_the_images_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds none of its archives"):
        loop.loaded(parse(["--dataset", "cifar10", "--data-dir", str(tmp_path), "--device", "cpu"]))
