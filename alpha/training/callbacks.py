"""Callbacks: a profile of some steps, curves in TensorBoard, a learning rate that falls when nothing gets better.

    fit(model, data, callbacks=[Profile("profile", steps=5), TensorBoard("runs/mine"), Plateau(patience=3)])
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from alpha.core.errors import ArgumentError, ConfigError, message, shown, warn
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Kind, Refused, Size
from alpha.core.inputs.registry import did_you_mean
from alpha.core.tensor import Tensor
from alpha.ops import zeros
from alpha.optim import SGD, ReduceLROnPlateau
from alpha.profiler import Profiler
from alpha.training.callback import Callback
from alpha.training.history import AVERAGED, Row
from alpha.training.trainer import Trainer

WARM_UP = 3     # steps before those that are profiled: kernels are compiled and chosen in them


class _Folder(Kind):
    """A path, as a Path."""

    text, fix = "a path", "pass a string or a pathlib.Path"

    def read(self, value: Any) -> Path:
        try:
            return Path(value)
        except TypeError:
            raise Refused(ArgumentError) from None


Folder = Annotated[Any, _Folder()]


class Profile(Callback):
    """Profiles some steps of a run, and writes profile.txt, its tables, and profile.json, a trace for Chrome.

    Args:
        folder: where the two are written; it is made if need be.
        steps: how many steps are profiled; they are of one epoch, and a warning says so where it has fewer.
        after: how many go before; fewer where the first epoch would end before the others are through.
    """

    @checked
    def __init__(self, folder: Folder, steps: Count = 5, after: Size = WARM_UP) -> None:
        self.folder, self.steps, self.after = folder, steps, after
        self.profiler: Profiler | None = None
        self.seen = self.profiled = self.first = 0

    def on_start(self, run: Trainer) -> None:
        self.first = max(0, min(self.after, run.steps_left - self.steps))
        if self.first == 0 and not run.done:
            self._begin()

    def on_step(self, run: Trainer, loss: Tensor) -> None:
        self.seen += 1
        if self._running:
            self.profiled += 1
        if self.seen == self.first + self.steps:
            self.close()
        elif self.seen == self.first:
            self._begin()

    def on_epoch(self, run: Trainer, row: Row) -> None:
        self.close()

    def on_end(self, run: Trainer) -> None:
        if self.profiled < self.steps:
            found = f"{self.profiled} were made in one epoch" if self.profiled else "the run has ended before"
            warn(message("Profile", f"{self.steps} steps are to be profiled behind {self.first} others, {found}",
                         "lower steps, or train on more batches"))

    @property
    def _running(self) -> bool:
        return self.profiler is not None and not self.profiler.seconds

    def close(self) -> None:
        """Ends the profile, and writes it."""
        found = self.profiler
        if found is None or found.seconds:
            return
        found.__exit__(None, None, None)
        self.folder.mkdir(parents=True, exist_ok=True)
        tables = [found.table("op"), found.table("layer"), *([found.table("kernel")] if found.on_device else [])]
        (self.folder / "profile.txt").write_text("\n\n".join(tables) + "\n")
        found.save(self.folder / "profile.json")

    def _begin(self) -> None:
        self.profiler = Profiler().__enter__()


class TensorBoard(Callback):
    """Writes the figures of a run for TensorBoard, by its own library: tensorboard --logdir FOLDER shows it.

    Args:
        folder: where the events go; one per run.
        every: steps between two losses that are written beside the epochs'; 0: none.
    Raises:
        ConfigError: the library is not installed.
    """

    @checked
    def __init__(self, folder: Folder, every: Size = 16) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError(message("tensorboard", "its library is not installed",
                                      'pip install ".[tensorboard]"')) from error
        self._event, self._summary = Event, Summary
        self.writer = EventFileWriter(str(folder))
        self.every = every
        self._losses: list[tuple[int, Tensor]] = []     # read at the end of an epoch: reading waits for the device

    def on_step(self, run: Trainer, loss: Tensor) -> None:
        if self.every > 0 and run.progress.step % self.every == 0:
            self._losses.append((run.progress.step, loss))

    def on_epoch(self, run: Trainer, row: Row) -> None:
        for step, loss in self._losses:
            self.scalars({"step/loss": loss.item()}, step)
        self._losses.clear()
        self.scalars({_tag(name): value for name, value in row.items()
                      if name not in ("epoch", "step") and value is not None}, row["step"])
        self.writer.flush()

    def on_end(self, run: Trainer) -> None:
        self.writer.flush()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes numbers."""
        self._write([self._summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()], step)

    def picture(self, tag: str, png: bytes, step: int) -> None:
        """Writes a picture, given as the bytes of a PNG file."""
        width, height = (int(n) for n in np.frombuffer(png[16:24], ">u4"))
        image = self._summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        self._write([self._summary.Value(tag=tag, image=image)], step)

    def close(self) -> None:
        """Ends the file."""
        self.writer.close()

    def _write(self, values: list[Any], step: int) -> None:
        self.writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))


def _tag(name: str) -> str:
    """Returns the tag of a column for TensorBoard: curves of one kind stand in one picture."""
    kind, averaged = name.removeprefix(AVERAGED), name.startswith(AVERAGED)
    part, _, what = kind.partition("_")
    return f"{what}/{AVERAGED * averaged}{part}" if part in ("train", "val") else f"run/{name}"


class Plateau(Callback):
    """Lowers the learning rate when a measurement has not become better for some epochs: optim.ReduceLROnPlateau.

    Args:
        column: of the history; default "val_loss", or "train_loss" where nothing is validated.
        settings: of ReduceLROnPlateau: factor, patience, threshold, ... `mode` is "max" for an accuracy, "min" for a
            loss; for other columns it is to be given.
    Raises:
        ConfigError: a setting is unknown; or, when the run starts, the learning rate has a schedule or a warm-up; or,
            after an epoch, there is no such column.
    """

    def __init__(self, column: str | None = None, **settings: Any) -> None:
        known = [*inspect.signature(ReduceLROnPlateau).parameters][1:]
        for name in settings:
            if name not in known:
                raise ConfigError(message("Plateau", f"there is no setting {name!r}{did_you_mean(name, known)}",
                                          f"use one of {', '.join(known)}"))
        mode = "min" if column is None or column.endswith("loss") else "max" if column.endswith("accuracy") else None
        if mode is None and "mode" not in settings:
            raise ConfigError(message("Plateau", f"column is {shown(column)}, and mode is not given",
                                      'pass mode="min" where less is better, mode="max" where more is'))
        self.column, self.settings = column, {"mode": mode, **settings}
        ReduceLROnPlateau(SGD([zeros((1,))], lr=1.0), **self.settings)      # which looks at the settings
        self.rule: ReduceLROnPlateau | None = None

    def on_start(self, run: Trainer) -> None:
        if any(callable(group["lr"]) for group in run.optimizer.param_groups):
            raise ConfigError(message("Plateau", "lr is a function of the step, which a plateau cannot lower",
                                      "leave schedule and warmup_steps out of fit, and pass lr as a number"))
        self.rule = ReduceLROnPlateau(run.optimizer, **self.settings)

    def on_epoch(self, run: Trainer, row: Row) -> None:
        column = self.column or ("train_loss" if row.get("val_loss") is None else "val_loss")
        if row.get(column) is None:
            there = [name for name in row if row[name] is not None]
            raise ConfigError(message("Plateau", f"the column {column!r} has no value{did_you_mean(column, there)}",
                                      f"use one of {', '.join(there)}; val_ needs val_data"))
        if self.rule is not None:
            self.rule.step(row[column])
