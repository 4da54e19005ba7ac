"""The steps of a plan for the CPU: per op, kernels with their arguments bound."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from alpha.core.config import config
from alpha.cpu import coconv, native
from alpha.cpu.algorithms import COUNT_STEP, chosen, winograd, zeros_needed
from alpha.cpu.conv import HALVES
from alpha.cpu.conv_tables import forward_table
from alpha.cpu.pool import even_window
from alpha.inference.passes import behind_relu
from alpha.inference.program import VIEWS, Call, Value
from alpha.ops.algorithms.family import Way
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc
from alpha.ops.matmul import MOST_SPARSE_ROWS

if TYPE_CHECKING:
    from alpha.inference.cpu_plan import CpuPlan

Step = Callable[[], Any]
Maker = Callable[["CpuPlan", Call, int], "list[Step] | None"]


def steps_of(plan: CpuPlan, call: Call, k: int) -> list[Step]:
    """Returns what computes call number k."""
    if call.op.name in VIEWS:
        return []
    make = MAKERS.get(call.op.name)
    values = [*call.reads(), call.outs[0]]
    if make and plan.compiled and all(v.dtype == "float32" and prod(v.shape) for v in values):
        steps = make(plan, call, k)
        if steps is not None:
            return steps
    return _plain(plan, call)


def _plain(plan: CpuPlan, call: Call) -> list[Step]:
    """The implementation of the op, and a copy to where the result is planned."""
    run, attrs, residual = call.op.impls["cpu"], call.attrs, call.residual
    wanted = [(k, v) for k, v in enumerate(call.outs) if v in plan.read]
    if residual is not None:
        attrs = {**attrs, "activation": None}
    plan.note(call, _describe(call, f"{call.op.name} in NumPy"))

    def step() -> None:
        result = run(*[plan.array(a) for a in call.args], **attrs)
        for k, value in wanted:
            np.copyto(plan.arrays[value], result if call.op.single else result[k])

    def step_adding() -> None:
        y = run(*[plan.array(a) for a in call.args], **attrs) + plan.array(residual)
        plan.arrays[call.outs[0]][...] = np.maximum(y, 0) if call.attrs["activation"] == "relu" else y
    return [step if residual is None else step_adding]


def _describe(call: Call, what: str) -> str:
    """Returns what a step is, with what is done in the same pass."""
    if call.op.name in BIASED and call.args[2] is not None:
        what += " + bias"
    if call.residual is not None or call.op.name == "batch_norm_add_act":
        what += " + addition"
    return what + (" + relu" if call.attrs.get("activation") == "relu" else "")


def _convolution(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    x, w, *rest = call.args
    bias, y = rest[0] if rest else None, call.outs[0]
    attrs = {name: v for name, v in call.attrs.items() if name not in ("activation", "algorithm", "for_norm")}
    desc = ConvDesc.fprop(x.shape, w.shape, **attrs)
    other, operands = chosen("fprop", desc, call.attrs["algorithm"], True), (x, w, bias, y)
    if w.constant is None or (other and not other.fused):
        return None
    if other and other.way.name == "sparse":
        plan.note(call, _describe(call, "convolution without zeros"))
        return [*_residual(plan, call), _sparse(plan, desc, call, operands, k)]
    if not other:
        steps = _direct(plan, call, desc, operands)
    else:
        plan.note(call, _describe(call, "convolution by Winograd"))
        steps = [*_residual(plan, call), *(_winograd(plan, other.way, one, call, operands, k, first=first, read=read)
                                           for one, read, first in winograd.groups(desc))]
    needed = zeros_needed(desc, call.attrs["algorithm"], other.way if other else Way("direct"))
    if steps and config.conv_sparsity and needed <= 1:
        steps[-1] = _either(plan, x, needed, _sparse(plan, desc, call, operands, k), steps[-1])
    return steps


def _either(plan: CpuPlan, x: Value, needed: float, sparse: Step, dense: Step) -> Step:
    """Takes the sparse step where x has the share of zeros that it needs."""
    library, address, channels = native.loaded(), plan.pointer(x), x.shape[-1]
    rows = prod(x.shape[:-1])
    most = (1 - needed) * -(-rows // COUNT_STEP) * channels
    return lambda: (sparse if library.count_nonzeros(address, rows, channels, COUNT_STEP) <= most else dense)()


def _sparse(plan: CpuPlan, desc: ConvDesc, call: Call, operands: tuple[Any, ...], k: int) -> Step:
    x, w, bias, y = operands
    library, table = native.loaded(), plan.keep(forward_table(desc))
    _, filters = plan.packed(library.sparse_filter_floats(table))
    library.sparse_filters(table, native.ptr(w.constant.array), filters, False)
    work = plan.workspace(4 * library.sparse_floats(table), k)
    return partial(library.sparse_run, table, plan.pointer(x), filters, plan.pointer(bias), plan.pointer(y), work,
                   call.attrs.get("activation") == "relu", call.residual is not None)


def _conv_pool(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    """Winograd's tiles make windows of 2 x 2; else the convolution writes to scratch memory, which the pool reads."""
    (x, w, bias), y, attrs = call.args, call.outs[0], call.attrs
    desc = ConvDesc.fprop(x.shape, w.shape, stride=attrs["stride"], padding=attrs["padding"], dilation=(1, 1), groups=1)
    window = tuple(attrs[f"pool_{name}"] for name in ("kernel_size", "stride", "padding"))
    other = chosen("fprop", desc, attrs["algorithm"], True)
    if w.constant is None or (other and other.way.name != "winograd"):
        return None
    operands = x, w, bias, y
    if other and window == HALVES:
        plan.note(call, _describe(call, "convolution by Winograd") + " + relu + max pool")
        return [_winograd(plan, other.way, desc, call, operands, k)]
    rows = plan.workspace(4 * prod(desc.y_shape), k)
    if other:
        first: list[Step] | None = [_winograd(plan, other.way, desc, call, operands, k, rows)]
        plan.note(call, _describe(call, "convolution by Winograd"))
    else:
        first = _direct(plan, call, desc, operands, out=rows)
    plan.note(call, "relu + max pool")
    table = plan.keep(native.pool_table(desc.y_shape, y.shape, *window))
    return first and [*first, partial(native.loaded().max_pool_relu, table, rows, plan.pointer(y))]


