"""Batch norm within chains of pointwise ops: what it applies, and what its backward reads (pointwise/chain.py).

The pass that applies is a value, of x and of vectors of channels: an activation behind the norm, and what is added,
join it. Backward, the gradient that arrives is a value as a rule, of the activation's; the sums are added up by a pass
that makes it, and dx is one more value. What takes more than reading one array beside x is written by the first pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from alpha.core.config import config
from alpha.cuda import lazy
from alpha.cuda.ops.pointwise.chain import bounded, may_wait, result_of, sums_of, wait, write
from alpha.cuda.runtime.memory import Array
from alpha.fuse.chain import Function, Leaf, Value, made_again
from alpha.fuse.places import WHOLE, Place


def _function(name: str) -> Function:
    return Function(f"{name}_of", '#include "ops/norm/norm_equation.cuh"')


_APPLIED = {(relu, add): _function(f"norm{'_add' * add}{'_relu' * relu}") for relu in (False, True)
            for add in (False, True)}
_MASKED, _AWAY, _GRADIENT = _function("norm_relu_grad"), _function("norm_away"), _function("norm_grad")
_FROM = {relu: _function(f"norm_grad_from{'_relu' * relu}") for relu in (False, True)}


def inputs(norm: Any) -> tuple[Any, ...]:
    """Returns mean, istd, gamma, beta of a norm: numbers where it has no parameters."""
    return norm.mean, norm.istd, norm.gamma or Leaf(1.0, None), norm.beta or Leaf(0.0, None)


def applied(given: Sequence[Any], relu: bool, alone: Callable[..., Array] | None = None) -> Any:
    """Returns y of x, `inputs`, and of a residual perhaps; None where it cannot be a part of chains.

    alone: makes y by itself, and what is returned is the array, which waits; else the value, as of `gradient_from`.
    """
    x = given[0]
    y = _APPLIED[relu, len(given) > 5], given, (), x.dtype, x.shape
    if alone:
        return wait(*y, alone) if may_wait(x.size) else None
    return result_of(*y) if config.fuse else None


def sums(g: Array, x: Array, norm: Any, relu: bool, header: Array | None) -> tuple[Value, Array] | None:
    """Returns the gradient where relu passed, and the sums of batch norm's backward, by chunks of rows.

    None where g is no value, or one that has vectors of other lengths.  header: as of `sums_of`.
    """
    value, channels = lazy.value_of(g), x.shape[-1]
    if value is None or not config.fuse or (value.row != channels and -value.row % channels):
        return None
    v = value = _made_of(value, [Leaf(x, WHOLE), *_leaves(norm)], channels)
    if relu:
        v = Value(_MASKED, (value, Leaf(x, WHOLE), *_leaves(norm)), (), g.dtype, g.size, channels)
    away = Value(_AWAY, (Leaf(x, WHOLE), _column(norm.mean)), (), "float32", g.size, channels)
    read = [leaf for leaf in v.leaves(WHOLE) if leaf.place == WHOLE and leaf.array is not x]
    chain, arrays, partial = sums_of(v, away, channels, [v] if len(read) > 1 else [], [value], header)
    lazy.settle(chain, arrays)
    return v, partial


def _made_of(value: Value, of: Sequence[Leaf], row: int) -> Value:
    """Returns a value that makes again what it reads and what is made of x and the norm, which its pass reads anyway.

    All are saved for this pass: they are what they were.
    """
    inputs: list[Any] = []
    for x in value.inputs:
        if x.__class__ is Value and x.written is None:
            inputs.append(_made_of(x, of, row))
            continue
        recipe = x.recipe if x.__class__ is Value else lazy.recipe(x.array) if x.place == WHOLE else None
        inputs.append((recipe and made_again(recipe, of, value.size, row)) or x)
    if all(x is y for x, y in zip(inputs, value.inputs)):
        return value
    return Value(value.function, inputs, value.numbers, value.dtype, value.size, row)


def gradient(v: Value, x: Array, norm: Any, coefficients: Array, memory: lazy.Memory | None) -> Array:
    """Returns dx of a value.  memory: with a bound of dx, where it may be read as planes."""
    dx = Value(_GRADIENT, (v, Leaf(x, WHOLE), *_leaves(norm)[:3], *map(_column, _halves(coefficients))), (), x.dtype,
               prod(x.shape), x.shape[-1])
    if memory:
        return bounded(dx, memory, hurries=True)
    chain, arrays = write(dx, [v, *(y for y in v.inputs if y.__class__ is Value)])
    lazy.settle(chain, arrays[:-1])
    return arrays[-1].reshaped(x.shape)


def gradient_from(g: Array, x: Array, norm: Any, relu: bool, coefficients: Array,
                  alone: Callable[..., Array] | None = None) -> Any:
    """Returns dx of a gradient that is an array, as a sum takes it that it may be a term of; None where it cannot.

    alone: writes dx by itself, and what is returned is the array, which waits; else the value.
    """
    if not may_wait(x.size) or lazy.rows_of(g)[1] != x.shape[-1]:
        return None
    given = _FROM[relu], (g, x, *inputs(norm), *_halves(coefficients)), (), x.dtype, x.shape
    return wait(*given, alone) if alone else result_of(*given)


def _halves(coefficients: Array) -> list[Array]:
    """Returns slope and offset of each channel."""
    size = coefficients.shape[-1]
    return [Array(coefficients.block, coefficients.ptr + at, (size,), "float32", size, 4 * size)
            for at in (0, 4 * size)]


def _column(x: Array) -> Leaf:
    return Leaf(x, Place("column", x.size))


def _leaves(norm: Any) -> list[Leaf]:
    return [x if x.__class__ is Leaf else _column(x) for x in inputs(norm)]
