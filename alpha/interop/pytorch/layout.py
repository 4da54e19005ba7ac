"""Orders of axes: where PyTorch's axes of a value lie in alpha's tensor, and how a reshape changes that.

An order is a tuple: axis k of alpha's tensor is axis order[k] of PyTorch's. Maps (N, C, H, W) have the order
(0, 2, 3, 1). A transpose changes the order alone; an axis of one element may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

Order = tuple[int, ...]
Size = Any
_SAMPLES = (55440, 65520)   # numbers of samples that sizes are compared at; many numbers divide them


def plain(ndim: int) -> Order:
    """Returns PyTorch's own order."""
    return tuple(range(ndim))


def last(ndim: int) -> Order:
    """Returns the order that has channels, axis 1, last."""
    return (0, *range(2, ndim), 1) if ndim > 2 else plain(ndim)


def moved(ndim: int) -> Order:
    """Returns the order of a parameter whose channels, third from the end, are last: OIHW as OHWI."""
    return (*range(ndim - 3), ndim - 2, ndim - 1, ndim - 3) if ndim > 2 else plain(ndim)


def numbers(size: Size) -> tuple[int, ...]:
    """Returns a size at two numbers of samples; equal sizes have equal ones."""
    if isinstance(size, int):
        return (size, size)
    return tuple([int(size.subs({symbol: n + 1680 * k for k, symbol in enumerate(sorted(size.free_symbols, key=str))}))
                  for n in _SAMPLES])


def same(a: Size, b: Size) -> bool:
    """Tells whether two sizes are equal for any number of samples."""
    return a is b or numbers(a) == numbers(b)


def wide(shape: Sequence[Size]) -> list[int]:
    """Returns the axes of more than one element."""
    return [k for k, size in enumerate(shape) if not (isinstance(size, int) and size == 1)]


def agrees(order: Sequence[int], whole: Sequence[int]) -> bool:
    """Tells whether some axes come in the same sequence in a whole order."""
    return [k for k in whole if k in set(order)] == list(order)


def with_ones(order: Sequence[int], ndim: int) -> Order:
    """Returns a whole order for axes whose sequence is given; the others have one element and may lie anywhere."""
    if ndim == 4 and agrees(order, last(4)):
        return last(4)
    if agrees(order, plain(ndim)):
        return plain(ndim)
    found = list(order)
    for k in range(ndim):
        if k not in found:
            found.insert(found.index(k - 1) + 1 if k else 0, k)
    return tuple(found)


def without(order: Order, gone: Sequence[int]) -> Order:
    """Returns the order that is left when axes are removed."""
    kept = [k for k in order if k not in set(gone)]
    return tuple([sorted(kept).index(k) for k in kept])


class Reshape(NamedTuple):
    """The needs and the result of a reshape.

    Attributes:
        before: the order in which the value must lie.
        after: the order of the result.
        permutes: whether elements move for that.
        flat: (axes of the value in alpha's order) where they would become one axis, and lie in another sequence than
            PyTorch has them in; else ().
    """

    before: Order
    after: Order
    permutes: bool
    flat: tuple[int, ...] = ()


def groups(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Returns which axes of a shape become which of another, in smallest pieces; axes of one element are left out."""
    found = []
    left, right = wide(old), wide(new)
    while left or right:
        a, b = left[:1], right[:1]
        left, right = left[1:], right[1:]
        while True:
            x, y = ([prod([numbers(shape[k])[s] for k in part]) for s in range(len(_SAMPLES))]
                    for shape, part in ((old, a), (new, b)))
            if x == y:
                break
            if x[0] < y[0] or (x[0] == y[0] and x[1] < y[1]):
                if not left:
                    raise ValueError("the shapes differ in their numbers of elements")
                a.append(left.pop(0))
            else:
                if not right:
                    raise ValueError("the shapes differ in their numbers of elements")
                b.append(right.pop(0))
        found.append((a, b))
    return found


def reshape(order: Order, old: Sequence[Size], new: Sequence[Size]) -> Reshape:
    """Returns how a value in some order, of PyTorch's shape `old`, becomes one of shape `new`."""
    pieces = groups(old, new)
    piece_of = {k: p for p, (a, _) in enumerate(pieces) for k in a}
    held = [k for k in order if k in piece_of]
    sequence: list[int] = []        # of the axes as they must lie
    parts: list[int] = []           # of the pieces
    for k in held:
        if piece_of[k] not in parts:
            parts.append(piece_of[k])
            sequence += pieces[piece_of[k]][0]
    after = with_ones([k for p in parts for k in pieces[p][1]], len(new))
    if sequence == held:
        return Reshape(order, after, False)
    flat: tuple[int, ...] = ()
    last_axes, made = pieces[parts[-1]]
    if len(new) == 2 and made == [1] and len(last_axes) > 1 and held[:-len(last_axes)] == sequence[:-len(last_axes)]:
        flat = tuple(held[-len(last_axes):])
    rest = [k for k in order if k not in piece_of]
    return Reshape((*sequence, *rest), after, True, flat)
