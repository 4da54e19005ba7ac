"""Optimizers whose update is written with ops, tensor by tensor, as it takes norms or products: LAMB; and Lookahead.

In the equations w is a parameter, g its gradient, t the number of the step, from 1.
A subclass of `Composed` states one such update as a function. An update that computes element by element is a rule
instead (alpha.ops.update.rule). If the step of a function is to be recorded (alpha.capture), `numbers` makes what
follows from lr and step, and `formula` takes that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import sqrt
from typing import Any

from alpha import ops
from alpha.core.errors import ArgumentError, CheckpointError, GraphError, message, shown
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.kinds import Betas, Count, Lr, NonNegative, Share
from alpha.core.inputs.schema import check_names, fitted
from alpha.core.tensor import Tensor
from alpha.ops.update import state_dtype
from alpha.optim.optimizer import Optimizer, Params
from alpha.optim.recorded import RATE

State = Mapping[str, Tensor]
New = tuple[Tensor, dict[str, Tensor]]


class Composed(Optimizer):
    """Base of optimizers that compute a new parameter and new states from the old ones, on any device.

    Parameters and gradients of 16 bits come to `formula` as float32, as the states are kept.
    """

    wide_states = True

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        """Returns the new w, and the new tensor of each slot."""
        raise self._undefined("formula")

    def taken(self, group: Mapping[str, Any], lr: float, step: int) -> Sequence[Any]:
        """Returns `numbers`; where the step is recorded as tensors of shape (), which hold others each time."""
        return self.numbers(group, lr, step) if self._recorded is None else self._recorded.unpacked()

    def form(self, group: Mapping[str, Any]) -> Hashable:
        return tuple([value for name, value in group.items() if name not in ("params", "names", "lr")])

    def update(self, group: Mapping[str, Any], params: list[Tensor], grads: list[Tensor], states: Mapping[str, Any],
               lr: float, step: int, factor: Tensor | None) -> None:
        lr = RATE.take(type(self).__name__, "lr", lr)
        takes = None if factor is None else factor > 0     # 0 skips the step: nothing changes then
        for k, (p, g) in enumerate(zip(params, grads)):
            state = {slot: tensors[k].detach() for slot, tensors in states.items()}
            dtype = state_dtype(p.dtype)
            g = g.detach().astype(dtype)
            if factor is not None:
                g = g * factor.astype(dtype)
            w, new = self.formula(group, p.detach().astype(dtype), g, state, lr, step)
            for target, value in ((p, w.astype(p.dtype)), *[(states[slot][k], t) for slot, t in new.items()]):
                target.copy_(value if takes is None else ops.where(takes, value, target.detach()))


class LAMB(Composed):
    """LAMB: Adam's direction, with a length that follows that of each parameter, for large batches.

        m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w
        w = w - lr * (|w| / |r|  where both are above 0,  else 1) * r
    Args: as AdamW.
    Source: You et al., arXiv 1904.00962.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, betas: Betas = (0.9, 0.999), eps: NonNegative = 1e-6,
                 weight_decay: NonNegative = 1e-2) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return "m", "v"

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        beta1, beta2 = group["betas"]
        m, v = state["m"] * beta1 + g * (1 - beta1), state["v"] * beta2 + g * g * (1 - beta2)
        inverse, inverse_root, rate = self.taken(group, lr, step)
        r = m * inverse / (v.sqrt() * inverse_root + group["eps"])
        r = r + w * group["weight_decay"]
        size, length = w.norm(), r.norm()
        both = (size > 0) & (length > 0)
        trust = ops.where(both, size / ops.where(both, length, 1.0), 1.0)
        return w - r * (trust * rate), {"m": m, "v": v}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        beta1, beta2 = group["betas"]
        return 1 / (1 - beta1 ** step), 1 / sqrt(1 - beta2 ** step), lr


def _slow_copy(p: Tensor) -> Tensor:
    """Returns a copy of a parameter, float32 where it has 16 bits: part of a way may be less than their rounding."""
    return ops.clone(p.detach().astype(state_dtype(p.dtype)))


@bound_methods()
class Lookahead:
    """Lets another optimizer take k steps, then goes part of the way: slow = slow + alpha * (w - slow), w = slow.

    Args:
        optimizer: any optimizer of alpha.optim.
        k: steps between two of the slow weights.
        alpha: part of the way, in [0, 1].
    What it does not have itself (param_groups, lr, step_count, ...) is the inner optimizer's.
    Raises:
        ArgumentError: optimizer is none.  ConfigError: k or alpha is out of range.
    Source: Zhang et al., arXiv 1907.08610.
    """

    @checked
    def __init__(self, optimizer: Any, k: Count = 5, alpha: Share = 0.5) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(message("Lookahead", f"optimizer is {shown(optimizer)}, an Optimizer is needed",
                                        "pass Lookahead(optim.SGD(model.parameters(), lr=0.1))"))
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self._slow = {name: _slow_copy(p) for name, p in self._named()}

    def _named(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for group in self.optimizer.param_groups for name, p in zip(group["names"], group["params"])]

    def step(self, factor: Tensor | None = None) -> None:
        """Does the inner optimizer's step, and every k-th time that of the slow weights."""
        if self.optimizer._recorded is not None:
            raise GraphError(message("Lookahead", "its step is not the same each time, so it cannot be recorded",
                                     "call it outside of the captured function"))
        self.optimizer.step(factor)
        if self.optimizer.step_count % self.k == 0:
            with no_grad():
                for name, p in self._named():
                    slow = self._slow.get(name)
                    if slow is None:        # of a group that was added
                        slow = self._slow[name] = _slow_copy(p)
                    slow.copy_(slow + (p.detach().astype(slow.dtype) - slow) * self.alpha)
                    p.copy_(slow.astype(p.dtype))

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state, and the slow weights among its tensors, as "lookahead/<parameter>"."""
        state = self.optimizer.state_dict()
        slow = {f"lookahead/{name}": t.detach() for name, t in self._slow.items()}
        return {"tensors": {**state["tensors"], **slow}, "scalars": state["scalars"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned.  Raises CheckpointError where it does not fit."""
        self.prepare_state_dict(state)()

    def prepare_state_dict(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Looks at what `load_state_dict` is to load, raises what that does, and returns the function that loads it."""
        tensors = state.get("tensors") if isinstance(state, Mapping) else None
        check_names("Lookahead", tensors if isinstance(tensors, Mapping) else {})
        held = {key: t for key, t in (tensors or {}).items() if key.startswith("lookahead/")}
        own = {f"lookahead/{name}": t for name, t in self._slow.items()}
        if {key: tuple(t.shape) for key, t in held.items()} != {key: t.shape for key, t in own.items()}:
            raise CheckpointError(message("Lookahead", f"the state has {len(held)} slow weights, the optimizer "
                                          f"{len(own)}, or they differ in name or shape", "resume with the model and "
                                          "the optimizer that the run was started with"))
        rest = {key: t for key, t in (tensors or {}).items() if key not in held}
        inner = self.optimizer.prepare_state_dict({**state, "tensors": rest})
        ready = fitted("Lookahead", held, own)

        def load() -> None:
            inner()
            with no_grad():
                for key, t in own.items():
                    t.copy_(ready[key])
        return load

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":     # not yet set
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"Lookahead(k={self.k}, alpha={self.alpha}, {self.optimizer!r})"
