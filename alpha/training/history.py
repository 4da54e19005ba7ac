"""The figures that a run has measured, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alpha import optim
from alpha.core.errors import ConfigError, NotFoundError, message, shown
from alpha.core.inputs.registry import did_you_mean

Row = Mapping[str, Any]  # one epoch: a value per column; val_* are None without validation data
AVERAGED = "ema_"        # in front of the columns that are of the moving average of the weights


class History(Sequence[Row]):
    """The rows of a run, one per epoch; `history["val_loss"]` is a column of them.

    train_* is of the steps of the epoch, val_* of the weights behind it, which the model has at the end; ema_val_* of
    their moving average.
    Attributes:
        ema: the alpha.optim.ExponentialMovingAverage of a run with one, else None: `with history.ema.applied(): ...`
            computes with the averages, `model.load_state_dict(history.ema.state_dict())` takes them for good.
    """

    def __init__(self, rows: Iterable[Row], ema: optim.ExponentialMovingAverage | None = None) -> None:
        self.rows = list(rows)
        self.ema = ema

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.rows[key]
        if self.rows and key not in self.rows[0]:
            raise NotFoundError(message("History", f"there is no column {key!r}{did_you_mean(key, self.rows[0])}",
                                        f"use one of {', '.join(self.rows[0])}"))
        return [row[key] for row in self.rows]

    def __repr__(self) -> str:
        names = [name for name in ("epoch", "step", *(self.rows[0] if self.rows else ())) if self.rows]
        names = [n for n in dict.fromkeys(names) if any(row.get(n) is not None for row in self.rows)]
        lines = [names, *([f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in names]
                          for row in self.rows)]
        widths = [max(len(line[k]) for line in lines) for k in range(len(names))]
        return "\n".join("  ".join(text.rjust(w) for text, w in zip(line, widths)) for line in lines)


@dataclass
class Progress:
    """How far a run has come.

    Args:
        epoch: epochs finished.
        step: updates of the weights so far.
        loss_sum, sums, images, seconds: of the training steps in the present epoch: sum of the losses per sample, sums
            of the metrics, samples seen, duration.
        history: a row per epoch; the last one may be of an epoch that the largest number of steps cut short.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    images: int = 0
    seconds: float = 0.0
    history: list[Row] = field(default_factory=list)

    def close_epoch(self, row: Row, whole: bool) -> None:
        """Records the row of the present epoch, and goes on to the next one if its samples were all seen."""
        self.history = [*self.history[:self.epoch], row]
        if whole:
            self.epoch += 1
            self.loss_sum, self.sums, self.images, self.seconds = 0.0, {}, 0, 0.0

    def best(self, metric: str | None = None, mode: str | None = None) -> Row | None:
        """Returns the row that is best by a column; see `best_of`."""
        return best_of(self.history, metric, mode)


def best_of(rows: Sequence[Row], metric: str | None = None, mode: str | None = None) -> Row | None:
    """Returns the row that is best by a column, the later one of equals; None where no row has a value there.

    Args:
        metric: the column; default the validation accuracy, or the validation loss where there is no accuracy. Of both
            the moving average's counts, where there is one.
        mode: "max" where more is better, "min" where less is; default as the column's name says.
    """
    sign = 1.0 if mode_of(metric or default_metric(rows), mode) == "max" else -1.0
    found = [(sign * value, row["epoch"], row) for row in rows if (value := measured(row, metric)) is not None]
    return max(found, key=lambda found: found[:2], default=(None, None, None))[2]


def columns_of(metrics: Iterable[str], validated: bool, averaged: bool) -> list[str]:
    """Returns the columns of a history that say how good an epoch was.

    Args:
        metrics: names of the figures beside the loss.
        validated, averaged: whether there are validation data, and a moving average.
    """
    parts = ["train_", *(["val_"] * validated), *([f"{AVERAGED}val_"] * (validated and averaged))]
    return [part + name for part in parts for name in ("loss", *metrics)]


def default_metric(rows: Sequence[Row]) -> str:
    """Returns the column by which an epoch is the best, if none is given."""
    return "val_loss" if rows and "val_accuracy" not in rows[-1] else "val_accuracy"


def measured(row: Row, metric: str | None) -> float | None:
    """Returns the number of a row by which it is good or bad; None where nothing was measured."""
    name = metric or default_metric([row])
    averaged: float | None = row.get(f"{AVERAGED}{name}") if metric is None else None
    return averaged if averaged is not None else row.get(name)


def mode_of(metric: str, mode: str | None) -> str:
    """Returns "min" or "max".  Raises ConfigError where it is neither given nor told by the name of the column."""
    if mode in ("min", "max"):
        return str(mode)
    if mode is None and metric.endswith(("loss", "accuracy")):
        return "min" if metric.endswith("loss") else "max"
    what = f"mode is {shown(mode)}" if mode is not None else f"metric is {metric!r}, and mode is not given"
    raise ConfigError(message("metric", what, 'pass mode="min" where less is better, mode="max" where more is'))
