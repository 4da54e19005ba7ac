"""The folder of a run of fit: its checkpoints, each enough to use the model, and the table of its epochs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from alpha import checkpoint
from alpha.checkpoint import disk
from alpha.core.errors import ConfigError, message, remedy
from alpha.data.loader import DataLoader
from alpha.training.callback import Callback
from alpha.training.contents import KEY, contents, with_metrics
from alpha.training.history import Row, best_of

if TYPE_CHECKING:
    from alpha.training.trainer import Trainer

LAST, BEST = "last.safetensors", "best.safetensors"
CLASSIFIES = ("cross_entropy", "bce_with_logits")   # losses whose outputs are classes
IMAGE_AXES = 3      # of a sample that is an image


def folder_of(where: str, output: Any) -> Path:
    """Returns the folder of a run, which is made if need be.  Raises ConfigError where nothing can be written to it."""
    path = disk.as_path(where, output)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied", str(path))
    except OSError as error:
        raise ConfigError(message(where, f"output={str(output)!r} cannot be written to: {error.strerror}",
                                  remedy(error.errno, path))) from error
    return path


def set_aside(output: Path, names: Iterable[str]) -> bool:
    """Moves the checkpoints and the other named files of an earlier run to the subdirectory `earlier`.

    Returns:
        whether there were any.
    """
    held = [p for name in (LAST, BEST) for p in (checkpoint.previous(output / name), output / name)]
    files = [p for p in (*held, *(output / name for name in names)) if p.exists()]
    if files:
        (output / "earlier").mkdir(exist_ok=True)
    for path in files:  # LAST after its previous one: an end in between leaves the earlier run resumable, or none
        os.replace(path, output / "earlier" / path.name)
    return bool(files)


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole: a reader finds the old content or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(temporary, path)


def table(rows: Iterable[Row]) -> str:
    """Returns rows as a CSV table whose first line names the columns; a value that is not there is left empty."""
    held, text = list(rows), io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in held for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(held)
    return text.getvalue()


class Saving(Callback):
    """Writes last.safetensors, best.safetensors and metrics.csv after each epoch, as fit(output=) asks for.

    Args:
        folder: where to, which exists.
        data, batches: the training data, and the batches that are made of them: how pictures become inputs.
        loss: its name, or the function.
        metric, mode: which column says which epoch is the best, and whether it is high or low there.
    """

    def __init__(self, folder: Path, data: Any, batches: Any, loss: Any, metric: str | None, mode: str | None) -> None:
        self.folder, self.data, self.batches, self.loss = folder, data, batches, loss
        self.metric, self.mode = metric, mode

    def on_start(self, run: Trainer) -> None:
        set_aside(self.folder, ["metrics.csv"])

    def on_epoch(self, run: Trainer, row: Row) -> None:
        state = run.model.state_dict()
        tensors = {f"model/{name}": t for name, t in state.items()}
        if run.ema is not None:
            tensors |= {f"ema/{name}": t for name, t in run.ema.state_dict().items()}
        history = run.progress.history
        metadata = {KEY: with_metrics(self._contents(run), row), "history": [dict(row) for row in history]}
        if best_of(history, self.metric, self.mode) is row:
            checkpoint.save(self.folder / BEST, tensors, metadata)
        checkpoint.save(self.folder / LAST, tensors, metadata)
        write(self.folder / "metrics.csv", table(history))

    def _contents(self, run: Trainer) -> dict[str, Any]:
        shape, outputs = run.forms
        dtype, mean, std = "float32", np.zeros(0), np.ones(0)
        if isinstance(self.batches, DataLoader):
            dtype = self.batches.sample_dtype or dtype
            if len(shape) == IMAGE_AXES:
                mean, std = self.batches.normalisation(shape[-1])
        return contents(run.model, shape=shape, dtype=dtype, mean=mean, std=std, loss=self.loss,
                        classes=_classes(self.data, self.loss, outputs))


def _classes(data: Any, loss: Any, outputs: Sequence[int]) -> Sequence[str]:
    """Returns the names of the classes that the data has, or their numbers; () where the outputs are no classes."""
    held = data.data if isinstance(data, DataLoader) else data
    names = getattr(held, "classes", None)
    if len(outputs) != 1 or (names is None and loss not in CLASSIFIES):
        return ()
    if names is not None and len(names) == outputs[0]:
        return [str(name) for name in names]
    return [str(k) for k in range(outputs[0])] if loss in CLASSIFIES else ()

