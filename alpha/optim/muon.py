"""Muon: a momentum that is made orthogonal before it is taken, for the matrices and filters of hidden layers."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, Any

from alpha import ops
from alpha.core.device import get_backend
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Betas, Choice, Count, Decay, Either, Lr, Many, NonNegative, Nothing, Positive, Real
from alpha.core.tensor import Tensor
from alpha.optim.composed import Composed, New, State
from alpha.optim.optimizer import Params, as_parameters

Coefficients = Annotated[tuple[float, float, float], Many(Real("", lambda v: -100 < v < 100), 3, "three numbers",
                                                          "pass {name}=(3.4445, -4.775, 2.0315), say")]
Adjusted = Annotated[Any, Either([Nothing(), Choice("original", "match_rms_adamw")])]


class Muon(Composed):
    """Muon: steps along the momentum with its singular values brought near 1, and decoupled weight decay.

        m = momentum * m + (1 - momentum) * g;  u = momentum * m + (1 - momentum) * g  with nesterov, else m
        w = w - lr * weight_decay * w - lr * r * O(u)
        O(u): x = u / |u|, five times x = a x + (b x x^T + c (x x^T)^2) x, which leaves singular values of about 1
        r = sqrt(max(1, rows / columns)), or, "match_rms_adamw", 0.2 * sqrt(max(rows, columns))
    Args:
        params: of two axes or more; filters (OC, FH, FW, IC) are matrices (OC, FH * FW * IC).
        lr: number above 0, or a schedule; some 0.02 with r as above.
        weight_decay: at least 0.
        momentum: in [0, 1).
        nesterov: see above.
        ns_coefficients: a, b, c.
        eps: least |u|.
        ns_steps: how often x is made anew.
        adjust_lr_fn: None or "original", or "match_rms_adamw": see r.
    Raises:
        ConfigError: a parameter has fewer than two axes: biases, norms and, as a rule, the first and the last layer go
            to another optimizer.
    Products are made in bfloat16 where the device has it, else in float32.
    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; "match_rms_adamw": Liu et
        al., arXiv 2502.16982. Differs: filters are flattened with their channels last.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, weight_decay: NonNegative = 0.1, momentum: Decay = 0.95,
                 nesterov: bool = True, ns_coefficients: Coefficients = (3.4445, -4.775, 2.0315),
                 eps: Positive = 1e-7, ns_steps: Count = 5, adjust_lr_fn: Adjusted = None) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                         ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn)

    def check(self, group: Mapping[str, Any]) -> None:
        for name, p in zip(group["names"], group["params"]):
            if p.ndim < 2:
                raise ConfigError(message("Muon", f"parameter {name} has shape {p.shape}, two axes or more are needed",
                                          "give biases and norms to another optimizer: [p for p in "
                                          "model.parameters() if p.ndim > 1] to Muon, the others to AdamW"))

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("m",)

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        shrink, rate = self.taken(group, lr, step)
        momentum, rows = group["momentum"], w.shape[0]
        m = state["m"] * momentum + g * (1 - momentum)
        u = m * momentum + g * (1 - momentum) if group["nesterov"] else m
        o = orthogonal(u.reshape(rows, w.numel() // rows if rows else 0), group["ns_coefficients"], group["ns_steps"],
                       group["eps"])
        columns = max(1, w.numel() // max(1, rows))
        r = 0.2 * sqrt(max(rows, columns)) if group["adjust_lr_fn"] == "match_rms_adamw" else sqrt(
            max(1, rows / columns))
        return w * shrink - o.reshape(w.shape) * (rate * r), {"m": m}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        return 1 - lr * group["weight_decay"], lr


def orthogonal(x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Returns a matrix near the orthogonal one that is closest to x: the Newton-Schulz iteration of the fifth order."""
    a, b, c = coefficients
    dtype = x.dtype
    tall = x.shape[0] > x.shape[1]
    x = x.float() if dtype in ("float16", "bfloat16") else x
    x = x / x.norm().clip(eps, None)
    if "bfloat16" in get_backend(x.device).dtypes:
        x = x.bfloat16()
    for _ in range(steps):
        gram = ops.matmul(x, x, transpose_a=tall, transpose_b=not tall)     # of the shorter side
        step = gram * b + ops.matmul(gram, gram) * c
        x = x * a + (x @ step if tall else step @ x)
    return x.astype(dtype)


class MuonAdamW(Muon):
    """Muon for the hidden matrices and filters of a network, AdamW for all else: one optimizer for a whole model.

    The first and the last parameter of two axes or more, as a rule filters of pixels and a classifier, go to AdamW, and
    so do biases and norms. Muon's steps are scaled by 0.2 * sqrt(max(rows, columns)), so that one lr fits both.
    Args:
        params: see Optimizer; of a whole model, in its order.
        lr: number above 0, or a schedule; an AdamW's.
        weight_decay: at least 0; decoupled.
        momentum: Muon's, in [0, 1).
        betas: AdamW's, in [0, 1).
        eps: least length of a momentum for Muon, and AdamW's.
    A group has the setting `hidden`, True for Muon: `add_param_group({"params": ..., "hidden": True})`.
    Source: Liu et al., arXiv 2502.16982.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-3, weight_decay: NonNegative = 0.01, momentum: Decay = 0.95,
                 betas: Betas = (0.9, 0.95), eps: Positive = 1e-8) -> None:
        Composed.__init__(self, _apart(params), lr=lr, weight_decay=weight_decay, momentum=momentum, betas=betas,
                          eps=eps, nesterov=True, ns_coefficients=(3.4445, -4.775, 2.0315), ns_steps=5,
                          adjust_lr_fn="match_rms_adamw", hidden=False)

    def check(self, group: Mapping[str, Any]) -> None:
        if group["hidden"]:
            super().check(group)

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("m",) if group["hidden"] else ("m", "v")

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        if group["hidden"]:
            return super().formula(group, w, g, state, lr, step)
        beta1, beta2 = group["betas"]
        shrink, rate, inverse_root = self.taken(group, lr, step)
        m, v = state["m"] * beta1 + g * (1 - beta1), state["v"] * beta2 + g * g * (1 - beta2)
        return w * shrink - m * rate / (v.sqrt() * inverse_root + group["eps"]), {"m": m, "v": v}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        if group["hidden"]:
            return super().numbers(group, lr, step)
        beta1, beta2 = group["betas"]
        return 1 - lr * group["weight_decay"], lr / (1 - beta1 ** step), 1 / sqrt(1 - beta2 ** step)


def _apart(params: Any) -> list[dict[str, Any]]:
    """Returns the groups for Muon and for AdamW that parameters or groups of them make."""
    given = as_parameters("MuonAdamW", params)
    if not given:
        return []
    groups = given if given and isinstance(given[0], Mapping) else [{"params": given}]
    items = [as_parameters("MuonAdamW", group["params"]) if isinstance(group, Mapping) and "params" in group else []
             for group in groups]

    def tensor_of(item: Any) -> Any:
        return item[1] if isinstance(item, tuple) and len(item) == 2 else item
    wide = [tensor_of(item) for group in items for item in group if getattr(tensor_of(item), "ndim", 0) > 1]
    outer = {id(t) for t in (*wide[:1], *wide[-1:])}
    made = []
    for group, members in zip(groups, items):
        if not isinstance(group, Mapping) or "hidden" in group or not members:
            made.append(group)
            continue
        inner = [getattr(tensor_of(item), "ndim", 0) > 1 and id(tensor_of(item)) not in outer for item in members]
        for hidden in (True, False):
            part = [item for item, is_inner in zip(members, inner) if is_inner is hidden]
            if part:
                made.append({**group, "params": part, "hidden": hidden})
    return made
