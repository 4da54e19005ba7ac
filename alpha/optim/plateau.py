"""A learning rate that follows a measurement, which no function of the step alone can."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from alpha.core.errors import CheckpointError, ConfigError, message
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.kinds import Decay as Factor
from alpha.core.inputs.kinds import NonNegative, PlateauMode, Real, Size, ThresholdMode
from alpha.core.tensor import Tensor
from alpha.optim.optimizer import Optimizer

NUMBER = Real("a number", lambda v: True)
KEYS = ("best", "bad", "cooldown_left")


@bound_methods()
class ReduceLROnPlateau:
    """Multiplies learning rates by `factor` when a measurement has not become better for more than `patience` calls.

    Args:
        optimizer: its groups' lr are numbers, not schedules.
        mode: "min" where less is better (a loss), "max" where more is (an accuracy).
        factor: in [0, 1).
        patience: calls without progress that are waited for.
        threshold, threshold_mode: what counts as progress: to pass best by more than a margin, threshold * |best| for
            "rel", threshold for "abs".
        cooldown: calls after a reduction that do not count.
        min_lr: no learning rate falls below it.
        eps: changes of a learning rate that are not larger are left out.
    Raises:
        ConfigError: a setting is out of range, a group's lr is a schedule, or min_lr and eps leave every lr as it is.

    Differs from PyTorch for negative values in "rel", where a margin of threshold * best would count worse ones.

    `plateau.step(validation_loss)` is called once per epoch, say; `state_dict` and `load_state_dict` continue it.
    """

    @checked
    def __init__(self, optimizer: Optimizer, mode: PlateauMode = "min", factor: Factor = 0.1, patience: Size = 10,
                 threshold: NonNegative = 1e-4, threshold_mode: ThresholdMode = "rel", cooldown: Size = 0,
                 min_lr: NonNegative = 0.0, eps: NonNegative = 1e-8) -> None:
        if any(callable(group["lr"]) for group in optimizer.param_groups):
            raise ConfigError(message("ReduceLROnPlateau", "the lr of a group is a schedule, a function of the step",
                                      "make the optimizer with lr=0.1, say"))
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lr, self.eps = min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.bad = self.cooldown_left = 0
        rates = [group["lr"] for group in optimizer.param_groups]
        if not any(lr - self._lower(lr) > eps for lr in rates):
            raise ConfigError(message("ReduceLROnPlateau", f"min_lr={min_lr} and eps={eps} leave every lr as it is: "
                                      f"{', '.join(map(str, rates))}", "choose a min_lr below the lr, and a smaller "
                                      "eps"))

    def _is_better(self, value: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if math.isinf(self.best):
            return sign * value > sign * self.best
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1.0)
        return sign * value > sign * (self.best + sign * margin)

    def _lower(self, lr: float) -> float:
        return max(lr * self.factor, self.min_lr)

    def step(self, value: Any) -> None:
        """Takes the next measurement: a number, or a tensor of one element.  NaN is no progress."""
        value = NUMBER.take("ReduceLROnPlateau.step", "value", value.item() if isinstance(value, Tensor) else value)
        if self._is_better(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooldown_left > 0:
            self.cooldown_left, self.bad = self.cooldown_left - 1, 0
        if self.bad > self.patience:
            for group in self.optimizer.param_groups:
                lower = self._lower(group["lr"])
                if group["lr"] - lower > self.eps:
                    group["lr"] = lower
            self.cooldown_left, self.bad = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        """Returns what the calls so far have left, and the learning rates of the groups; it can be written as JSON."""
        best = None if math.isinf(self.best) else self.best
        return {"best": best, "bad": self.bad, "cooldown_left": self.cooldown_left,
                "lr": [group["lr"] for group in self.optimizer.param_groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned.  Raises CheckpointError where it does not fit."""
        groups = self.optimizer.param_groups
        lrs = state.get("lr") if isinstance(state, Mapping) else None
        if not isinstance(state, Mapping) or set(state) != {*KEYS, "lr"} or not isinstance(lrs, list) \
                or len(lrs) != len(groups):
            raise CheckpointError(message("ReduceLROnPlateau", f"the state is not that of {len(groups)} groups",
                                          "pass what state_dict() returned"))
        best = state["best"]
        self.best = (math.inf if self.mode == "min" else -math.inf) if best is None else float(best)
        self.bad, self.cooldown_left = int(state["bad"]), int(state["cooldown_left"])
        for group, lr in zip(groups, lrs):
            group["lr"] = float(lr)