def _contextual(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    x, w, *rest = call.args
    attrs = {name: v for name, v in call.attrs.items() if name not in ("activation", "for_norm")}
    if w.constant is None or (call.residual is not None and attrs["groups"] > 1):
        return None
    desc, operands = CoConvDesc.fprop(x.shape, w.shape, **attrs), (x, w, rest[0] if rest else None, call.outs[0])
    found = coconv.ways("fprop", desc)
    if not any(found):
        return _direct(plan, call, desc, operands)
    plan.note(call, _describe(call, "convolution, levels by Winograd" if all(found) else "convolution, some levels by "
                              "Winograd"))
    return [*_residual(plan, call), *(
        _winograd(plan, way, level, call, operands, k, first=first) if way else
        _panels(plan, call, forward_table(desc, number), operands)[0]
        for number, (way, (first, level)) in enumerate(zip(found, desc.levels)))]


def _linear(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    x, w, bias = call.args
    if w.constant is None or (call.attrs.get("algorithm") and call.attrs["algorithm"].name == "strassen"):
        return None
    rows = prod(x.shape[:-1])
    if rows <= MOST_SPARSE_ROWS and (call.attrs["algorithm"].name == "sparse" or
                                     (config.conv_sparsity and behind_relu(plan.program, x))):
        turned = plan.keep(np.ascontiguousarray(w.constant.numpy().T))
        plan.packed_nbytes += w.constant.array.nbytes
        plan.note(call, _describe(call, "linear without zeros"))
        return [partial(native.loaded().linear_sparse, plan.pointer(x), turned, plan.pointer(bias),
                        plan.pointer(call.outs[0]), rows, x.shape[-1], w.shape[0], call.attrs["activation"] == "relu")]
    desc = native.linear_desc(rows, x.shape[-1], w.shape[0])
    return _direct(plan, call, desc, (x, w, bias, call.outs[0]), "linear")


def _direct(plan: CpuPlan, call: Call, desc: ConvDesc | CoConvDesc, operands: tuple[Any, ...],
            what: str = "convolution", out: Any = None) -> list[Step] | None:
    """The direct kernels, with packed weights; the result goes to y, or to the address `out`."""
    step, adds = _panels(plan, call, forward_table(desc), operands, out)
    if call.residual is not None and not adds:
        return None
    plan.note(call, _describe(call, what))
    return [*_residual(plan, call), step]


def _panels(plan: CpuPlan, call: Call, levels: np.ndarray, operands: tuple[Any, ...], out: Any = None
            ) -> tuple[Step, bool]:
    """Returns the step of the direct kernels, and whether they have packed weights: others do not add."""
    x, w, bias, y = operands
    library, table = native.loaded(), plan.keep(levels)
    floats, panels = library.conv_panel_floats(table), None
    if floats:
        packed, panels = plan.packed(floats)
        library.conv_pack(table, native.ptr(w.constant.array), panels)
        assert packed.size == floats
    return partial(library.conv_run, table, plan.pointer(x), plan.pointer(w), panels, plan.pointer(bias),
                   plan.pointer(y) if out is None else out, call.attrs.get("activation") == "relu",
                   call.residual is not None), floats > 0


def _winograd(plan: CpuPlan, way: Way, desc: ConvDesc, call: Call, operands: tuple[Any, ...], k: int,
              out: Any = None, first: int = 0, read: int = 0) -> Step:
    """first, read: the channels of y and x that are desc's first, if those of desc are a part of them."""
    x, w, bias, y = operands
    library, channels = native.loaded(), y.shape[3] if out is None else desc.oc
    shape, points = winograd.tables("fprop", way, desc, x.shape[3], channels)
    shape = shape.copy()
    plan.kept += [shape, points]
    of_map, table = native.ptr(shape), native.ptr(points)
    total = library.winograd_floats(of_map)
    floats = library.winograd_filter_floats(of_map)
    _, filters = plan.packed(floats)
    library.winograd_filters(of_map, table, native.ptr(w.constant.array[first:first + desc.oc]), filters)
    work = plan.workspace(4 * (total - floats), k)
    to = plan.pointer(y) if out is None else out
    arguments = of_map, table, plan.pointer(x), filters, plan.pointer(bias), to, work
    flags = call.attrs.get("activation") == "relu", call.residual is not None
    if first or read:
        return lambda: library.winograd_run(*arguments[:2], _further(arguments[2], read), filters,
                                            *(_further(a, first) for a in arguments[4:6]), work, *flags)
    if call.op.name == "conv_relu_pool" and out is None:
        return partial(library.winograd_pool, *arguments)
    return partial(library.winograd_run, *arguments, *flags)


def _further(pointer: Any, floats: int) -> Any:
    """Returns an address so many floats behind another one, as that is now."""
    return pointer and ctypes.c_void_p(pointer.value + 4 * floats)


def _residual(plan: CpuPlan, call: Call) -> list[Step]:
    """Copies what is added to where the sum will be, unless it is there."""
    y, added = call.outs[0], call.residual
    if added is None or plan.roots[y] is plan.roots.get(added, added):
        return []
    return [lambda: np.copyto(plan.arrays[y], plan.array(added))]


def _norm(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    x, gamma, beta, mean, var = call.args[:5]
    if any(v is not None and v.constant is None for v in call.args[1:5]):
        return None
    istd = (1 / np.sqrt(var.constant.array.astype(np.float64) + call.attrs["eps"])).astype(np.float32)
    parameters = *[plan.pointer(v) for v in (gamma, beta, mean)], plan.keep(istd)
    plan.note(call, _describe(call, "norm"))
    return [_apply(plan, x, call.args[5] if len(call.args) > 5 else None, parameters, call)]


def _apply(plan: CpuPlan, x: Value, added: Value | None, parameters: tuple[Any, ...], call: Call) -> Step:
    """y = (x - mean) * istd * gamma + beta + added, then relu, in one pass; parameters: gamma, beta, mean, istd."""
    y, c = call.outs[0], x.shape[-1] if x.shape else 1
    cut = call.op.name == "relu" or call.attrs.get("activation") == "relu"
    return partial(native.loaded().bn_apply, plan.pointer(x), plan.pointer(added), *parameters, plan.pointer(y),
                   prod(x.shape) // c, c, cut)


def _elementwise(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    """relu, or the sum of two of one shape: by a norm that changes nothing."""
    y = call.outs[0]
    if not all(isinstance(a, Value) and a.shape == y.shape for a in call.args):
        return None
    c = y.shape[-1] if y.shape else 1
    unit = None, None, plan.keep(np.zeros(c, np.float32)), plan.keep(np.ones(c, np.float32))
    plan.note(call, "relu" if call.op.name == "relu" else "addition")
    return [_apply(plan, call.args[0], call.args[1] if len(call.args) > 1 else None, unit, call)]


def _window(attrs: dict[str, Any]) -> tuple[Any, Any, Any]:
    return attrs["kernel_size"], attrs["stride"], attrs["padding"]


def _max_pool(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    x, (y, index) = call.args[0], call.outs
    table = native.pool_table(x.shape, y.shape, *_window(call.attrs))
    plan.note(call, "max pool")
    return [partial(native.loaded().max_pool_fwd, plan.keep(table), plan.pointer(x), plan.pointer(y),
                    plan.pointer(index))]


def _avg_pool(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    x, y, window = call.args[0], call.outs[0], dict(call.attrs)
    if call.op.name == "adaptive_avg_pool2d":
        even = even_window(x.shape[1:3], call.attrs["output_size"])
        if even is None:
            return None
        window = even
    padded = window.pop("count_include_pad")
    plan.note(call, "average pool")
    return [partial(native.loaded().avg_pool_fwd, plan.keep(native.pool_table(x.shape, y.shape, *_window(window))),
                    plan.pointer(x), plan.pointer(y), padded)]


def _concat(plan: CpuPlan, call: Call, k: int) -> list[Step] | None:
    parts, y, axis = call.args[0], call.outs[0], call.attrs["axis"]
    plan.note(call, "concat")
    return [lambda: np.concatenate([plan.array(v) for v in parts], axis, out=plan.arrays[y])]


BIASED = ("conv2d_bias_act", "coconv2d_bias_act", "linear", "conv_relu_pool")
MAKERS: dict[str, Maker] = {
    "conv2d": _convolution, "conv2d_bias_act": _convolution, "conv_relu_pool": _conv_pool,
    "coconv2d": _contextual, "coconv2d_bias_act": _contextual,
    "linear": _linear, "batch_norm_act": _norm, "batch_norm_add_act": _norm, "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool, "adaptive_avg_pool2d": _avg_pool, "relu": _elementwise, "add": _elementwise,
    "concat": _concat,
}
