"""Adafactor: Adam's second moment of a matrix as a row and a column, for models whose states would not fit."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Annotated, Any

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Either, Lr, Many, NonNegative, Nothing, Positive, Real
from alpha.core.tensor import Tensor
from alpha.optim.composed import Composed, New, State
from alpha.optim.optimizer import Params

Exponent = Annotated[float, Real("a number in [-1, 0)", lambda v: -1 <= v < 0)]
_SMALL = Real("", lambda v: 0 <= v < 1)
Smallest = Annotated[Any, Many(Either([Nothing(), _SMALL]), 2, "a pair of None or a number in [0, 1), and a number",
                               "pass {name}=(None, 1e-3), say")]
LEAST = {"float64": 2.0 ** -52}   # of other dtypes, which are computed with in float32, 2^-23


class Adafactor(Composed):
    """Adafactor: steps scaled as Adam's, with states of n + m numbers for a matrix of n * m.

        b = 1 - t^beta2_decay
        matrices:  r = b r + (1 - b) mean of g^2 over columns;  c likewise over rows;  v = r c / max(mean of r, eps1)
        others:    v = b v + (1 - b) g^2
        u = g / sqrt(max(v, eps1^2));  a = max(eps2, |w| / sqrt(size of w)) * min(lr, 1 / sqrt(t))
        w = w - lr * weight_decay * w - a * u / max(1, |u| / (d * sqrt(size of w)))
    Args:
        params: see Optimizer. Filters (OC, FH, FW, IC) are matrices (OC, FH * FW * IC).
        lr: number above 0, or a schedule: how far a step may go, relative to the parameter.
        beta2_decay: in [-1, 0).
        eps: (eps1, eps2); eps1 None: the distance of 1 to the next number of the dtype.
        d: how long a step may be before it is shortened, above 0.
        weight_decay: at least 0.
    Source: Shazeer and Stern, arXiv 1804.04235, without momentum. Differs: filters are flattened to matrices, PyTorch's
        factors their last two axes.
    """

    @checked
    def __init__(self, params: Params, lr: Lr = 1e-2, beta2_decay: Exponent = -0.8, eps: Smallest = (None, 1e-3),
                 d: Positive = 1.0, weight_decay: NonNegative = 0.0) -> None:
        super().__init__(params, lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay)

    def slots(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return "row", "column"

    def slot_shape(self, slot: str, p: Tensor) -> tuple[int, ...]:
        """The whole second moment of a vector is its row, and the column is empty."""
        if p.ndim < 2:
            return p.shape if slot == "row" else (0,)
        return (p.shape[0], 1) if slot == "row" else (1, prod(p.shape[1:]))

    def formula(self, group: Mapping[str, Any], w: Tensor, g: Tensor, state: State, lr: float, step: int) -> New:
        shrink, new, most = self.taken(group, lr, step)
        eps1, eps2 = group["eps"]
        eps1 = LEAST.get(w.dtype, 2.0 ** -23) if eps1 is None else eps1
        row, column = state["row"], state["column"]
        if w.ndim < 2:
            row = row + (g * g - row) * new
            v = row
        else:
            squares = (g * g).reshape(w.shape[0], prod(w.shape[1:]))
            row = row + (squares.mean(1, keepdims=True) - row) * new
            column = column + (squares.mean(0, keepdims=True) - column) * new
            v = (row * column / row.mean().clip(eps1, None)).reshape(w.shape)
        u = g * v.clip(eps1 * eps1, None).rsqrt() if eps1 else ops.where(v > 0, g * ops.where(v > 0, v, 1.0).rsqrt(), 0)
        size = sqrt(max(1, w.numel()))
        rate = (w.norm() / size).clip(eps2, None) * most
        return w * shrink - u * (rate / (u.norm() / (size * group["d"])).clip(1.0, None)), {"row": row,
                                                                                          "column": column}

    def numbers(self, group: Mapping[str, Any], lr: float, step: int) -> tuple[float, ...]:
        return 1 - lr * group["weight_decay"], step ** group["beta2_decay"], min(lr, 1 / sqrt(step))
