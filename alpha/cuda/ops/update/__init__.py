"""Optimizer steps on the GPU: one launch for all parameters (update.cu), which finds them in its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, product
from typing import Any

from alpha.core.op import Op
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.tables import CHUNK, ROWS, TABLE, tables
from alpha.ops import update as ops

Arrays = Sequence[Array]


def _step(entry: str, coefficients: str) -> dict[str, Kernel]:
    names = ", ".join([f"f32 {c}" for c in coefficients.split(", ")])
    return per_dtype("update.cu", entry, f"{TABLE}, ptr factor, ptr kept, {names}")


_EMA = _step("ema", "decay, take")
_SQUARES = per_dtype("update.cu", "squares", f"{TABLE}, ptr partial")
_DECIDE = Kernel("update.cu", "decide", "ptr squares, i32 count, ptr scale, ptr counts, ptr factor, "
                 "i32 growth_interval, f32 largest, f32 max_norm")
_TOTALS = Kernel("update.cu", "totals", f"{ROWS}, ptr partial, i32 blocks, ptr y")


def _update(kernels: dict[str, Kernel], lists: Sequence[Arrays], factor: Array | None, coefficients: ops.Numbers
            ) -> None:
    """Runs a step: `lists` are those that it changes, in its order, and last the one that it reads, times factor."""
    kernel, kept = kernels[lists[0][0].dtype], memory.recorder and memory.recorder.kept(coefficients)
    for part, table in tables(lists):
        kernel(part.blocks, table, part.count, CHUNK, factor, kept, *coefficients)


def _bind(op: Op, numbers: Callable[..., ops.Numbers], entry: str, coefficients: str, *optional: str) -> None:
    """Binds a step.  optional: what the kernel's name ends in for each of the last states, where that is not empty."""
    kernels = {given: _step(entry + "".join(compress(optional, given)), coefficients)
               for given in product((False, True), repeat=len(optional))}

    @op.impl("cuda")
    def run(params: Arrays, grads: Arrays, *rest: Any, **attrs: Any) -> None:
        *states, factor = rest
        given = tuple(map(bool, states[len(states) - len(optional):]))
        _update(kernels[given], [params, *filter(None, states), grads], factor, numbers(**attrs))


_bind(ops.sgd_step, ops.sgd_numbers, "sgd", "lr, weight_decay, keep, take, now, ahead", "_momentum")
_bind(ops.rmsprop_step, ops.rmsprop_numbers, "rmsprop", "lr, alpha, take, eps, weight_decay, momentum", "_centered",
      "_momentum")
_bind(ops.adam_step, ops.adam_numbers, "adam",
      "rate, inverse_root, beta1, take1, beta2, take2, eps, weight_decay, shrink", "_amsgrad")
_bind(ops.adamax_step, ops.adamax_numbers, "adamax", "rate, beta1, take1, beta2, eps, weight_decay")
_bind(ops.radam_step, ops.radam_numbers, "radam",
      "rate, beta1, take1, beta2, take2, eps, weight_decay, shrink, rectified")
_bind(ops.adamod_step, ops.adamod_numbers, "adamod",
      "lr, rate, correction2, beta1, take1, beta2, take2, beta3, take3, eps, shrink")


@ops.ema_step.impl("cuda")
def ema_step_cuda(averages: Arrays, params: Arrays, *, decay: float) -> None:
    _update(_EMA, [averages, params], None, (decay, 1 - decay))


@ops.sums_of_squares.impl("cuda")
def sums_of_squares_cuda(tensors: Arrays) -> Array:
    squares, y = _SQUARES[tensors[0].dtype], empty((len(tensors),), "float32")
    for part, table in tables([tensors]):
        partial = empty((part.blocks,), "float32")
        squares(part.blocks, table, part.count, CHUNK, partial)
        _TOTALS(part.count, table, part.count, partial, part.blocks, y.ptr + 4 * part.begin)
    return y


@ops.loss_scale_step.impl("cuda")
def loss_scale_step_cuda(squares: Array, scale: Array, counts: Array, *, growth_interval: int,
                         max_norm: float) -> Array:
    factor = empty((), "float32")
    _DECIDE(1, squares, squares.size, scale, counts, factor, growth_interval, ops.LARGEST_SCALE, max_norm)
    return factor
