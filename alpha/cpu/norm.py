"""Normalisation on the CPU: batch norm by the compiled kernels where they can be used, all else in NumPy.

Variances are made in two passes, sums in float64; float16 is computed in float32 and rounded once, without a warning
where that overflows.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from alpha.cpu import native
from alpha.cpu.half import quiet
from alpha.cpu.memory import empty, empty_like
from alpha.cpu.reduce import sums, total_of
from alpha.ops import norm as ops
from alpha.ops.reduce import reduced_count, reduced_shape

Array = np.ndarray
FLAT = 1e-18  # of an istd; the square of a smaller one, which the kernels of batch and group norm have, is 0 in float32
Axes = tuple[int, ...]


def to_sum_dtype(a: Any) -> Any:
    """Returns an array in the dtype that sums of its elements are made in; None for None."""
    return a if a is None else a.astype(ops.accumulation_dtype(a.dtype.name), copy=False)


def _mean(a: Array, axes: Axes) -> Array:
    """Returns the mean over axes, which are kept."""
    return _unrounded_mean(a, axes).astype(a.dtype)


def _unrounded_mean(a: Array, axes: Axes) -> Array:
    shape = reduced_shape(a.shape, axes, True, "mean")
    return (total_of(a, axes, np.float64) / reduced_count(a.shape, axes, "mean")).reshape(shape)


def _affine(x: Array, mean: Array, istd: Array, gamma: Array | None, beta: Array | None,
            rest: Array | None = None) -> Array:
    """Returns (x - mean - rest) * istd * gamma + beta: the one expression that forward and backward share."""
    y = np.subtract(x, mean, out=empty_like(x))
    if rest is not None:
        y -= rest
    y *= istd
    if gamma is not None:
        y *= gamma
    if beta is not None:
        y += beta
    return y


def _statistics(x: Array, axes: Axes, eps: float) -> tuple[Array, Array, Array, Array]:
    """Returns mean, what rounding has left out of it, var (biased) and istd, with the axes kept.

    Where squares are beyond float32 they are made in float64, whose istd fits.
    """
    mean = _mean(x, axes)
    away = np.subtract(x, mean, out=empty_like(x))
    rest = _unrounded_mean(away, axes)
    exact = _unrounded_mean(np.square(away, out=away), axes) - rest * rest
    var = exact.astype(x.dtype)
    istd = 1 / np.sqrt(var + eps)
    if x.dtype == np.float32 and not np.isfinite(var).all():
        exact = _unrounded_mean(np.square(x.astype(np.float64) - mean), axes) - rest * rest
        istd = np.where(np.isfinite(var), istd, 1 / np.sqrt(exact + eps)).astype(x.dtype)
        var = np.where(np.isfinite(var), var, exact).astype(x.dtype)
    return mean, rest.astype(x.dtype), var, istd


def _gradients(g: Array, xhat: Array, gamma: Array | None, istd: Array, axes: Axes, summed: Axes,
               dtype: np.dtype) -> tuple[Array, ...]:
    """Returns dx = istd * (v - mean(v) - xhat * mean(v * xhat)) with v = g * gamma, dgamma and dbeta.

    Means are over `axes`, dgamma and dbeta are summed over `summed`; dx is rounded to dtype; xhat is overwritten.
    """
    product = np.multiply(g, xhat, out=empty_like(g))
    dgamma, dbeta = sums(product, summed), sums(g, summed)
    v = g
    if gamma is not None:
        v = np.multiply(g, gamma, out=empty_like(g))
        product *= gamma
    xhat *= _mean(product, axes)
    dx = np.subtract(v, _mean(v, axes), out=product)
    dx -= xhat
    dx *= istd
    return dx.astype(dtype, copy=False), dgamma, dbeta


@ops.batch_norm_act.impl("cpu")
def batch_norm_act_cpu(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                       running_var: Array | None, **attrs: Any) -> tuple[Array, ...]:
    return batch_norm_add_act_cpu(x, gamma, beta, running_mean, running_var, None, **attrs)


@ops.batch_norm_add_act.impl("cpu")
def batch_norm_add_act_cpu(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                           running_var: Array | None, residual: Array | None, *, training: bool, momentum: float,
                           eps: float, activation: str | None) -> tuple[Array, ...]:
    compiled = x.size and native.usable(x, gamma, beta, running_mean, running_var, residual)
    compute = _batch_norm_compiled if compiled else _batch_norm
    return compute(x, gamma, beta, running_mean, running_var, residual, training, momentum, eps, activation == "relu")


def _batch_norm_compiled(x: Array, gamma: Array | None, beta: Array | None, running_mean: Any, running_var: Any,
                         residual: Array | None, training: bool, momentum: float, eps: float,
                         relu: bool) -> tuple[Array, ...]:
    y, shape = empty_like(x), x.shape[-1:]
    if not training:
        istd = (1 / np.sqrt(running_var.astype(np.float64) + eps)).astype(np.float32)
        native.batch_norm_apply(x, gamma, beta, running_mean, istd, y, residual=residual, relu=relu)
        return y, running_mean.copy(), istd
    mean, istd = empty(shape, x.dtype), empty(shape, x.dtype)
    native.batch_norm_fwd(x, gamma, beta, y, mean, istd, eps=eps, momentum=momentum, running_mean=running_mean,
                          running_var=running_var, residual=residual, relu=relu)
    return y, mean, istd


@quiet
def _batch_norm(x: Array, gamma: Array | None, beta: Array | None, running_mean: Any, running_var: Any,
                residual: Array | None, training: bool, momentum: float, eps: float, relu: bool) -> tuple[Array, ...]:
    dtype, x = x.dtype, to_sum_dtype(x)
    if training:
        rows = x.reshape(-1, x.shape[-1])
        mean, _, var, istd = (s[0] for s in _statistics(rows, (0,), eps))
        if running_mean is not None:
            running_mean += (momentum * (mean - running_mean)).astype(running_mean.dtype)
            running_var += (momentum * (var * len(rows) / (len(rows) - 1) - running_var)).astype(running_var.dtype)
    else:
        mean, istd = np.array(to_sum_dtype(running_mean)), 1 / np.sqrt(to_sum_dtype(running_var) + eps)
    return _applied(x, gamma, beta, mean, istd, residual, relu).astype(dtype, copy=False), mean, istd


def _applied(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, residual: Array | None,
             relu: bool) -> Array:
    y = _affine(x, mean, istd, gamma, beta)
    if residual is not None:
        y += residual
    if relu:
        np.maximum(y, 0, out=y)
    return y


@ops.batch_norm_apply.impl("cpu")
@quiet
def batch_norm_apply_cpu(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
                         residual: Array | None, *, activation: str | None, training: bool) -> Array:
    if x.size and native.usable(x, gamma, beta, mean, istd, residual):
        y = empty_like(x)
        native.batch_norm_apply(x, gamma, beta, mean, istd, y, residual=residual, relu=activation == "relu")
        return y
    y = _applied(to_sum_dtype(x), gamma, beta, mean, istd, residual, activation == "relu")
    return y.astype(x.dtype, copy=False)


@ops.batch_norm_grad.impl("cpu")
@quiet
def batch_norm_grad_cpu(g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, *,
                        activation: str | None) -> tuple[Array, ...]:
    if native.usable(g, x, gamma, beta, mean, istd) and np.min(istd) > FLAT:
        dx, dgamma, dbeta = empty_like(x), empty_like(mean), empty_like(mean)
        native.batch_norm_bwd(g, x, gamma, beta, mean, istd, dx, dgamma, dbeta, relu=activation == "relu")
        return dx, dgamma, dbeta
    dtype, axes = x.dtype, tuple(range(x.ndim - 1))
    g, x, gamma, beta, mean, istd = map(to_sum_dtype, (g, x, gamma, beta, mean, istd))
    if activation == "relu":
        g = np.where(_affine(x, mean, istd, gamma, beta) <= 0, g.dtype.type(0), g)
    xhat = _affine(x, mean, istd, None, None)
    return _gradients(g, xhat, gamma, istd, axes, axes, dtype)


@quiet
def _sample_norm(x: Array, gamma: Array | None, beta: Array | None, axes: Axes, eps: float) -> tuple[Array, ...]:
    dtype, x = x.dtype, to_sum_dtype(x)
    mean, rest, _, istd = _statistics(x, axes, eps)
    return _affine(x, mean, istd, gamma, beta, rest).astype(dtype, copy=False), mean, istd, rest


@ops.layer_norm.impl("cpu")
def layer_norm_cpu(x: Array, gamma: Array | None, beta: Array | None, *, normalized_ndim: int,
                   eps: float) -> tuple[Array, ...]:
    if x.size and native.usable(x, gamma, beta):
        shape = x.shape[:-normalized_ndim] + (1,) * normalized_ndim
        results = empty_like(x), *(empty(shape, x.dtype) for _ in range(3))
        native.layer_norm_fwd(x, gamma, beta, *results, eps)
        return results
    return _sample_norm(x, gamma, beta, tuple(range(x.ndim - normalized_ndim, x.ndim)), eps)


@ops.group_norm.impl("cpu")
def group_norm_cpu(x: Array, gamma: Array | None, beta: Array | None, *, groups: int, eps: float) -> tuple[Array, ...]:
    if x.size and native.usable(x, gamma, beta):
        shape = (len(x), 1, groups, 1)
        results = empty_like(x), *(empty(shape, x.dtype) for _ in range(3))
        native.group_norm_fwd(x, gamma, beta, *results, x.shape[-1], eps)
        return results
    split = x.reshape(len(x), prod(x.shape[1:-1]), groups, x.shape[-1] // groups)
    gamma, beta = (p if p is None else p.reshape(split.shape[2:]) for p in (gamma, beta))
    y, *statistics = _sample_norm(split, gamma, beta, (1, 3), eps)
    return y.reshape(x.shape), *statistics


@ops.sample_norm_grad.impl("cpu")
@quiet
def sample_norm_grad_cpu(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, rest: Array | None, *,
                         axes: Axes, params_ndim: int) -> tuple[Array, ...]:
    if x.size and native.usable(g, x, gamma, mean, istd, rest):
        by_rows = params_ndim == len(axes) and axes == tuple(range(x.ndim - params_ndim, x.ndim))
        if by_rows or (axes == (1, 3) and x.ndim == 4 and params_ndim == 2 and np.min(istd) > FLAT):
            shape = x.shape[x.ndim - params_ndim:]
            dx, dgamma, dbeta = empty_like(x), empty(shape, x.dtype), empty(shape, x.dtype)
            run = native.layer_norm_bwd if by_rows else native.group_norm_bwd
            run(g, x, gamma, mean, istd, rest, dx, dgamma, dbeta)
            return dx, dgamma, dbeta
    dtype, summed = x.dtype, tuple(range(x.ndim - params_ndim))
    g, x, gamma, mean, istd, rest = map(to_sum_dtype, (g, x, gamma, mean, istd, rest))
    xhat = _affine(x, mean, istd, None, None, rest)
    return _gradients(g, xhat, gamma, istd, axes, summed, dtype)
