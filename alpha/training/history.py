"""What a run has measured, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alpha import optim
from alpha.core.errors import NotFoundError, message
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

    def best(self) -> Row | None:
        """Returns the row with the highest validation accuracy, the later one of equals; None without validation.

        With a moving average it is the accuracy of the average that counts.
        """
        def accuracy(row: Row) -> float | None:
            averaged: float | None = row.get(f"{AVERAGED}val_accuracy")
            return averaged if averaged is not None else row.get("val_accuracy")

        rows = [(found, row["epoch"], row) for row in self.history if (found := accuracy(row)) is not None]
        return max(rows, key=lambda found: found[:2], default=(None, None, None))[2]
