"""Callbacks that show what happens: a profile of some steps, curves in TensorBoard.

    fit(model, data, callbacks=[Profile("profile", steps=5), TensorBoard("runs/mine")])
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from alpha.errors import ArgumentError, ConfigError, message
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Count, Kind, Refused
from alpha.profiler import Profiler
from alpha.tensor import Tensor
from alpha.training.trainer import Callback, Row, Trainer

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
        steps: how many steps are profiled.
        after: how many go before; fewer where the first epoch ends.
    """

    @checked
    def __init__(self, folder: Folder, steps: Count = 5, after: int = WARM_UP) -> None:
        self.folder, self.steps, self.after = folder, steps, max(after, 0)
        self.profiler: Profiler | None = None
        self.seen = 0

    def on_start(self, run: Trainer) -> None:
        if self.after == 0:
            self._begin()

    def on_step(self, run: Trainer, loss: Tensor) -> None:
        self.seen += 1
        if self.seen == self.after + self.steps:
            self.close()
        elif self.seen == self.after:
            self._begin()

    def on_epoch(self, run: Trainer, row: Row) -> None:
        self.close()

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
    """Writes what is measured for TensorBoard, by its own library: tensorboard --logdir FOLDER shows it.

    Args:
        folder: where the events go; one per run.
        every: steps between two losses that are written beside those of the epochs; 0: none.
    Raises:
        ConfigError: the library is not installed.
    """

    @checked
    def __init__(self, folder: Folder, every: int = 16) -> None:
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
    """Returns what TensorBoard calls a column: curves of one kind stand in one picture."""
    part, _, what = name.partition("_")
    return f"{what}/{part}" if part in ("train", "val") else f"run/{name}"
