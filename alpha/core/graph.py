"""The autograd graph: nodes, the backward pass, anomaly mode.

An op that ran with a gradient wanted leaves a Node, and its outputs point to it. A Node points to the nodes of its
inputs and keeps the tensors that its op declared in `saves`; nothing points forward, so there is no reference cycle
and the memory of a step returns the moment its last tensor goes.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from alpha.core import leftover, ready, versions
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.core.errors import HOME, AnomalyError, ArgumentError, GraphError, ShapeError, message, shown
from alpha.core.inputs.arguments import bound, checked
from alpha.core.mode import enable_grad, grad_enabled, no_grad, recording, set_grad_enabled
from alpha.core.table import provides, registry, settle
from alpha.core.tensor import Tensor
from alpha.core.trace import watchers

__all__ = ["Node", "backward", "call_site", "detect_anomaly", "edge_of", "enable_grad", "grad",
           "grad_enabled", "no_grad", "raise_if_nan", "recording", "set_grad_enabled", "state"]

Grad = Any  # Tensor or None
if TYPE_CHECKING:   # no kind that `checked` looks at: `_tensors` does, and tells the place of a wrong one
    Tensors = Tensor | Sequence[Tensor]


class _State(threading.local):
    """Per thread: which layers are being called (outermost first), and the passes that alpha.recompute knows of."""

    layers: tuple[Any, ...] = ()
    quiet = False   # in a backward pass, whose views are not changed in place: they join no family (core.inplace.kin)
    retained: list[Any] | None = None  # recipes that a pass which keeps the graph has followed; None in any other


state = _State()


@bound
def detect_anomaly() -> Any:
    """For a block: stop at the first NaN, naming the op, the layer and the line (also ALPHA_CHECK_NAN=1)."""
    return config(check_nan=True)


class Node:
    """One call of an op, as backward needs it."""

    __slots__ = ("__weakref__", "arg_meta", "arrays", "attrs", "edges", "hooks", "needs", "op", "order", "out_meta",
                 "plan", "saved", "values", "where")

    def __init__(self, op: Any, attrs: dict[str, Any], edges: Sequence[Any], needs: Sequence[bool], saved: list[Any],
                 arrays: list[Any], arg_meta: Sequence[Any], out_meta: Sequence[tuple[Any, str, str]],
                 values: dict[str, Any] | None = None) -> None:
        self.op = op
        self.attrs = attrs
        self.edges = edges          # per arg: None, a leaf Tensor, (node, output index), or a list of those
        self.needs = needs          # per arg: is a gradient wanted
        self.saved: Any = saved      # the saved args, then the data of the saved outs; None once freed
        self.arrays: Any = arrays    # of the saved args, to see whether one got others since
        self.arg_meta = arg_meta    # per arg: (shape, dtype), or a list of those, or None
        self.out_meta = out_meta    # per saved output: (shape, dtype, device)
        self.values: Any = values    # gradients see them beside saved tensors: shapes and dtypes of args, by name
        self.hooks: dict[int, list[Callable[[Tensor], Tensor | None]]] | None = None
        self.plan: Any = None        # alpha.recompute.plan.Plan: values made again, and for which readers
        self.order = next(versions.numbers)
        self.where = call_site() if config.watch and config.check_nan else ""

    def release(self) -> None:
        """Lets go of the saved values and of the nodes below."""
        self.saved = None
        self.edges = self.arrays = ()
        if self.plan is not None:
            self.plan.release()


class _Overwritten:
    """Stands for the op of a node whose result was changed in place: no gradient of the new elements goes through it.

    It ends a backward pass that comes there with an error.
    """

    returned, adds = 1, None
    name = "a tensor changed in place"

    def __init__(self, what: str) -> None:
        self.what = what

    def vjps(self, node: Node, grads: list[Any], there: None = None) -> list[Any]:
        raise GraphError(message("backward", self.what, "make a new tensor of the new values, y = f(y), or leave the "
                                 "graph behind: y = y.detach()"))


def edge_of(t: Tensor, made: tuple[Node, int]) -> tuple[Node, int]:
    """Returns where a gradient of a tensor made by a node goes: to that node, unless the tensor was changed since."""
    node, _ = made
    if versions.newest <= node.order or not versions.changed_since(t.device, t.array, node.order):
        return made
    return Node(_Overwritten(
        f"the result of {node.op.name} of shape {t.shape} was changed in place after {node.op.name} had made it, and "
        f"then used ({versions.told_since(t.device, t.array, node.order)})"), {}, (), (), [], [], (), ()), 0


@provides("edge")
def _edge(t: Tensor) -> Any:
    """Returns where a gradient of a tensor goes: (node, output), the leaf itself, or None."""
    if t._node is not None:
        return edge_of(t, t._node)
    return t if t._requires_grad else None


def call_site() -> str:
    """Returns `layer <path>, <file>:<line>` of the call outside alpha that led here."""
    package = str(HOME) + os.sep
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f"layer {layer_path()}, {line}" if state.layers else line


def layer_path() -> str:
    """Returns the dotted name of the innermost layer being called, from the outermost one."""
    if not state.layers:
        return ""
    root, leaf = state.layers[0], state.layers[-1]
    names = [name for name, module in root.named_modules() if module is leaf]
    kind = type(leaf).__name__
    return f"{names[0]} ({kind})" if names and names[0] else kind


def raise_if_nan(outputs: Sequence[Tensor], what: str, where: str) -> None:
    """Raises AnomalyError if one of the tensors holds a NaN."""
    for t in outputs:
        if t.is_floating_point and get_backend(t.device).has_nan(t.array):
            raise AnomalyError(message(what, f"the result of shape {t.shape} has a NaN, made at {where}",
                                       "look at the inputs of this op: an overflow, log or division of 0, or the lr"))


@provides("backward")
def backward(roots: Sequence[tuple[Tensor, Tensor]], *, retain_graph: bool, create_graph: bool,
             inputs: Sequence[Tensor] | None = None) -> list[Grad]:
    """Runs the graph backwards from `roots` (tensor, its gradient).

    Without `inputs` the gradients of leaves are added to their `.grad`. With `inputs` nothing is stored: the
    gradients of just those tensors are returned, None for a tensor that the roots do not depend on.
    """
    settle()
    walk = _Walk(None if inputs is None else [t._node or t for t in inputs], retain_graph, [g for _, g in roots])
    before, state.retained = state.retained, [] if retain_graph else None
    aloud, state.quiet = state.quiet, True
    try:
        with set_grad_enabled(create_graph):
            edges = [(tensor.edge(), g) for tensor, g in roots]
            walk.ready = ready.counted([edge for edge, _ in edges], inputs is None)
            for edge, g in edges:
                walk.give(edge, g)
            while walk.heap:
                if watchers:
                    with watchers[-1].backward(walk.heap[0][1]):
                        walk.step()
                else:
                    walk.step()
            return walk.finish()
    finally:
        for recipe in state.retained or ():
            recipe.forget()
        state.retained, state.quiet = before, aloud


class _Walk:
    """One backward pass: gradients on their way, and the nodes still to run, newest first.

    A node's consumers were all made after it, so taking the newest node is a topological order.
    """

    def __init__(self, wanted: list[Any] | None, retain_graph: bool, given: list[Tensor]) -> None:
        self.retain_graph = retain_graph
        self.wanted = wanted
        self.pending: dict[Node, list[Grad]] = {}
        self.leaves: dict[int, tuple[Tensor, Grad]] = {}
        self.heap: list[tuple[int, Node]] = []
        self.given = given
        self.ready: ready.Count | None = None   # where a listener is told of complete gradients
        self.found: dict[tuple[int, int], Grad] = {(id(e[0]), e[1]): None for e in wanted or () if isinstance(e, tuple)}

    def give(self, edge: Any, g: Grad) -> None:
        """Adds a gradient to the sum of those that have arrived at the end of an edge."""
        if edge is None or (g is None and self.ready is None):
            return
        if edge.__class__ is not tuple:
            if g is not None:
                known = self.leaves.get(id(edge))
                self.leaves[id(edge)] = (edge, g if known is None else _added(known, 1, g))
            if self.ready is not None:
                self.ready.part(edge, self.leaves)
            return
        if g is None:
            return
        node, index = edge
        grads = self.pending.get(node)
        if grads is None:
            grads = self.pending[node] = [None] * node.op.returned
            heapq.heappush(self.heap, (-node.order, node))
        grads[index] = g if grads[index] is None else _added(grads, index, g)

    def step(self) -> None:
        """Runs the newest node and hands its gradients down."""
        node = heapq.heappop(self.heap)[1]
        grads = self.pending.pop(node)
        if node.hooks:
            for index, hooks in node.hooks.items():
                for hook in tuple(hooks):
                    if grads[index] is not None:
                        grads[index] = _hooked(hook, grads[index])
        if self.found:
            for index, g in enumerate(grads):
                if (id(node), index) in self.found:
                    self.found[id(node), index] = g
        if node.saved is None:
            raise GraphError(message(
                "backward", f"the values saved by {node.op.name} were freed by an earlier backward",
                "pass retain_graph=True to every backward but the last, or compute the loss again"))
        edges = node.edges
        try:
            results = node.op.vjps(node, grads, None if node.op.adds is None else self._there(node))
        except AnomalyError as error:  # an op inside the vjp made it: name the op of the forward pass
            raise AnomalyError(message(f"backward of {node.op.name}", "its gradient has a NaN, the forward pass was at "
                                       f"{node.where or call_site()}", "look at the inputs of this op")) from error
        if config.watch and config.check_nan:
            flat = [r for result in results for r in (result if isinstance(result, list) else [result])]
            raise_if_nan([r for r in flat if r is not None], f"backward of {node.op.name}", node.where or call_site())
        if not self.retain_graph:   # as Node.release does
            node.saved = None
            node.edges = node.arrays = ()
            if node.plan is not None:
                node.plan.release()
        del grads, node
        results.reverse()   # each is let go of as it is given, so that the next may be added to it in place
        for edge in edges:
            result = results.pop()
            if edge is None or result is None:
                continue
            if edge.__class__ is list:
                for e, r in zip(edge, result):
                    self.give(e, r)
            else:
                self.give(edge, result)

    def _there(self, node: Node) -> Grad:
        """Takes the sum so far of the gradient that the op of a node may add to in place; None where it may not.

        Nothing else may hold it: two references are the list's, and the one of the call that counts.
        """
        edge = node.edges[node.op.adds]
        if not isinstance(edge, tuple) or recording.get():
            return None
        grads, k = self.pending.get(edge[0]), edge[1]
        if grads is None or grads[k] is None or sys.getrefcount(grads[k]) > 2:
            return None
        if not get_backend(grads[k].device).is_sole(grads[k]):
            return None
        g, grads[k] = grads[k], None
        return g

    def finish(self) -> list[Grad]:
        """Stores the leaves' gradients, or returns the wanted ones."""
        taken = {get_backend(g.device).memory_key(g.array) for g in self.given}
        if self.ready is not None:
            self.ready.finish(self.leaves)
        for key, (leaf, g) in self.leaves.items():
            for hook in tuple(leaf._hooks or ()):
                g = _hooked(hook, g)
            if self.wanted is None:
                had = leftover.before(leaf) if leftover.recorded else leaf._grad
                leaf._grad = _own(g, taken) if had is None else had + g
            else:
                self.leaves[key] = (leaf, g)
        out = []
        for edge in self.wanted or ():
            if isinstance(edge, tuple):
                out.append(self.found[id(edge[0]), edge[1]])
            else:
                out.append(self.leaves.get(id(edge), (None, None))[1])
        return out


