"""LARS: SGD whose steps are as long as their layer, for large batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Decay, Lr, NonNegative
from alpha.core.tensor import Tensor
from alpha.optim.composed import Composed, New, State
from alpha.optim.optimizer import Params


class LARS(Composed):
    """LARS: SGD with momentum whose step is as long as a share of each parameter.

        d = g + weight_decay * w;  r = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)
        m = momentum * m + lr * r * d;  w = w - m;  r is 1 where |w| or |g| is 0, or trust_coefficient is 0
    Args:
        params: see Optimizer. Give biases and norms to a group with trust_coefficient=0 and weight_decay=0.
        lr: number above 0, or a schedule; some 1 to 30 for batches of thousands.
        momentum: in [0, 1).
        weight_decay, trust_coefficient, eps: at least 0.
    Source: You, Gitman and Ginsburg, arXiv 1708.03888.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1.0, momentum: Decay = 0.9, weight_decay: NonNegative = 0.0,
                 trust_coefficient: NonNegative = 1e-3, eps: NonNegative = 1e-8) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay,
                         trust_coefficient=trust_coefficient, eps=eps)

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("m",)

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        decay, trust = group["weight_decay"], group["trust_coefficient"]
        rate, = self.taken(group, lr, step)
        d = g + w * decay if decay else g
        if trust:
            size, length = w.norm(), g.norm()
            both = (size > 0) & (length > 0)
            d = d * ops.where(both, size * trust / ops.where(both, length + size * decay + group["eps"], 1.0), 1.0)
        m = state["m"] * group["momentum"] + d * rate
        return w - m, {"m": m}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        return (lr,)
