"""Steps of optimizers on the GPU: one launch for all parameters, by a kernel that is made of the rule (update.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from alpha.build import written
from alpha.core.op import Op
from alpha.cuda.runtime import memory, toolchain
from alpha.cuda.runtime.kernel import C_TYPES, Kernel, per_dtype
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.tables import CHUNK, ROWS, TABLE, tables
from alpha.ops import update as ops
from alpha.ops.update import rules
from alpha.ops.update.rule import Rule, Variant

Arrays = Sequence[Array]

_SQUARES = per_dtype("update.cu", "squares", f"{TABLE}, ptr partial")
_DECIDE = Kernel("update.cu", "decide", "ptr squares, i32 count, ptr scale, ptr counts, ptr factor, "
                 "i32 growth_interval, f32 largest, f32 max_norm")
_TOTALS = Kernel("update.cu", "totals", f"{ROWS}, ptr partial, i32 blocks, ptr y")


# ---- from a rule to its kernels --------------------------------------------------------------------------------------


@cache
def _source(rule: Rule) -> Path:
    """Returns the source of the kernels of a rule: one for each variant and dtype."""
    lines = [f"// {line}" for line in (f"{rule.name}: generated, see update.cuh", *rule.text.splitlines())]
    lines += ['#include "ops/update/update.cuh"', "",
              f"namespace rules {{\nusing number = {'fused' if rule.contracted else '::number'};"]
    for variant in rule.variants():
        lines += _step(variant)
    lines += ["}  // namespace rules", ""]
    for variant in rule.variants():
        lines += [f"UPDATE(update_{variant.name}, rules::{variant.name}, {dtype}, {c}, {'float' if rule.wide else c})"
                  for dtype, c in C_TYPES.items()]
    path = written("rules", "\n".join([*lines, ""]), ".cu")
    toolchain.generated.add(path)
    return path


def _step(variant: Variant) -> list[str]:
    """Returns the lines of the struct that computes an element."""
    changed, read, count = variant.lists[:-1], variant.lists[-1], len(variant.lists) - 1
    return [f"struct {variant.name} {{", f"  static constexpr int CHANGED = {count};",
            *[f"  float n{k};  // {text}" for k, text in enumerate(variant.expressions)],
            f"  __device__ void operator()(float (&x)[{count}], float read) const {{",
            *[f"    const number n{k}_ = n{k};" for k in range(len(variant.expressions))],
            *[f"    number {name}_ = x[{k}];" for k, name in enumerate(changed)],
            f"    [[maybe_unused]] const number {read}_ = read;",
            *[f"    {line}" for line in variant.statements],
            *[f"    x[{k}] = {name}_.v;" for k, name in enumerate(changed)], "  }", "};"]


@cache
def _kernels(variant: Variant) -> dict[str, Kernel]:
    numbers = "".join([f", f32 n{k}" for k in range(len(variant.expressions))])
    return per_dtype(_source(variant.rule), f"update_{variant.name}", f"{TABLE}, ptr factor, ptr kept{numbers}")


# ---- steps -----------------------------------------------------------------------------------------------------------


def by_rule(op: Op) -> None:
    """Gives an op that has a rule its implementation."""
    rule, scales = op.rule, op.args[-1].optional

    @op.impl("cuda")
    def run(params: Arrays, grads: Arrays, *rest: Any, **settings: Any) -> None:
        states, factor = (rest[:-1], rest[-1]) if scales else (rest, None)
        if not params:
            return
        variant = rule.variant([s for s, arrays in zip(rule.states, states) if arrays])
        numbers = variant.numbers(settings)
        kernel, kept = _kernels(variant)[params[0].dtype], memory.recorder and memory.recorder.kept(numbers)
        for part, table in tables([params, *filter(None, states), grads]):
            kernel(part.blocks, table, part.count, CHUNK, factor, kept, *numbers)


for _rule in rules.RULES:
    by_rule(ops.step_of(_rule))
    for _variant in _rule.variants():   # declared, for a wheel that brings them compiled
        _kernels(_variant)


# ---- sums, and the scale of a loss -----------------------------------------------------------------------------------


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
