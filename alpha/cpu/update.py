"""Optimizer steps: the compiled kernels where they can be used, else NumPy in place with a few scratch arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from math import isfinite, sqrt
from typing import Any

import numpy as np

from alpha.cpu import native, native_update
from alpha.cpu.memory import empty
from alpha.ops import update as ops

Array = np.ndarray
Arrays = Sequence[Array]


def _each(scratch: int, params: Arrays, *lists: Arrays) -> Iterator[tuple[Any, ...]]:
    """Yields per parameter: it, the entry of each list (None of an empty one), and scratch arrays of its shape.

    The scratch arrays of all parameters share memory.
    """
    largest = max([w.size for w in params])
    buffers = [empty((largest,), params[0].dtype) for _ in range(scratch)]
    for k, w in enumerate(params):
        yield w, *[arrays[k] if arrays else None for arrays in lists], *[b[:w.size].reshape(w.shape) for b in buffers]


def _decayed(g: Array, w: Array, weight_decay: float, out: Array) -> Array:
    """Returns g + weight_decay * w, in `out` unless that is g itself."""
    if not weight_decay:
        return g
    np.multiply(w, weight_decay, out=out)
    return np.add(out, g, out=out)


def _decay(g: Array, w: Array, weight_decay: float, decoupled: bool, lr: float, out: Array) -> Array:
    """Returns d of a step with weight decay: in the gradient, or, decoupled, by shrinking w now."""
    if not decoupled:
        return _decayed(g, w, weight_decay, out)
    w *= 1 - lr * weight_decay
    return g


def _average(a: Array, x: Array, beta: float, scratch: Array) -> None:
    """a = beta * a + (1 - beta) * x, in place."""
    a *= beta
    a += np.multiply(x, 1 - beta, out=scratch)


def _average_square(a: Array, x: Array, beta: float, scratch: Array) -> None:
    """a = beta * a + (1 - beta) * x^2, in place."""
    np.multiply(x, x, out=scratch)
    _average(a, scratch, beta, scratch)


def _descend(w: Array, direction: Array, rate: float, scratch: Array) -> None:
    """w = w - rate * direction, in place."""
    w -= np.multiply(direction, rate, out=scratch)


def _scaled(step: Callable[..., None]) -> Callable[..., None]:
    """Gives a step float16 parameters, and its last argument: the factor of the gradients, None or an array."""
    @wraps(step)
    def scaled(params: Arrays, grads: Arrays, *states_factor: Any, **attrs: Any) -> None:
        *states, factor = states_factor
        if factor is not None and factor == 0:
            return
        if params[0].dtype == np.float16:
            _in_float32(scaled, params, grads, states_factor, attrs)
            return
        if factor is not None:
            grads = [np.multiply(g, factor, out=empty(g.shape, g.dtype), casting="same_kind") for g in grads]
        step(params, grads, *states, **attrs)
    return scaled


def _in_float32(step: Callable[..., None], params: Arrays, grads: Arrays, states_factor: Sequence[Any],
                attrs: dict[str, Any]) -> None:
    """Makes a step of float16 parameters with copies in float32, one parameter at a time."""
    *states, factor = states_factor
    for k, g in enumerate(grads):
        mine = [arrays[k:k + 1] for arrays in (params, *states)]
        wide = [[a.astype(np.float32, copy=False) for a in arrays] for arrays in mine]
        step(wide[0], [g.astype(np.float32)], *wide[1:], factor, **attrs)
        for arrays, changed in zip(mine, wide):
            for a, b in zip(arrays, changed):
                if a is not b:
                    with np.errstate(over="ignore"):    # it is infinite then, as on a GPU
                        a[...] = b


@ops.sgd_step.impl("cpu")
@_scaled
def sgd_step_cpu(params: Arrays, grads: Arrays, momenta: Arrays, *, lr: float, momentum: float, dampening: float,
                 nesterov: bool, weight_decay: float, first: bool) -> None:
    if native.usable(*params, *grads, *momenta):
        native_update.sgd_step(params, grads, momenta if momentum else None, lr=lr, momentum=momentum,
                               dampening=dampening, weight_decay=weight_decay, nesterov=nesterov, first_step=first)
        return
    for w, g, v, d, t in _each(2, params, grads, momenta):
        direction = d = _decayed(g, w, weight_decay, d)
        if momentum:
            if first:
                v[...] = d
            else:
                v *= momentum
                v += np.multiply(d, 1 - dampening, out=t)
            direction = np.add(d, np.multiply(v, momentum, out=t), out=t) if nesterov else v
        _descend(w, direction, lr, t)


@ops.adam_step.impl("cpu")
@_scaled
def adam_step_cpu(params: Arrays, grads: Arrays, m: Arrays, v: Arrays, vmax: Arrays, *, lr: float, step: int,
                  beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool) -> None:
    if native.usable(*params, *grads, *m, *v, *vmax):
        native_update.adam_step(params, grads, m, v, vmax or None, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
                                weight_decay=weight_decay, decoupled=decoupled)
        return
    for w, g, mk, vk, largest, d, t in _each(2, params, grads, m, v, vmax):
        d = _decay(g, w, weight_decay, decoupled, lr, d)
        _average(mk, d, beta1, t)
        _average_square(vk, d, beta2, t)
        if largest is not None:
            vk = np.maximum(largest, vk, out=largest)
        np.sqrt(vk, out=t)
        t /= sqrt(1 - beta2 ** step)
        t += eps
        _descend(w, np.divide(mk, t, out=t), lr / (1 - beta1 ** step), t)


@ops.rmsprop_step.impl("cpu")
@_scaled
def rmsprop_step_cpu(params: Arrays, grads: Arrays, square_avg: Arrays, grad_avg: Arrays, momenta: Arrays, *, lr: float,
                     alpha: float, eps: float, weight_decay: float, momentum: float) -> None:
    if not grad_avg and native.usable(*params, *grads, *square_avg, *momenta):
        native_update.rmsprop_step(params, grads, square_avg, momenta if momentum else None, lr=lr, alpha=alpha,
                                   eps=eps, weight_decay=weight_decay, momentum=momentum)
        return
    for w, g, v, a, b, d, t in _each(2, params, grads, square_avg, grad_avg, momenta):
        d = _decayed(g, w, weight_decay, d)
        _average_square(v, d, alpha, t)
        if a is None:
            np.sqrt(v, out=t)
        else:
            _average(a, d, alpha, t)
            np.subtract(v, np.multiply(a, a, out=t), out=t)
            np.sqrt(np.maximum(t, 0, out=t), out=t)     # rounding may leave less than 0
        t += eps
        np.divide(d, t, out=t)
        if momentum:
            b *= momentum
            b += t
        _descend(w, b if momentum else t, lr, t)


@ops.adamax_step.impl("cpu")
@_scaled
def adamax_step_cpu(params: Arrays, grads: Arrays, m: Arrays, u: Arrays, *, lr: float, step: int, beta1: float,
                    beta2: float, eps: float, weight_decay: float) -> None:
    if native.usable(*params, *grads, *m, *u):
        native_update.adamax_step(params, grads, m, u, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
                                  weight_decay=weight_decay)
        return
    for w, g, mk, uk, d, t in _each(2, params, grads, m, u):
        d = _decayed(g, w, weight_decay, d)
        _average(mk, d, beta1, t)
        np.abs(d, out=t)
        t += eps
        uk *= beta2
        np.maximum(uk, t, out=uk)
        _descend(w, np.divide(mk, uk, out=t), lr / (1 - beta1 ** step), t)


@ops.radam_step.impl("cpu")
@_scaled
def radam_step_cpu(params: Arrays, grads: Arrays, m: Arrays, v: Arrays, *, lr: float, step: int, beta1: float,
                   beta2: float, eps: float, weight_decay: float, decoupled: bool) -> None:
    rate, rectified = ops.radam_rate(lr, step, beta1, beta2)
    for w, g, mk, vk, d, t in _each(2, params, grads, m, v):
        d = _decay(g, w, weight_decay, decoupled, lr, d)
        _average(mk, d, beta1, t)
        _average_square(vk, d, beta2, t)
        if rectified:
            np.sqrt(vk, out=t)
            t += eps
            np.divide(mk, t, out=t)
        _descend(w, t if rectified else mk, rate, t)


@ops.adamod_step.impl("cpu")
@_scaled
def adamod_step_cpu(params: Arrays, grads: Arrays, m: Arrays, v: Arrays, s: Arrays, *, lr: float, step: int,
                    beta1: float, beta2: float, beta3: float, eps: float, weight_decay: float) -> None:
    for w, g, mk, vk, sk, rate, t in _each(2, params, grads, m, v, s):
        w *= 1 - lr * weight_decay
        _average(mk, g, beta1, t)
        _average_square(vk, g, beta2, t)
        np.sqrt(np.divide(vk, 1 - beta2 ** step, out=rate), out=rate)
        rate += eps
        np.divide(lr, rate, out=rate)
        _average(sk, rate, beta3, t)
        np.minimum(rate, sk, out=rate)
        rate *= mk
        _descend(w, rate, 1 / (1 - beta1 ** step), t)


@ops.ema_step.impl("cpu")
def ema_step_cpu(averages: Arrays, params: Arrays, *, decay: float) -> None:
    for average, w, t in _each(1, averages, params):
        _average(average, w, decay, t)


@ops.sums_of_squares.impl("cpu")
def sums_of_squares_cpu(tensors: Arrays) -> Array:
    if native.usable(*tensors):
        return np.array([native_update.sum_of_squares([x]) for x in tensors])
    return np.array([np.sum(np.square(x, dtype=np.float64)) for x in tensors])


@ops.loss_scale_step.impl("cpu")
def loss_scale_step_cpu(squares: Array, scale: Array, counts: Array, *, growth_interval: int, max_norm: float) -> Array:
    total, before = float(np.sum(squares)), float(scale)
    if not isfinite(total):
        scale[...], counts[...] = max(before / 2, 1.0), (0, counts[1] + 1)
        return np.zeros((), np.float32)
    counts[0] += 1
    if counts[0] >= growth_interval:
        scale[...], counts[0] = min(2 * before, ops.LARGEST_SCALE), 0
    norm = sqrt(total) / before
    return np.array((max_norm / norm if 0 < max_norm < norm else 1.0) / before, np.float32)
