"""Base calls of what saves a run and takes it up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import training
from tests.silence.ops import Call

IMAGES = np.random.default_rng(5).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)


def saved_run() -> Path:
    """A run of two epochs, the first of which is the best by its loss."""
    alpha.manual_seed(4)
    model = models.create("lenet5", 3)
    training.fit(model, (IMAGES, np.arange(6) % 3), epochs=2, batch_size=3, lr=0.5, metric="train_loss", mode="max",
                 output="run", progress=False)
    return Path("run")


def loaded_run(f: Callable[..., Any], **given: Any) -> Any:
    """What load_run makes of it."""
    run = f(saved_run(), **given)
    return run.model, run.path.name, run.device


CALLS: dict[str, list[Call]] = {"training.load_run": [loaded_run]}
VALUES: dict[str, list[Any]] = {"load_run.which": ["best"], "load_run.model": [3],
                                "load_run.device": ["cuda"]}
