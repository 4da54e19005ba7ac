"""In-place arithmetic: the effect of `t += x`.

Without a gradient in play, the elements of t are overwritten, and all tensors over its memory see it: views by reshape,
results of detach. Where the graph is recorded, t becomes the result of the op, under all its names: the elements that
it had stay as they are, for gradients and views that need them. A leaf that requires a gradient is refused then, as its
gradient would belong to the value before.
"""

from __future__ import annotations

from typing import Any

from alpha.core import versions
from alpha.core.device import get_backend
from alpha.core.errors import DTypeError, GraphError, ShapeError, message
from alpha.core.graph import grad_enabled
from alpha.core.inplace import kin
from alpha.core.table import provides
from alpha.core.tensor import Tensor


@provides("refuse_part")
def refuse_part(t: Tensor, where: str) -> None:
    """Raises GraphError for a tensor that was expanded, and for a view that a gradient of alpha's own has made."""
    if t.shares == "sometimes":
        raise GraphError(message(where, f"the gradient of shape {t.shape} is a part or a rearrangement of another one",
                                 "change a copy: g = g.clone()"))
    kin.refuse_repeats(where, t)


@provides("overwrite")
def overwrite(where: str, t: Tensor, source: Any) -> None:
    """Gives a tensor the elements of an array of its shape, dtype and device, and all views that share them.

    Raises GraphError, with nothing changed, for an expanded tensor.
    """
    refuse_part(t, where)
    followers = kin.prepare(where, t)
    versions.about_to_change(t.device, [t.array])
    get_backend(t.device).copy_into(t.array, source)
    versions.note(versions.histories(t.device, [t.array]))
    if followers:
        kin.follow(t, followers)


@provides("update")
def update(t: Tensor, sign: str, op: Any, other: Any, instead: str = "") -> Tensor:
    """Gives t the value of `op(t, other)`, and returns it; `sign` is how it was written, `instead` a form that makes a
    new tensor.

    Raises:
        GraphError: t is a leaf that requires a gradient, while the graph is recorded; or it shares elements.
        ShapeError: the result has another shape.  DTypeError: it has another dtype.
    """
    refuse_part(t, sign)
    instead = instead or f"y = t {sign[:-1]} ..."
    if t.requires_grad and t.is_leaf and grad_enabled():
        raise GraphError(message(sign, f"a leaf of shape {t.shape} that requires a gradient cannot be changed in place "
                                 "while the graph is recorded", "for an update: with alpha.no_grad(): ...; for a new "
                                 f"value that is differentiable: {instead}"))
    old = t.with_data(t.array)
    old._node, old._requires_grad = t._node, t._requires_grad
    y = op(old, old if other is t else other)
    for what, error in (("shape", ShapeError), ("dtype", DTypeError)):
        if getattr(y, what) != getattr(t, what):
            raise error(message(sign, f"the tensor has {what} {getattr(t, what)}, the result {getattr(y, what)}",
                                f"keep the {what}, or make a new tensor: {instead}"))
    if not y.requires_grad:
        overwrite(sign, t, y.array)
    elif t.shares and t._kin is None:
        raise GraphError(message(sign, f"the tensor of shape {t.shape} shares its elements with the one that it was "
                                 "made of, whose gradient would not know", f"make a new tensor: {instead}"))
    elif (shape := kin.shape_of_another(t)) is not None:
        raise GraphError(message(sign, f"the tensor of shape {t.shape} shares its elements with another of shape "
                                 f"{shape}, a view or what detach() returned, which would keep the old ones",
                                 f"make a new tensor: {instead}; or drop the other one, or clone() it"))
    else:
        place = t._kin
        t._rebind(y.array)
        kin.leave(t, place)
        t._node, t._requires_grad = y._node, True
    return t
