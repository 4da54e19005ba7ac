"""find_lr: the learning rates at which a model learns, tried on a few steps before a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import numpy as np

from alpha import optim, random
from alpha.core.config import config
from alpha.core.errors import ArgumentError, ConfigError, DataError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Positive
from alpha.core.precision import MODES
from alpha.core.precision import precision as in_precision
from alpha.nn import Module
from alpha.nn.module import modes_kept
from alpha.training import settings as of_settings
from alpha.training.registries import find_loss, make_optimizer
from alpha.training.trainer import Trainer

SMOOTH = 0.9        # of the running mean of the losses
GROWN = 4.0         # times the least loss, at which the search ends


class Rates(Sequence[tuple[float, float]]):
    """Learning rates and the loss at each, smoothed; `rates.suggestion` is a rate to begin with.

    Attributes:
        lrs, losses: of each step, rising rates.  Shape (N,), float64.
        suggestion: where the loss falls fastest, a number.
    """

    def __init__(self, lrs: Sequence[float], losses: Sequence[float]) -> None:
        self.lrs, self.losses = np.array(lrs), np.array(losses)
        end = max(3, int(self.losses.argmin()) + 1)     # behind the least loss it rises again
        reach = max(1, end // 8)        # steps to both sides: the first losses have hardly been averaged
        falls = self.losses[2 * reach:end] - self.losses[:end - 2 * reach]
        self.suggestion = float(self.lrs[reach + int(falls.argmin())])

    def __len__(self) -> int:
        return len(self.lrs)

    def __getitem__(self, k: Any) -> Any:
        return (self.lrs[k], self.losses[k]) if isinstance(k, slice) else (float(self.lrs[k]), float(self.losses[k]))

    def __repr__(self) -> str:
        return f"<{len(self)} rates from {self.lrs[0]:.2g} to {self.lrs[-1]:.2g}, suggestion {self.suggestion:.2g}>"


@checked
def find_lr(model: Module, train_data: Any, *, optimizer: Any = "sgd", loss: Any = "cross_entropy",
            low: Positive = 1e-6, high: Positive = 10.0, steps: Count = 100, precision: str | None = None,
            batch_size: Count | None = None, **settings: Any) -> Rates:
    """Trains with a learning rate that rises from step to step, and returns the losses; the model is as it was then.

        fit(model, data, lr=find_lr(model, data).suggestion)

    It ends before `steps` where the loss has grown to four times the least one, or is not finite.
    Args:
        model, train_data, optimizer, loss, precision, batch_size: as of `fit`; optimizer is a name, a class or a
            function.
        low, high: the first and the last rate; between them each is the same factor above the one before.
        steps: how many rates.
        settings: more of the optimizer, momentum or weight_decay say.
    Raises:
        ArgumentError: optimizer is made already, it would keep its states.
        ConfigError: high is not above low, steps is below 3, or a name is unknown.
        DataError: fewer than three steps could be made: the loss was not finite.
    Source: L. N. Smith, "Cyclical learning rates for training neural networks", arXiv 1506.01186, section 3.3.
    """
    if isinstance(optimizer, optim.Optimizer):
        raise ArgumentError(message("find_lr", f"optimizer is {shown(optimizer)}, which is made already",
                                    "pass its name or its class, and its settings by name"))
    if not low < high or steps < 3:
        raise ConfigError(message("find_lr", f"low={low:g}, high={high:g}, steps={steps}: at least 3 rising rates are "
                                  "needed", "leave them out, or pass low=1e-6, high=1, steps=100"))
    place = next((p.device for p in model.parameters()), "cpu")
    batches, _ = of_settings.loaders(train_data, None, {"batch_size": batch_size}, {}, place)
    lrs = np.geomspace(low, high, steps)
    made = make_optimizer("find_lr", optimizer, model.named_parameters(), lambda t: float(lrs[min(t, steps - 1)]),
                          **settings)
    numbers = precision or config.precision
    run = Trainer(model, made, find_loss("find_lr", loss), {}, epochs=steps, steps_per_epoch=len(batches),
                  scaler=optim.LossScaler(place) if numbers in MODES and MODES[numbers].scales_loss else None)
    before, state = {name: t.detach().clone() for name, t in model.state_dict().items()}, random.get_state()
    try:
        with in_precision(precision) if precision else nullcontext(), modes_kept(model):
            if not any(m.training for m in model.modules()):
                model.train()
            found = _tried(run, batches, steps)
    finally:
        model.load_state_dict(before)
        random.set_state(*state)
        made.zero_grad()
        if batches is not train_data and hasattr(batches, "close"):
            batches.close()
    if len(found) < 3:
        raise DataError(message("find_lr", f"the loss is not finite after {len(found)} steps, from lr={low:g} on",
                                "lower low; or look at the data: NaN among them, or std far too small"))
    return Rates(lrs[:len(found)].tolist(), found)


def _tried(run: Trainer, batches: Any, steps: int) -> list[float]:
    """Returns the smoothed loss of each step, until it grows."""
    found: list[float] = []
    mean = 0.0
    for epoch in count():
        for x, y in batches.batches(epoch) if hasattr(batches, "batches") else batches:
            value = float(run.step(x, y)[0].item())
            mean = SMOOTH * mean + (1 - SMOOTH) * value
            smooth = mean / (1 - SMOOTH ** (len(found) + 1))
            if not math.isfinite(value) or (found and smooth > GROWN * min(found)):
                return found
            found.append(smooth)
            if len(found) == steps:
                return found
    return found
