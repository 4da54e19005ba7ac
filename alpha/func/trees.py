"""Tensors in tuples, lists and dicts: taken out in order, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from alpha.core.errors import ArgumentError, message, shown
from alpha.core.tensor import Tensor


def leaves(tree: Any) -> Iterator[Any]:
    """Yields the leaves of a tree of tuples, lists and dicts, in order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    """Returns a tree of the same form with other values."""
    if isinstance(tree, dict):
        return {key: rebuilt(value, values) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        made = [rebuilt(value, values) for value in tree]
        return tuple(made) if isinstance(tree, tuple) else made
    return next(values)


def mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    return rebuilt(tree, iter([f(value) for value in leaves(tree)]))


def tensors(where: str, what: str, tree: Any, floats: bool = True) -> list[Tensor]:
    """Returns the tensors of a tree.  Raises ArgumentError where it has anything else, or integers, or nothing."""
    found = list(leaves(tree))
    for t in found:
        if not isinstance(t, Tensor) or (floats and not t.is_floating_point):
            raise ArgumentError(message(where, f"{what} has {shown(t)}, a Tensor of floats is needed",
                                        "pass tensors, in tuples, lists or dicts; hand other things on by a lambda"))
    if not found:
        raise ArgumentError(message(where, f"{what} has no tensor", "pass at least one"))
    return found


def check_like(where: str, what: str, given: Any, wanted: list[Tensor]) -> list[Tensor]:
    """Returns the tensors of a tree.  Raises ArgumentError unless their shapes equal the wanted tensors'."""
    found = tensors(where, what, given)
    if [t.shape for t in found] != [t.shape for t in wanted]:
        raise ArgumentError(message(where, f"{what} has shapes {[t.shape for t in found]}, "
                                    f"{[t.shape for t in wanted]} are needed", f"pass {what} of those shapes"))
    return found
