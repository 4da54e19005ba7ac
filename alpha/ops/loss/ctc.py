"""Connectionist temporal classification, composed of other ops, so that its gradients are those of the recursion."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.core.errors import DataError, DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Reduction, Size
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.checks import on_host
from alpha.ops.elementwise import exp, log, lt, maximum, where
from alpha.ops.index import gather
from alpha.ops.loss import reduced
from alpha.ops.reduce import widened
from alpha.ops.shape import concat, unsqueeze

NONE = -1e30    # logarithm of a sum without terms: finite, so that differences of two are no NaN


def _whole_numbers(name: str, values: Any) -> np.ndarray:
    host = on_host(values)
    if host.dtype.kind not in "iu":
        raise DTypeError(message("ctc_loss", f"{name} has dtype {host.dtype}, integers are needed",
                                 f'convert it: {name}.astype("int64")'))
    return host.astype(np.int64)


def _rows(targets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns targets as (N, S), those that are one after the other in one axis apart."""
    if targets.ndim == 2:
        return targets
    rows = np.zeros((len(lengths), max([0, *lengths])), np.int64)
    for row, first, n in zip(rows, np.cumsum(lengths) - lengths, lengths):
        row[:n] = targets[first:first + n]
    return rows


def _check(log_probs: Tensor, targets: np.ndarray, inputs: np.ndarray, lengths: np.ndarray, blank: int) -> None:
    steps, n, classes = log_probs.shape
    if inputs.shape != (n,) or lengths.shape != (n,):
        raise ShapeError(message("ctc_loss", f"input_lengths and target_lengths have shapes {inputs.shape} and "
                                 f"{lengths.shape}", f"pass {n} of each, one for a sequence"))
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[0] != n):
        raise ShapeError(message("ctc_loss", f"targets have shape {targets.shape}, ({n}, S) is needed", "pass a row "
                                 "for a sequence, or all of them one after the other in one axis"))
    most = targets.shape[1] if targets.ndim == 2 else targets.size
    if (lengths < 0).any() or (lengths.sum() if targets.ndim == 1 else max([0, *lengths])) > most:
        raise ShapeError(message("ctc_loss", f"target_lengths {lengths.tolist()} do not fit targets of shape "
                                 f"{targets.shape}", "pass how many labels of each row count"))
    if (inputs < 0).any() or (inputs > steps).any():
        raise ShapeError(message("ctc_loss", f"input_lengths {inputs.tolist()} do not fit {steps} steps",
                                 "pass how many steps of each sequence count", log_probs=log_probs.shape))
    if blank >= classes:
        raise ShapeError(message("ctc_loss", f"blank is {blank}, there are {classes} classes",
                                 f"choose a class from 0 to {classes - 1}"))


