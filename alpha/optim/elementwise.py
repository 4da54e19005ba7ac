"""Optimizers with a rule of their own, beside Adam's relatives: Lion, NAdam, Adagrad, Adadelta, Adan.

In the equations w is a parameter, g its gradient, t the number of the step, from 1, and d = g + weight_decay * w.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Betas, Decay, Lr, Many, NonNegative, Real
from alpha.ops.update import rules
from alpha.optim.optimizer import Optimizer, Params

Betas3 = Annotated[tuple[float, float, float], Many(Real("", lambda v: 0 <= v < 1), 3, "three numbers in [0, 1)",
                                                    "pass {name}=(0.98, 0.92, 0.99), say")]


class Lion(Optimizer):
    """Lion: the sign of a momentum, with decoupled weight decay.

        w = w - lr * weight_decay * w - lr * sign(beta1 * m + (1 - beta1) * g)
        m = beta2 * m + (1 - beta2) * g
    Args:
        params: see Optimizer.
        lr: number above 0, or a schedule; some 3 to 10 times less than AdamW's.
        betas: in [0, 1).
        weight_decay: at least 0; some 3 to 10 times more than AdamW's.
    Source: Chen et al., arXiv 2302.06675.
    """

    rule = rules.LION

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-4, betas: Betas = (0.9, 0.99), weight_decay: NonNegative = 0.0
                 ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay)


class NAdam(Optimizer):
    """Adam with Nesterov momentum, whose decay rises with the steps.

        u_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2),  U_t = u_1 * ... * u_t
        m = beta1 * m + (1 - beta1) * d;  v = beta2 * v + (1 - beta2) * d^2
        w = w - lr * ((1 - u_t) / (1 - U_t) * d + u_(t+1) / (1 - U_(t+1)) * m) / (sqrt(v / (1 - beta2^t)) + eps)
    Args:
        momentum_decay: see above.
        others: as Adam.
    Source: Dozat, "Incorporating Nesterov momentum into Adam", 2016.
    """

    rule = rules.NADAM

    @checked
    def __init__(self, params: Params, lr: Lr = 2e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0, momentum_decay: NonNegative = 4e-3) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        self._products: dict[tuple[float, float], list[float]] = {}

    @staticmethod
    def _momentum(beta1: float, decay: float, step: int) -> float:
        """Returns mu of a step."""
        return beta1 * (1 - 0.5 * 0.96 ** (step * decay))

    def _products_of(self, beta1: float, decay: float, step: int) -> list[float]:
        """Returns U_0, U_1, ... up to step + 1 at least: products of mu."""
        known = self._products.setdefault((beta1, decay), [1.0])
        while len(known) < step + 2:
            known.append(known[-1] * self._momentum(beta1, decay, len(known)))
        return known

    def values(self, group: Mapping[str, Any], lr: float, step: int) -> dict[str, Any]:
        beta1, decay = group["betas"][0], group["momentum_decay"]
        products = self._products_of(beta1, decay, step)
        return {**super().values(group, lr, step), "u_t": self._momentum(beta1, decay, step), "U_t": products[step],
                "u_next": self._momentum(beta1, decay, step + 1), "U_next": products[step + 1]}


class Adagrad(Optimizer):
    """Adagrad: steps scaled by all gradients so far.

        s = s + d^2;  w = w - lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps)
    Args:
        lr_decay, weight_decay, eps: at least 0.
        initial_accumulator_value: what s starts with, at least 0.
        others: see Optimizer.
    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 12, 2011.
    """

    rule = rules.ADAGRAD

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-2, lr_decay: NonNegative = 0.0, weight_decay: NonNegative = 0.0,
                 initial_accumulator_value: NonNegative = 0.0, eps: NonNegative = 1e-10) -> None:
        super().__init__(params, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
                         initial_accumulator_value=initial_accumulator_value, eps=eps)

    def start(self, group: Mapping[str, Any], slot: str) -> float:
        value: float = group["initial_accumulator_value"]
        return value


class Adadelta(Optimizer):
    """Adadelta: steps scaled by their own size.

        v = rho * v + (1 - rho) * d^2;  q = sqrt(u + eps) / sqrt(v + eps) * d
        u = rho * u + (1 - rho) * q^2;  w = w - lr * q
    Args:
        rho: in [0, 1).
        others: see Optimizer.
    Source: Zeiler, arXiv 1212.5701.
    """

    rule = rules.ADADELTA

    @checked
    def __init__(self, params: Params, lr: Lr = 1.0, rho: Decay = 0.9, eps: NonNegative = 1e-6,
                 weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)


class Adan(Optimizer):
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

    rule = rules.ADAN

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas3 = (0.98, 0.92, 0.99), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
