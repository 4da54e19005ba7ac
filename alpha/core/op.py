"""The seam: one class per op says what it takes, what backward may see, its shape rule and its gradients.

::

    @op
    class relu:
        '''y = max(x, 0), elementwise.'''
        args, saves = "x", "y"
        def shape(x): return x.shape
        def vjp_x(g, s): return relu_grad(g, s.y)

    @relu.impl("cpu")
    def relu_cpu(x): return np.maximum(x, 0)

The class becomes an `Op`, a callable. Its vocabulary:

    args      names of the tensor inputs; "b?" may be None; "*xs" is a list of tensors
    saves     the args and outs that the gradients read; everything else is freed
    spares    a dict, name of a saved out -> attribute: where that is None, no gradient reads the out, and it is freed
    outs      what an implementation returns; default "y"
    returns   the outs that the caller gets (default: all), of which the floating ones carry gradients
    mutates   the args that an implementation changes in place; what the backend derived from them is dropped before
    dtypes    "float" (default), "number" or "any": what the args may hold
    mixed     args exempt from "one dtype for all" and from `dtypes` (labels, indices)
    parameters  args that may be float32, all of them, where the others are float16 or bfloat16 (the common dtype then)
    follows   True (that of an equation): float32 args beside the 16 bits of the precision mode are taken, and computed
              with in float32; the result has the 16 bits, see alpha.core.follow
    scalars   True: Python numbers are taken for tensors, and handed on as they are
    label     what messages call the op, where that is not its name
    moves     True: the outputs live on the device named by the attribute `device`
    gives     class of the results: Tensor (default), or one of alpha.core.views that refuses what would go wrong
    canon     optional: public attributes -> canonical ones; else those of `shape` and their defaults. Annotations
              say what each may be, and are checked in every call: see alpha.core.inputs, arguments and kinds
    equation  of a pointwise op: what every device's kernel is made from, see alpha.core.equation
    presets   attribute -> function of what was given for it (None: nothing); it may look at settings, as canon may not
    batched   True: the first axis of the first arg is that of the samples; where there are none, no implementation is
              called, and the outs are zeros, if they have elements at all
    cheap     True, or the names of some outs: they are made again in backward rather than kept, see docs/memory.md
    again     optional, where a call does more than make outs: (s, **attrs) -> the cheap ones, from args and other outs
    flops     optional, for estimates: (size of y, *args) -> operations of a call
    shape     pure; one shape tuple or Spec per out; raises ShapeError
    vjp_<arg> gradient for one arg: (g, s, **attrs); or `vjp` for all at once: (g, s, needs, **attrs) -> one per arg

In a vjp, `s.<name>` is what was saved, and `s.<arg>_shape`, `s.<arg>_dtype` are always there. Gradients are written
with ops, so they can be differentiated again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar

from alpha.core import versions
from alpha.core.config import config
from alpha.core.device import FLOAT_DTYPES, device_type, get_backend
from alpha.core.equation import Equation
from alpha.core.errors import AlphaError, ArgumentError, DeviceError, DTypeError, GraphError, ShapeError, message, shown
from alpha.core.graph import Node, call_site, edge_of, grad_enabled, raise_if_nan, recording, state
from alpha.core.inplace import kin
from alpha.core.inputs.registry import check_free, origin
from alpha.core.inputs.returned import Spec, accept, kind_of, refuse_gradient, watched
from alpha.core.inputs.sizes import explain
from alpha.core.names import DEVICES, DTYPES
from alpha.core.saved import Values, remaking, unpack
from alpha.core.signature import FOLLOWS, Signature, check_names
from alpha.core.table import TABLE, registry
from alpha.core.tensor import Tensor
from alpha.core.trace import Trace, timed, watchers
from alpha.core.views import PossibleView, View

__all__ = ["Op", "Spec", "grad_enabled", "op", "registry"]

observers: list[Callable[[Op, Sequence[Any], dict[str, Any], list[Tensor]], None]] = []  # told of every call, its outs
F = TypeVar("F", bound=Callable[..., Any])


def announced(f: F) -> F:
    """Makes a function (x, **settings) of several ops tell observers that it was called, for files with one operator.

    An observer with a method composed(name, x, settings, results) is told, after the calls of ops within.
    """
    names = list(inspect.signature(f).parameters)

    @wraps(f)
    def call(x: Tensor, *args: Any, **settings: Any) -> Any:
        results = f(x, *args, **settings)
        for observe in observers:
            if hasattr(observe, "composed"):
                observe.composed(f.__name__, x, {**dict(zip(names[1:], args)), **settings}, results)
        return results
    return call  # type: ignore[return-value]


class Op(Signature):
    """An operation on tensors: checks, dispatch to a backend, and a Node for backward.  Made by `@op`."""

    # Slots, as CPython reads the attributes of an object with more than 30 others slowly.
    __slots__ = ("adds", "again", "batched", "cheap", "checked", "differentiable", "equation", "flops", "foreign",
                 "gives", "impls", "looked_at", "moves", "mutates", "outs", "own", "returned", "saved_args",
                 "saved_outs", "single", "spares", "vjp", "vjp_of", "written")

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        body = vars(cls)
        self.__name__ = self.name
        self.__doc__ = cls.__doc__
        self.__module__ = cls.__module__
        self.outs = tuple(body.get("outs", "y").split())
        self.returned = len(body.get("returns", " ".join(self.outs)).split())
        self.mutates = frozenset(body.get("mutates", "").split())
        self.moves: bool = body.get("moves", False)
        self.batched: bool = body.get("batched", False)
        self.gives: type[Tensor] = body.get("gives", Tensor)
        self.own = _ours(cls.__module__)  # one of alpha's
        self.checked = not self.own       # whether to look at what implementations return
        # Whether to see that implementations change and return none of the args: kernels made of an equation do not.
        self.foreign = not self.own and not body.get("equation")
        self.vjp: Callable[..., Sequence[Any]] | None = body.get("vjp")
        self.vjp_of = {a.name: body[f"vjp_{a.name}"] for a in self.args if f"vjp_{a.name}" in body}
        names = {a.name: k for k, a in enumerate(self.args)}
        saves = body.get("saves", "").split()
        check_names(self, self.outs, body)
        self.saved_args = tuple((name, names[name]) for name in saves if name in names)
        self.saved_outs = tuple((name, self.outs.index(name)) for name in saves if name not in names)
        self.spares: dict[str, str] = body.get("spares", {})
        cheap = body.get("cheap", bool(body.get("equation")))
        self.cheap = tuple([k for k, out in enumerate(self.outs) if cheap is True or (cheap and out in cheap.split())])
        self.again: Callable[..., Any] | None = body.get("again")
        self.adds: int | None = names.get(body.get("adds", ""))
        self.flops: Callable[..., float] | None = body.get("flops")
        self.single = len(self.outs) == 1
        # A user's op without a vjp is recorded too, so that backward names it and does not pass it by.
        self.differentiable = self.vjp is not None or bool(self.vjp_of) or not (self.own or self.mutates)
        self.impls: dict[str, Callable[..., Any]] = {}
        self.looked_at: set[int] = set()    # ids of implementations whose first call was looked at
        self.written = cls
        text = body.get("equation")
        self.equation = text and Equation(self.name, text, tuple(names), self.attr_names)

    def __repr__(self) -> str:
        return f"<op {self.usage}>"

    def __reduce__(self) -> str:
        return self.__name__    # a copy of a module, and a pickle, refer to the op, as they do to a function

    def impl(self, backend: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Binds the decorated function as the implementation for a backend.

        One from the same file or notebook replaces the one before; a second one from elsewhere raises.
        """
        def bind(f: Callable[..., Any]) -> Callable[..., Any]:
            had = self.impls.get(backend)
            if had is not None and origin(had) != origin(f):
                raise AlphaError(message(self.name, f"there is a {backend} implementation already, {_name_of(had)} of "
                                         f"{had.__module__}", "register one per backend"))
            self.impls[backend] = f
            foreign = not _ours(getattr(f, "__module__", None) or __name__)
            self.checked |= foreign
            self.foreign |= foreign
            return f
        return bind

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        outs = self._run(args, attrs)
        return outs[0] if self.returned == 1 else tuple(outs[:self.returned]) or None

    def full(self, *args: Any, **attrs: Any) -> tuple[Tensor, ...]:
        """Calls the op and returns all of its outputs, those that only backward reads too."""
        return tuple(self._run(args, attrs))

    def _run(self, args: Sequence[Any], attrs: dict[str, Any]) -> list[Tensor]:
        if len(args) != self.arity or attrs:
            args, attrs = self.bind(args, attrs)
        arrays, device, dtype, needs = self.check(args)
        if dtype is FOLLOWS:
            return TABLE["followed"](self, args, attrs)
        specs = self.shape(*args, **attrs)
        implementation = self.impls.get(device) or self._find(device)
        if self.batched and not args[0].shape[0]:
            implementation = partial(_zeros, specs, dtype, device)
        if self.foreign and id(implementation) not in self.looked_at:
            implementation = watched(self, implementation, args, device)
        if config.watch and config.debug > 1:
            implementation = self._traced(implementation, device)
        if watchers:
            implementation = watchers[-1].around(self, args, device, implementation)
        followers: Any = None
        if self.mutates and attrs.get("training", True):    # a norm in inference changes nothing
            followers = self._bump(args, device)
            if followers:
                arrays = self.check(args)[0]    # one may have got a copy
        try:
            result = implementation(*arrays, **attrs)
        except (MemoryError, OverflowError, ValueError) as error:
            explain(self.label, error, (specs,) if self.single else specs, dtype, args)
            raise
        for t, others in followers or ():
            if others:
                kin.follow(t, others)
        if self.moves:
            device = DEVICES[attrs["device"]]
        if self.single:
            specs, result = (specs,), (result,)
        if self.checked:
            result = accept(self, result, specs, dtype, device, arrays if self.foreign else ())
        outs = []
        for spec, data in zip(specs or (), result or ()):
            shape, kind = (spec.shape, DTYPES.get(spec.dtype, spec.dtype)) if isinstance(spec, Spec) else (spec, dtype)
            outs.append(self.gives(data, shape, kind, device))
        if self.gives is View:
            if state.quiet:
                outs[0].__class__ = View if self.name == "reshape" else PossibleView
            else:
                kin.join(args[0], outs[0], self.name, attrs)
        if needs is not None and recording.get() and self.differentiable:
            self._record(args, attrs, needs, outs)
        if config.watch and config.check_nan:
            raise_if_nan(outs, self.name, call_site())
        for observe in observers:
            observe(self, args, attrs, outs)
        return outs

    def _find(self, device: str) -> Callable[..., Any]:
        kind, backend = device_type(device), get_backend(device)
        if kind not in self.impls and self.equation:
            backend.by_equation(self)
        if kind not in self.impls:
            raise DeviceError(message(self.name, f"it has no {kind} implementation; it has {sorted(self.impls)}",
                                      f'add one with @{self.name}.impl("{kind}"), or move the tensors: x.to("cpu")'))
        return self.impls[kind]

    def _traced(self, implementation: Callable[..., Any], device: str) -> Callable[..., Any]:
        """Wraps an implementation so that each call prints one line: op, shapes, attributes, time."""
        def run(*arrays: Any, **attrs: Any) -> Any:
            shapes = ", ".join("x".join(map(str, a.shape)) for a in arrays if hasattr(a, "shape"))
            settings = "".join(f" {name}={value}" for name, value in attrs.items())
            with timed(Trace(f"{self.name}({shapes}){settings} {device}"), get_backend(device).synchronize):
                return implementation(*arrays, **attrs)
        return run

    def _bump(self, args: Sequence[Any], device: str) -> list[Any]:
        """Raises the versions of the args that are about to change, and tells the backend.

        Returns the args that have views, with the views that have copies.
        """
        followers = []
        for arg, value in zip(self.args, args):
            if arg.name in self.mutates and value is not None:
                tensors = value if arg.many else (value,)
                related = [t for t in tensors if t._kin is not None]
                followers += [(t, others) for t in related
                              if (others := kin.prepare(self.name, t)) or t._kin is not None]
                arrays = [t.array for t in tensors]
                versions.about_to_change(device, arrays)
                get_backend(device).forget(arrays)
                versions.note(versions.histories(device, arrays))
        return followers

    def _record(self, args: Sequence[Any], attrs: dict[str, Any], needs: Sequence[bool], outs: list[Tensor]) -> None:
        """Makes the Node of this call and points the returned floating outputs to it."""
        edges: list[Any] = []
        meta: list[Any] = []
        newest = versions.newest
        for value in args:
            if isinstance(value, Tensor):
                meta.append((value.shape, value.dtype))
                if value._requires_grad:
                    made = value._node
                    edges.append(value if made is None else made if made[0].order > newest else edge_of(value, made))
                else:
                    edges.append(None)
            elif type(value) is list:
                meta.append([(t.shape, t.dtype) for t in value])
                edges.append([t.edge() for t in value])
            else:
                meta.append(None)
                edges.append(None)
        saved: list[Any] = []
        arrays: list[Any] = []
        kept: list[Any] = []
        for _, k in self.saved_args:
            value = args[k]
            saved.append(value)
            arrays.append(value.array if isinstance(value, Tensor) else _arrays(value))
        for name, k in self.saved_outs:
            t = outs[k]
            saved.append(None if name in self.spares and attrs[self.spares[name]] is None else t.array)
            kept.append((t.shape, t.dtype, t.device))
        node = Node(self, attrs, edges, needs, saved, arrays, meta, kept)
        if remaking.segments or config.recompute != "none":
            remaking.plan(node, args, outs)
        if watchers:
            watchers[-1].recorded(node)
        for k, t in enumerate(outs):
            if k < self.returned and t.dtype in FLOAT_DTYPES:
                t._requires_grad = True
                t._node = (node, k)

    def vjps(self, node: Node, grads: list[Any], there: Tensor | None = None) -> list[Any]:
        """Returns the gradient of each arg (None where it is not wanted) from those of the returned outputs.

        there: what has arrived already of the gradient of arg `adds`, and is included; its memory may be overwritten.
        """
        s = unpack(node)
        s.there = there
        g = grads[0] if self.returned == 1 else tuple(grads)
        state.quiet = self.own  # a user's gradient may change views
        try:
            results = self._results(g, s, node)
        except (TypeError, AttributeError) as error:
            if self.own or self.returned == 1 or None not in grads:
                raise
            unused = [name for name, one in zip(self.outs, grads) if one is None]
            raise GraphError(message(
                f"backward of {self.name}", f"the gradient of its output {' and '.join(unused)} is None, as nothing "
                f"has used it, and the vjp failed: {str(error).partition(chr(10))[0]}",
                f"test for it in the vjp: {unused[0]} may have no gradient; g is {tuple(self.outs)}")) from error
        finally:
            state.quiet = True
        for arg, meta, need, result in zip(self.args, node.arg_meta, node.needs, results):
            if isinstance(result, Tensor) and not arg.many:
                if (result.shape, result.dtype) != meta:
                    refuse_gradient(self.name, arg.name, result, meta)
            elif result is None:
                if need and not self.own:  # ours say None where the gradient is 0 everywhere
                    raise GraphError(message(f"backward of {self.name}", f"the gradient of {arg.name} is None, though "
                                             "one is needed", f"return it from vjp_{arg.name}; zeros where it is 0"))
            else:
                if not arg.many or not isinstance(result, (list, tuple)) or len(result) != len(meta):
                    refuse_gradient(self.name, arg.name, result, meta)
                for k, (r, m) in enumerate(zip(result, meta)):
                    if r is not None and (not isinstance(r, Tensor) or (r.shape, r.dtype) != m):
                        refuse_gradient(self.name, f"{arg.name}[{k}]", r, m)
        return results

    def _results(self, g: Any, s: Values, node: Node) -> list[Any]:
        """Calls the vjps that are wanted."""
        if self.vjp is None:
            return [self._vjp_of(arg.name)(g, s, **node.attrs) if need else None
                    for arg, need in zip(self.args, node.needs)]
        results = self.vjp(g, s, node.needs, **node.attrs)
        if not isinstance(results, (tuple, list)) or len(results) != len(self.args):
            count = len(results) if isinstance(results, (tuple, list)) else kind_of(results)
            raise ShapeError(message(f"backward of {self.name}", f"vjp returned {count}, the op has "
                                     f"{len(self.args)} args ({' '.join(a.name for a in self.args)})",
                                     "return a list with one gradient for each arg, None where `needs` is False"))
        return [r if need else None for r, need in zip(results, node.needs)]

    def _vjp_of(self, name: str) -> Callable[..., Any]:
        if name not in self.vjp_of:
            raise GraphError(message("backward", f"{self.name} has no gradient with respect to {name}",
                                     f"detach it: {name}.detach(), or add vjp_{name} to the op"))
        return self.vjp_of[name]


