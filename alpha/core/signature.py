"""An op's arguments: those of a call are put in order here, and those that do not fit are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np

from alpha.core.config import config
from alpha.core.device import FLOAT_DTYPES, HALF_DTYPES
from alpha.core.errors import AlphaError, ArgumentError, DeviceError, DTypeError, message, shown
from alpha.core.inputs import aliases
from alpha.core.inputs.arguments import kinds_of
from alpha.core.inputs.registry import did_you_mean
from alpha.core.precision import MODES
from alpha.core.tensor import Tensor

FOLLOWS = "follows"     # the dtype of a call with float32 beside the 16 bits of the mode: see alpha.core.follow
WANTED = ((None, (False, True)), ((True, False), (True, True)))   # whether a and b want a gradient; None: neither
NUMBERS = (int, float, np.integer, np.floating, np.bool_)  # types that `scalars` takes for a tensor


class Arg(NamedTuple):
    """One tensor input of an op; the vocabulary is alpha.op's."""

    name: str
    optional: bool
    many: bool
    mixed: bool
    parameter: bool
    shape_key: str  # how a vjp reads its shape and dtype
    dtype_key: str


# arrays for the implementation, device, common dtype, per arg whether it wants a gradient (None: none does)
Checked = tuple[list[Any], str, str, "list[bool] | None"]


