"""Gradients from before a function that is recorded: a gradient that the function drops unread is no input of it.

While a function is recorded (alpha.capture), each tensor of its state has a Leftover in place of its gradient. To set
`grad` replaces the Leftover, which is no use of the old gradient. `grad` and `backward` ask the Leftover.
"""

from __future__ import annotations

from typing import Any

from alpha.core.device import get_backend
from alpha.core.errors import GraphError, message

recorded: set[int] = set()  # ids of the tensors of the state, while a function is recorded: backward looks at others


class LeftoverUsed(GraphError):
    """A function that is recorded reads or adds to a gradient from before the call."""


class Leftover:
    """Stands in the place of a tensor's gradient when a recording begins.

    Attributes:
        grad: the gradient from before; None if there was none.
        asked: whether the function depends on there being a gradient, or none.
    """

    __slots__ = ("asked", "grad")

    def __init__(self, grad: Any) -> None:
        self.grad = grad
        self.asked = False

    def read(self) -> None:
        """Returns None where there was no gradient.  Raises LeftoverUsed for one."""
        self.asked = True
        if self.grad is not None:
            raise LeftoverUsed(message("capture", "the function uses a gradient from before the call, shape "
                                       f"{self.grad.shape}", "drop it first in the function: optimizer.zero_grad()"))


def has_grad(t: Any) -> bool:
    """Tells whether a tensor has a gradient, for a caller that does not read its elements."""
    grad = t._grad
    if grad.__class__ is Leftover:
        grad.asked = True
        return grad.grad is not None
    return grad is not None


def before(leaf: Any) -> Any:
    """Returns the gradient that a leaf has when backward comes to it, while a function is recorded.

    Raises:
        LeftoverUsed: the gradient is from before the call.
        GraphError: the leaf is not in the state of the function: a repetition would not give it its gradient.
    """
    grad = leaf._grad
    if grad.__class__ is Leftover:
        return grad.read()
    backend = get_backend(leaf.device)
    recorder = backend.recorder()
    if grad is None and id(leaf) not in recorded and recorder is not None and recorder.is_outside(leaf.array):
        raise GraphError(message("capture", f"backward gives a gradient to a tensor of shape {leaf.shape} that is not "
                                 "in the state", "pass the tensor, or its module: alpha.capture(step, model)"))
    return grad
