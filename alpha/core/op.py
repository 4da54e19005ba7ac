"""The seam: one class per op has its args, the values that backward may see, its shape rule and its gradients.

::

    @op
    class relu:
        '''y = max(x, 0), elementwise.'''
        args, saves = "x", "y"
        def shape(x): return x.shape
        def vjp_x(g, s): return relu_grad(g, s.y)

    @relu.impl("cpu")
    def relu_cpu(x): return np.maximum(x, 0)

The class becomes an `Op`, a callable. Its vocabulary has four groups; a name that is in none of them is refused.

Inputs:
    args      names of the tensor inputs; "b?" may be None; "*xs" is a list of tensors
    dtypes    "float" (default), "number" or "any": kinds of dtypes that the args may have
    mixed     args exempt from "one dtype for all" and from `dtypes` (labels, indices)
    parameters  args that may be float32, all of them, where the others are float16 or bfloat16 (the common dtype then)
    follows   True (an equation's default): float32 args beside the 16 bits of the precision mode are taken, and
              computed with in float32; the result has the 16 bits, see alpha.core.follow
    scalars   True: Python numbers are taken for tensors, and handed on as they are
    canon     optional: public attributes -> canonical ones; else those of `shape` and their defaults. Annotations
              say the kind of each, and are checked in every call: see alpha.core.inputs, arguments and kinds
    named     attributes that are given by name alone
    presets   attribute -> function of the value given for it (None: none); it may look at settings, as canon may not

Results:
    shape     pure; one shape tuple or Spec per out; raises ShapeError
    by_value  True: `shape` is asked in every call, not once for all of one signature: it looks at elements, or the
              attributes are others each time
    outs      names of an implementation's results; default "y"
    returns   the outs that the caller gets (default: all), of which the floating ones carry gradients
    mutates   the args that an implementation changes in place; data that was derived from them is dropped before
    gives     class of the results: Tensor (default), or a class of alpha.core.views that refuses wrong uses
    moves     True: the outputs live on the device named by the attribute `device`
    equation  of a pointwise op: every device's kernel is made from it, see alpha.core.equation
    rule      of the step of an optimizer: the same, see alpha.ops.update.rule

Gradient:
    saves     the args and outs that the gradients read; everything else is freed
    spares    a dict, name of a saved out -> attribute: where that is None, no gradient reads the out, and it is freed
    adds      the arg to whose gradient that has arrived already the vjp may add in place: s.there
    vjp_<arg> gradient for one arg: (g, s, **attrs); or `vjp` for all at once: (g, s, needs, **attrs) -> one per arg

Hints:
    label     the op's name in messages, where that differs
    batched   True: the first axis of the first arg counts the samples; where there are none, no implementation is
              called, and the outs are zeros, if they have elements at all
    cheap     True, or the names of some outs: they are made again in backward rather than kept
              (docs/explanation/memory.md)
    again     optional, where a call does more than make outs: (s, **attrs) -> the cheap ones, from args and other outs
    flops     optional, for estimates: (size of y, *args) -> operations of a call

In a vjp, `s.<name>` is a saved tensor, and `s.<arg>_shape`, `s.<arg>_dtype` are always there. Gradients are written
with ops, so they can be differentiated again.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from alpha.core.call import MOST, Settled, changing, computed, given, joined, recorded
from alpha.core.config import config
from alpha.core.device import FLOAT_DTYPES, device_type, get_backend
from alpha.core.equation import Equation
from alpha.core.errors import AlphaError, ArgumentError, DeviceError, DTypeError, GraphError, ShapeError, message, shown
from alpha.core.graph import Node, call_site, grad_enabled, raise_if_nan, recording, state
from alpha.core.inputs.registry import check_free, did_you_mean, origin
from alpha.core.inputs.returned import Spec, kind_of, refuse_gradient
from alpha.core.saved import Values, unpack
from alpha.core.signature import FOLLOWS, Signature, check_names
from alpha.core.table import TABLE, here, registry, settle
from alpha.core.tensor import Tensor
from alpha.core.views import View

__all__ = ["Op", "Spec", "grad_enabled", "op", "registry"]

GROUPS = {  # the vocabulary of an op's class
    "inputs": ("args", "dtypes", "mixed", "parameters", "follows", "scalars", "canon", "named", "presets"),
    "results": ("shape", "by_value", "outs", "returns", "mutates", "gives", "moves", "equation", "rule"),
    "gradient": ("saves", "spares", "adds", "vjp"),
    "hints": ("label", "batched", "cheap", "again", "flops")}
KEYS = [key for keys in GROUPS.values() for key in keys]

_lock = threading.Lock()    # of Op.settled, when entries come and go
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
    __slots__ = ("adds", "again", "batched", "cheap", "checked", "compute", "differentiable", "equation", "flops",
                 "foreign", "give", "gives", "impls", "in_order", "looked_at", "moves", "mutates", "outs", "own",
                 "returned", "rule", "saved_args", "saved_outs", "settled", "single", "spares", "steady", "vjp",
                 "vjp_of", "written")

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
        self.checked = not self.own       # whether to look at results of implementations
        # Whether to see that implementations change and return none of the args: kernels made of an equation do not.
        self.rule = body.get("rule")
        self.foreign = not (self.own or body.get("equation") or self.rule)
        self.vjp: Callable[..., Sequence[Any]] | None = body.get("vjp")
        self.vjp_of = {a.name: body[f"vjp_{a.name}"] for a in self.args if f"vjp_{a.name}" in body}
        self.in_order = tuple([self.vjp_of.get(a.name) for a in self.args])
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
        self.compute = changing if self.mutates else computed   # the stages that an op's class decides: see core.call
        self.give = joined if self.gives is View else given
        # Whether calls of one signature are settled alike. A user's shape rule is asked in every call: it may look at
        # anything. Steps of optimizers have other attributes each time.
        self.steady = self.own and not body.get("by_value", False) and not (self.variadic and self.mutates)
        self.settled: dict[Any, Settled] = {}   # by signature: see `_settle`
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
        settle()    # an op that rides on another call has one result
        return tuple(self._run(args, attrs))

    def _run(self, args: Sequence[Any], attrs: dict[str, Any]) -> list[Tensor]:
        if here.call is not None:
            ridden = TABLE["ride"](self, args, attrs)
            if ridden is not None:
                return [ridden]
        kept = True
        if len(args) != self.arity or attrs:
            args, attrs, kept = self.bind(args, attrs)
        ready = self.prepare(args, attrs, kept)
        if ready[0] is None:
            return TABLE["followed"](self, args, attrs)  # type: ignore[no-any-return]
        return self.finish(*ready)

    def prepare(self, args: Sequence[Any], attrs: dict[str, Any], kept: bool) -> tuple[Any, ...]:
        """Checks a call that was bound, and returns what `finish` takes.

        None stands for the first of that where there is float32 beside the 16 bits of the mode: see alpha.core.follow.
        """
        key, arrays, needs = self.read(args)
        if attrs:
            key = *key, id(attrs)
        settled = self.settled.get(key) if kept else None
        if settled is None:
            settled = self._settle(args, attrs, key if kept and self.steady else None)
        return settled, args, attrs, arrays, needs

    def finish(self, settled: Settled, args: Sequence[Any], attrs: dict[str, Any], arrays: Sequence[Any],
               needs: Sequence[bool] | None) -> list[Tensor]:
        """Computes, gives, records and tells a call that was prepared, and returns its outs."""
        result = self.compute(self, settled, args, attrs, arrays)
        outs = self.give(self, settled, args, attrs, arrays, result)
        if needs is not None and recording.get() and self.differentiable:
            recorded(self, settled, args, attrs, needs, outs)
        if config.watch and config.check_nan:
            raise_if_nan(outs, self.name, call_site())
        for observe in observers:
            observe(self, args, attrs, outs)
        return outs

    def _settle(self, args: Sequence[Any], attrs: dict[str, Any], key: Any) -> Settled | None:
        """Checks a call and works out its results; keeps that under the key, unless it is None.

        Returns None for float32 beside the 16 bits of the mode: see alpha.core.follow.
        """
        _, device, dtype, _ = self.check(args)
        if dtype is FOLLOWS:
            return None
        made = Settled(self, args, attrs, device, dtype)
        # Of a number in a call with integers, the shape rule sees whether they can hold it.
        if key is not None and (not self.scalars or dtype in FLOAT_DTYPES):
            with _lock:
                while len(self.settled) >= MOST:
                    del self.settled[next(iter(self.settled))]
                self.settled[key] = made
        return made

    def _find(self, device: str) -> Callable[..., Any]:
        kind, backend = device_type(device), get_backend(device)
        if kind not in self.impls and (self.equation or self.rule):
            backend.by_equation(self)
        if kind not in self.impls:
            raise DeviceError(message(self.name, f"it has no {kind} implementation; it has {sorted(self.impls)}",
                                      f'add one with @{self.name}.impl("{kind}"), or move the tensors: x.to("cpu")'))
        return self.impls[kind]

    def vjps(self, node: Node, grads: list[Any], there: Tensor | None = None) -> list[Any]:
        """Returns the gradient of each arg (None where it is not wanted) from the gradients of the returned outputs.

        there: the sum so far of the gradient of arg `adds`, which is included; its memory may be overwritten.
        """
        s = unpack(node)
        s.there = there
        g = grads[0] if self.returned == 1 else tuple(grads)
        if self.own and self.vjp is None:
            attrs = node.attrs
            results = [(vjp or self._vjp_of(arg.name))(g, s, **attrs) if need else None
                       for arg, vjp, need in zip(self.args, self.in_order, node.needs)]
        elif self.own:
            results = self._results(g, s, node)
        else:
            state.quiet = False     # a user's gradient may change views
            try:
                results = self._results(g, s, node)
            except (TypeError, AttributeError) as error:
                self._explain_unused(grads, error)
                raise
            finally:
                state.quiet = True
        if self.checked:
            self._look_at(results, node)
        return results

    def _explain_unused(self, grads: list[Any], error: Exception) -> None:
        """Raises GraphError for a vjp that failed where the gradient of an output is None."""
        if self.returned == 1 or None not in grads:
            return
        unused = [name for name, one in zip(self.outs, grads) if one is None]
        raise GraphError(message(
            f"backward of {self.name}", f"the gradient of its output {' and '.join(unused)} is None, as nothing "
            f"has used it, and the vjp failed: {str(error).partition(chr(10))[0]}",
            f"test for it in the vjp: {unused[0]} may have no gradient; g is {tuple(self.outs)}")) from error

    def _look_at(self, results: list[Any], node: Node) -> None:
        """Raises for a gradient that is not like its arg; of ops of alpha's own tests alone look at them."""
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


