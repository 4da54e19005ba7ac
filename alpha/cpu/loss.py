"""Losses on the CPU: cross entropy by the compiled kernels where they can be used, else NumPy."""

from __future__ import annotations

import numpy as np

from alpha.core.errors import DataError, message
from alpha.cpu import native
from alpha.cpu.half import quiet
from alpha.cpu.memory import empty, empty_like
from alpha.cpu.norm import to_sum_dtype
from alpha.cpu.reduce import sums
from alpha.ops import loss as ops

Array = np.ndarray


def _refuse_label(where: str, target: Array, row: int, classes: int) -> None:
    raise ops.label_error(where, target.flat[row], row, classes, target.size)


def _check_labels(where: str, target: Array, classes: int, ignored: int = ops.NO_LABEL) -> None:
    if target.size and not (target.min() >= 0 and target.max() < classes):
        bad = ((target < 0) | (target >= classes)) & (target != ignored)
        if bad.any():
            _refuse_label(where, target, int(np.argmax(bad)), classes)


@ops.label_cross_entropy.impl("cpu")
@quiet
def label_cross_entropy_cpu(logits: Array, target: Array, *, label_smoothing: float, reduction: str,
                            ignore_index: int) -> tuple[Array, Array, Array]:
    rows, classes = logits.shape
    count = np.count_nonzero(target != ignore_index)
    if native.usable(logits):
        loss, stats = empty((rows,), logits.dtype), empty((3, rows), logits.dtype)
        bad = native.cross_entropy_fwd(logits, target.astype(np.int64, copy=False), loss, stats, label_smoothing,
                                       ignore_index)
        if bad >= 0:
            _refuse_label("cross_entropy", target, bad, classes)
    else:
        _check_labels("cross_entropy", target, classes, ignore_index)
        ignored = target == ignore_index
        loss, stats = _losses(logits, np.where(ignored, 0, target), label_smoothing)
        loss[ignored], stats[:, ignored] = 0, 0
    if reduction != "none":
        total = np.add.reduce(loss, dtype=np.float64)
        loss = np.asarray(total / np.float64(count) if reduction == "mean" else total)  # of no rows: NaN
    return loss.astype(logits.dtype, copy=False), stats, np.asarray(count, stats.dtype)


def _losses(logits: Array, target: Array, label_smoothing: float) -> tuple[Array, Array]:
    """Returns loss and stats per row.  The largest logit is subtracted first, so that nothing overflows."""
    x = to_sum_dtype(logits)
    largest = x.max(1, keepdims=True)
    below = x - largest
    at = np.arange(len(x)), target
    shares, of_label = np.exp(below), below[at]
    share = shares[at]
    shares[at] = 0
    others = sums(shares, (1,))
    log_sum = np.where(of_label == 0, np.log1p(others), np.log(others + share))
    loss = log_sum - (1 - label_smoothing) * of_label
    if label_smoothing:
        loss -= label_smoothing * (sums(below, (1,)) / logits.shape[1])
    return loss, np.stack([largest[:, 0], log_sum, others / (others + share)])


@ops.cross_entropy_grad.impl("cpu")
@quiet
def cross_entropy_grad_cpu(g: Array, logits: Array, target: Array, stats: Array, count: Array, *,
                           label_smoothing: float, reduction: str, ignore_index: int) -> Array:
    rows, classes = logits.shape
    scale = 1 / max(1.0, float(count)) if reduction == "mean" else 1.0
    if native.usable(g, logits, stats):
        dx = empty_like(logits)
        labels = target.astype(np.int64, copy=False)
        bad = native.cross_entropy_bwd(g, logits, labels, stats, dx, label_smoothing, scale, ignore_index)
        if bad >= 0:
            _refuse_label("backward of cross_entropy", target, bad, classes)
        return dx
    _check_labels("backward of cross_entropy", target, classes, ignore_index)
    ignored = target == ignore_index
    largest, log_sum, others = stats
    dx = np.exp(to_sum_dtype(logits) - largest[:, None] - log_sum[:, None])
    if label_smoothing:
        dx -= label_smoothing / classes
    dx[np.arange(rows), np.where(ignored, 0, target)] = label_smoothing - label_smoothing / classes - others
    dx *= (to_sum_dtype(g) * scale).reshape(-1, 1)
    dx[ignored] = 0
    return dx.astype(logits.dtype, copy=False)


@ops.label_mask.impl("cpu")
def label_mask_cpu(target: Array, *, classes: int, where: str) -> Array:
    _check_labels(where, target, classes)
    return target[..., None] == np.arange(classes)


@ops.binary_cross_entropy.impl("cpu")
@quiet
def binary_cross_entropy_cpu(p: Array, target: Array) -> Array:
    for name, x in (("p", p), ("target", target)):
        if x.size and not (x.min() >= 0 and x.max() <= 1) and (bad := x[(x < 0) | (x > 1)]).size:  # NaN is neither
            raise DataError(message("bce_loss", f"{name} has an element {bad[0]}, outside [0, 1]",
                                    "pass probabilities; logits go to bce_with_logits_loss"))
    log_p, log_rest = np.maximum(np.log(p), -100), np.maximum(np.log1p(-p), -100)
    return np.subtract((target - 1) * log_rest, target * log_p, out=empty_like(p))