def _added(held: Sequence[Any], k: int, g: Tensor) -> Tensor:
    """Returns held[k] + g, on the CPU in the memory of the first where nothing else holds that.

    Two references to it are `held`'s and the counting call's; a local name may or may not be a third.
    """
    if held[k].device == "cpu" and not recording.get() and sys.getrefcount(held[k]) <= 2 \
            and get_backend("cpu").is_sole(held[k]):
        registry["add_onto"](g, held[k])
        return held[k]  # type: ignore[no-any-return]
    return held[k] + g  # type: ignore[no-any-return]


def _own(g: Tensor, taken: set[int]) -> Tensor:
    """Returns a gradient in memory that is not taken yet: leaves share none, so that each may be changed in place."""
    backend = get_backend(g.device)
    key = backend.memory_key(g.array)
    if key in taken and not g.requires_grad:
        copy = backend.full(g.shape, 0, g.dtype, g.device)
        backend.copy_into(copy, g.array)
        return g.with_data(copy)
    taken.add(key)
    return g.with_data(g.array) if g.shares and not g.requires_grad else g


def _hooked(hook: Callable[[Tensor], Tensor | None], g: Tensor) -> Tensor:
    before = versions.newest
    quiet, state.quiet = state.quiet, False
    try:
        new = hook(g)
    finally:
        state.quiet = quiet
    if versions.changed_since(g.device, g.array, before):
        raise GraphError(message("hook", f"a hook changed the gradient of shape {g.shape} in place, which others share",
                                 "return the new gradient: lambda g: g * 2.0"))
    if new is None:
        return g
    if not isinstance(new, Tensor):
        raise ArgumentError(message("hook", f"a hook returned {shown(new)}, a Tensor or None is needed",
                                    "return the new gradient, or nothing to keep it"))
    for what in ("shape", "dtype", "device"):
        had, has = getattr(g, what), getattr(new, what)
        if has != had:
            raise ShapeError(message("hook", f"a hook returned {what} {has} for a gradient of {what} {had}",
                                     f"return a gradient of the same {what}, or None to keep it"))
    return new


