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
    outs      what an implementation returns; default "y"
    returns   the outs that the caller gets (default: all), of which the floating ones carry gradients
    mutates   the args that an implementation changes in place; what the backend derived from them is dropped before
    dtypes    "float" (default), "number" or "any": what the args may hold
    mixed     args exempt from "one dtype for all" and from `dtypes` (labels, indices)
    parameters  args that may be float32, all of them, where the others are float16 or bfloat16 (the common dtype then)
    scalars   True: Python numbers are taken for tensors, and handed on as they are
    label     what messages call the op, where that is not its name
    moves     True: the outputs live on the device named by the attribute `device`
    gives     class of the results: Tensor (default), or one of alpha.views that refuses what would go wrong
    canon     optional: public attributes -> canonical ones; else those of `shape` and their defaults. Annotations
              say what each may be, and are checked in every call: see alpha.inputs.arguments and alpha.inputs.kinds
    presets   attribute -> function of what was given for it (None: nothing); it may look at settings, as canon may not
    shape     pure; one shape tuple or Spec per out; raises ShapeError
    vjp_<arg> gradient for one arg: (g, s, **attrs); or `vjp` for all at once: (g, s, needs, **attrs) -> one per arg

In a vjp, `s.<name>` is what was saved, and `s.<arg>_shape`, `s.<arg>_dtype` are always there. Gradients are written
with ops, so they can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from alpha import versions
from alpha.backend import FLOAT_DTYPES, device_type, get_backend
from alpha.config import config
from alpha.errors import AlphaError, DeviceError, DTypeError, GraphError, ShapeError, message, shown
from alpha.graph import Node, call_site, edge_of, grad_enabled, raise_if_nan, recording
from alpha.inputs.sizes import check_memory, explain
from alpha.signature import Signature
from alpha.tensor import Tensor
from alpha.trace import Trace, timed

__all__ = ["Op", "Spec", "grad_enabled", "op", "registry"]

registry: dict[str, Op] = {}
observers: list[Callable[[Op, Sequence[Any], dict[str, Any], list[Tensor]], None]] = []  # told of every call, its outs


class Spec(NamedTuple):
    """Shape and dtype of one output."""

    shape: tuple[int, ...]
    dtype: str


