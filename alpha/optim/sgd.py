"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Decay, Lr, NonNegative
from alpha.ops.update import rules
from alpha.optim.optimizer import Optimizer, Params


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum.

        d = g + weight_decay * w                    (w: parameter, g: its gradient)
        v = momentum * v + (1 - dampening) * d      (v = d in the first step)
        w = w - lr * (d + momentum * v  if nesterov,  else v)
    Without momentum w = w - lr * d.
    Args:
        params: see Optimizer.
        lr: number above 0, or a schedule.
        momentum, dampening: in [0, 1); dampening needs momentum.
        weight_decay: at least 0.
        nesterov: look ahead; needs momentum, and no dampening.
    Raises:
        ConfigError: see Optimizer; or nesterov without momentum or with dampening, or dampening without momentum.
    """

    rule, former = rules.SGD, {"momentum": "v"}

    @checked
    def __init__(self, params: Params, lr: Lr, momentum: Decay = 0.0, dampening: Decay = 0.0,
                 weight_decay: NonNegative = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                         nesterov=nesterov)

    def check(self, group: Mapping[str, Any]) -> None:
        if group["dampening"] and not group["momentum"] and not group["nesterov"]:
            raise ConfigError(message("SGD", f"dampening={group['dampening']} with momentum={group['momentum']}: it "
                                      "damps the momentum, so it has no effect", "pass momentum=0.9, say, or leave out "
                                      "dampening"))
        if group["nesterov"] and (group["momentum"] == 0.0 or group["dampening"] != 0.0):
            raise ConfigError(message("SGD", f"nesterov with momentum={group['momentum']}, "
                                      f"dampening={group['dampening']}",
                                      "nesterov needs a momentum above 0 and dampening=0"))

    def values(self, group: Mapping[str, Any], lr: float, step: int) -> dict[str, Any]:
        return {**super().values(group, lr, step), "first": step == 1}
