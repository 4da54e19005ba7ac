"""The average of the weights that a run validates and saves beside them: a moving one, SWA, or its optimizer's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from alpha import ops, optim
from alpha.core.errors import ConfigError, message
from alpha.core.graph import no_grad
from alpha.core.tensor import Tensor
from alpha.nn import Module
from alpha.nn.module import evaluating


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


class EpochAverage(optim.ExponentialMovingAverage):
    """The mean of the weights behind each epoch of the last part of a run (SWA); before it, the weights themselves.

    Args:
        model: its parameters are averaged.
        start: epochs before those that are averaged.
    Source: Izmailov et al., arXiv 1803.05407.
    """

    def __init__(self, model: Module, start: int) -> None:
        super().__init__(model, 0.0)
        self.model, self.start = model, start

    def update(self) -> None:
        """Does nothing: epochs are averaged, not steps."""

    @contextmanager
    def taken(self, epoch: int, whole: bool, batches: Iterable[Any]) -> Iterator[None]:
        """Takes the weights of the model into the mean, and makes the statistics of its batch norms anew for it.

        An error in the block undoes it: a run that is stopped there is gone on with from before.
        Args:
            epoch: number of the epoch that has ended, from 0 on.
            whole: whether all of its steps were made; of another one, which may be gone on with, nothing is taken.
            batches: (x, y) of the training data, of which the statistics are made.
        """
        count = max(epoch - self.start, 0)
        before = {name: ops.clone(t) for name, t in self._averages.items()} if count else {}
        try:
            if whole or not count:
                self.decay = count / (count + 1)
                super().update()
                if count:
                    self._statistics(batches)
            yield
        except BaseException:
            with no_grad():
                for name, t in before.items():
                    self._averages[name].copy_(t)
            raise

    def _statistics(self, batches: Iterable[Any]) -> None:
        norms: list[Any] = [m for m in self.model.modules()
                            if m.training and getattr(m, "running_mean", None) is not None]
        if not norms:
            return
        momenta = [m.momentum for m in norms]
        with self.applied(), evaluating(self.model), no_grad():
            try:
                for m in norms:
                    m.train()
                for k, (x, _) in enumerate(batches):
                    for m in norms:
                        m.momentum = 1 / (k + 1)    # the mean of all batches
                    self.model(x)
            finally:
                for m, momentum in zip(norms, momenta):
                    m.momentum = momentum


def averages_itself(optimizer: Any) -> bool:
    """Tells whether an optimizer, or its class, keeps an average of the weights: it has `eval` and `train`."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


def average_of(model: Module, optimizer: Any, decay: float, swa: float, epochs: int
               ) -> optim.ExponentialMovingAverage | None:
    """Returns the average of a run's weights, or None.

    Args:
        decay: of a moving average; 0: none.
        swa: share of the epochs before those whose weights are averaged; 0: none.
        epochs: of the run.
    Raises:
        ConfigError: two averages are asked for, or swa is no share.
    """
    check_average(optimizer, type(optimizer).__name__, decay, swa)
    if averages_itself(optimizer):
        return ScheduleFreeAverage(model, optimizer)
    if swa:
        return EpochAverage(model, math.floor(swa * epochs))
    return optim.ExponentialMovingAverage(model, decay) if decay else None


def check_average(optimizer: Any, name: str, decay: float, swa: float) -> None:
    """Raises ConfigError for two averages, one of them an optimizer's or of a class of optimizers, or a bad share."""
    if not 0 <= swa < 1:
        raise ConfigError(message("swa", f"it is {swa}, a share of the epochs in [0, 1) is needed", "pass swa=0.75"))
    if decay and swa:
        raise ConfigError(message("swa", f"it is {swa:g} beside ema {decay:g}: both are averages of the weights",
                                  "leave one of them out"))
    for setting, value in (("ema", decay), ("swa", swa)):
        if value and averages_itself(optimizer):
            raise ConfigError(message(setting, f"it is {value:g} beside the optimizer {name}, which keeps an average "
                                      f"of the weights itself", f"leave {setting} out: the columns ema_val_* are of "
                                      "that average"))
