"""Modules made of modules, and lists and dicts of parameters.

Entries are attributes, named "0", "1", ... in lists, and so their parameters are found, saved and moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar, overload

from alpha.core.errors import ConfigError, DTypeError, NotDefinedError, NotFoundError, message, shown
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.ints import as_int, no_bools
from alpha.core.tensor import Tensor
from alpha.nn.attributes import a_, check_name, named
from alpha.nn.function import as_module
from alpha.nn.module import Module, Parameter

E = TypeVar("E")
D = TypeVar("D")


class _Entries(Module, Generic[E]):
    """What containers share: which attributes are entries, and how they are replaced, all or none."""

    _kind: type = Module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        name = type(self).__name__
        raise NotDefinedError(message(name, "it holds entries and has no forward method",
                                      "call its entries, or put modules that follow each other into nn.Sequential"))

    def _as_entry(self, name: str, value: Any) -> E:
        """Returns what is kept of a value: a module as it is, a function as a nn.Lambda.  Raises DTypeError."""
        return as_module(type(self).__name__, name, value)  # type: ignore[return-value]

    def _entries(self) -> dict[str, E]:
        """Returns the entries by name, in order."""
        kind: Any = self._kind
        return {name: v for name, v in vars(self).items() if isinstance(v, kind)}

    def _replace_entries(self, entries: Mapping[str, E]) -> None:
        """Makes `entries` the only ones.  Nothing has changed if it raises AlphaError."""
        before = self._entries()
        for name, value in entries.items():
            check_name(type(self).__name__, name, type(self))
            if before.get(name) is not value:
                self._admit(name, value)
        for name in before:
            delattr(self, name)
        for name, value in entries.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self._entries())


@bound_methods()
class _List(_Entries[E]):
    """A list of entries."""

    def _fill(self, values: Iterable[Any]) -> None:
        """Makes `values` the entries, "0", "1", ..."""
        self._replace_entries({str(k): self._as_entry(str(k), v) for k, v in enumerate(_listed(self, values))})

    def _numbered(self, what: str) -> list[E]:
        """Returns the entries.  Raises ConfigError if they have names of their own, which `what` would change."""
        entries = self._entries()
        if list(entries) != [str(k) for k in range(len(entries))]:
            raise ConfigError(message(f"{type(self).__name__}.{what}", f"the entries are named {', '.join(entries)}, "
                                      "not by their numbers", "make a new one of a dict with all names"))
        return list(entries.values())

    def append(self, value: Any) -> None:
        """Adds an entry at the end."""
        name = str(len(self))
        if name in vars(self):
            raise ConfigError(message(f"{type(self).__name__}.append", f"an entry is named {name} already",
                                      "make a new one of a dict with all names"))
        setattr(self, name, self._as_entry(name, value))

    def extend(self, values: Iterable[Any]) -> None:
        """Adds entries at the end."""
        entries, start = self._entries(), len(self)
        added = {str(start + k): self._as_entry(str(start + k), v) for k, v in enumerate(_listed(self, values))}
        taken = [name for name in added if name in vars(self)]
        if taken:
            raise ConfigError(message(f"{type(self).__name__}.extend", f"an entry is named {taken[0]} already",
                                      "make a new one of a dict with all names"))
        self._replace_entries({**entries, **added})

    def insert(self, index: int, value: Any) -> None:
        """Adds an entry before the one at `index`; those behind move up by one, in their names too."""
        values: list[Any] = self._numbered("insert")
        values.insert(max(-len(values), min(self._as_index(index), len(values))), value)
        self._fill(values)

    def pop(self, index: int = -1) -> E:
        """Removes the entry at `index` and returns it."""
        value = self[self._as_index(index)]
        del self[index]
        return value

    def __iter__(self) -> Iterator[E]:
        kind: Any = self._kind
        return iter([v for v in vars(self).values() if isinstance(v, kind)])

    def __contains__(self, value: object) -> bool:
        return any(v is value for v in self)

    @overload
    def __getitem__(self, index: int) -> E: ...
    @overload
    def __getitem__(self, index: slice) -> _List[E]: ...

    def __getitem__(self, index: int | slice) -> E | _List[E]:
        if isinstance(index, slice):
            return self._list_of(dict(self._chosen(list(self._entries().items()), index)))
        return self._entries()[self._name_at(index)]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        if isinstance(index, slice):
            values: list[Any] = self._numbered("__setitem__")
            self._chosen(values, index)
            try:
                values[index] = _listed(self, value)
            except ValueError as error:
                raise ConfigError(message(type(self).__name__, str(error), "assign as many as there are")) from error
            self._fill(values)
        else:
            name = self._name_at(index)
            setattr(self, name, self._as_entry(name, value))

    def __delitem__(self, index: int | slice) -> None:
        entries = self._entries()
        names = list(entries)
        gone = self._chosen(names, index) if isinstance(index, slice) else [self._name_at(index)]
        left = {name: v for name, v in entries.items() if name not in gone}
        if names == [str(k) for k in range(len(names))]:
            left = {str(k): v for k, v in enumerate(left.values())}
        self._replace_entries(left)

    def __add__(self, other: Iterable[Any]) -> _List[E]:
        made = self._list_of(self._entries())
        made.extend(other)
        return made

    def __iadd__(self, other: Iterable[Any]) -> _List[E]:
        self.extend(other)
        return self

    def _list_of(self, entries: Mapping[str, E]) -> _List[E]:
        """Returns a list of the same kind; entries that are named by numbers get new ones."""
        made = _base(type(self))()
        numbers = all(name.isdigit() for name in entries)
        made._replace_entries({str(k) if numbers else name: v for k, (name, v) in enumerate(entries.items())})
        return made

    def _as_index(self, index: Any) -> int:
        place = as_int(index)
        if place is None:
            raise DTypeError(message(type(self).__name__, f"the index {index!r:.40} is {a_(index)}, an "
                                     "int or a slice is needed", "pass the position of the entry"))
        return place

    def _chosen(self, values: list[Any], index: slice) -> list[Any]:
        try:
            return values[no_bools(index)]
        except (TypeError, ValueError) as error:
            raise DTypeError(message(type(self).__name__, f"the index {index!r:.100} is no slice of ints: {error}",
                                     "pass positions: model[1:3]")) from None

    def _name_at(self, index: Any) -> str:
        names, k = list(self._entries()), self._as_index(index)
        if not -len(names) <= k < len(names):
            raise NotFoundError(message(type(self).__name__, f"there is no entry {shown(k)}, it has {len(names)}",
                                        f"use an index in [{-len(names)}, {len(names)})" if names else "append one"))
        return names[k]


class ModuleList(_List[Module]):
    """A list of modules whose parameters are found, named "0", "1", ...

    It has what a list has: append, extend, insert, pop, indices, slices (which are new lists of the same modules),
    assignment, deletion, `+`.
    Args:
        modules: the modules, in order; functions become nn.Lambda.
    Raises:
        DTypeError: an entry is a class, None, a tensor or whatever else is no module.
    """

    @checked
    def __init__(self, modules: Iterable[Any] = ()) -> None:
        self._fill(modules)


class Sequential(_List[Module]):
    """Calls its modules one after the other.

        nn.Sequential(nn.Conv2d(3, 8, 3), ops.relu, nn.Flatten())
        nn.Sequential({"conv": nn.Conv2d(3, 8, 3), "relu": nn.ReLU()})

    What a layer and the next ones do in one pass over memory they do so here as in any other
    code: docs/explanation/fusion.md. It
    has what a list has, like ModuleList.
    Args:
        *modules: the modules, in order; functions become nn.Lambda. Or one dict, whose keys are their names.
    Raises:
        DTypeError: an entry is a class, None, a tensor or whatever else is no module.
        ConfigError: a name is empty, has a dot, or is that of a method.
    """

    @checked
    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            self._replace_entries({name: self._as_entry(name, v) for name, v in modules[0].items()})
        else:
            self._fill(modules)

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self):
            x = layer(x)
        return x


class ParameterList(_List[Parameter]):
    """A list of parameters that are found, named "0", "1", ...; it has what a list has, like ModuleList.

    Args:
        parameters: the parameters, in order; of another floating tensor it makes a Parameter with the same elements.
    Raises:
        DTypeError: an entry is no floating tensor.
    """

    _kind = Parameter

    @checked
    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        self._fill(parameters)

    def _as_entry(self, name: str, value: Any) -> Parameter:
        return _as_parameter(type(self).__name__, name, value)

    def extra_repr(self) -> str:
        return ", ".join(f"{p.shape} {p.dtype}" for p in self)


@bound_methods()
class _Dict(_Entries[E]):
    """A dict of entries."""

    @checked
    def __init__(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self.update(entries)

    def __getitem__(self, key: str) -> E:
        entries = self._entries()
        if not isinstance(key, str) or key not in entries:
            self._refuse_key(key)
        return entries[key]

    def __setitem__(self, key: str, value: Any) -> None:
        check_name(type(self).__name__, key, type(self))
        setattr(self, key, self._as_entry(key, value))

    def __delitem__(self, key: str) -> None:
        if not isinstance(key, str) or key not in self._entries():
            self._refuse_key(key)
        delattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._entries()

    def keys(self) -> Iterable[str]:
        """Returns the names, in order."""
        return self._entries().keys()

    def values(self) -> Iterable[E]:
        """Returns the entries, in order."""
        return self._entries().values()

    def items(self) -> Iterable[tuple[str, E]]:
        """Returns (name, entry) pairs, in order."""
        return self._entries().items()

    def get(self, key: str, default: D | None = None) -> E | D | None:
        """Returns the entry of a name, or `default`."""
        return self._entries()[key] if key in self else default

    def pop(self, key: str) -> E:
        """Removes an entry and returns it."""
        value = self[key]
        del self[key]
        return value

    def clear(self) -> None:
        """Removes all entries."""
        self._replace_entries({})

    def update(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Sets entries by name: of a mapping, another dict of this kind, or (name, entry) pairs."""
        where = type(self).__name__
        try:
            given = dict(entries.items() if isinstance(entries, (Mapping, _Dict)) else entries)
        except (TypeError, ValueError) as error:
            raise DTypeError(message(where, f"the entries are {a_(entries)}, a dict is needed",
                                     f"write nn.{where}({{name: entry, ...}})")) from error
        self._replace_entries({**self._entries(), **{key: self._as_entry(key, v) for key, v in given.items()}})

    def _refuse_key(self, key: Any) -> NoReturn:
        raise NotFoundError(message(type(self).__name__, f"there is no entry {named(key)}",
                                    f"it has {', '.join(self) or 'none'}"))


