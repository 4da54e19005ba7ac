"""Signatures read as checks: annotations say the kind of each argument, in the words of alpha.core.inputs.kinds.

    @checked
    def split(x: Tensor, size: Count, axis: Axis = 0) -> list[Tensor]: ...

The attributes of an op's `canon` or `shape` are annotated likewise, and checked in every call; of a class of optimizers
the settings are. A parameter without an annotation that says something is not looked at. A plain `int`, `float` (a
finite number), `bool`, `str` or class says something too.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from alpha.core.errors import AlphaError, ArgumentError, message
from alpha.core.inputs import aliases
from alpha.core.inputs.kinds import Either, Flag, Function, Instance, Kind, Many, Nothing, Real, Refused, Whole

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_ARGS, _KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_PLAIN: dict[Any, Kind] = {int: Whole(), float: Real("a finite number", isfinite, keyed=False), bool: Flag(),
                           str: Instance(str), type(None): Nothing(), Callable: Function()}


def kind_of(hint: Any) -> Kind | None:
    """Returns the Kind of an annotation, or None if it is not checked."""
    hint = hint.__bound__ if isinstance(hint, TypeVar) else hint
    origin = get_origin(hint)
    if origin is Annotated:
        return next((m for m in hint.__metadata__ if isinstance(m, Kind)), None) or kind_of(hint.__origin__)
    if origin in (Union, types.UnionType):
        kinds = [kind_of(part) for part in get_args(hint)]
        return None if None in kinds else Either(cast("list[Kind]", kinds))
    if origin in (Sequence, Iterable, list):
        inner = kind_of(get_args(hint)[0])
        return Many(inner) if inner else None
    if origin is Callable or hint is Callable:
        return Function()
    if hint in _PLAIN:
        return _PLAIN[hint]
    plain = isinstance(hint, type) and hint not in (object, Any) and not getattr(hint, "_is_protocol", False)
    return Instance(hint) if plain and origin is None else None


_read: dict[tuple[str, str], Kind | None] = {}  # of (module, annotation): many functions say the same


def _kind_in(hint: Any, names: dict[str, Any]) -> Kind | None:
    """As kind_of, for an annotation that may be text in the names of a module."""
    if not isinstance(hint, str):
        return kind_of(hint)
    key = names["__name__"], hint
    if key[0].startswith("alpha."):     # whose names are not set anew
        if key not in _read:
            _read[key] = kind_of(eval(hint, names))
        return _read[key]
    return kind_of(eval(hint, names))


def kinds_of(f: Callable[..., Any]) -> dict[str, Kind]:
    """Returns the kinds of the parameters of a function that are annotated with one."""
    f = inspect.unwrap(f)
    kinds = {}
    for name, hint in getattr(f, "__annotations__", {}).items():
        try:
            kind = None if name == "return" else _kind_in(hint, f.__globals__)
        except NameError:  # imported for type checkers only, or not defined yet
            continue
        if kind:
            kinds[name] = kind
    return kinds


def what_it_takes(f: Callable[..., Any], unknown: str = "") -> str:
    """Returns the parameters of a function, for messages, with advice instead of the unknown name."""
    names = [str(p).split(":")[0].split("=")[0].strip() for p in inspect.signature(f).parameters.values()]
    advice = f"{aliases.ADVICE[unknown]}; " if unknown in aliases.ADVICE else ""
    return f"{advice}it takes ({', '.join([name for name in names if name != 'self'])})"


def _where(method: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Returns how messages call a method: by the class of the object whose it is, the first of its arguments."""
    owner = type(args[0]).__name__ if args else "a method"
    return owner if method.__name__ == "__init__" else f"{owner}.{method.__name__}"


def bound(f: Callable[P, R]) -> Callable[P, R]:
    """Makes a function refuse calls that do not fit its signature by an ArgumentError.

    Values are not looked at, which costs next to nothing: for functions of every step, or that look themselves.
    """
    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return f(*args, **kwargs)
        except TypeError as error:
            if isinstance(error, AlphaError) or (error.__traceback__ and error.__traceback__.tb_next):
                raise  # of its body
            what = str(error).partition("() ")[2]
        unknown = what.split("'")[1] if "unexpected keyword" in what else ""
        raise ArgumentError(message(_where(f, args) if f.__name__ == "__init__" else f.__name__, what,
                                    what_it_takes(f, unknown)))

    return call


def bound_methods(*leave: str) -> Callable[[C], C]:
    """Does `bound` to the public methods of a class, but for those that are called within every op."""
    def bind(cls: C) -> C:
        for name, f in list(vars(cls).items()):
            if isinstance(f, types.FunctionType) and name[0] != "_" and name not in leave and f is inspect.unwrap(f):
                setattr(cls, name, bound(f))
        return cls
    return bind


def checked(f: Callable[P, R]) -> Callable[P, R]:
    """Makes a function look at its arguments first, by their annotations.  Messages name it, or for a method its class.

    Raises ArgumentError, ConfigError or ShapeError where they do not fit; see the module. Values of *args and **kwargs
    are not looked at.
    """
    parameters = inspect.signature(f).parameters.values()
    positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    open_ended, open_named = (any(p.kind is kind for p in parameters) for kind in (_ARGS, _KWARGS))
    names = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    required = tuple(name for name, p in names.items() if p.default is p.empty)
    kinds = kinds_of(f)
    read = {p.name: kinds[p.name].read(p.default) for p in parameters if p.name in kinds and p.default is not p.empty}
    defaults = {name: value for name, value in read.items() if value.__class__ is tuple}  # an int that became a pair
    method = positional[:1] == ("self",)
    order = tuple(kinds.get(name) for name in positional)
    plain = not defaults and positional[:len(required)] == required

    def where(args: tuple[Any, ...]) -> str:
        return _where(f, args) if method else f.__name__

    def refuse(args: tuple[Any, ...], what: str, name: str = "") -> NoReturn:
        raise ArgumentError(message(where(args), what, what_it_takes(f, name)))

    def taken(args: tuple[Any, ...], kind: Kind, name: str, value: Any) -> Any:
        try:
            return kind.read(value)
        except Refused as refused:
            error = kind.error_of(where(args), name, value, refused)
        raise error

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if plain and not kwargs and len(required) <= len(args) <= len(positional):  # the same, without names
            return f(*[taken(args, kind, name, value) if kind else value
                       for kind, name, value in zip(order, positional, args)])  # type: ignore[arg-type, call-arg]
        if len(args) > len(positional) and not open_ended:
            refuse(args, f"{len(args) - method} arguments are given by position, {len(positional) - method} is the "
                   "most")
        values = dict(zip(positional, args))
        for name, value in kwargs.items():
            if name in values or not (name in names or open_named):
                as_here = aliases.renamed({name: value}, [n for n in names if n not in values and n not in kwargs])
                what = f"{name} is {'given twice' if name in values else 'unknown'}"
                values |= refuse(args, what, name) if as_here is None else as_here
                continue
            values[name] = value
        for name in required:
            if name not in values:
                refuse(args, f"{name} is missing")
        for name, value in values.items():
            kind = kinds.get(name)
            if kind:
                values[name] = taken(args, kind, name, value)
        if len(args) > len(positional):
            first = [values.pop(name) for name in positional]
            return f(*first, *args[len(positional):], **values)  # type: ignore[arg-type, call-arg]
        return f(**{**defaults, **values})  # type: ignore[arg-type, call-arg]

    return call
