"""SAM: the gradient of the worst point nearby, which takes a second pass, then the step of any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from alpha import ops
from alpha.core.errors import ArgumentError, GraphError, message, shown
from alpha.core.graph import enable_grad, no_grad
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.kinds import Positive
from alpha.core.tensor import Tensor
from alpha.ops.update import state_dtype
from alpha.optim.optimizer import Optimizer


@bound_methods()
class SAM:
    """Lets another optimizer step by the gradient at w + rho * g / |g|, where the loss is near its worst nearby.

        loss.backward();  sam.first_step();  loss_of(model).backward();  sam.second_step()
    or `sam.step(closure)` behind loss.backward(), closure computing the loss again and calling backward.
    Args:
        optimizer: any optimizer of alpha.optim, which makes the step.
        rho: how far the other point is.
        adaptive: whether each weight moves in proportion to its own size: g * w^2 / |g * w|.
    What it does not have itself (param_groups, lr, step_count, ...) is the inner optimizer's. Batch norms see both
    passes.
    Raises:
        ArgumentError: optimizer is none.  ConfigError: rho is out of range.
    Source: Foret et al., arXiv 2010.01412; adaptive: Kwon et al., arXiv 2102.11600.
    """

    @checked
    def __init__(self, optimizer: Any, rho: Positive = 0.05, adaptive: bool = False) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(message("SAM", f"optimizer is {shown(optimizer)}, an Optimizer is needed",
                                        "pass SAM(optim.SGD(model.parameters(), lr=0.1))"))
        self.optimizer, self.rho, self.adaptive = optimizer, rho, adaptive
        self._before: list[tuple[Tensor, Tensor]] = []

    def _moving(self) -> list[tuple[Tensor, Tensor]]:
        return [(p, p.grad.detach()) for group in self.optimizer.param_groups for p in group["params"]
                if p.grad is not None]

    def first_step(self) -> None:
        """Moves the parameters to the worst point nearby, and drops their gradients.

        Raises GraphError: there are no gradients, or the first step has been made already.
        """
        moving = self._moving()
        if self._before or not moving:
            raise GraphError(message("SAM", "the first step has been made already" if self._before else
                                     "no parameter has a gradient", "call loss.backward(), first_step(), backward() of "
                                     "the loss computed again, second_step()"))
        with no_grad():
            ways = [(p, g.astype(state_dtype(p.dtype)) * (p.detach().abs().astype(state_dtype(p.dtype))
                                                         if self.adaptive else 1.0)) for p, g in moving]
            length = sum([(way * way).sum().astype("float32") for _, way in ways]).sqrt()   # type: ignore[union-attr]
            scale = self.rho / (length + 1e-12)
            for p, way in ways:
                self._before.append((p, ops.clone(p.detach())))
                wide = p.detach().astype(way.dtype)
                p.copy_((wide + way * (wide.abs() if self.adaptive else 1.0) * scale.astype(way.dtype)).astype(p.dtype))
        self.optimizer.zero_grad()

    def second_step(self) -> None:
        """Moves the parameters back, and makes the inner optimizer's step with the gradients that there are now.

        Raises GraphError: the first step has not been made.
        """
        if not self._before:
            raise GraphError(message("SAM", "the first step has not been made", "call first_step() behind the first "
                                     "loss.backward()"))
        self._back()
        self.optimizer.step()

    def _back(self) -> None:
        with no_grad():
            for p, before in self._before:
                p.copy_(before)
        self._before = []

    def step(self, closure: Callable[[], Any]) -> Any:
        """Makes both steps behind loss.backward(), and returns what the closure returns.

        Args:
            closure: computes the loss again and calls its backward.
        Raises:
            ArgumentError: closure cannot be called.  GraphError: there are no gradients.
        An error of the closure leaves the parameters as they were.
        """
        if not callable(closure):
            raise ArgumentError(message("SAM", f"closure is {shown(closure)}, a function is needed", "pass a function "
                                        "that computes the loss and calls backward, or use first_step and second_step"))
        self.first_step()
        try:
            with enable_grad():
                result = closure()
        except BaseException:
            self._back()
            raise
        self.second_step()
        return result

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all parameters."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state: SAM keeps nothing between steps."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned.  Raises CheckpointError where it does not fit."""
        self.optimizer.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "optimizer" not in vars(self):
            raise AttributeError(name)
        return getattr(self.optimizer, name)
