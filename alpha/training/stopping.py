"""EarlyStopping: a run ends when a measurement has not become better for some epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, NonNegative
from alpha.core.inputs.registry import did_you_mean
from alpha.training.callback import Callback
from alpha.training.history import AVERAGED, Row, default_metric, measured, mode_of

if TYPE_CHECKING:
    from alpha.training.trainer import Trainer


class EarlyStopping(Callback):
    """Ends a run when a column of its history has not become better for `patience` epochs.

    It looks at the history alone, so a run that is continued ends where it would have ended.
    Args:
        patience: epochs without an improvement after which the run ends.
        metric: the column; default val_accuracy, or val_loss where there is no accuracy. Of both the moving
            average's counts, where there is one.
        mode: "max" where more is better, "min" where less is; default as the column's name says.
        min_delta: by how much a better value must differ.
    Raises:
        ConfigError: mode is neither given nor told by the name; or, after an epoch, the column has no value.
    """

    @checked
    def __init__(self, patience: Count, metric: str | None = None, mode: str | None = None,
                 min_delta: NonNegative = 0.0) -> None:
        mode_of(metric or "val_accuracy", mode)
        self.patience, self.metric, self.mode, self.min_delta = patience, metric, mode, min_delta

    def on_start(self, run: Trainer) -> None:
        self._look(run, run.progress.history)

    def on_epoch(self, run: Trainer, row: Row) -> None:
        if measured(row, self.metric) is None:
            there = [name for name in row if row[name] is not None]
            name = self.metric or default_metric([row])
            raise ConfigError(message("EarlyStopping", f"the column {name!r} has no value{did_you_mean(name, there)}",
                                      f"use one of {', '.join(there)}; val_ needs val_data"))
        self._look(run, run.progress.history)

    def _look(self, run: Trainer, rows: Sequence[Row]) -> None:
        best, since, name = None, 0, self.metric or default_metric(rows)
        sign = 1.0 if mode_of(name, self.mode) == "max" else -1.0
        for k, row in enumerate(rows):
            value = measured(row, self.metric)
            if value is not None and (best is None or sign * (value - best) > self.min_delta):
                best, since = value, k
        if rows and len(rows) - 1 - since >= self.patience:
            if self.metric is None and rows[-1].get(f"{AVERAGED}{name}") is not None:
                name = f"{AVERAGED}{name}"
            run.stop(f"{name} has not become better for {self.patience} epochs, since epoch {rows[since]['epoch']}")
