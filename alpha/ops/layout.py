"""Where the elements of arrays of several shapes lie that are combined in one: strides, and axes merged."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shape = tuple[int, ...]


def strides_of(shape: Shape) -> Shape:
    """Returns the strides, in elements, of a C-contiguous array."""
    return tuple([prod(shape[k + 1:]) for k in range(len(shape))])


def broadcast_strides(shape: Shape | None, target: Shape) -> Shape:
    """Returns the strides of an array that broadcasts to `target`: 0 where it repeats.  None is a number."""
    if shape is None:
        return (0,) * len(target)
    steps = [0 if n == 1 else step for n, step in zip(shape, strides_of(shape))]
    return (0,) * (len(target) - len(shape)) + tuple(steps)


def merged(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Returns a box with as few axes as possible, the innermost first, and the strides of its operands.

    Axes of length 1 go; two axes become one where in every operand a step of the outer is a walk through the inner.
    """
    axes: list[tuple[int, list[int]]] = []
    for k in reversed(range(len(shape))):
        steps = [s[k] for s in strides]
        if shape[k] == 1:
            continue
        if axes and all(step == inner * axes[-1][0] for step, inner in zip(steps, axes[-1][1])):
            axes[-1] = (axes[-1][0] * shape[k], axes[-1][1])
        else:
            axes.append((shape[k], steps))
    axes = axes or [(1, [1] * len(strides))]
    return tuple([n for n, _ in axes]), [tuple([steps[k] for _, steps in axes]) for k in range(len(strides))]