class Signature:
    """The arguments of an op, from the class that describes it: `alpha.op` has the vocabulary.

    Attributes:
        name, label: of the op; as messages call it.
        args: an Arg for each tensor input.
        attr_names, defaults: the public attributes in their order, and the values that some have.
        kinds: the kinds of the attributes that are annotated, see alpha.core.inputs.arguments.
        variadic, uniform: whether an arg is a list of tensors; whether none is, and none may have a dtype of its own.
        follows: whether float32 may stand beside the 16 bits of the precision mode, which the result then has.
        arity: number of arguments of a call that needs no `bind`; -1: each does.
        presets: attribute -> function of the value given (None: none) that adds the settings in force.
        any_strides: whether implementations take arrays that are not contiguous, on the CPU.
        usage: how a call is written, for messages.
    """

    def __init__(self, cls: type) -> None:
        body = vars(cls)
        self.name = cls.__name__
        self.label: str = body.get("label", self.name)
        mixed, parameters = body.get("mixed", "").split(), body.get("parameters", "").split()
        self.args = tuple(Arg(name := a.strip("*?"), a.endswith("?"), a.startswith("*"), name in mixed,
                              name in parameters, f"{name}_shape", f"{name}_dtype") for a in body["args"].split())
        self.dtypes: str = body.get("dtypes", "float")
        self.scalars: bool = body.get("scalars", False)
        self.follows: bool = body.get("follows", bool(body.get("equation")))
        self.any_strides = bool(body.get("equation")) and cls.__module__.startswith("alpha.")
        self.presets: tuple[tuple[str, Callable[[Any], Any]], ...] = tuple(body.get("presets", {}).items())
        self.shape: Callable[..., Any] = body["shape"]
        self.canon: Callable[..., dict[str, Any]] | None = body.get("canon")
        declared = self.canon or self.shape
        attrs = [p for p in inspect.signature(declared).parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.attr_names = tuple(p.name for p in attrs)
        self.attr_set = frozenset(self.attr_names)
        named = body.get("named", "").split()
        self.by_position = self.attr_names[:len(self.attr_names) - len(named)]
        kinds = kinds_of(declared)
        self.kinds = {name: kinds[name] for name in self.attr_names if name in kinds}
        self.defaults = {p.name: kinds[p.name].take(self.name, p.name, p.default) if p.name in kinds else p.default
                         for p in attrs if p.default is not p.empty}
        keyed = all(name in kinds and kinds[name].keyed for name in self.attr_names)
        self.keyed = keyed
        self._known = lru_cache(maxsize=256, typed=True)(self.canonical) if keyed else self.canonical
        self.variadic = any(a.many for a in self.args)
        self.uniform = not (mixed or self.variadic)
        self.arity = -1 if self.variadic or self.attr_names else len(self.args)
        tensors = [f"{a.name}=None" if a.optional else a.name for a in self.args]
        shown_attrs = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in attrs]
        shown_attrs[len(self.by_position):len(self.by_position)] = ["*"] if named else []
        self.usage = f"{self.name}({', '.join(tensors + shown_attrs)})"

    def bind(self, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any], bool]:
        """Returns one value per arg, the canonical attributes, and whether a call like it gets the same dict.

        Raises AlphaError.
        """
        bound = args if len(args) == len(self.args) and not self.variadic else self._bind_args(args, attrs)
        for name, preset in self.presets:
            attrs[name] = preset(attrs.get(name))
        for value in attrs.values():
            if value.__class__ is tuple and not _is_of_ints(value):  # (1, 2) would be found for (True, 2)
                return bound, self.canonical(**attrs), False
        try:
            return bound, self._known(**attrs), self.keyed
        except TypeError as error:  # a list, say, which cannot be looked up
            if isinstance(error, AlphaError):
                raise
        return bound, self.canonical(**attrs), False

    def _bind_args(self, args: Sequence[Any], attrs: dict[str, Any]) -> list[Any]:
        """Returns one value per arg; values by name come out of `attrs`, values behind the args go into it."""
        bound = list(args[:len(self.args)])
        if len(args) > len(self.args):
            for name, value in zip(self.by_position, args[len(self.args):]):
                if name in attrs:
                    self._refuse_call(f"{name} is given twice")
                attrs[name] = value
            if len(args) > len(self.args) + len(self.by_position):
                more = self.attr_names[len(self.by_position):]
                self._refuse_call(f"{len(args)} arguments are given", f"pass {' and '.join(more)} by name" if more else
                                  "pass no more than it takes")
        for arg in self.args[len(bound):]:
            if arg.name in attrs:
                bound.append(attrs.pop(arg.name))
            elif arg.optional:
                bound.append(None)
            else:
                twin = next((name for name in attrs if aliases.twin_of(name, (arg.name,))), None)
                if twin is None:
                    self._refuse_call(f"{arg.name} is missing")
                bound.append(attrs.pop(twin))
        if self.variadic:
            for k, arg in enumerate(self.args):
                if arg.many:
                    bound[k] = self._tensor_list(arg, bound[k])
        return bound

    def canonical(self, /, **attrs: Any) -> dict[str, Any]:
        """Returns the canonical form of attributes, and of the defaults of those that are not given."""
        for name, value in attrs.items():
            kind = self.kinds.get(name)
            if kind:
                attrs[name] = kind.take(self.label, name, value)
        named = attrs
        if len(attrs) < len(self.attr_names):
            attrs = {**self.defaults, **attrs}
        if attrs.keys() != self.attr_set:
            as_here = aliases.renamed(named, self.attr_set) if named.keys() - self.attr_set else None
            if as_here is not None:
                return self.canonical(**as_here)
            unknown = sorted(attrs.keys() - self.attr_set)
            names = unknown or sorted(self.attr_set - attrs.keys())
            self._refuse_call(f"{names[0]} is {'unknown' if unknown else 'missing'}",
                              aliases.ADVICE.get(names[0], "") if unknown else "")
        return self.canon(**attrs) if self.canon else attrs

    def _refuse_call(self, what: str, fix: str = "") -> NoReturn:
        raise ArgumentError(message(self.label, f"{what}, it takes {self.usage}", fix or "correct the call"))

    def _tensor_list(self, arg: Arg, value: Any) -> list[Tensor]:
        """Returns the tensors given for an arg that is a list of them."""
        if value.__class__ is not list and (isinstance(value, (Tensor, str, bytes, dict, np.ndarray))
                                            or not hasattr(value, "__iter__")):
            raise ArgumentError(message(self.label, f"{arg.name} is {shown(value)}, a list of tensors is needed",
                                        f"pass a list, and what follows by name: {self.name}([a, b], ...)"))
        tensors = list(value)
        for k, t in enumerate(tensors):
            if not isinstance(t, Tensor):
                self._refuse_other(f"{arg.name}[{k}]", t)
        return tensors

    def read(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[Any], Sequence[bool] | None]:
        """Returns the key of a Settled, the arrays for the implementation, and which args want a gradient.

        None: none does. A value that is no Tensor has its class in the key; `check` refuses wrong ones.
        """
        if len(args) == 1:  # the most frequent calls, in a third of the time
            a = args[0]
            if a.__class__ is Tensor:
                return (a.shape, a.dtype, a.device), (a.array,), (True,) if a._requires_grad else None
        elif len(args) == 2:
            a, b = args
            if a.__class__ is Tensor and b.__class__ is Tensor:
                return ((a.shape, a.dtype, a.device, b.shape, b.dtype, b.device), (a.array, b.array),
                        WANTED[a._requires_grad][b._requires_grad])
        key: list[Any] = []
        arrays: list[Any] = []
        needs: list[bool] = []
        wanted, any_strides = False, self.any_strides
        for value in args:
            if isinstance(value, Tensor):
                key += value.shape, value.dtype, value.device
                arrays.append(value.spread if any_strides and value.spread is not None else value.array)
                needs.append(need := value._requires_grad)
                wanted |= need
            elif value.__class__ is list and all(isinstance(t, Tensor) for t in value):
                key.append(tuple([(t.shape, t.dtype, t.device) for t in value]))
                arrays.append([t.array for t in value])
                needs.append(need := any(t._requires_grad for t in value))
                wanted |= need
            else:
                key.append(value.__class__)
                arrays.append(value)
                needs.append(False)
        return tuple(key), arrays, needs if wanted else None

    def check(self, args: Sequence[Any]) -> Checked:
        """Looks at the values given for the args.  Raises ArgumentError, DeviceError or DTypeError for wrong ones."""
        first = args[0]
        if not self.uniform or not isinstance(first, Tensor):
            return self._check_each(args)
        device, dtype = first.device, first.dtype
        wanted = first._requires_grad
        any_strides = self.any_strides
        arrays, needs = [first.spread if any_strides and first.spread is not None else first.array], [wanted]
        for value in args[1:]:
            if not isinstance(value, Tensor) or value.device != device or value.dtype != dtype:
                return self._check_each(args)
            arrays.append(value.spread if any_strides and value.spread is not None else value.array)
            needs.append(need := value._requires_grad)
            wanted |= need
        if dtype != "float32":
            self._check_dtype(self.args[0].name, first)
        return arrays, device, dtype, needs if wanted else None

    def _check_each(self, args: Sequence[Any]) -> Checked:
        """As `check`, for a call that is not one of tensors alike."""
        device = dtype = ""
        wanted = two = False
        arrays: list[Any] = []
        needs = []
        for arg, value in zip(self.args, args):
            need = False
            tensors: Sequence[Tensor]
            if isinstance(value, Tensor):
                tensors = (value,)
                arrays.append(value.spread if self.any_strides and value.spread is not None else value.array)
            elif arg.many:
                tensors = value
                arrays.append([t.array for t in value])
            else:
                tensors = self._checked_other(arg, value)
                arrays.append(value)
            for t in tensors:
                if t.device != device:
                    if device:
                        self._refuse_devices(args)
                    device = t.device
                if t.dtype != dtype and not arg.mixed:
                    if dtype:
                        two = True
                    else:
                        dtype = t.dtype
                        if dtype != "float32":
                            self._check_dtype(arg.name, t)
                if t._requires_grad:
                    need = wanted = True
            needs.append(need)
        if not device:
            raise ArgumentError(message(self.label, "one argument at least must be a Tensor",
                                        "wrap it: alpha.tensor(...)"))
        if two:
            dtype = self._common_dtype(args)
        if self.scalars and dtype not in FLOAT_DTYPES:
            self._check_scalars(args, dtype)
        return arrays, device, dtype, needs if wanted else None

    def _check_dtype(self, name: str, t: Tensor) -> None:
        if self.dtypes == "any" or t.dtype in FLOAT_DTYPES or (self.dtypes == "number" and t.dtype != "bool"):
            return
        raise DTypeError(message(self.label, f"{name} has dtype {t.dtype}, a {self.dtypes} dtype is needed",
                                 f'convert it: {name}.astype("float32")'))

    def _checked_other(self, arg: Arg, value: Any) -> tuple[()]:
        """Returns no tensors for an argument that is none; raises ArgumentError if it may not be that."""
        if (value is None and arg.optional) or (self.scalars and isinstance(value, NUMBERS)):
            return ()
        self._refuse_other(arg.name, value)

    def _refuse_other(self, name: str, value: Any) -> NoReturn:
        needed = "a Tensor or a number" if self.scalars else "a Tensor"
        raise ArgumentError(message(self.label, f"{name} is {shown(value)}, {needed} is needed",
                                    f"wrap it: alpha.tensor({name}, dtype=...)"))

    def _check_scalars(self, args: Sequence[Any], dtype: str) -> None:
        for value in args:
            if dtype and isinstance(value, (float, np.floating)):
                raise DTypeError(message(self.label, f"the number {value} does not fit a tensor of dtype {dtype}",
                                         'convert the tensor: x.astype("float32")'))

    def _tensors(self, args: Sequence[Any]) -> list[tuple[str, Tensor, bool]]:
        return [(f"{arg.name}[{k}]" if arg.many else arg.name, t, arg.mixed) for arg, value in zip(self.args, args)
                for k, t in enumerate(value if arg.many else (value,)) if isinstance(t, Tensor)]

    def _refuse_devices(self, args: Sequence[Any]) -> None:
        found = {name: t.device for name, t, _ in self._tensors(args)}
        raise DeviceError(message(self.label, f"the tensors live on {' and '.join(sorted(set(found.values())))}",
                                  "move them to one device: x.to(device)", **found))

    def _common_dtype(self, args: Sequence[Any]) -> str:
        """Returns the 16-bit dtype of args whose parameters are float32, or FOLLOWS.

        Raises DTypeError for any other mixture.
        """
        kinds: tuple[set[str], set[str]] = (set(), set())  # of the args that are no parameters, of those that are
        for arg, value in zip(self.args, args):
            if not arg.mixed:
                kinds[arg.parameter].update(t.dtype for t in (value if arg.many else (value,)) if isinstance(t, Tensor))
        others, parameters = kinds
        if self.follows and others == {"float32", MODES[config.precision].dtype} and len(others) == 2:
            return FOLLOWS
        if not others:  # each may be the parameter
            others, parameters = parameters - {"float32"}, parameters & {"float32"}
        if parameters != {"float32"} or len(others) != 1 or not others <= HALF_DTYPES:
            self._refuse_dtypes(args)
        return others.pop()

    def _refuse_dtypes(self, args: Sequence[Any]) -> None:
        found = {name: t.dtype for name, t, mixed in self._tensors(args) if not mixed}
        names = " and ".join(arg.name for arg in self.args if arg.parameter)
        fix = f"; only {names} may be float32 beside float16 or bfloat16" if names else ""
        short = set(found.values()) - {"float32"}
        if self.follows and len(short) == 1 and short < HALF_DTYPES and "float32" in found.values():
            name = next(m.name for m in MODES.values() if m.dtype in short)
            fix = f', or say alpha.precision("{name}"): {self.label} of the two is {short.pop()} there'
        raise DTypeError(message(self.label, f"the tensors have dtypes {' and '.join(sorted(set(found.values())))}",
                                 f"convert them to one dtype: x.astype(dtype){fix}", **found))


