"""The compiled kernels of optimizers: one call for all parameters. See alpha.cpu.native."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from alpha.cpu.native import Array, loaded, ptr


def _table(arrays: Sequence[Array] | None) -> Array | None:
    """Returns the addresses of several arrays as an array."""
    return None if arrays is None else np.array([ptr(a).value for a in arrays], np.uintp)


def _sizes(arrays: Sequence[Array]) -> Array:
    return np.array([a.size for a in arrays], np.int64)


def sum_of_squares(arrays: Sequence[Array]) -> float:
    """Returns the sum of the squares of all elements, made in double: the square of the gradients' norm."""
    table, sizes = _table(arrays), _sizes(arrays)
    total: float = loaded().sum_of_squares(ptr(table), ptr(sizes), len(arrays))
    return total


def sgd_step(params: Sequence[Array], grads: Sequence[Array], velocities: Sequence[Array] | None, *, lr: float,
             momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
             first_step: bool = False) -> None:
    """Moves params and velocities (None where momentum is 0; finite, and overwritten, on the first step) in place."""
    w, g, v, sizes = _table(params), _table(grads), _table(velocities), _sizes(params)
    loaded().sgd_step(ptr(w), ptr(g), ptr(v), ptr(sizes), len(params), lr, momentum, dampening, weight_decay, nesterov,
                      first_step)


def adam_step(params: Sequence[Array], grads: Sequence[Array], m: Sequence[Array], v: Sequence[Array],
              v_max: Sequence[Array] | None = None, *, step: int, lr: float, beta1: float, beta2: float, eps: float,
              weight_decay: float = 0.0, decoupled: bool = False) -> None:
    """Step number `step` (1 is the first) of Adam, AdamW (decoupled) or, with v_max, AMSGrad, in place."""
    tables = [_table(arrays) for arrays in (params, grads, m, v, v_max)]
    sizes = _sizes(params)
    coupled, shrink = (0.0, 1.0 - lr * weight_decay) if decoupled else (weight_decay, 1.0)
    loaded().adam_step(*map(ptr, tables), ptr(sizes), len(params), lr / (1 - beta1 ** step), sqrt(1 - beta2 ** step),
                       beta1, beta2, eps, coupled, shrink)


def rmsprop_step(params: Sequence[Array], grads: Sequence[Array], v: Sequence[Array],
                 buffers: Sequence[Array] | None = None, *, lr: float, alpha: float, eps: float,
                 weight_decay: float = 0.0, momentum: float = 0.0) -> None:
    """One step of RMSprop in place; buffers hold the momentum, None where it is 0."""
    tables = [_table(arrays) for arrays in (params, grads, v, buffers)]
    sizes = _sizes(params)
    loaded().rmsprop_step(*map(ptr, tables), ptr(sizes), len(params), lr, alpha, eps, weight_decay, momentum)


def adamax_step(params: Sequence[Array], grads: Sequence[Array], m: Sequence[Array], u: Sequence[Array], *, step: int,
                lr: float, beta1: float, beta2: float, eps: float, weight_decay: float = 0.0) -> None:
    """Step number `step` (1 is the first) of Adamax in place."""
    tables = [_table(arrays) for arrays in (params, grads, m, u)]
    sizes = _sizes(params)
    loaded().adamax_step(*map(ptr, tables), ptr(sizes), len(params), lr / (1 - beta1 ** step), beta1, beta2, eps,
                         weight_decay)
