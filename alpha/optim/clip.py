"""Clipping of gradients, by their common norm or by value."""

from __future__ import annotations

import math
from typing import cast

from alpha import ops
from alpha.core.errors import AnomalyError, ArgumentError, ConfigError, message, shown
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import PositiveOrInf
from alpha.core.tensor import Tensor
from alpha.ops.update import state_dtype
from alpha.optim.optimizer import NamedParams, as_parameters


def _with_gradient(where: str, params: NamedParams) -> list[tuple[str, Tensor, Tensor]]:
    """Returns (name, parameter, gradient) of those that have one; without names the position is the name."""
    named = [item if isinstance(item, tuple) and len(item) == 2 else (f"number {k}", item)
             for k, item in enumerate(as_parameters(where, params))]
    if not named:
        raise ConfigError(message(where, "there are no parameters, so nothing is clipped", "pass model.parameters(); a "
                                  "generator that was read before is empty"))
    for name, p in named:
        if not isinstance(p, Tensor):
            raise ArgumentError(message(where, f"parameter {name} is {shown(p)}, a Tensor is needed",
                                        "pass model.named_parameters(), model.parameters(), or tensors"))
    return [(name, p, p.grad) for name, p in named if p.grad is not None]


@checked
def clip_grad_norm(params: NamedParams, max_norm: PositiveOrInf) -> float:
    """Scales all gradients so that their common 2-norm is at most max_norm: g = g * min(1, max_norm / norm).

    Args:
        params: `module.named_parameters()`, tensors, or one tensor; those without a gradient are skipped.
        max_norm: number above 0; math.inf measures the norm and changes nothing.
    Returns:
        The norm before clipping; 0 if there is no gradient.
    Raises:
        AnomalyError: a gradient has a NaN or an infinity; it names the first such parameter. No gradient is changed.
        ConfigError: max_norm is not above 0, or there are no parameters.
    """
    found = _with_gradient("clip_grad_norm", params)
    if not found:
        return 0.0
    with no_grad():
        squares = cast("list[float]", ops.sums_of_squares([g for _, _, g in found]).tolist())
        for (name, p, _), square in zip(found, squares):
            if not math.isfinite(square):
                raise AnomalyError(message(
                    "clip_grad_norm", f"the gradient of parameter {name}, shape {p.shape}, has a NaN or an infinity",
                    "lower the lr, or find the op: with alpha.detect_anomaly()"))
        norm = math.sqrt(math.fsum(squares))
        if norm > max_norm:
            for _, p, g in found:
                p.grad = (g.astype(state_dtype(g.dtype)) * (max_norm / norm)).astype(g.dtype)
    return norm


@checked
def clip_grad_value(params: NamedParams, max_value: PositiveOrInf) -> None:
    """Limits every element of every gradient to [-max_value, max_value].

    Args:
        params: `module.named_parameters()`, tensors, or one tensor; those without a gradient are skipped.
        max_value: number above 0.
    Raises:
        ConfigError: max_value is not above 0, or there are no parameters.
    """
    found = _with_gradient("clip_grad_value", params)
    with no_grad():
        for _, p, g in found:
            p.grad = g.clip(-max_value, max_value)


clip_grad_norm_, clip_grad_value_ = clip_grad_norm, clip_grad_value  # PyTorch's names