class _Saved:
    """What a vjp sees of the forward pass, by name."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values


class Op(Signature):
    """An operation on tensors: checks, dispatch to a backend, and a Node for backward.  Made by `@op`."""

    # Slots, as CPython reads the attributes of an object with more than 30 others slowly.
    __slots__ = ("checked", "differentiable", "gives", "impls", "moves", "mutates", "outs", "own", "returned",
                 "saved_args", "saved_outs", "single", "vjp", "vjp_of")

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
        self.gives: type[Tensor] = body.get("gives", Tensor)
        self.own = _ours(cls.__module__)  # one of alpha's
        self.checked = not self.own       # whether to look at what implementations return
        self.vjp: Callable[..., Sequence[Any]] | None = body.get("vjp")
        self.vjp_of = {a.name: body[f"vjp_{a.name}"] for a in self.args if f"vjp_{a.name}" in body}
        names = {a.name: k for k, a in enumerate(self.args)}
        saves = body.get("saves", "").split()
        self.saved_args = tuple((name, names[name]) for name in saves if name in names)
        self.saved_outs = tuple((name, self.outs.index(name)) for name in saves if name not in names)
        self.single = len(self.outs) == 1
        self.differentiable = self.vjp is not None or bool(self.vjp_of)
        self.impls: dict[str, Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<op {self.usage}>"

    def __reduce__(self) -> str:
        return self.__name__    # a copy of a module, and a pickle, refer to the op, as they do to a function

    def impl(self, backend: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Binds the decorated function as the implementation for a backend; a second one raises."""
        def bind(f: Callable[..., Any]) -> Callable[..., Any]:
            if backend in self.impls:
                raise AlphaError(message(self.name, f"there is a {backend} implementation already, "
                                         f"{self.impls[backend].__qualname__}", "register one per backend"))
            self.impls[backend] = f
            self.checked |= not _ours(getattr(f, "__module__", None) or __name__)
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
        specs = self.shape(*args, **attrs)
        implementation = self.impls.get(device) or self._find(device)
        if config.watch and config.debug > 1:
            implementation = self._traced(implementation, device)
        if self.mutates and attrs.get("training", True):    # a norm in inference changes nothing
            self._bump(args, device)
        try:
            result = implementation(*arrays, **attrs)
        except (MemoryError, OverflowError, ValueError) as error:
            explain(self.label, error, (specs,) if self.single else specs, dtype, args)
            raise
        except (AttributeError, TypeError):
            check_memory(self.label, args)
            raise
        if self.moves:
            device = attrs["device"]
        if self.single:
            specs, result = (specs,), (result,)
        if self.checked:
            result = self._accept(result, specs, dtype, device)
        outs = []
        for k, data in enumerate(result or ()):
            spec = specs[k]
            shape, kind = spec if spec.__class__ is Spec else (spec, dtype)
            outs.append(self.gives(data, shape, kind, device))
        if needs is not None and recording.get() and self.differentiable:
            self._record(args, attrs, needs, outs)
        if config.watch and config.check_nan:
            raise_if_nan(outs, self.name, call_site())
        for observe in observers:
            observe(self, args, attrs, outs)
        return outs

    def _accept(self, result: Any, specs: Any, dtype: str, device: str) -> list[Any]:
        """Returns the arrays that an implementation has returned, if they are what the shape rule says."""
        backend, names = get_backend(device), " ".join(self.outs) or "none"
        made = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
        for what, found in (("shape rule", specs or ()), (f"{backend.name} implementation", made)):
            if len(found) != len(self.outs):
                raise ShapeError(message(self.name, f"its {what} returned {len(found)} results, it has "
                                         f"{len(self.outs)} ({names})", "return one for each of `outs`, as a tuple"))
        for k, (spec, data, name) in enumerate(zip(specs or (), made, self.outs)):
            shape, kind = spec if spec.__class__ is Spec else (spec, dtype)
            if not isinstance(shape, tuple):
                raise ShapeError(message(self.name, f"its shape rule returned {shape!r} for {name}",
                                         "return a tuple of ints, or Spec(shape, dtype)"))
            made[k] = array = backend.accept(data)
            if array is None:
                raise DeviceError(message(
                    self.name, f"its {backend.name} implementation returned {_kind(data)} for {name}, "
                    f"arrays of {backend.name} are {backend.array_name}",
                    "return such an array; one of another kind is lost to the ops that read it next"))
            if tuple(array.shape) != shape or array.dtype != kind:
                error, says = (ShapeError, "shape") if tuple(array.shape) != shape else (DTypeError, "dtype")
                raise error(message(
                    self.name, f"its {backend.name} implementation returned {name} with {says} {getattr(array, says)}, "
                    f"its shape rule says {shape if says == 'shape' else kind}", "correct the one that is wrong",
                    returned=(tuple(array.shape), str(array.dtype)), expected=(shape, kind)))
        return made

    def _find(self, device: str) -> Callable[..., Any]:
        get_backend(device)
        kind = device_type(device)
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

    def _bump(self, args: Sequence[Any], device: str) -> None:
        """Raises the versions of the args that are about to change, and tells the backend."""
        for arg, value in zip(self.args, args):
            if arg.name in self.mutates and value is not None:
                tensors = value if arg.many else (value,)
                arrays = [t.data for t in tensors]
                get_backend(device).forget(arrays)
                versions.note(versions.histories(device, arrays))

    def _record(self, args: Sequence[Any], attrs: dict[str, Any], needs: Sequence[bool], outs: list[Tensor]) -> None:
        """Makes the Node of this call and points the returned floating outputs to it."""
        edges: list[Any] = []
        meta: list[Any] = []
        newest = versions.newest
        for value in args:
            if isinstance(value, Tensor):
                meta.append((value.shape, value.dtype))
                if value.requires_grad:
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
            arrays.append(value.data if isinstance(value, Tensor) else _arrays(value))
        for _, k in self.saved_outs:
            t = outs[k]
            saved.append(t.data)
            kept.append((t.shape, t.dtype, t.device))
        node = Node(self, attrs, edges, needs, saved, arrays, meta, kept)
        for k, t in enumerate(outs):
            if k < self.returned and t.dtype in FLOAT_DTYPES:
                t.requires_grad = True
                t._node = (node, k)

    def _unpack(self, node: Node) -> _Saved:
        values: dict[str, Any] = {}
        for arg, meta in zip(self.args, node.arg_meta):
            if isinstance(meta, list):
                values[arg.shape_key] = [m[0] for m in meta]
                values[arg.dtype_key] = meta[0][1] if meta else ""
            else:
                values[arg.shape_key], values[arg.dtype_key] = meta or (None, None)
        changed = versions.newest > node.order  # something was
        for (name, _), value, data in zip(self.saved_args, node.saved, node.arrays):
            if isinstance(value, Tensor):
                if value.data is not data or (changed and versions.changed_since(value.device, data, node.order)):
                    self._refuse_changed(name, node, value, data)
            elif isinstance(value, list):
                for number, (t, array) in enumerate(zip(value, data)):
                    if t.data is not array or (changed and versions.changed_since(t.device, array, node.order)):
                        self._refuse_changed(f"{name}[{number}]", node, t, array)
            values[name] = value
        for (name, k), data, meta in zip(self.saved_outs, node.saved[len(self.saved_args):], node.out_meta):
            t = Tensor(data, *meta)
            if changed and versions.changed_since(t.device, data, node.order):
                self._refuse_changed(name, node, t, data)
            if k < self.returned and t.is_floating_point:
                t.requires_grad, t._node = True, (node, k)
            values[name] = t
        return _Saved(values)

    def _refuse_changed(self, name: str, node: Node, t: Tensor, data: Any) -> NoReturn:
        """Raises GraphError for a saved tensor whose elements are not what they were when it was saved."""
        if t.data is data:
            told = versions.told_since(t.device, data, node.order)
            how = f"was changed in place after the forward pass ({told})"
        else:
            how = "got other elements after the forward pass (it was moved, swapped or computed anew)"
        raise GraphError(message(
            "backward", f"{name} of {self.name} {how}", "call backward before an optimizer's step, copy_ or += changes "
            "it or a view of it, or compute the loss again", shape=t.shape))

    def vjps(self, node: Node, grads: list[Any]) -> list[Any]:
        """Returns the gradient of each arg (None where it is not wanted) from those of the returned outputs."""
        s = self._unpack(node)
        g = grads[0] if self.returned == 1 else tuple(grads)
        if self.vjp is not None:
            results = self.vjp(g, s, node.needs, **node.attrs)
            if not isinstance(results, (tuple, list)) or len(results) != len(self.args):
                count = len(results) if isinstance(results, (tuple, list)) else _kind(results)
                raise ShapeError(message(f"backward of {self.name}", f"vjp returned {count}, the op has "
                                         f"{len(self.args)} args ({' '.join(a.name for a in self.args)})",
                                         "return a list with one gradient for each arg, None where `needs` is False"))
            results = [r if need else None for r, need in zip(results, node.needs)]
        else:
            results = [self._vjp_of(arg.name)(g, s, **node.attrs) if need else None
                       for arg, need in zip(self.args, node.needs)]
        for arg, meta, need, result in zip(self.args, node.arg_meta, node.needs, results):
            if isinstance(result, Tensor) and not arg.many:
                if (result.shape, result.dtype) != meta:
                    self._refuse_gradient(arg.name, result, meta)
            elif result is None:
                if need and not self.own:  # ours say None where the gradient is 0 everywhere
                    raise GraphError(message(f"backward of {self.name}", f"the gradient of {arg.name} is None, though "
                                             "one is needed", f"return it from vjp_{arg.name}; zeros where it is 0"))
            else:
                if not arg.many or not isinstance(result, (list, tuple)) or len(result) != len(meta):
                    self._refuse_gradient(arg.name, result, meta)
                for k, (r, m) in enumerate(zip(result, meta)):
                    if r is not None and (not isinstance(r, Tensor) or (r.shape, r.dtype) != m):
                        self._refuse_gradient(f"{arg.name}[{k}]", r, m)
        return results

    def _refuse_gradient(self, name: str, result: Any, meta: Any) -> NoReturn:
        """Raises for a gradient that is not like its arg."""
        where, fix = f"backward of {self.name}", f"correct vjp_{name.partition('[')[0]} of the op"
        if isinstance(meta, list):
            found = f"{len(result)} gradients" if isinstance(result, (list, tuple)) else _kind(result)
            raise ShapeError(message(where, f"the gradient of {name} is {found}, {name} has {len(meta)} tensors",
                                     f"{fix}: return a list of one gradient for each"))
        if not isinstance(result, Tensor):
            raise DTypeError(message(where, f"the gradient of {name} is {_kind(result)}, a Tensor is "
                                     "needed", f"{fix}: compute it with ops"))
        what, kind = ("shape", ShapeError) if result.shape != meta[0] else ("dtype", DTypeError)
        raise kind(message(where, f"the gradient of {name} has {what} {getattr(result, what)}, {name} has "
                           f"{meta[what == 'dtype']}", fix))

    def _vjp_of(self, name: str) -> Callable[..., Any]:
        if name not in self.vjp_of:
            raise GraphError(message("backward", f"{self.name} has no gradient with respect to {name}",
                                     f"detach it: {name}.detach(), or add vjp_{name} to the op"))
        return self.vjp_of[name]


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a Tensor"
    module = type(value).__module__
    return f"a {type(value).__name__}" if module == "builtins" else f"a {module}.{type(value).__name__}"


def _ours(module: str) -> bool:
    """Tells whether code of a module is alpha's own, whose implementations the tests look at."""
    return module.startswith("alpha.")


def _arrays(value: Any) -> Any:
    return [t.data for t in value] if isinstance(value, list) else None


def op(cls: type) -> Op:
    """Turns a class that describes an operation into a callable Op and registers it under the class's name.

    Raises DTypeError for what is no class.
    """
    if not isinstance(cls, type):
        raise DTypeError(message("op", f"{shown(cls)} is no class", "write @op above the class that describes it"))
    if cls.__name__ in registry:
        raise AlphaError(message("op", f"an op called {cls.__name__!r} is registered already, by "
                                 f"{registry[cls.__name__].__module__}", "choose another name"))
    made = Op(cls)
    registry[made.name] = made
    return made
