"""Adam and its relatives: steps scaled by running moments of the gradient.

In the equations w is a parameter, g its gradient, t the number of the step, from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpha.core.device import HALF_DTYPES
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Betas, Decay, Lr, NonNegative
from alpha.ops.update import rules
from alpha.optim.optimizer import Optimizer, Params


class Adam(Optimizer):
    """Adam.

        d = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * d
        v = beta2 * v + (1 - beta2) * d^2
        w = w - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
    With amsgrad the largest v so far takes the place of v in the last line.
    Args:
        params: see Optimizer.
        lr: number above 0, or a schedule.
        betas: decay rates of the moments, in [0, 1).
        eps, weight_decay: at least 0.
        amsgrad: whether the step size may only fall.
    Raises:
        ConfigError: see Optimizer; or a setting is out of range.
    Source: Kingma and Ba, arXiv 1412.6980; amsgrad: Reddi et al., arXiv 1904.09237.
    """

    rule = rules.ADAM
    decoupled = False

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0, amsgrad: bool = False) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)

    def values(self, group: Mapping[str, Any], lr: float, step: int) -> dict[str, Any]:
        return {**super().values(group, lr, step), "decoupled": self.decoupled}


class AdamW(Adam):
    """Adam with decoupled weight decay: d = g, and the step begins with

        w = w - lr * weight_decay * w
    Args and errors: as Adam.
    Source: Loshchilov and Hutter, arXiv 1711.05101.
    """

    decoupled = True

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 1e-2, amsgrad: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


class Adamax(Optimizer):
    """Adam with the infinity norm.

        d = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * d
        u = max(beta2 * u, |d| + eps)
        w = w - lr / (1 - beta1^t) * m / u
    Args and errors: as Adam.
    Source: Kingma and Ba, arXiv 1412.6980, section 7.1.
    """

    rule = rules.ADAMAX

    @checked
    def __init__(self, params: Params, lr: Lr = 2e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class RAdam(Optimizer):
    """Adam whose adaptive step waits until the variance of its scale is bounded.

        d = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * d
        v = beta2 * v + (1 - beta2) * d^2
        p = 2 / (1 - beta2) - 1,   p_t = p - 2 * t * beta2^t / (1 - beta2^t)
        r = sqrt((p_t - 4) * (p_t - 2) * p / ((p - 4) * (p - 2) * p_t))
        w = w - lr * m / (1 - beta1^t) * (r * sqrt(1 - beta2^t) / (sqrt(v) + eps)  if p_t > 5,  else 1)
    Args and errors: as Adam.
    Source: Liu et al., arXiv 1908.03265.
    """

    rule = rules.RADAM

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def values(self, group: Mapping[str, Any], lr: float, step: int) -> dict[str, Any]:
        return {**super().values(group, lr, step), "decoupled": False}


class AdaMod(Optimizer):
    """Adam whose step sizes are bounded by their own running mean.

        w = w - lr * weight_decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g^2
        q = lr / (sqrt(v / (1 - beta2^t)) + eps)
        s = beta3 * s + (1 - beta3) * q
        w = w - min(q, s) * m / (1 - beta1^t)
    Args:
        params: no 16-bit ones, whose rounding is more than the first steps, of (1 - beta3) * lr.
        beta3: decay rate of the step sizes, in [0, 1).
        others, and errors: as Adam.
    Source: Ding et al., arXiv 1910.12249.
    """

    rule = rules.ADAMOD

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas = (0.9, 0.999), beta3: Decay = 0.999,
                 eps: NonNegative = 1e-8, weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, beta3=beta3, eps=eps, weight_decay=weight_decay)

    def check(self, group: Mapping[str, Any]) -> None:
        for name, p in zip(group["names"], group["params"]):
            if p.dtype in HALF_DTYPES:
                raise ConfigError(message("AdaMod", f"parameter {name} is {p.dtype}, and the first step sizes are 1 - "
                                          f"beta3={group['beta3']} of lr: less than its rounding, so it would not move",
                                          "train float32 parameters, under alpha.precision if need be, or use AdamW"))
