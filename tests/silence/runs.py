"""Base calls of what saves a run and takes it up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import nn, ops, optim, training
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


def tuned(f: Callable[..., Any], **given: Any) -> Any:
    """What fit makes of a network of two layers, which may begin with a run of such a one."""
    alpha.manual_seed(6)
    start = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32 * 3, 4), nn.Linear(4, 3))
    training.fit(start, (IMAGES, np.arange(6) % 3), output="start", progress=False)
    alpha.manual_seed(8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32 * 3, 4), nn.Linear(4, 3))
    rows = f(model, (IMAGES, np.arange(6) % 3), epochs=6, lr=1.5, progress=False, **given)
    return model, len(rows)


def ended(f: Callable[..., Any], **given: Any) -> Any:
    """After how many epochs a run ends whose loss falls by little and whose accuracy falls."""
    run, values = Stopped(), [0.9, 0.899, 0.898, 0.897, 0.896]
    for k in range(len(values)):
        run.progress.history = [{"epoch": j + 1, "val_accuracy": v, "val_loss": v}
                                for j, v in enumerate(values[:k + 1])]
        f(2, **{"metric": "val_loss", **given}).on_epoch(run, run.progress.history[-1])
        if run.why:
            return k
    return None


class Stopped:
    """As much of a run as EarlyStopping looks at."""

    def __init__(self) -> None:
        self.progress, self.why = training.Progress(), ""

    def stop(self, why: str) -> None:
        self.why = why


def shared(f: Callable[..., Any], **given: Any) -> Any:
    """The gradients that a batch leaves."""
    alpha.manual_seed(4)
    model = nn.Linear(3, 2)
    run = training.Trainer(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=1,
                           steps_per_epoch=1)
    f(run, ops.ones((2, 3)), alpha.tensor(np.arange(2)), **given)
    return model


def stopped(f: Callable[..., Any], **given: Any) -> Any:
    model = nn.Linear(3, 2)
    run = training.Trainer(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=1,
                           steps_per_epoch=1)
    f(run, **given)
    return run.why


def tried(f: Callable[..., Any], **given: Any) -> Any:
    alpha.manual_seed(4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32 * 3, 3))
    found = f(model, (IMAGES, np.arange(6) % 3), **{"steps": 5, "high": 0.1, **given})
    return found.lrs, found.losses


CALLS: dict[str, list[Call]] = {
    "training.find_lr": [tried],
    "training.EarlyStopping": [ended], "Trainer.losses": [shared], "Trainer.stop": [stopped],
    "data.Dataset": [dataset],"training.load_run": [loaded_run], "data.read_folder": [read]}
VALUES: dict[str, list[Any]] = {
    "EarlyStopping.metric": ["val_accuracy"], "EarlyStopping.mode": ["max"], "EarlyStopping.min_delta": [0.01],
    "losses.share": [0.25], "Trainer.losses.share": [0.25], "Trainer.stop.why": ["so"],
    "DataLoader.weights": [range(10)],
    "find_lr.optimizer": ["adam"], "find_lr.loss": [ops.mse_loss, lambda y, t: ops.cross_entropy(y * 2, t)],
    "find_lr.low": [1e-5], "find_lr.high": [0.2], "find_lr.steps": [4], "find_lr.precision": ["fp16"],
    "find_lr.batch_size": [2], "fit.loss_options": [{"label_smoothing": 0.5}], "fit.patience": [1], "fit.freeze": ["1"],
    "fit.lr_scale": [{"1": 0.5}], "fit.sam": [0.5], "fit.swa": [0.5], "Trainer.sam": [0.5], "fit.finetune": ["start"],
    "read_folder.size": [16], "Dataset.val_images": [IMAGES], "Dataset.val_labels": [np.zeros(2, np.int64)],
    "export.metadata": [{"a": "b"}],
    "load_run.which": ["best"], "load_run.model": [3], "load_run.device": ["cuda"]}
