"""Optimizers without a schedule: gradients are taken at a point between the steps and their average.

A model is trained with the weights y and used with the average x: `optimizer.eval()` before, `optimizer.train()` after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Annotated, Any

from alpha import ops
from alpha.core.errors import GraphError, message
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Betas, Lr, NonNegative, Real, Size
from alpha.core.tensor import Tensor
from alpha.optim.composed import Composed, New, State
from alpha.optim.optimizer import Params

Momentum = Annotated[float, Real("a number in (0, 1)", lambda v: 0 < v < 1)]


class _ScheduleFree(Composed):
    """What both share: z makes the steps, x is its average, and parameters hold y = (1 - beta) z + beta x."""

    _at_average = False

    def _beta(self, group: Mapping[str, Any]) -> float:
        raise NotImplementedError

    def _rate(self, group: Mapping[str, Any], lr: float, step: int) -> float:
        warmup = group["warmup_steps"]
        return lr * min(1.0, step / warmup) if warmup else lr

    def slot_shape(self, slot: str, p: Tensor) -> tuple[int, ...]:
        return () if slot == "weight" else p.shape

    def step(self, factor: Tensor | None = None) -> None:
        """Makes the step.  Raises GraphError behind eval(): the gradients would be those of the average."""
        if self._at_average:
            raise GraphError(message(self._name, "the parameters hold the average, behind optimizer.eval()",
                                     "call optimizer.train() before the loss is computed"))
        super().step(factor)

    def _new_state(self, group: Mapping[str, Any], slot: str, p: Tensor) -> Tensor:
        made = super()._new_state(group, slot, p)
        return ops.clone(p.detach().astype(made.dtype)) if slot == "z" else made

    def _moved(self, group: Mapping[str, Any], y: Tensor, d: Tensor, state: State, rate: Any, square: Any) -> New:
        """Returns y and the states after a step along d; square: of the rate, rounded once."""
        beta, z = self._beta(group), state["z"]
        total = state["weight"] + square
        share = square / total
        y = y + (z - y) * share - d * ((1.0 - (1.0 - share) * beta) * rate)
        return y, {"z": z - d * rate, "weight": total}

    def _swap(self, at_average: bool, weight: Callable[[float], float]) -> None:
        if self._at_average is at_average:
            return
        with no_grad():
            for group in self.param_groups:
                part = weight(self._beta(group))
                for name, p in zip(group["names"], group["params"]):
                    if name in self._states:
                        z = self._states[name]["z"]
                        wide = p.detach().astype(z.dtype)
                        p.copy_((wide + (z - wide) * part).astype(p.dtype))
        object.__setattr__(self, "_at_average", at_average)

    def eval(self) -> None:
        """Gives the parameters their average x, to evaluate and to save a model with."""
        self._swap(True, lambda beta: 1 - 1 / beta)

    def train(self) -> None:
        """Gives the parameters y again, of which the next gradients are."""
        self._swap(False, lambda beta: 1 - beta)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state; the parameters, which are saved beside it, have to hold y then.

        Raises GraphError behind eval().
        """
        if self._at_average:
            raise GraphError(message(self._name, "the parameters hold the average, behind optimizer.eval()",
                                     "call optimizer.train() before a state to resume from is saved"))
        return super().state_dict()


class ScheduleFreeSGD(_ScheduleFree):
    """SGD with an average of its steps in the place of a schedule.

        d = g + weight_decay * y;  z = z - r d;  c = r^2 / (sum of r^2 so far);  x = (1 - c) x + c z
        y = (1 - momentum) z + momentum x: the parameters in training;  r = lr * min(1, t / warmup_steps)
    Args:
        lr: number above 0; ten times an SGD's, as a rule. Of a schedule the rates weigh the average, too.
        momentum: in (0, 1): how near to the average gradients are taken.
        weight_decay: at least 0.
        warmup_steps: in which the rate rises.
    Call `eval()` before the model is evaluated or saved, and `train()` before it is trained again. Batch norms have
    moved with y: run some batches in training mode behind eval().
    Source: Defazio et al., arXiv 2405.15682.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1.0, momentum: Momentum = 0.9, weight_decay: NonNegative = 0.0,
                 warmup_steps: Size = 0) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, warmup_steps=warmup_steps)

    def _beta(self, group: Mapping[str, Any]) -> float:
        return float(group["momentum"])

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return "z", "weight"

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        rate, square = self.taken(group, lr, step)
        d = g + w * group["weight_decay"] if group["weight_decay"] else g
        return self._moved(group, w, d, state, rate, square)

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        rate = self._rate(group, lr, step)
        return rate, rate * rate


class ScheduleFreeAdamW(_ScheduleFree):
    """AdamW with an average of its steps in the place of a schedule: see ScheduleFreeSGD.

        v = beta2 v + (1 - beta2) g^2;  d = g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * y
    Args:
        lr: number above 0; one to ten times an AdamW's.
        betas: beta1, in (0, 1), is ScheduleFreeSGD's momentum.
        eps, weight_decay: at least 0.
        warmup_steps: in which the rate rises.
    Source: Defazio et al., arXiv 2405.15682.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 2.5e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-8,
                 weight_decay: NonNegative = 0.0, warmup_steps: Size = 0) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, warmup_steps=warmup_steps)

    def check(self, group: Mapping[str, Any]) -> None:
        Real("a number in (0, 1) for beta1", lambda v: v > 0).take(self._name, "betas", group["betas"][0])

    def _beta(self, group: Mapping[str, Any]) -> float:
        return float(group["betas"][0])

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return "z", "weight", "v"

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        rate, square, inverse_root = self.taken(group, lr, step)
        beta2 = group["betas"][1]
        v = state["v"] * beta2 + g * g * (1 - beta2)
        d = g / (v.sqrt() * inverse_root + group["eps"])
        if group["weight_decay"]:
            d = d + w * group["weight_decay"]
        y, new = self._moved(group, w, d, state, rate, square)
        return y, {**new, "v": v}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        rate = self._rate(group, lr, step)
        return rate, rate * rate, 1 / sqrt(1 - group["betas"][1] ** step)