def _refuse_unknown(cls: type) -> None:
    """Raises ArgumentError for a name in an op's class that is no key of the vocabulary."""
    known = [*KEYS, *[f"vjp_{arg.strip('*?')}" for arg in vars(cls)["args"].split()]]
    for key in vars(cls):
        if key[:1] != "_" and key not in KEYS and not key.startswith("vjp_"):
            groups = "; ".join(f"{group}: {' '.join(keys)}" for group, keys in GROUPS.items())
            raise ArgumentError(message("op", f"the class {cls.__name__} has {key}, which is no key of an op "
                                        f"({groups})", f"correct the name{did_you_mean(key, known)}; helpers stand "
                                        "outside of the class, or begin with _"))


def op(cls: type) -> Op:
    """Turns a class that describes an operation into a callable Op and registers it under the class's name.

    The same file or notebook may do so again; the new op has the name then, without the implementations of the old one.
    Raises:
        DTypeError: it is no class.
        ArgumentError: it has no args or shape, a key that is none of the vocabulary, or a name in `saves`, say, that
            the op does not have.
        ConfigError: an op of another file has the name.
    """
    if not isinstance(cls, type):
        raise DTypeError(message("op", f"{shown(cls)} is no class", "write @op above the class that describes it"))
    for needed, like in (("args", 'args = "x"'), ("shape", "def shape(x): return x.shape")):
        if needed not in vars(cls):
            raise ArgumentError(message("op", f"the class {cls.__name__} has no {needed}", f"add one, such as {like}"))
    _refuse_unknown(cls)
    had = registry.get(cls.__name__)
    check_free("op", "an op", cls.__name__, had and had.written, cls)
    made = Op(cls)
    registry[made.name] = made
    return made
