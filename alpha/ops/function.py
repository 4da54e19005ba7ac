"""Function: a computation with a gradient written by hand, in the form that PyTorch's users know.

    class Clamp(alpha.Function):
        @staticmethod
        def forward(ctx, x, low):
            ctx.save_for_backward(x)
            ctx.low = low
            return ops.maximum(x, low)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ops.ge(x, ctx.low).astype(g.dtype), None      # one per argument of forward

    y = Clamp.apply(x, 0.5)

An op (alpha.op) says more of itself: shapes, dtypes, one implementation per device. A Function is shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn
from weakref import ref

from alpha.core import versions
from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ArgumentError, DTypeError, GraphError, NotDefinedError, ShapeError, message, shown
from alpha.core.graph import Node, grad_enabled, no_grad, state
from alpha.core.tensor import Tensor
from alpha.ops.create import zeros


class Context:
    """What forward leaves for backward: tensors by `save_for_backward`, anything else as plain attributes.

    Attributes:
        needs_input_grad: per argument of forward, whether its gradient is wanted.
    """

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self._saved: tuple[Any, ...] = ()   # until the node has them
        self._constant: frozenset[int] = frozenset()
        self._zeros = True
        self._node: ref[Node] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps arguments or results of forward for backward; None is kept as it is.  Raises ArgumentError."""
        for k, t in enumerate(tensors):
            if t is not None and not isinstance(t, Tensor):
                raise ArgumentError(message("save_for_backward", f"argument {k} is {shown(t)}, a Tensor is needed",
                                            "keep anything else as an attribute: ctx.size = 3"))
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved.  Raises GraphError if its elements were changed since."""
        node = self._node and self._node()
        if node is None:
            return self._saved
        found = []
        for k, ((t, index), data) in enumerate(zip(node.saved, node.arrays)):
            if t is not None and (t.array is not data or versions.changed_since(t.device, data, node.order)):
                raise GraphError(message("backward", f"saved tensor {k} of {node.op.name} was changed in place after "
                                         "the forward pass", "call backward before an optimizer's step or += changes "
                                         "it, or compute the loss again", shape=t.shape))
            if index is not None:   # a result, whose gradient goes through this very node
                t = t.detach()
                t._requires_grad, t._node = True, (node, index)
            found.append(t)
        return tuple(found)

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Says which results of forward have no gradient."""
        self._constant = frozenset(map(id, outputs))

    def set_materialize_grads(self, value: bool) -> None:
        """False: the gradient of a result that nothing has used comes as None; else it is zeros."""
        self._zeros = value


class Function:
    """Base of a computation with its own gradient: `forward` and `backward` are static methods, `apply` calls it.

    forward(ctx, *args) computes with ops, outside of the graph, and returns a tensor or a tuple of tensors.
    backward(ctx, *grads) gets the gradient of each result, and returns one gradient per argument of forward, None for
    what is no tensor. Written with ops, it can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        raise NotDefinedError(message("Function", "forward is not defined", "add a static method forward(ctx, *args)"))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotDefinedError(message("Function", "backward is not defined",
                                      "add a static method backward(ctx, *grads)"))

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Returns forward(ctx, *args), with backward as its gradient.  Tensors are found among args, not in lists.

        Raises:
            DTypeError: forward returns what is no tensor.
        """
        needs = tuple([isinstance(a, Tensor) and a.requires_grad for a in args])
        ctx = Context(needs)
        with no_grad():
            result = cls.forward(ctx, *args)
        several = isinstance(result, (tuple, list))
        outs = list(result) if several else [result]
        constant = {k for k, t in enumerate(outs) if id(t) in ctx._constant}
        for k, t in enumerate(outs):
            if not isinstance(t, Tensor):
                raise DTypeError(message(cls.__name__, f"forward returned {shown(t)}, a Tensor or a tuple of Tensors "
                                         "is needed", "compute it with ops, or wrap it: alpha.tensor(...)"))
            if t.requires_grad or any(t is a for a in args):    # an argument itself, or a parameter
                outs[k] = t.detach()
        if any(needs) and grad_enabled():
            _record(cls, ctx, args, outs, constant)
        return tuple(outs) if several else outs[0]


class _Call:
    """Stands for the op of a node: one call of a Function."""

    adds = None

    def __init__(self, function: type[Function], ctx: Context, args: Sequence[Any], outs: Sequence[Tensor]) -> None:
        self.name, self.backward, self.ctx = function.__name__, function.backward, ctx
        self.returned = len(outs)
        self.args = [(a.shape, a.dtype) if isinstance(a, Tensor) else None for a in args]
        self.outs = [(t.shape, t.dtype, t.device) for t in outs]

    def vjps(self, node: Node, grads: list[Any], there: None = None) -> list[Any]:
        if self.ctx._zeros:
            grads = [zeros(shape, dtype=dtype, device=device) if g is None and dtype in FLOAT_DTYPES else g
                     for g, (shape, dtype, device) in zip(grads, self.outs)]
        state.quiet = False
        try:
            results = self.backward(self.ctx, *grads)
        finally:
            state.quiet = True
        found = list(results) if isinstance(results, (tuple, list)) else [results]
        if len(found) != len(self.args):
            raise ShapeError(message(f"backward of {self.name}", f"it returned {len(found)} gradients, forward has "
                                     f"{len(self.args)} arguments", "return one for each, None for what is no tensor"))
        for k, (g, meta, need) in enumerate(zip(found, self.args, node.needs)):
            if need and (not isinstance(g, Tensor) or (g.shape, g.dtype) != meta):
                self._refuse(k, g, meta)
        return [g if need else None for g, need in zip(found, node.needs)]

    def _refuse(self, k: int, g: Any, meta: Any) -> NoReturn:
        where, fix = f"backward of {self.name}", "return a tensor like the argument; zeros where the gradient is 0"
        if not isinstance(g, Tensor):
            raise GraphError(message(where, f"the gradient of argument {k} is {shown(g)}, a Tensor of shape {meta[0]} "
                                     "is needed", fix))
        kind = ShapeError if g.shape != meta[0] else DTypeError
        raise kind(message(where, f"the gradient of argument {k} is {g.dtype} {g.shape}, the argument {meta[1]} "
                           f"{meta[0]}", fix))


def _record(function: type[Function], ctx: Context, args: Sequence[Any], outs: list[Tensor], constant: set[int]
            ) -> None:
    """Makes the node of a call, and points the results to it."""
    call = _Call(function, ctx, args, outs)
    places = {id(t): k for k, t in enumerate(outs) if t.dtype in FLOAT_DTYPES and k not in constant}
    # A node holds none of its own results, as they hold it: what is kept of one is a tensor over the same elements.
    saved = [(t.detach(), places[id(t)]) if id(t) in places else (t, None) for t in ctx._saved]
    node = Node(call, {}, [a.edge() if isinstance(a, Tensor) else None for a in args],  # type: ignore[arg-type]
                ctx.needs_input_grad, saved, [None if t is None else t.array for t in ctx._saved], (), ())
    for k in places.values():
        outs[k]._requires_grad, outs[k]._node = True, (node, k)
    ctx._saved, ctx._node = (), ref(node)