def _name_of(f: Any) -> str:
    return getattr(f, "__qualname__", None) or type(f).__name__


def _ours(module: str) -> bool:
    """Tells whether code of a module is alpha's own, whose implementations the tests look at."""
    return module.startswith("alpha.")


def _zeros(specs: Any, dtype: str, device: str, *arrays: Any, **attrs: Any) -> Any:
    """Stands for the implementation of an op on no samples: returns zeros."""
    if isinstance(specs, list):
        return [_zeros(spec, dtype, device) for spec in specs]
    shape, kind = specs if specs.__class__ is Spec else (specs, dtype)
    return get_backend(device).full(shape, 0, kind, device)


def _arrays(value: Any) -> Any:
    return [t.array for t in value] if isinstance(value, list) else None


def op(cls: type) -> Op:
    """Turns a class that describes an operation into a callable Op and registers it under the class's name.

    The same file or notebook may do so again; the new op has the name then, without the implementations of the old one.
    Raises:
        DTypeError: it is no class.
        ArgumentError: it has no args or shape, or names in `saves`, say, what the op does not have.
        ConfigError: an op of another file has the name.
    """
    if not isinstance(cls, type):
        raise DTypeError(message("op", f"{shown(cls)} is no class", "write @op above the class that describes it"))
    for needed, like in (("args", 'args = "x"'), ("shape", "def shape(x): return x.shape")):
        if needed not in vars(cls):
            raise ArgumentError(message("op", f"the class {cls.__name__} has no {needed}", f"add one, such as {like}"))
    had = registry.get(cls.__name__)
    check_free("op", "an op", cls.__name__, had and had.written, cls)
    made = Op(cls)
    registry[made.name] = made
    return made
