"""Pools, norms and losses beside their twins: more of tests/op_twins.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.core.op import registry
from alpha.nn import functional
from tests.op_twins import TWINS, Draw, F, Twin, floats, nchw, shapes, some, torch, twin

# ---- pools -----------------------------------------------------------------------------------------------------------

def _pool(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        k, s = draw(some), draw(some)
        p, h, w, c = draw(st.integers(0, k // 2)), draw(st.integers(3, 5)), draw(st.integers(3, 5)), draw(some)
        return Twin(lambda x: getattr(ops, name)(x, k, s, p), nchw(lambda t: getattr(F(), name)(t, k, s, p)),
                    [floats((2, h, w, c), 1)])
    return make


def _adaptive(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        h, w, size = draw(st.integers(1, 5)), draw(st.integers(1, 5)), (draw(some), draw(some))
        return Twin(lambda x: getattr(ops, name)(x, size), nchw(lambda t: getattr(F(), name)(t, size)),
                    [floats((2, h, w, 2), 1)])
    return make


@twin
def avg_pool_windows(draw: Draw) -> Twin:
    k, s, side, ceil = draw(some), draw(some), draw(st.integers(3, 6)), draw(st.booleans())
    return Twin(lambda x: functional.avg_pool2d(x, k, s, ceil_mode=ceil),
                nchw(lambda t: F().avg_pool2d(t, k, s, ceil_mode=ceil)), [floats((2, side, side + 1, 2), 1)])


TWINS |= {name: _pool(name) for name in ("max_pool2d", "avg_pool2d")}
TWINS |= {name: _adaptive(name) for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d")}


# ---- norms -----------------------------------------------------------------------------------------------------------

@twin
def layer_norm(draw: Draw) -> Twin:
    n, m = draw(some), draw(st.integers(2, 4))
    return Twin(lambda x, g, b: ops.layer_norm(x, g, b), lambda t, g, b: F().layer_norm(t, (m,), g, b),
                [floats((n, 2, m), 1), floats((m,), 2), floats((m,), 3)])


@twin
def group_norm(draw: Draw) -> Twin:
    groups, each = draw(some), draw(st.integers(1, 2))
    c = groups * each
    return Twin(lambda x, g, b: ops.group_norm(x, g, b, groups=groups),
                nchw(lambda t, g, b: F().group_norm(t, groups, g, b)),
                [floats((2, 3, 2, c), 1), floats((c,), 2), floats((c,), 3)])


@twin
def batch_norm(draw: Draw) -> Twin:
    n, c, training = draw(st.integers(2, 3)), draw(some), draw(st.booleans())
    act, joined = draw(st.sampled_from([None, "relu"])), draw(st.booleans())
    mean, var = floats((c,), 5), floats((c,), 6, 0.5, 2.0)

    def ours(x: Any, g: Any, b: Any, r: Any) -> Any:
        both = [alpha.tensor(a.astype(x.dtype), device=x.device) for a in (mean, var)]
        attrs = dict(training=training, activation=act)
        return registry["batch_norm_add_act"](x, g, b, *both, r, **attrs) if joined else (
            registry["batch_norm_act"](x, g, b, *both, **attrs) + r)

    def theirs(t: Any, g: Any, b: Any, r: Any) -> Any:
        y = F().batch_norm(t, *(torch().tensor(a, dtype=t.dtype) for a in (mean, var)), g, b, training)
        y, r = (y + r.movedim(-1, 1), 0) if joined else (y, r.movedim(-1, 1))
        return (F().relu(y) if act else y) + r
    return Twin(ours, nchw(theirs), [floats((n, 2, 3, c), 1), floats((c,), 2, 0.5, 2.0), floats((c,), 3),
                                     floats((n, 2, 3, c), 4)])


# ---- losses ----------------------------------------------------------------------------------------------------------

@twin
def cross_entropy(draw: Draw) -> Twin:
    n, c, smoothing = draw(some), draw(st.integers(2, 4)), draw(st.sampled_from([0.0, 0.1]))
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    target = np.array([0, *(draw(st.sampled_from([-100, *range(c)])) for _ in range(n - 1))])
    attrs = dict(label_smoothing=smoothing, reduction=reduction)
    return Twin(lambda x: ops.cross_entropy(x, alpha.tensor(target, device=x.device), **attrs),
                lambda t: F().cross_entropy(t, torch().tensor(target), **attrs), [floats((n, c), 1)])


@twin
def nll_loss(draw: Draw) -> Twin:
    n, c = draw(some), draw(st.integers(2, 4))
    target = np.array([draw(st.integers(0, c - 1)) for _ in range(n)])
    return Twin(lambda x: ops.nll_loss(x * x, alpha.tensor(target, device=x.device)),
                lambda t: F().nll_loss(t * t, torch().tensor(target)), [floats((n, c), 1)])


def _loss(name: str, theirs: str, low: float, high: float) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        shape, reduction = draw(shapes), draw(st.sampled_from(["mean", "sum", "none"]))
        target = floats(shape, 7, 0.1, 0.9)
        return Twin(lambda x: getattr(ops, name)(x, alpha.tensor(target.astype(x.dtype), device=x.device),
                                                 reduction=reduction),
                    lambda t: getattr(F(), theirs)(t, torch().tensor(target, dtype=t.dtype), reduction=reduction),
                    [floats(shape, 1, low, high)])
    return make


LOSSES = {"bce_loss": ("binary_cross_entropy", 0.1, 0.9), "mse_loss": ("mse_loss", -2.0, 2.0),
          "bce_with_logits_loss": ("binary_cross_entropy_with_logits", -3.0, 3.0), "l1_loss": ("l1_loss", -2.0, 2.0),
          "smooth_l1_loss": ("smooth_l1_loss", -2.0, 2.0), "huber_loss": ("huber_loss", -2.0, 2.0),
          "kl_div": ("kl_div", -3.0, -0.1)}
TWINS |= {name: _loss(name, *how) for name, how in LOSSES.items()}
