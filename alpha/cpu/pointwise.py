"""Pointwise ops on the CPU: a compiled kernel for each equation (alpha/core/equation.py), run over whatever broadcasts.

A kernel is one loop over contiguous vectors, so it compiles in a moment; kernels/pointwise.cpp cuts arrays into blocks
for it, collects what is not contiguous, and shares the blocks among threads. The kernels of alpha's own ops are one
source, compiled with the others (alpha.cpu.native); an op of yours that has an equation and no implementation for the
CPU gets a library of its own when it is first called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from alpha.build import written
from alpha.core.op import Op, registry
from alpha.cpu import native
from alpha.cpu.memory import empty
from alpha.ops.elementwise import broadcast_shape
from alpha.ops.layout import broadcast_strides, merged

ndarray = Array = np.ndarray
Shape = tuple[int, ...]

HEADERS = ("vec.hpp", "functions.hpp")
OPERANDS = 3            # that a kernel takes at most
ALONE_BELOW = 32768     # elements
_FLOAT32, _BOOL = np.dtype(np.float32), np.dtype(bool)
_number = ctypes.c_float


# ---- from an equation to its kernel ----------------------------------------------------------------------------------


def entry(op: Op) -> str:
    """Returns the name of an op's kernel."""
    return f"map_{op.name}"


def own() -> list[Op]:
    """Returns alpha's ops that have an equation."""
    return [op for _, op in sorted(registry.items()) if op.own and op.equation]


def write_source(ops: Iterable[Op]) -> Path:
    """Returns a C++ file with the kernels of the ops."""
    return source_of("equations", [_kernel_text(op) for op in ops])


def source_of(name: str, kernels: Iterable[str], contracted: bool = False) -> Path:
    """Returns a C++ file of kernels, which includes nothing of alpha's; it is named by what it has.

    contracted: whether a product and the sum it goes into may be rounded once.
    """
    lines = [] if contracted else ["#if defined(__clang__)", "#pragma clang fp contract(off)", "#else",
                                   '#pragma GCC optimize("fp-contract=off")', "#endif"]
    for header in HEADERS:
        text = (native.KERNELS / header).read_text().splitlines()
        lines += [line for line in text if not line.startswith(("#pragma once", '#include "'))]
    return written(name, "\n".join([*lines, *kernels, ""]), ".cpp")


def _kernel_text(op: Op) -> str:
    assert op.equation
    code = op.equation.code
    masks = [a in code.conditions for a in op.equation.args]
    numbers = [f"  [[maybe_unused]] const vfloat {name}_ = number(numbers[{k}]);"
               for k, name in enumerate(op.equation.attrs)]
    params = ", ".join([f"{'vint' if mask else 'vfloat'} {name}_" for mask, name in zip(masks, op.equation.args)])
    operands = "".join([f", static_cast<const {'uint8_t' if mask else 'float'}*>(in[{k}])"
                        for k, mask in enumerate(masks)])
    body = " ".join([*code.statements, f"return {code.result};"])
    return "\n".join([
        f"// {op.name}: {op.equation.text}",
        f"EXPORT void {entry(op)}(const void* const* in, void* out, [[maybe_unused]] const float* numbers,",
        "                         int64_t n) {",
        *numbers, f"  map(n, [=]({params}) {{ {body} }},",
        f"      static_cast<{'uint8_t' if code.is_condition else 'float'}*>(out){operands});", "}"])


@cache
def _kernel(op: Op) -> int:
    """Returns the address of an op's kernel.  Raises CompileError."""
    library = native.loaded() if op.own else native.load_library(entry(op), [write_source([op])])
    return ctypes.cast(getattr(library, entry(op)), ctypes.c_void_p).value or 0


# ---- from shapes to a plan -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _plan(name: str, shapes: tuple[Shape | None, ...], masks: tuple[bool, ...],
          itemsize: int) -> tuple[Shape, Array, int]:
    """Returns the shape of y, and what kernels/pointwise.cpp reads of it, with its address; None is a number."""
    given = {f"operand {k}": s for k, s in enumerate(shapes) if s is not None}
    shape = next(iter(given.values())) if len(set(given.values())) == 1 else broadcast_shape(name, **given)
    sizes, strides = merged(shape, [broadcast_strides(s, shape) for s in shapes])
    table = [len(shapes), itemsize, prod(shape), ALONE_BELOW, native.DATA, len(sizes), *sizes]
    for mask, given_shape, steps in zip(masks, shapes, strides):
        table += [given_shape is not None, 1 if mask else 4, *_period(sizes, steps), *steps]
    packed = np.array(table, np.int64)
    return shape, packed, packed.ctypes.data


def _period(sizes: Shape, strides: Shape) -> tuple[int, int]:
    """Returns after how many elements those of an operand, contiguous that far, repeat, and for how many they do."""
    period = span = 1
    for n, step in zip(sizes, strides):
        if step == period == span:
            period *= n
        elif step:
            break
        span *= n
    return period, span


# ---- implementations -------------------------------------------------------------------------------------------------


