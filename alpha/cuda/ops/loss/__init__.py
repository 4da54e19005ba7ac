"""Losses on the GPU (loss.cu; binary_cross_entropy is in pointwise/functions.cuh).

The CPU refuses bad data at once. Here that would make the host wait for the device in every step, so a label outside
[0, C) makes the loss and the gradient of its row NaN, and so does a probability outside [0, 1] in the binary loss.
label_mask has no NaN to give: it does wait, and raises.
"""

from __future__ import annotations

import numpy as np

from alpha.cuda.ops.reduce import SMALL_ROW, row_width
from alpha.cuda.runtime.memory import Array, download, empty, upload
from alpha.cuda.runtime.walk import THREADS, per_piece, pieces_of
from alpha.ops import loss as ops
from alpha.ops.conv_desc import ceil_div
from alpha.ops.elementwise import eq

BLOCKS = 396  # of the forward pass, which take one row after the other: as many as an H100 holds at once
_ROWS = "i64 rows, i64 classes, i32 width, f32 smoothing, i64 ignored"
_FORWARD = per_piece("loss.cu", "forward", "ptr logits, ptr labels, i32 long_labels, ptr each, ptr loss, ptr sums, "
                     f"ptr stats, ptr count, {_ROWS}, i32 mean")
_BACKWARD = per_piece("loss.cu", "backward", "ptr g, i32 g_step, ptr logits, ptr labels, i32 long_labels, ptr stats, "
                      f"ptr count, ptr dx, {_ROWS}, i32 mean")


def _rows(logits: Array, pieces_per_thread: int) -> tuple[tuple[str, bool], int, int]:
    """Returns which kernel reads the rows, the blocks that take each row once, and the threads of a row."""
    rows, classes = logits.shape
    kind, lanes = pieces_of(classes, logits.dtype)
    pieces = classes // lanes
    width = THREADS if row_width(pieces) == THREADS else row_width(ceil_div(pieces, pieces_per_thread))
    return kind, ceil_div(rows, THREADS // width), width


@ops.label_cross_entropy.impl("cuda")
def label_cross_entropy_cuda(logits: Array, target: Array, *, label_smoothing: float, reduction: str,
                             ignore_index: int) -> tuple[Array, Array, Array]:
    rows, classes = logits.shape
    kind, grid, width = _rows(logits, SMALL_ROW)
    grid, each = max(1, min(grid, BLOCKS)), reduction == "none"  # the sum of no rows is made too
    loss, stats = empty((rows,) if each else (), logits.dtype), empty((3, rows), "float32")
    count, sums = empty((), "float32"), empty((2, grid), "float32")
    _FORWARD[kind](grid, logits, target, target.dtype == "int64", loss if each else None, None if each else loss,
                   sums, stats, count, rows, classes, width, label_smoothing, ignore_index, reduction == "mean")
    return loss, stats, count


@ops.cross_entropy_grad.impl("cuda")
def cross_entropy_grad_cuda(g: Array, logits: Array, target: Array, stats: Array, count: Array, *,
                            label_smoothing: float, reduction: str, ignore_index: int) -> Array:
    dx = empty(logits.shape, logits.dtype)
    kind, grid, width = _rows(logits, 1)
    _BACKWARD[kind](grid, g, reduction == "none", logits, target, target.dtype == "int64", stats, count, dx,
                    *logits.shape, width, label_smoothing, ignore_index, reduction == "mean")
    return dx


@ops.label_mask.impl("cuda")
def label_mask_cuda(target: Array, *, classes: int, where: str) -> Array:
    labels = download(target, target.dtype)
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        raise ops.label_error(where, labels.flat[bad[0]], int(bad[0]), classes, labels.size)
    numbers = upload(np.arange(classes, dtype=target.dtype))
    return eq.impls["cuda"](target.reshaped((*target.shape, 1)), numbers)
