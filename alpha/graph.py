"""The autograd graph: nodes, gradient mode, the backward pass, anomaly mode.

An op that ran with a gradient wanted leaves a Node, and its outputs point to it. A Node points to the nodes of its
inputs and keeps what its op declared in `saves`; nothing points forward, so there is no reference cycle and the
memory of a step returns the moment its last tensor goes.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from alpha.backend import get_backend
from alpha.config import config
from alpha.errors import AnomalyError, GraphError, ShapeError, message

if TYPE_CHECKING:
    from alpha.op import Op
    from alpha.tensor import Tensor

Grad = Any  # Tensor or None

_orders = itertools.count()


class _State(threading.local):
    """Per thread: is the graph recorded, and which layers are being called (outermost first)."""

    grad = True
    layers: tuple[Any, ...] = ()


state = _State()


def grad_enabled() -> bool:
    """Tells whether ops record the graph."""
    return state.grad


@contextmanager
def set_grad_enabled(enabled: bool) -> Iterator[None]:
    """Switches the recording of the graph on or off for a block (or, as a decorator, for a function)."""
    before, state.grad = state.grad, enabled
    try:
        yield
    finally:
        state.grad = before


def no_grad() -> Any:
    """For a block or as a decorator: ops leave no graph, their outputs need no gradient."""
    return set_grad_enabled(False)


def enable_grad() -> Any:
    """For a block or as a decorator inside `no_grad`: ops record the graph again."""
    return set_grad_enabled(True)


def detect_anomaly() -> Any:
    """For a block: stop at the first NaN, naming the op, the layer and the line (also ALPHA_CHECK_NAN=1)."""
    return config(check_nan=True)


class Node:
    """One call of an op, as backward needs it."""

    __slots__ = ("__weakref__", "arg_meta", "attrs", "edges", "hooks", "needs", "op", "order", "out_meta", "saved",
                 "versions", "where")

    def __init__(self, op: Op, attrs: dict[str, Any], edges: Sequence[Any], needs: Sequence[bool], saved: list[Any],
                 versions: list[Any], arg_meta: Sequence[Any], out_meta: Sequence[tuple[Any, str, str]]) -> None:
        self.op = op
        self.attrs = attrs
        self.edges = edges          # per arg: None, a leaf Tensor, (node, output index), or a list of those
        self.needs = needs          # per arg: is a gradient wanted
        self.saved: Any = saved      # the saved args, then the data of the saved outs; None once freed
        self.versions = versions    # of the saved args, to see whether one was changed since
        self.arg_meta = arg_meta    # per arg: (shape, dtype), or a list of those, or None
        self.out_meta = out_meta    # per saved output: (shape, dtype, device)
        self.hooks: dict[int, list[Callable[[Tensor], Tensor | None]]] | None = None
        self.order = next(_orders)
        self.where = call_site() if config.check_nan else ""

    def release(self) -> None:
        """Lets go of the saved values and of the nodes below."""
        self.saved = None
        self.edges = ()


def call_site() -> str:
    """Returns `layer <path>, <file>:<line>` of the call outside alpha that led here."""
    package = os.path.dirname(__file__) + os.sep
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
        if t.is_floating_point and get_backend(t.device).has_nan(t.data):
            raise AnomalyError(message(what, f"the result of shape {t.shape} has a NaN, made at {where}",
                                       "look at the inputs of this op: an overflow, log or division of 0, or the lr"))


def backward(roots: Sequence[tuple[Tensor, Tensor]], *, retain_graph: bool, create_graph: bool,
             inputs: Sequence[Tensor] | None = None) -> list[Grad]:
    """Runs the graph backwards from `roots` (tensor, its gradient).

    Without `inputs` the gradients of leaves are added to their `.grad`. With `inputs` nothing is stored: the
    gradients of just those tensors are returned, None for one that the roots do not depend on.
    """
    walk = _Walk(None if inputs is None else [t.edge() for t in inputs], retain_graph)
    with set_grad_enabled(create_graph):
        for tensor, g in roots:
            walk.give(tensor.edge(), g)
        while walk.heap:
            walk.step()
        return walk.finish()


class _Walk:
    """One backward pass: gradients on their way, and the nodes still to run, newest first.

    A node's consumers were all made after it, so taking the newest node is a topological order.
    """

    def __init__(self, wanted: list[Any] | None, retain_graph: bool) -> None:
        self.retain_graph = retain_graph
        self.wanted = wanted
        self.pending: dict[Node, list[Grad]] = {}
        self.leaves: dict[int, tuple[Tensor, Grad]] = {}
        self.heap: list[tuple[int, Node]] = []
        self.found: dict[tuple[int, int], Grad] = {(id(e[0]), e[1]): None for e in wanted or () if isinstance(e, tuple)}

    def give(self, edge: Any, g: Grad) -> None:
        """Adds a gradient to what has arrived at the end of an edge."""
        if edge is None or g is None:
            return
        if not isinstance(edge, tuple):
            known = self.leaves.get(id(edge))
            self.leaves[id(edge)] = (edge, g if known is None else known[1] + g)
            return
        node, index = edge
        grads = self.pending.get(node)
        if grads is None:
            grads = self.pending[node] = [None] * node.op.returned
            heapq.heappush(self.heap, (-node.order, node))
        grads[index] = g if grads[index] is None else grads[index] + g

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
            results = node.op.vjps(node, grads)
        except AnomalyError as error:  # an op inside the vjp made it: name the op of the forward pass
            raise AnomalyError(message(f"backward of {node.op.name}", "its gradient has a NaN, the forward pass was at "
                                       f"{node.where or call_site()}", "look at the inputs of this op")) from error
        if config.check_nan:
            flat = [r for result in results for r in (result if isinstance(result, list) else [result])]
            raise_if_nan([r for r in flat if r is not None], f"backward of {node.op.name}", node.where or call_site())
        if not self.retain_graph:
            node.release()
        del grads, node
        for edge, result in zip(edges, results):
            if isinstance(edge, list):
                for e, r in zip(edge, result or ()):
                    self.give(e, r)
            else:
                self.give(edge, result)

    def finish(self) -> list[Grad]:
        """Stores the leaves' gradients, or returns the wanted ones."""
        for key, (leaf, g) in self.leaves.items():
            for hook in tuple(leaf._hooks or ()):
                g = _hooked(hook, g)
            if self.wanted is None:
                leaf.grad = g if leaf.grad is None else leaf.grad + g
            else:
                self.leaves[key] = (leaf, g)
        out = []
        for edge in self.wanted or ():
            if isinstance(edge, tuple):
                out.append(self.found[id(edge[0]), edge[1]])
            else:
                out.append(self.leaves.get(id(edge), (None, None))[1])
        return out


def _hooked(hook: Callable[[Tensor], Tensor | None], g: Tensor) -> Tensor:
    new = hook(g)
    if new is None:
        return g
    if new.shape != g.shape:
        raise ShapeError(message("hook", f"a hook returned shape {new.shape} for a gradient of shape {g.shape}",
                                 "return a gradient of the same shape, or None to keep it"))
    return new


def _listed(tensors: Tensor | Sequence[Tensor]) -> list[Any]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


def grad(outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor],
         grad_outputs: Tensor | Sequence[Tensor] | None = None, *, retain_graph: bool | None = None,
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
    """
    outs, ins = _listed(outputs), _listed(inputs)
    seeds = [None] * len(outs) if grad_outputs is None else _listed(grad_outputs)
    for t in ins:
        if not t.requires_grad:
            raise GraphError(message("grad", f"an input of shape {t.shape} does not require a gradient",
                                     "create it with requires_grad=True"))
    keep = create_graph if retain_graph is None else retain_graph
    return backward([(t, t.seed(g)) for t, g in zip(outs, seeds)], retain_graph=keep, create_graph=create_graph,
                    inputs=ins)