def _is_of_ints(value: tuple[Any, ...]) -> bool:
    """Tells whether a tuple holds nothing but ints, or tuples of them."""
    for item in value:
        if item.__class__ is not int and not (item.__class__ is tuple and _is_of_ints(item)):
            return False
    return True


def check_names(op: Signature, outs: Sequence[str], body: Mapping[str, Any]) -> None:
    """Raises ArgumentError if the class of an op names something that is neither an arg nor an out of it."""
    args = [a.name for a in op.args]
    vjps = [name[4:] for name in body if name.startswith("vjp_")]
    for kind, names, known in (("saves", body.get("saves", "").split(), [*args, *outs]),
                               ("returns", body.get("returns", "").split(), outs),
                               ("cheap", str(body.get("cheap", "")).replace("True", "").split(), outs),
                               ("mutates", body.get("mutates", "").split(), args),
                               ("adds", body.get("adds", "").split(), args),
                               ("named", body.get("named", "").split(), op.attr_names),
                               ("mixed", body.get("mixed", "").split(), args), ("vjp_", vjps, args)):
        for name in names:
            if name not in known:
                what = f"vjp_{name} is for an arg {name!r}" if kind == "vjp_" else f"{kind} has {name!r}"
                raise ArgumentError(message(
                    op.name, f"{what}, there is none; its args are {' '.join(args)}, its outs "
                    f"{' '.join(outs) or 'none'}", f"correct the name{did_you_mean(name, known)}"))
