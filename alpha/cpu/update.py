"""Steps of optimizers on the CPU: a compiled kernel for each rule (alpha.ops.update.rule), and NumPy, the oracle.

kernels/update.cpp runs a kernel over all parameters of a step in one call. The kernels of alpha's own rules are two
sources, compiled with the others (alpha.cpu.native): in one of them the compiler may contract products and sums. A rule
of yours gets a library of its own when it is first used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.op import Op
from alpha.cpu import native
from alpha.cpu.pointwise import source_of
from alpha.ops import update as ops
from alpha.ops.update import rules
from alpha.ops.update.rule import Rule, Variant

Array = np.ndarray
Arrays = Sequence[Array]

BLOCK = 1 << 15     # elements that NumPy computes at a time


# ---- from a rule to its kernels --------------------------------------------------------------------------------------


def entry(variant: Variant) -> str:
    """Returns the name of the kernel of a variant."""
    return f"update_{variant.name}"


def write_sources() -> list[Path]:
    """Returns C++ files with the kernels of alpha's own rules."""
    return [_source([rule for rule in rules.RULES if rule.contracted is contracted]) for contracted in (False, True)]


def _source(of: Sequence[Rule]) -> Path:
    return source_of("rules", [_kernel_text(v) for rule in of for v in rule.variants()], of[0].contracted)


def _kernel_text(variant: Variant) -> str:
    lists, read = variant.lists[:-1], variant.lists[-1]
    return "\n".join([
        f"// {variant.name}: {'; '.join(variant.rule.text.splitlines())}",
        f"EXPORT void {entry(variant)}(float* const* lists, const float* numbers, int64_t n) {{",
        *[f"  const vfloat n{k}_ = number(numbers[{k}]);  // {text}" for k, text in enumerate(variant.expressions)],
        f"  update<{len(variant.lists)}>(lists, n, [=](vfloat (&x)[{len(variant.lists)}]) INLINED {{",
        *[f"    vfloat {name}_ = x[{k}];" for k, name in enumerate(lists)],
        f"    [[maybe_unused]] const vfloat {read}_ = x[{len(lists)}];",
        *[f"    {line}" for line in variant.statements],
        *[f"    x[{k}] = {name}_;" for k, name in enumerate(lists)], "  });", "}"])


@cache
def _kernel(variant: Variant) -> Any:
    """Returns the kernel of a variant, as update_lists takes it.  Raises CompileError."""
    rule = variant.rule
    library = native.loaded() if rule in rules.RULES else native.load_library(entry(variant), [_source([rule])])
    return ctypes.cast(getattr(library, entry(variant)), ctypes.c_void_p).value


# ---- steps -----------------------------------------------------------------------------------------------------------


def by_rule(op: Op) -> None:
    """Gives an op that has a rule its implementation: compiled for float32, else NumPy's."""
    rule, scales = op.rule, op.args[-1].optional
    bare = [s for s in rule.states if s not in rule.optional]

    @op.impl("cpu")
    def run(params: Arrays, grads: Arrays, *rest: Any, **settings: Any) -> None:
        states, factor = (rest[:-1], rest[-1]) if scales else (rest, None)
        if not params or (factor is not None and factor == 0):
            return
        variant = rule.variant([s for s, arrays in zip(rule.states, states) if arrays] if rule.optional else bare)
        lists = [params, *[arrays for arrays in states if arrays], grads]
        _step(variant, lists, variant.numbers(settings), 1.0 if factor is None else float(factor))


def _step(variant: Variant, lists: Sequence[Arrays], numbers: tuple[float, ...], factor: float) -> None:
    """Makes a step: `lists` are those of the variant."""
    if lists[0][0].dtype == np.float16:
        _in_float32(variant, lists, numbers, factor)
    elif native.usable(*[a for arrays in lists for a in arrays]):
        compiled(variant, lists, numbers, factor)
    else:
        computed(variant, lists, numbers, factor)


def compiled(variant: Variant, lists: Sequence[Arrays], numbers: tuple[float, ...], factor: float = 1.0) -> None:
    """Makes a step by the kernel of a variant; the arrays are contiguous float32, and the kernels are loaded."""
    sizes = [a.size for a in lists[0]]
    table = np.array([*sizes, *[id(a) for arrays in lists for a in arrays]], np.int64)
    native.loaded().update_lists(_kernel(variant), native.ptr(table), len(lists), len(sizes), native.DATA,
                                 (ctypes.c_float * len(numbers))(*numbers), factor)


def computed(variant: Variant, lists: Sequence[Arrays], numbers: tuple[float, ...], factor: float = 1.0) -> None:
    """Makes a step by NumPy, in the dtype of the parameters."""
    for arrays in zip(*lists):
        for parts in _blocks(arrays):
            given = dict(zip(variant.lists, parts))
            if factor != 1:
                given[variant.lists[-1]] = parts[-1] * parts[-1].dtype.type(factor)
            for name, value in variant.compute(given, numbers).items():
                given[name][...] = value


def _blocks(arrays: Arrays) -> Iterator[Arrays]:
    """Yields the arrays of one parameter in blocks, or whole where they are not contiguous."""
    if not all(a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for first in range(0, flat[0].size, BLOCK):
        yield [a[first:first + BLOCK] for a in flat]


def _in_float32(variant: Variant, lists: Sequence[Arrays], numbers: tuple[float, ...], factor: float) -> None:
    """Makes a step of float16 parameters with copies in float32, one parameter at a time."""
    for arrays in zip(*lists):
        wide = [a.astype(np.float32, copy=False) for a in arrays]
        _step(variant, [[a] for a in wide], numbers, factor)
        for a, b in zip(arrays[:-1], wide):
            if a is not b:
                with np.errstate(over="ignore"):    # it is infinite then, as on a GPU
                    a[...] = b


for _op in [ops.step_of(rule) for rule in rules.RULES]:
    by_rule(_op)


# ---- sums, and the scale of a loss -----------------------------------------------------------------------------------


def sum_of_squares(arrays: Arrays) -> float:
    """Returns the sum of the squares of all elements, made in double: the square of the gradients' norm."""
    table = np.array([native.ptr(a).value for a in arrays], np.uintp)
    sizes = np.array([a.size for a in arrays], np.int64)
    total: float = native.loaded().sum_of_squares(native.ptr(table), native.ptr(sizes), len(arrays))
    return total


@ops.sums_of_squares.impl("cpu")
def sums_of_squares_cpu(tensors: Arrays) -> Array:
    if native.usable(*tensors):
        return np.array([sum_of_squares([x]) for x in tensors])
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
