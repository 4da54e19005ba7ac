"""Whether an optimizer changes the model that is trained: it may hold other parameters, or change none."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.core import versions
from alpha.core.errors import ConfigError, message
from alpha.core.tensor import Tensor
from alpha.nn import Module
from alpha.optim import Optimizer

PATIENCE = 16       # steps that an optimizer with a `step` of its own may take to change the first parameter
LOOKED_AT = 4096    # elements of a parameter that are compared


def check_parameters(optimizer: Any, model: Module, loss: Any) -> None:
    """Raises ConfigError where an optimizer has parameters that are neither the model's nor a loss module's."""
    own = {id(p): name for part in (model, loss) if isinstance(part, Module) for name, p in part.named_parameters()}
    held = [(str(name), p) for group in optimizer.param_groups
            for name, p in zip(group.get("names") or map(str, range(len(group["params"]))), group["params"])]
    foreign = [(name, p) for name, p in held if id(p) not in own]
    if not foreign:
        return
    kind, ids = type(optimizer).__name__, {id(p) for _, p in held}
    if len(foreign) == len(held):
        raise ConfigError(message("fit", f"the {kind} has none of the model's {len(own)} parameters",
                                  "make it of them, once the model has all of its layers: model.parameters()"))
    name, p = foreign[0]
    missing = [name for k, name in own.items() if k not in ids]
    raise ConfigError(message("fit", f"the {kind} has {name} of shape {p.shape}, which the model does not have (any "
                              f"more){f', and lacks {missing[0]} of the model' if missing else ''}",
                              "make the optimizer once the model has all of its layers; a loss with parameters of its "
                              "own is an nn.Module", foreign=len(foreign)))


class FirstSteps:
    """The first steps of an optimizer that the user has written, until one of them has changed the model."""

    def __init__(self, optimizer: Any, model: Module, patience: int) -> None:
        self.optimizer, self.patience, self.steps = optimizer, patience, 0
        self.held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.before = [(p, p.array, versions.version(p.device, p.array), _some(p)) for p in model.parameters()
                       if id(p) in self.held]

    @staticmethod
    def of(optimizer: Any, model: Module) -> FirstSteps | None:
        """Returns them, or None where every step is made by a method of alpha."""
        kinds = type(optimizer).__mro__

        def is_own(name: str) -> bool:
            kind = next((kind for kind in kinds if name in vars(kind)), None)
            return kind is not None and not kind.__module__.startswith("alpha.")

        if not any(map(is_own, ("step", "update", "formula"))):
            return None
        return FirstSteps(optimizer, model, PATIENCE if is_own("step") or not isinstance(optimizer, Optimizer) else 1)

    def is_over(self) -> bool:
        """Tells, after a step, whether a parameter has been changed.  Raises ConfigError where none ever is."""
        if any(id(p) not in self.held for group in self.optimizer.param_groups for p in group["params"]):
            self._refuse("has put new tensors into its groups, which the model does not have")
        if any(t.array is not array or versions.version(t.device, t.array) != version or not _same(_some(t), some)
               for t, array, version, some in self.before):
            return True
        if _lr(self.optimizer):
            self.steps += 1
        if self.steps >= self.patience:
            self._refuse("has changed no parameter of the model")
        return False

    def epoch_ends(self) -> None:
        """Raises ConfigError where the steps of an epoch have changed nothing."""
        if self.steps:
            self._refuse("has changed no parameter of the model")

    def _refuse(self, what: str) -> None:
        steps = f"{self.steps} steps" if self.steps > 1 else "a step"
        raise ConfigError(message(type(self.optimizer).__name__, f"{steps} of it {what}", "change them in place, "
                                  "p.copy_(p - lr * p.grad); p = p - lr * p.grad makes a new tensor, which nobody "
                                  "reads"))


def _some(t: Tensor) -> np.ndarray | None:
    """Returns some elements of a tensor on the host itself: code of the user's may have written them past alpha."""
    return t.array.reshape(-1)[:LOOKED_AT].copy() if t.device == "cpu" else None


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is None or b is None or np.array_equal(a, b, equal_nan=True)


def _lr(optimizer: Any) -> float:
    """Returns the learning rate of the step that was made last; an optimizer that has none counts as one with 1."""
    lr = optimizer.param_groups[0].get("lr", 1.0)
    return float(lr(max(getattr(optimizer, "step_count", 1) - 1, 0)) if callable(lr) else lr)
