"""The average of the weights that a run validates and saves beside them: a moving one, or that of its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alpha import ops, optim
from alpha.core.errors import ConfigError, message
from alpha.core.graph import no_grad
from alpha.core.tensor import Tensor
from alpha.nn import Module


class ScheduleFreeAverage(optim.ExponentialMovingAverage):
    """The average that a schedule-free optimizer makes its steps around, with the methods of a moving one.

    The parameters keep their bits: they are the optimizer's point y in training, before and behind each use.
    Args:
        model: what the optimizer trains; of its buffers the present values go with the average.
        optimizer: its `eval` gives the parameters the average.
    """

    def __init__(self, model: Module, optimizer: Any) -> None:
        super().__init__(model, 0.0)
        self.optimizer = optimizer

    def update(self) -> None:
        """Does nothing: the optimizer's step has moved its average."""

    def _take(self) -> None:
        with no_grad():
            before = [(p, ops.clone(p.detach())) for p in self._params.values()]
            self.optimizer.eval()
            super().update()    # with a decay of 0: a copy
            self.optimizer.train()
            for p, value in before:
                p.copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """For a block: the model computes with the average, rounded to the dtypes of its parameters."""
        self._take()
        with super().applied():
            yield

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the average by the names of the parameters and buffers."""
        self._take()
        return super().state_dict()


def averages_itself(optimizer: Any) -> bool:
    """Tells whether an optimizer, or its class, keeps an average of the weights: it has `eval` and `train`."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


def average_of(model: Module, optimizer: Any, decay: float) -> optim.ExponentialMovingAverage | None:
    """Returns the average of a run's weights, or None.

    Args:
        decay: of a moving average; 0: none.
    Raises:
        ConfigError: a decay is given, and the optimizer keeps an average itself.
    """
    check_average(optimizer, type(optimizer).__name__, decay)
    if averages_itself(optimizer):
        return ScheduleFreeAverage(model, optimizer)
    return optim.ExponentialMovingAverage(model, decay) if decay else None


def check_average(optimizer: Any, name: str, decay: float) -> None:
    """Raises ConfigError for a moving average beside an optimizer, or a class of them, that keeps one itself."""
    if decay and averages_itself(optimizer):
        raise ConfigError(message("ema", f"it is {decay:g} beside the optimizer {name}, which keeps an average of the "
                                  "weights itself", "leave ema out: the columns ema_val_* are of that average"))
