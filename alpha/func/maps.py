"""vmap: a function of samples as a function of batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from alpha import ops
from alpha.core.errors import ArgumentError, ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.tensor import Tensor
from alpha.func.trees import leaves, rebuilt


def _axis_of(dim: Any, t: Any, what: str) -> int | None:
    """Returns the axis of a tensor that samples lie along.  Raises ArgumentError, ShapeError."""
    if dim is None:
        return None
    if not isinstance(t, Tensor) or isinstance(dim, bool) or not isinstance(dim, int):
        raise ArgumentError(message("vmap", f"{what} is {shown(t)}, with in_dims {shown(dim)}", "pass tensors, and an "
                                    "axis for each, or None for what all samples share"))
    if not -t.ndim <= dim < t.ndim:
        raise ShapeError(message("vmap", f"{what} has shape {t.shape} and no axis {dim}", "pass an axis that it has"))
    return dim % t.ndim


def _spread(dims: Any, tree: Any) -> list[Any]:
    """Returns an axis for each leaf of a tree: one for all, or a tree of the same form."""
    if dims is None or isinstance(dims, int):
        return [dims for _ in leaves(tree)]
    if isinstance(tree, dict) and isinstance(dims, dict) and dims.keys() == tree.keys():
        return [d for key in tree for d in _spread(dims[key], tree[key])]
    if isinstance(tree, (tuple, list)) and isinstance(dims, (tuple, list)) and len(dims) == len(tree):
        return [d for part, value in zip(dims, tree) for d in _spread(part, value)]
    raise ArgumentError(message("vmap", f"in_dims {shown(dims)} does not fit {shown(tree)}", "pass an int, None, or a "
                                "tuple with one for each argument"))


def _slice(t: Tensor, axis: int, k: int) -> Tensor:
    return t[(slice(None),) * axis + (k,)]


@checked
def vmap(f: Callable[..., Any], in_dims: Any = 0, out_dims: int = 0) -> Callable[..., Any]:
    """Returns the function that calls f on each sample of a batch, and puts the results together.

    Args:
        f: a function of tensors, or of trees of them, that returns a tensor or a tree.
        in_dims: the axis along which the samples of all arguments lie, or a tuple with one for each; None: all samples
            share the argument.
        out_dims: the axis along which the results lie.
    Raises:
        ArgumentError: in_dims does not fit the arguments, or f returns another value than tensors.
        ShapeError: an axis does not exist, batches differ in length, or there is no sample.
    f is called once for each sample, so this is for functions that take no batch, such as per-sample gradients; ops
    and layers take batches themselves, in one call. Draws, as of dropout, are made for each sample anew.
    """
    @wraps(f)
    def call(*args: Any, **named: Any) -> Any:
        values = list(leaves(args))
        axes = [_axis_of(d, t, "an argument") for d, t in zip(_spread(
            in_dims if isinstance(in_dims, (int, type(None))) else tuple(in_dims), args), values)]
        sizes = {t.shape[axis] for t, axis in zip(values, axes) if axis is not None}
        if len(sizes) != 1 or 0 in sizes:
            raise ShapeError(message("vmap", f"batches have lengths {sorted(sizes)}", "pass batches of one length, of "
                                     "at least 1, and an axis for at least one argument"))
        results = []
        for k in range(sizes.pop()):
            sample = [t if axis is None else _slice(t, axis, k) for t, axis in zip(values, axes)]
            results.append(f(*rebuilt(args, iter(sample)), **named))
        columns = list(zip(*[list(leaves(result)) for result in results]))
        if any(not isinstance(t, Tensor) for column in columns for t in column):
            raise ArgumentError(message("vmap", f"the function returned {shown(results[0])}, tensors are needed",
                                        "return a tensor, or a tuple, list or dict of tensors"))
        return rebuilt(results[0], iter([ops.stack(list(column), out_dims) for column in columns]))
    return call
