"""RMSprop."""

from __future__ import annotations

from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Decay, Lr, NonNegative
from alpha.ops.update import rules
from alpha.optim.optimizer import Optimizer, Params


class RMSprop(Optimizer):
    """Steps scaled by the running root mean square of the gradient.

        d = g + weight_decay * w                          (w: parameter, g: its gradient)
        v = alpha * v + (1 - alpha) * d^2
        a = alpha * a + (1 - alpha) * d                   (centered only)
        q = d / (sqrt(v) + eps),  or  d / (sqrt(max(v - a^2, 0)) + eps)  if centered
        b = momentum * b + q                              (with momentum only)
        w = w - lr * q,  or  w - lr * b  with momentum
    Args:
        params: see Optimizer.
        lr: number above 0, or a schedule.
        alpha: decay rate of v and a, in [0, 1).
        eps, weight_decay: at least 0.
        momentum: in [0, 1).
        centered: whether v is made a variance.
    Raises:
        ConfigError: see Optimizer; or a setting is out of range.
    Source: Tieleman and Hinton, "Neural networks for machine learning", lecture 6.5, 2012.
    """

    rule = rules.RMSPROP

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-2, alpha: Decay = 0.99, eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0, momentum: Decay = 0.0, centered: bool = False) -> None:
        super().__init__(params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
                         centered=centered)
