"""Gradients, vector-Jacobian and Jacobian-vector products of functions, as functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Annotated, Any, Union

from alpha import ops
from alpha.core.errors import ArgumentError, ShapeError, message, shown
from alpha.core.graph import enable_grad, grad_enabled
from alpha.core.graph import grad as gradients_of
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Either, Ints, Whole
from alpha.core.tensor import Tensor
from alpha.func.trees import check_like, mapped, rebuilt, tensors

Positions = Annotated[Union[int, Sequence[int]], Either([Whole(None), Ints("a tuple of ints", "", single=False)],
                                                        "pass {name}=0, or {name}=(0, 1)")]
Function = Callable[..., Any]


class _Level:
    """One differentiation: tensors that stand for the arguments, each a name of its own in the graph.

    Where an argument is in the graph already, of an outer differentiation say, its stand-in is a copy of it there, so
    that the outer one sees through this one, and this one counts readers of the stand-in alone.
    """

    def __init__(self, given: list[Tensor]) -> None:
        self.outer = any(t.requires_grad for t in given)
        self.inputs = [ops.clone(t) if t.requires_grad else t.detach().requires_grad_() for t in given]

    def gradients(self, outputs: list[Tensor], seeds: list[Tensor], keep: bool = True) -> list[Tensor]:
        """Returns the gradient of each input, zeros where no output depends on it."""
        reached = [(y, g) for y, g in zip(outputs, seeds) if y.requires_grad]
        found: list[Any] = [None] * len(self.inputs)
        if reached:
            found = gradients_of([y for y, _ in reached], self.inputs, [g for _, g in reached], retain_graph=True,
                                 create_graph=keep)
        return [ops.zeros_like(x.detach()) if g is None else g for g, x in zip(found, self.inputs)]

    def leave(self, tree: Any, was_on: bool) -> Any:
        """Returns results without the graph of this differentiation, where nothing outside of it is in that graph."""
        mine = {id(t) for t in self.inputs}

        def cut(t: Any) -> Any:
            if not isinstance(t, Tensor) or not t.requires_grad:
                return t
            return t if was_on and (self.outer or _reads_others(t, mine)) else t.detach()
        return mapped(cut, tree)


def _reads_others(t: Tensor, mine: set[int]) -> bool:
    """Tells whether a leaf that requires a gradient, and is not in `mine`, is in the graph of t."""
    if t._node is None:
        return id(t) not in mine
    waiting, seen = [t._node[0]], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for edge in _edges(node.edges):
            if isinstance(edge, Tensor):
                if id(edge) not in mine:
                    return True
            else:
                waiting.append(edge[0])
    return False


def _edges(edges: Any) -> list[Any]:
    """Returns the edges of a node, those of lists too: a leaf, or (node, which of its results)."""
    found: list[Any] = []
    for edge in edges or ():
        if isinstance(edge, list):
            found += _edges(edge)
        elif edge is not None:
            found.append(edge)
    return found


def _selected(where: str, args: tuple[Any, ...], argnums: Any) -> list[int]:
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    places = [k + len(args) if k < 0 else k for k in numbers]
    if not places or any(not 0 <= k < len(args) for k in places) or len(set(places)) < len(places):
        raise ArgumentError(message(where, f"argnums={shown(argnums)} does not fit {len(args)} arguments",
                                    "pass the positions of the arguments to differentiate by"))
    return places


class _Call:
    """A call of a function with stand-ins for the arguments that it is differentiated by."""

    def __init__(self, where: str, f: Function, args: tuple[Any, ...], named: dict[str, Any], argnums: Any,
                 has_aux: bool) -> None:
        self.single = isinstance(argnums, int)
        places = _selected(where, args, argnums)
        self.trees = [args[k] for k in places]
        given = tensors(where, "an argument", self.trees)
        self.level = _Level(given)
        full, stand_ins = list(args), rebuilt(self.trees, iter(self.level.inputs))
        for k, tree in zip(places, stand_ins):
            full[k] = tree
        result = f(*full, **named)
        self.aux = None
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise ArgumentError(message(where, f"the function returned {shown(result)}, a pair is needed with "
                                            "has_aux=True", "return (result, anything else)"))
            result, self.aux = result
        self.result = result

    def shaped(self, grads: list[Tensor]) -> Any:
        """Returns gradients in the form of the arguments."""
        made = rebuilt(self.trees, iter(grads))
        return made[0] if self.single else tuple(made)


@checked
def grad(f: Function, argnums: Positions = 0, has_aux: bool = False) -> Function:
    """Returns the function that computes the gradient of f, which returns a tensor of shape (), by its arguments.

    Args:
        f: a function of tensors, or of tuples, lists and dicts of them.
        argnums: position of the argument, or a tuple of several, then the result is a tuple.
        has_aux: whether f returns (loss, anything else); then the result is (gradient, anything else).
    Raises:
        ArgumentError: f cannot be called, argnums does not fit, or an argument has no tensors of floats.
        ShapeError: f returns another shape than ().
    """
    found = grad_and_value(f, argnums, has_aux)

    @wraps(f)
    def call(*args: Any, **named: Any) -> Any:
        grads, value = found(*args, **named)
        return (grads, value[1]) if has_aux else grads
    return call


@checked
def grad_and_value(f: Function, argnums: Positions = 0, has_aux: bool = False) -> Function:
    """As grad, for a function that returns (gradient, result of f); with has_aux (gradient, (loss, anything else))."""
    @wraps(f)
    def call(*args: Any, **named: Any) -> Any:
        on = grad_enabled()
        with enable_grad():
            made = _Call("grad", f, args, named, argnums, has_aux)
            y = made.result
            if not isinstance(y, Tensor) or y.shape != () or not y.is_floating_point:
                raise ShapeError(message("grad", f"the function returned {shown(y)}, a tensor of floats of shape () is "
                                         "needed", "reduce it: loss.mean(); jacobian takes any shape"))
            grads = made.shaped(made.level.gradients([y], [ops.ones_like(y.detach())]))
            return made.level.leave((grads, (y, made.aux) if has_aux else y), on)
    return call


@checked
def vjp(f: Function, *primals: Any, has_aux: bool = False) -> Any:
    """Returns (result of f, function of a tensor like the result that gives the gradient of each argument).

    Args:
        f: a function of tensors.
        primals: its arguments.
        has_aux: whether f returns (result, anything else), which is then the third of the results.
    Raises:
        ArgumentError: an argument, of this call or of the function's, does not fit.
    The gradients are a tuple, one for each argument.
    """
    on = grad_enabled()
    with enable_grad():
        made = _Call("vjp", f, primals, {}, tuple(range(len(primals))), has_aux)
        outs = tensors("vjp", "the result", made.result)

    def pull(cotangents: Any) -> Any:
        seeds = check_like("vjp", "the cotangents", cotangents, outs)
        now = grad_enabled()
        with enable_grad():
            grads = tuple(rebuilt(made.trees, iter(made.level.gradients(outs, seeds))))
            return grads if now and any(t.requires_grad for t in seeds) else made.level.leave(grads, now)
    result = made.level.leave(made.result, on)
    return (result, pull, made.aux) if has_aux else (result, pull)


@checked
def jvp(f: Function, primals: Any, tangents: Any, *, has_aux: bool = False) -> Any:
    """Returns (result of f, how it changes where the arguments change by `tangents`): forward mode.

    Args:
        f: a function of tensors.
        primals: a tuple of its arguments.
        tangents: a tuple of the form of primals.
        has_aux: whether f returns (result, anything else), which is then the third of the results.
    Raises:
        ArgumentError: primals is no tuple, or tangents differ from it.
    It is the gradient of the gradient's product with a vector, by that vector: two passes back, whatever the result's
    size.
    """
    on = grad_enabled()
    if not isinstance(primals, (tuple, list)):
        raise ArgumentError(message("jvp", f"primals is {shown(primals)}, a tuple is needed", "pass (x,) for one"))
    with enable_grad():
        made = _Call("jvp", f, tuple(primals), {}, tuple(range(len(primals))), has_aux)
        outs = tensors("jvp", "the result", made.result)
        ways = check_like("jvp", "tangents", tangents, made.level.inputs)
        moves = _pushed(made.level, outs, ways)
        changed = rebuilt(made.result, iter(moves))
        made.level.outer |= any(t.requires_grad for t in ways)
        result, changed = made.level.leave((made.result, changed), on)
    return (result, changed, made.aux) if has_aux else (result, changed)


def _pushed(level: _Level, outs: list[Tensor], ways: list[Tensor]) -> list[Tensor]:
    """Returns how outputs change along tangents."""
    dummies = [ops.zeros_like(y.detach()).requires_grad_() for y in outs]
    grads = level.gradients(outs, dummies)  # type: ignore[arg-type]
    linear = [(g, t) for g, t in zip(grads, ways) if g.requires_grad]
    found: list[Any] = [None] * len(outs)
    if linear:
        found = gradients_of([g for g, _ in linear], dummies, [t for _, t in linear], retain_graph=True,
                             create_graph=True)
    return [ops.zeros_like(y.detach()) if m is None else m for m, y in zip(found, outs)]


def _unit(y: Tensor, k: int) -> Tensor:
    """Returns the k-th unit vector of the shape of y."""
    flat = ops.arange(max(1, y.numel()), device=y.device) == k
    return flat.astype(y.dtype).reshape(y.shape)


@checked
def jacrev(f: Function, argnums: Positions = 0, has_aux: bool = False) -> Function:
    """Returns the function that computes the Jacobian of f: the gradient of each element of the result.

    Args: see grad; f returns a tensor of any shape, or a tree of them.
    Returns:
        of the result of shape S and an argument of shape T a tensor of shape (*S, *T), in the form of the result, and
        within of the argument.
    One pass back is made for each element of the result: see jacfwd for many results of few arguments.
    """
    @wraps(f)
    def call(*args: Any, **named: Any) -> Any:
        on = grad_enabled()
        with enable_grad():
            made = _Call("jacrev", f, args, named, argnums, has_aux)
            outs = tensors("jacrev", "the result", made.result)
            blocks = []
            for y in outs:
                rows = [made.level.gradients([y], [_unit(y, k)]) for k in range(y.numel())]
                columns = [ops.stack([row[j] for row in rows], 0).reshape((*y.shape, *x.shape)) if rows else
                           ops.zeros((*y.shape, *x.shape), y.dtype, y.device)
                           for j, x in enumerate(made.level.inputs)]
                blocks.append(made.shaped(columns))
            result = made.level.leave(rebuilt(made.result, iter(blocks)), on)
        return (result, made.aux) if has_aux else result
    return call


@checked
def jacfwd(f: Function, argnums: Positions = 0, has_aux: bool = False) -> Function:
    """As jacrev, with a pass forward for each element of the arguments: for many results of few arguments."""
    @wraps(f)
    def call(*args: Any, **named: Any) -> Any:
        on = grad_enabled()
        with enable_grad():
            made = _Call("jacfwd", f, args, named, argnums, has_aux)
            outs = tensors("jacfwd", "the result", made.result)
            inputs = made.level.inputs
            zeros = [ops.zeros_like(x.detach()) for x in inputs]
            columns: list[list[Tensor]] = [[] for _ in outs]     # of each output, by argument
            for j, x in enumerate(inputs):
                moved = [_pushed(made.level, outs, [*zeros[:j], _unit(x, k), *zeros[j + 1:]])
                         for k in range(x.numel())]
                for i, y in enumerate(outs):
                    columns[i].append(ops.stack([m[i] for m in moved], -1).reshape((*y.shape, *x.shape)) if moved else
                                      ops.zeros((*y.shape, *x.shape), y.dtype, y.device))
            result = made.level.leave(rebuilt(made.result, iter([made.shaped(c) for c in columns])), on)
        return (result, made.aux) if has_aux else result
    return call


jacobian = jacrev


@checked
def hessian(f: Function, argnums: Positions = 0) -> Function:
    """Returns the function that computes the second derivatives of f, which returns a tensor: jacrev of jacrev.

    Of a result of shape S and an argument of shape T their shape is (*S, *T, *T).  Args: see grad.
    """
    return jacrev(jacrev(f, argnums), argnums)
