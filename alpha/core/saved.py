"""The values of the forward pass that a gradient sees: kept ones, and ones that are made again."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from alpha.core import versions
from alpha.core.device import Array
from alpha.core.errors import GraphError, MissingError, message
from alpha.core.graph import Node, recording, state
from alpha.core.tensor import Tensor

EARLY = ("", "planes")  # forms of Backend.form that others follow


class Remaking:
    """The functions that alpha.recompute gives to the ops: they call `plan` for each node that they record.

    Attributes:
        plan: (node, args, outs): puts Parts in the place of the node's saved tensors, where that pays.
        worth: by device, bytes of args and results from which `auto` looks at a call.
        segments: how many functions of alpha.recompute are being run, in all threads.
    """

    def __init__(self) -> None:
        self.plan: Callable[[Node, Sequence[Any], Sequence[Tensor]], None] = lambda node, args, outs: None
        self.worth = {"cpu": 0}
        self.segments = 0


remaking = Remaking()


class Part(NamedTuple):
    """One result of a recipe, which stands for an array wherever one is saved.

    Attributes:
        form: in which form the result was when the reader, an op that is called again, has read it; None for nodes,
            which read it in the form that it came to have.  See Backend.form.
    """

    recipe: Any
    number: int
    form: str | None = None

    @property
    def is_early(self) -> bool:
        return self.form in EARLY and self.recipe.forms[self.number] is not None

    def array(self, passing: bool = False) -> Array:
        return self.recipe.result(self.number, self.form, passing)


class Values:
    """The values of the forward pass for a gradient, or for `again`, by name.  there: see Op.vjps."""

    there: Tensor | None
    _node: Node | None = None

    def __init__(self, values: dict[str, Any]) -> None:
        """values: by name; `_node`, if there is one, is the call's."""
        self.__dict__ = values

    def __getattr__(self, name: str) -> Any:
        known = [n for n in self.__dict__ if not n.startswith("_")]
        op = self.__dict__.get("_op")
        if op is None or name.startswith("__"):
            raise AttributeError(name)
        close = difflib.get_close_matches(name, known, 1)
        is_value = name in (*op.outs, *[arg.name for arg in op.args])
        fix = f'name it in saves = "... {name}" of the class' if is_value else (
            f"did you mean s.{close[0]}?" if close else "read a value that s has, or pass it as an attribute")
        raise MissingError(message(op.name, f"its gradient reads s.{name}, and s has {', '.join(known)}", fix))

    def last(self, name: str) -> Any:
        """Returns a value to its last reader in this gradient: its memory is free once that is done, unless others need
        it."""
        if self._node is None or state.retained is not None or recording.get():    # it is asked for again
            return getattr(self, name)
        self._node.release()
        return self.__dict__.pop(name)


def unpack(node: Node) -> Values:
    """Returns the values that the gradients of a call see: shapes and dtypes of its args, and saved tensors.

    Raises GraphError for a tensor that was changed since.
    """
    op, values = node.op, node.values.copy()
    values["_node"] = node
    changed = versions.newest > node.order  # something was
    for (name, k), value, data in zip(op.saved_args, node.saved, node.arrays):
        if isinstance(value, Tensor):
            if value.array is not data or (changed and versions.changed_since(value.device, data, node.order)):
                _refuse_changed(name, node, value, data)
        elif value.__class__ is Part:
            value = _made_again(name, node, value, data(), node.arg_meta[k], node.edges[k])
        elif isinstance(value, list):
            value = list(value)
            for j, (t, array) in enumerate(zip(value, data)):
                if t.__class__ is Part:
                    value[j] = _made_again(f"{name}[{j}]", node, t, array(), node.arg_meta[k][j],
                                                node.edges[k][j])
                elif t.array is not array or (changed and versions.changed_since(t.device, array, node.order)):
                    _refuse_changed(f"{name}[{j}]", node, t, array)
        values[name] = value
    if op.saved_outs:
        _add_outs(node, values, changed)
    return Values(values)


def _add_outs(node: Node, values: dict[str, Any], changed: bool) -> None:
    """Adds the saved outs of a call to the values that its gradients see."""
    op = node.op
    for (name, k), data, meta in zip(op.saved_outs, node.saved[len(op.saved_args):], node.out_meta):
        if data is None or data.__class__ is Part:
            values[name] = data if data is None else _made_again(name, node, data, None, meta, (node, k))
            continue
        t = Tensor(data, *meta)
        if changed and versions.changed_since(t.device, data, node.order):
            _refuse_changed(name, node, t, data)
        if k < op.returned and t.is_floating_point:
            t._requires_grad, t._node = True, (node, k)
        values[name] = t


def _made_again(name: str, node: Node, part: Part, saved: Tensor | None, meta: Any, edge: Any) -> Tensor:
    """Returns a saved tensor that was not kept, a result of the node of the edge; `saved` if it lives yet."""
    device, original = part.recipe.device, part.recipe.originals[part.number]()
    if (saved is not None and saved.array is not original) or (
            original is not None and versions.newest > node.order
            and versions.changed_since(device, original, node.order)):
        t = Tensor(original, meta[0], meta[1], device) if saved is None else saved
        _refuse_changed(name, node, t, original)
    t = Tensor(part.array(), meta[0], meta[1], device)
    if edge[1] < edge[0].op.returned and t.is_floating_point:
        t._requires_grad, t._node = True, edge
    return t


def _refuse_changed(name: str, node: Node, t: Tensor, data: Any) -> NoReturn:
    """Raises GraphError for a saved tensor whose elements have changed since it was saved."""
    if t.array is data:
        told = versions.told_since(t.device, data, node.order)
        how = f"was changed in place after the forward pass ({told})"
    else:
        how = "got other elements after the forward pass (it was moved, swapped or computed anew)"
    raise GraphError(message(
        "backward", f"{name} of {node.op.name} {how}", "call backward before an optimizer's step, copy_ or += changes "
        "it or a view of it, or compute the loss again", shape=t.shape))
