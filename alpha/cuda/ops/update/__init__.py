"""Optimizer steps on the GPU: one launch for all parameters (update.cu), which finds them in its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from alpha.cuda.runtime import memory
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.tables import CHUNK, ROWS, TABLE, tables
from alpha.op import Op
from alpha.ops import update as ops

Arrays = Sequence[Array]


def _step(entry: str, coefficients: str) -> dict[str, Kernel]:
    names = ", ".join([f"f32 {c}" for c in coefficients.split(", ")])
    return per_dtype("update.cu", entry, f"{TABLE}, ptr factor, ptr kept, {names}")


_SGD = _step("sgd", "lr, weight_decay")
_SGD_MOMENTUM = _step("sgd_momentum", "lr, weight_decay, keep, take, now, ahead")
_RMSPROP = {(centered, momentum): _step("rmsprop" + "_centered" * centered + "_momentum" * momentum,
                                        "lr, alpha, take, eps, weight_decay, momentum")
            for centered in (False, True) for momentum in (False, True)}
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


@ops.sgd_step.impl("cuda")
def sgd_step_cuda(params: Arrays, grads: Arrays, momenta: Arrays, factor: Array | None, **attrs: Any) -> None:
    states, kernels = ([momenta], _SGD_MOMENTUM) if attrs["momentum"] else ([], _SGD)
    _update(kernels, [params, *states, grads], factor, ops.sgd_numbers(**attrs))


@ops.rmsprop_step.impl("cuda")
def rmsprop_step_cuda(params: Arrays, grads: Arrays, square_avg: Arrays, grad_avg: Arrays, momenta: Arrays,
                      factor: Array | None, **attrs: Any) -> None:
    momentum = bool(attrs["momentum"])
    states = [*([grad_avg] if grad_avg else []), *([momenta] if momentum else [])]
    _update(_RMSPROP[bool(grad_avg), momentum], [params, square_avg, *states, grads], factor,
            ops.rmsprop_numbers(**attrs))


def _bind(op: Op, numbers: Callable[..., ops.Numbers], coefficients: str, *entries: str) -> None:
    """Binds a step.  entries: of the kernels that have all states, or all but the last, which is empty then."""
    kernels = [_step(entry, coefficients) for entry in entries]

    @op.impl("cuda")
    def run(params: Arrays, grads: Arrays, *rest: Any, **attrs: Any) -> None:
        *states, factor = rest
        lacks = len(kernels) > 1 and not states[-1]
        _update(kernels[lacks], [params, *states[:len(states) - lacks], grads], factor, numbers(**attrs))


_bind(ops.adam_step, ops.adam_numbers, "rate, inverse_root, beta1, take1, beta2, take2, eps, weight_decay, shrink",
      "amsgrad", "adam")
_bind(ops.adamax_step, ops.adamax_numbers, "rate, beta1, take1, beta2, eps, weight_decay", "adamax")
_bind(ops.radam_step, ops.radam_numbers, "rate, beta1, take1, beta2, take2, eps, weight_decay, shrink, rectified",
      "radam")
_bind(ops.adamod_step, ops.adamod_numbers,
      "lr, rate, correction2, beta1, take1, beta2, take2, beta3, take3, eps, shrink", "adamod")


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