def _tensors(name: str, given: Any, or_none: bool = False) -> list[Any]:
    """Returns one tensor, or a list of them, as a list, with None among them where it may be.  Raises ArgumentError."""
    made = given if hasattr(given, "__next__") or isinstance(given, (list, tuple)) else [given]
    tensors = list(made)
    for k, t in enumerate(tensors):
        if not (isinstance(t, Tensor) or (or_none and t is None)):
            what = name if made is not given else f"{name}[{k}]"
            raise ArgumentError(message("grad", f"{what} is {shown(t)}, a tensor{' or None' if or_none else ''} is "
                                        "needed", "pass a tensor, or a list of them"))
    return tensors


@checked
def grad(outputs: Tensors, inputs: Tensors, grad_outputs: Tensors | None = None, *, retain_graph: bool | None = None,
         create_graph: bool = False) -> list[Grad]:
    """Returns the gradients of `outputs` with respect to `inputs`; no `.grad` is touched.

    Args:
        outputs: tensor or tensors to differentiate; each a scalar unless grad_outputs is given.
        inputs: tensor or tensors that require a gradient.
        grad_outputs: gradient of each output, of its shape; default 1.
        retain_graph: keep the graph for another pass; default create_graph.
        create_graph: make the gradients differentiable themselves (double backward).
    Returns:
        One Tensor per input, None for an input on which no output depends.
    Raises:
        ArgumentError: the value given is no tensor and no list of tensors, or there is not one gradient per output.
        GraphError: an input requires no gradient, an output depends on none, or the saved values were freed or changed.
    """
    outs, ins = _tensors("outputs", outputs), _tensors("inputs", inputs)
    seeds = [None] * len(outs) if grad_outputs is None else _tensors("grad_outputs", grad_outputs, or_none=True)
    if len(seeds) != len(outs):
        raise ArgumentError(message("grad", f"there are {len(seeds)} grad_outputs for {len(outs)} outputs",
                                    "pass one per output; None stands for 1"))
    for t in ins:
        if not t.requires_grad:
            raise GraphError(message("grad", f"an input of shape {t.shape} does not require a gradient",
                                     "create it with requires_grad=True"))
    keep = create_graph if retain_graph is None else retain_graph
    return backward([(t, t.seed(g)) for t, g in zip(outs, seeds)], retain_graph=keep, create_graph=create_graph,
                    inputs=ins)