class ModuleDict(_Dict[Module]):
    """A dict of modules whose parameters are found, under the names that are its keys.

    Args:
        entries: modules by name; functions become nn.Lambda. Keys are strings without dots, and no names of methods.
    Raises:
        DTypeError: an entry is a class, None, a tensor or whatever else is no module.
        ConfigError: a key is no name.
    """


class ParameterDict(_Dict[Parameter]):
    """A dict of parameters that are found, under the names that are its keys.

    Args:
        entries: parameters by name; of another floating tensor it makes a Parameter with the same elements.
    Raises:
        DTypeError: an entry is no floating tensor.
        ConfigError: a key is no name.
    """

    _kind = Parameter

    def _as_entry(self, name: str, value: Any) -> Parameter:
        return _as_parameter(type(self).__name__, name, value)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {p.shape} {p.dtype}" for name, p in self.items())


def _base(kind: type[_List[Any]]) -> type[_List[Any]]:
    """Returns the class of this file that a class derives from: a subclass may want other arguments."""
    return next(base for base in kind.__mro__ if base.__module__ == __name__)


def _listed(owner: Module, values: Any) -> list[Any]:
    """Returns a new list of values.  Raises DTypeError for what is no list of them."""
    try:
        entries = None if isinstance(values, (Mapping, _Dict, str, Tensor)) else iter(values)
    except TypeError:  # an array without axes has __iter__, too
        entries = None
    if entries is None:
        names = "use nn.ModuleDict or nn.ParameterDict for names, or " * isinstance(values, (Mapping, _Dict))
        what = f"the entries are {a_(values)}, a list is needed"
        raise DTypeError(message(type(owner).__name__, what, f"{names}pass a list: [...]"))
    return list(entries)


def _as_parameter(where: str, name: str, value: Any) -> Parameter:
    if isinstance(value, Parameter):
        return value
    if not isinstance(value, Tensor):
        raise DTypeError(message(where, f"entry {name} is {a_(value)}, a Parameter is needed",
                                 "wrap it: nn.Parameter(alpha.tensor(...))"))
    return Parameter(value)
