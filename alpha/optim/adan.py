"""Adan and LARS: adaptive steps with Nesterov's look ahead, and steps as long as their layer, for large batches."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, Any

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Decay, Lr, Many, NonNegative, Real
from alpha.core.tensor import Tensor
from alpha.optim.composed import Composed, New, State
from alpha.optim.optimizer import Params

Betas3 = Annotated[tuple[float, float, float], Many(Real("", lambda v: 0 <= v < 1), 3, "three numbers in [0, 1)",
                                                    "pass {name}=(0.98, 0.92, 0.99), say")]


class Adan(Composed):
    """Adan: Adam with a momentum of the gradient's own change.

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) (g - g');  g' the gradient before, at first g
        n = beta3 n + (1 - beta3) (g + beta2 (g - g'))^2
        u = (m / (1 - beta1^t) + beta2 v / (1 - beta2^t)) / (sqrt(n / (1 - beta3^t)) + eps)
        w = (w - lr * u) / (1 + lr * weight_decay)
    Args:
        betas: three numbers in [0, 1).
        others: as AdamW.
    Source: Xie et al., arXiv 2208.06677; the betas are those of averages, 1 minus the paper's.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas3 = (0.98, 0.92, 0.99), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return "m", "v", "n", "before"

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        beta1, beta2, beta3 = group["betas"]
        mine, ahead, inverse_root, later, rate, shrink = self.taken(group, lr, step)
        change = (g - state["before"]) * later      # 0 at first
        m = state["m"] * beta1 + g * (1 - beta1)
        v = state["v"] * beta2 + change * (1 - beta2)
        near = g + change * beta2
        n = state["n"] * beta3 + near * near * (1 - beta3)
        u = (m * mine + v * ahead) / (n.sqrt() * inverse_root + group["eps"])
        return (w - u * rate) * shrink, {"m": m, "v": v, "n": n, "before": g}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        beta1, beta2, beta3 = group["betas"]
        return (1 / (1 - beta1 ** step), beta2 / (1 - beta2 ** step), 1 / sqrt(1 - beta3 ** step), float(step > 1), lr,
                1 / (1 + lr * group["weight_decay"]))


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