def bind(op: Op, oracle: Callable[..., Array], few: int = 0,
         numbers: Callable[..., dict[str, float]] | None = None,
         around: Callable[[Callable[..., Array]], Callable[..., Array]] = lambda run: run) -> None:
    """Makes the kernel of an op's equation its implementation for float32.

    Args:
        oracle: NumPy's implementation, which computes all else.
        few: where no operand has so many elements the oracle computes too, being faster: only of what both give the
            same bits.
        numbers: makes numbers of the attributes, where some are none.
        around: returns the implementation, given the one that is made here, for all calls that it leaves to it.
    """
    kinds, pair = _kinds(op), op.scalars

    def run(*operands: Any, **attrs: Any) -> Array:
        if few:
            for x in operands:
                if x.__class__ is ndarray and x.size >= few:
                    break
            else:
                return oracle(*operands, **attrs)
        shapes: list[Shape | None] = []
        for x in operands:
            if x.__class__ is ndarray:
                shapes.append(x.shape)
            elif pair:
                shapes.append(None)
            else:
                return oracle(*operands, **attrs)
        if native.library() is None:
            return oracle(*operands, **attrs)
        for x, kind in zip(operands, kinds):
            if x.__class__ is ndarray and x.dtype is not kind and x.dtype != kind:
                return oracle(*operands, **attrs)
        for x in operands:
            if x.__class__ is ndarray and not x.flags.c_contiguous:
                operands = _few(operands)
                shapes = [x.shape if x.__class__ is ndarray else None for x in operands]
                break
        return _launch(op, tuple(shapes), operands, numbers(**attrs) if numbers else attrs)

    def recorded(*operands: Any, **attrs: Any) -> Any:
        """The kernel alone, for alpha.cpu.recording; NotImplemented where it cannot take the operands as they are."""
        for x, kind in zip(operands, kinds):
            if x.dtype != kind if x.__class__ is ndarray else not pair:
                return NotImplemented
        if not all(x.flags.c_contiguous for x in operands if x.__class__ is ndarray):
            few = _few(operands)
            if not all(np.may_share_memory(x, part) for x, part in zip(operands, few) if x.__class__ is ndarray):
                return NotImplemented   # parts were copied
            operands = tuple(few)
        return compiled(op, operands, numbers(**attrs) if numbers else attrs)

    bound = around(run)
    bound.recorded = recorded   # type: ignore[attr-defined]
    op.impl("cpu")(bound)


def _few(operands: Sequence[Any]) -> list[Any]:
    """Returns operands that are contiguous: of one that repeats its elements, those alone, unless all would."""
    arrays = [x for x in operands if x.__class__ is ndarray]
    whole = np.broadcast_shapes(*[x.shape for x in arrays])
    found = [np.asarray(x[tuple([slice(None if step else 1) for step in x.strides])], order="C")
             if x.__class__ is ndarray else x for x in operands]
    if np.broadcast_shapes(*[x.shape for x in found if x.__class__ is ndarray]) != whole:
        k = next(k for k, x in enumerate(operands) if x.__class__ is ndarray and x.shape == whole)
        found[k] = np.asarray(operands[k], order="C")
    return found


@cache
def _kinds(op: Op) -> list[np.dtype]:
    """Returns the dtypes of an op's operands."""
    assert op.equation
    return [_BOOL if name in op.equation.code.conditions else _FLOAT32 for name in op.equation.args]


@cache
def _ready(op: Op) -> tuple[int, tuple[bool, ...], np.dtype, tuple[str, ...], Any, tuple[None, ...]]:
    """Returns what every call of an op's kernel needs."""
    equation = op.equation
    assert equation
    masks = tuple([kind == _BOOL for kind in _kinds(op)])
    return (_kernel(op), masks, _BOOL if equation.code.is_condition else _FLOAT32, equation.attrs,
            _number * len(equation.attrs), (None,) * (OPERANDS - len(masks)))


def compiled(op: Op, operands: Sequence[Any], attrs: dict[str, Any]) -> Array:
    """Returns y of contiguous operands of the kernel's dtypes, or numbers; the kernels are loaded."""
    return _launch(op, tuple([x.shape if x.__class__ is ndarray else None for x in operands]), operands, attrs)


def computed_into(y: Array, op: Op, *operands: Array) -> None:
    """As compiled, into y: an array of its shape, which may be one of the operands."""
    _launch(op, tuple([x.shape for x in operands]), operands, {}, y)


def _launch(op: Op, shapes: tuple[Shape | None, ...], operands: Sequence[Any], attrs: dict[str, Any],
            into: Array | None = None) -> Array:
    kernel, masks, result, names, numbers, missing = _ready(op)
    shape, table, plan = _plan(op.name, shapes, masks, result.itemsize)
    y = empty(shape, result) if into is None else into
    given = numbers(*[attrs[name] for name in names]) if names else None
    recorder = native.recorder()
    if recorder is not None:
        recorder.keep(table)
        cells = [recorder.cell(x) if x.__class__ is not _number and hasattr(x, "shape") else _number(x)
                 for x in operands]
        native.loaded().pointwise(kernel, plan, *cells, *missing, recorder.cell(y), given)
        return y
    if None in shapes:
        floats = [None if x.__class__ is ndarray else _number(x) for x in operands]
        addresses = [id(x) if f is None else ctypes.addressof(f) for x, f in zip(operands, floats)]
    else:
        addresses = [id(x) for x in operands]
    native.loaded().pointwise(kernel, plan, *addresses, *missing, id(y), given)
    return y


def by_equation(op: Op) -> None:
    """Gives an op that has an equation, and no implementation, one of its own: compiled, or NumPy's of the equation."""
    equation = op.equation
    assert equation

    def oracle(*operands: Any, **attrs: Any) -> Array:
        dtype = next(x.dtype for x in operands if isinstance(x, np.ndarray) and x.dtype != _BOOL)
        wide = [x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float16 else x for x in operands]
        y = equation.compute({**dict(zip(equation.args, wide)), **attrs})
        return y if equation.code.is_condition else y.astype(dtype, copy=False)

    bind(op, oracle)