def _labels(targets: np.ndarray, lengths: np.ndarray, classes: int, blank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels with blanks around each, (N, 2 S + 1), and where a path may skip the blank in front of one."""
    counts = np.arange(targets.shape[1]) < lengths[:, None]
    bad = counts & ((targets < 0) | (targets >= classes) | (targets == blank))
    if bad.any():
        raise DataError(message("ctc_loss", f"label {targets[bad][0]} is outside [0, {classes}) or the blank, {blank}",
                                "number the classes from 0, and leave out the blank"))
    between = np.full((len(targets), 2 * targets.shape[1] + 1), blank)
    between[:, 1::2] = np.where(counts, targets, blank)
    skips = np.zeros(between.shape, bool)
    skips[:, 2:] = (between[:, 2:] != blank) & (between[:, 2:] != between[:, :-2])
    return between, skips


def _log_sum(*terms: Tensor) -> Tensor:
    """Returns log(sum of e^terms), elementwise, of terms that are finite."""
    largest = terms[0].detach()
    for t in terms[1:]:
        largest = maximum(largest, t.detach())
    total = exp(terms[0] - largest)
    for t in terms[1:]:
        total = total + exp(t - largest)
    return log(total) + largest


@public(functional=True)
@checked
def ctc_loss(log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any, blank: Size = 0,
             reduction: Reduction = "mean", zero_infinity: bool = False) -> Tensor:
    """-log of the probability that a sequence reads as its labels: with repeats joined, and blanks left out.

    Args:
        log_probs: logarithms of shares of the classes, as of log_softmax.  Shape (T, N, C), or (T, C) of one; float.
        targets: labels, without the blank.  Shape (N, S), or all rows one after the other in one axis; integers.
        input_lengths: how many of the T steps of each sequence count.  Shape (N,), or an int of one; integers.
        target_lengths: how many labels each sequence has.  Shape as input_lengths.
        blank: the class that stands for no label.
        reduction: "mean": each loss by its number of labels (1 at least), then the mean; "sum" or "none".
        zero_infinity: whether the loss of a sequence that is too short for its labels counts as 0, not as infinite.
    Returns:
        loss of shape (), or (N,) with "none"; float32 for 16 bits. A loss that is infinite has a gradient of 0.
    Raises:
        ShapeError: the shapes or lengths do not fit.  DataError: a label is no class, or the blank.
        DTypeError: labels or lengths are no integers.
    Labels and lengths are looked at on the host, so a GPU is waited for.
    Source: Graves et al., "Connectionist temporal classification", ICML 2006.
    """
    single = log_probs.ndim == 2
    if log_probs.ndim not in (2, 3):
        raise ShapeError(message("ctc_loss", f"log_probs has {log_probs.ndim} axes, 3 are needed (T N C)",
                                 "pass logarithms of shares, x.log_softmax(-1)", log_probs=log_probs.shape))
    if single:
        log_probs = unsqueeze(log_probs, 1)
    labels = _whole_numbers("targets", targets)
    inputs, lengths = [_whole_numbers(name, v).reshape(-1) for name, v in (
        ("input_lengths", input_lengths), ("target_lengths", target_lengths))]
    _check(log_probs, labels, inputs, lengths, blank)
    loss = _losses(widened(log_probs), _rows(labels, lengths), inputs, lengths, blank)
    loss = where(lt(loss, -NONE / 2), loss, 0.0 if zero_infinity else float("inf"))
    if reduction == "mean":
        loss = loss / tensor(np.maximum(lengths, 1), loss.dtype, loss.device)
    y = reduced(loss, reduction)
    return y[0] if single and reduction == "none" else y


def _losses(log_probs: Tensor, targets: np.ndarray, inputs: np.ndarray, lengths: np.ndarray, blank: int) -> Tensor:
    """Returns the loss of each sequence, 1e30 and more where no path reads as its labels."""
    steps, n, classes = log_probs.shape
    dtype, device = log_probs.dtype, log_probs.device
    between, skips = _labels(targets, lengths, classes, blank)
    places = between.shape[1]
    index = tensor(np.ascontiguousarray(np.broadcast_to(between, (steps, n, places))), "int64", device)
    emitted = gather(log_probs, 2, index)
    begins = np.full((n, places + 2), NONE)
    begins[:, 2] = 0.0
    before = tensor(begins, dtype, device)      # of the places, behind two that no path is at
    closed = tensor(np.full((n, 2), NONE), dtype, device)
    may_skip = tensor(skips, "bool", device)
    for t in range(steps):
        here, left, skipped = before[:, 2:], before[:, 1:-1], before[:, :-2]
        if t:
            now = _log_sum(here, left, where(may_skip, skipped, NONE)) + emitted[t]
        else:   # a path begins with the blank or with the first label
            now = concat([here[:, :1], here[:, :1].expand((n, min(1, places - 1))), here[:, 2:]], 1) + emitted[t]
        if (inputs <= t).any():
            now = where(tensor((inputs > t)[:, None], "bool", device), now, here)
        before = concat([closed, now], 1)
    ends = np.stack([2 * lengths + 2, 2 * lengths + 1], 1)      # the last blank, and the last label
    last = gather(before, 1, tensor(ends, "int64", device))
    return -_log_sum(last[:, 0], last[:, 1])
