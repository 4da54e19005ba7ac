"""Where the values of a program lie on the CPU: one block of memory, shared by values that do not live at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from alpha.inference.program import VIEWS, Call, Program, Value

ALIGNMENT = 64


class Life(NamedTuple):
    """A buffer: its bytes, and the first and the last call that it must last for."""

    nbytes: int
    first: int
    last: int


def nbytes(value: Value) -> int:
    return prod(value.shape) * np.dtype(value.dtype).itemsize


def roots_of(program: Program) -> dict[Value, Value]:
    """Returns the value whose elements each value has: itself, unless it is a view or made in place."""
    readers, last_of, roots = program.readers(), {}, {v: v for v in program.inputs}
    order = {id(call): k for k, call in enumerate(program.calls)}
    outside = set(program.inputs)

    def root(value: Value) -> Value:
        return roots.setdefault(value, value)

    for value, calls in readers.items():
        last_of[value] = max(len(order) if call is None else order[id(call)] for call in calls)
    for k, call in enumerate(program.calls):
        for value in call.outs:
            roots[value] = root(call.args[0]) if call.op.name in VIEWS else value
        if call.residual is not None and _may_overwrite(call, k, root, last_of, roots, outside):
            roots[call.outs[0]] = root(call.residual)
    return roots


def _may_overwrite(call: Call, k: int, root: Callable[[Value], Value], last_of: dict[Value, int],
                   roots: dict[Value, Value], outside: set[Value]) -> bool:
    """Tells whether the result of a call may take the place of what it adds."""
    assert call.residual is not None
    place = root(call.residual)
    shared = [v for v, r in roots.items() if r is place]
    return (place not in outside and place.constant is None and root(call.args[0]) is not place
            and all(last_of.get(v, -1) <= k for v in shared))


def lives(program: Program, roots: dict[Value, Value]) -> dict[Value, Life]:
    """Returns the buffers that a program needs: one per root that a call makes."""
    found: dict[Value, Life] = {}
    for k, call in enumerate(program.calls):
        for value in call.outs:
            place = roots[value]
            if place.constant is None and place not in program.inputs:
                old = found.get(place, Life(0, k, k))
                found[place] = Life(max(old.nbytes, nbytes(value)), old.first, max(old.last, k))
        for value in call.reads():
            place = roots.get(value, value)
            if place in found:
                found[place] = found[place]._replace(last=max(found[place].last, k))
    for value in program.outputs:
        place = roots.get(value, value)
        if place in found:
            found[place] = found[place]._replace(last=len(program.calls))
    return found


def place(buffers: Sequence[Life]) -> tuple[list[int], int]:
    """Returns where each buffer begins, and the bytes of all: the largest first, each in the lowest gap that fits."""
    offsets, total = [0] * len(buffers), 0
    done: list[int] = []
    for k in sorted(range(len(buffers)), key=lambda k: (-buffers[k].nbytes, k)):
        mine, at = buffers[k], 0
        others = sorted((offsets[o], buffers[o].nbytes) for o in done
                        if buffers[o].first <= mine.last and mine.first <= buffers[o].last)
        for begin, size in others:
            if at + mine.nbytes <= begin:
                break
            at = max(at, -(-(begin + size) // ALIGNMENT) * ALIGNMENT)
        offsets[k] = at
        total = max(total, at + mine.nbytes)
        done.append(k)
    return offsets, total
