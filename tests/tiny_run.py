"""A data set and a network small enough to be trained many times in a test, and runs of the training program on them.

The network has what makes a resume hard: dropout (random numbers) and batch norm (running statistics).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import train.loop
import train.report
from alpha import nn
from alpha.core.config import config as settings
from alpha.core.tensor import Tensor
from alpha.data import Dataset, register_dataset
from models import register_model
from train.__main__ import main
from train.trainer import Trainer

CLASSES = 4
TRAIN, TEST = 88, 24
STEP = "a step begins"     # in the log of a run of its own


class TinyNet(nn.Module):
    """Conv, batch norm, dropout, linear."""

    def __init__(self, num_classes: int) -> None:
        self.conv = nn.Conv2d(3, 4, 8, stride=8, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.bn(self.conv(x), activation="relu").flatten(1)))


@register_model
def tinynet(num_classes: int) -> TinyNet:
    """A network for tests."""
    return TinyNet(num_classes)


@register_dataset(augment="crop,flip,cutout")
def tiny(data_dir: Path | None, download: bool, seed: int) -> Dataset:
    """A hundred noisy images of four brightnesses."""
    rng = np.random.default_rng(1)
    labels = np.arange(TRAIN + TEST) % CLASSES
    images = (rng.integers(0, 100, (len(labels), 32, 32, 3)) + 40 * labels[:, None, None, None]).astype(np.uint8)
    return Dataset("tiny", tuple(f"level {k}" for k in range(CLASSES)), np.full(3, 0.4, np.float32),
                   np.full(3, 0.25, np.float32), images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])


def flags(output: Path, **changes: Any) -> list[str]:
    """Returns the command line of a run of four epochs of five steps."""
    values = {"model": "tinynet", "dataset": "tiny", "epochs": 4, "batch_size": 16, "lr": 0.05, "val_size": 8,
              "device": "cpu", "output": output, **changes}
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def child(argv: list[str], cpu_kernels: bool, die_at: int, pause: float, log: str, hold: str = "") -> None:
    """Runs the training program in this process and exits.

    SIGKILL ends it before its `die_at`-th write, if not 0; before each step it sleeps for `pause` seconds, and waits
    until the file `hold` is gone.
    """
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    if die_at:
        _die_at(die_at)
    _pause_before_steps(pause, Path(hold) if hold else None)
    train.report.can_plot = lambda: False  # pictures take longer than the run
    with settings(cpu_kernels=cpu_kernels):
        sys.exit(main(argv))


def _pause_before_steps(seconds: float, hold: Path | None) -> None:
    step = Trainer.step

    def paused(*args: Any) -> Any:
        print(STEP, flush=True)
        time.sleep(seconds)
        while hold and hold.exists():
            time.sleep(0.02)
        return step(*args)
    Trainer.step = paused  # type: ignore[method-assign]


def _die_at(count: int) -> None:
    """Lets the `count`-th call that makes a file durable or visible never happen."""
    calls = iter(range(1, 1 << 30))

    def deadly(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call

    for name in ("fsync", "link", "replace"):
        setattr(os, name, deadly(getattr(os, name)))
