"""Base calls of what saves a run and takes it up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import training
from alpha.errors import DataError
from tests.picture_folders import folder
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


def read(f: Callable[..., Any], **given: Any) -> Any:
    """A folder of pictures with one that cannot be read."""
    folder(Path("own"), 5)
    Path("own/red/bad.png").write_bytes(b"")
    try:
        return f("own", **given).train_images
    except DataError:
        Path("own/red/bad.png").unlink()
        return f("own", **given).train_images, "without it"


def dataset(f: Callable[..., Any], **given: Any) -> Any:
    """A data set's validation part, of which one half is given, or what is said of it."""
    zeros = [np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int64)]
    return f("a", ("b",), np.zeros(3, np.float32), np.ones(3, np.float32), *zeros, *zeros, **given).val_images


CALLS: dict[str, list[Call]] = {"training.load_run": [loaded_run], "data.read_folder": [read],
                                "data.Dataset": [dataset]}
VALUES: dict[str, list[Any]] = {
    "read_folder.size": [16], "Dataset.val_images": [IMAGES], "Dataset.val_labels": [np.zeros(2, np.int64)],
    "export.metadata": [{"a": "b"}],
    "load_run.which": ["best"], "load_run.model": [3], "load_run.device": ["cuda"]}
