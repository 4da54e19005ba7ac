"""Which names a module's attributes may have, and modules and tensors in lists, dicts and sets."""

from __future__ import annotations

from collections import deque
from types import FunctionType
from typing import Any

from alpha.core.errors import ConfigError, message, shown

PLAIN = frozenset({type(None), bool, int, float, str})      # values of these types hold nothing
CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def hidden(value: Any, kinds: tuple[type, ...]) -> list[Any]:
    """Returns `value`, or the objects in the list, tuple, dict, set or deque `value`, that are of `kinds`."""
    found: list[Any] = []
    seen: set[int] = set()
    to_do = [value]
    while to_do:
        one = to_do.pop()
        if isinstance(one, kinds):
            found.append(one)
        elif isinstance(one, CONTAINERS) and id(one) not in seen:
            seen.add(id(one))
            if not is_plain(one):
                to_do.extend(one.values() if isinstance(one, dict) else one)
    return found[::-1]


def is_plain(container: Any) -> bool:
    """Tells whether all items of a container are of PLAIN types."""
    return PLAIN.issuperset(map(type, container.values() if isinstance(container, dict) else container))


def a_(value: Any) -> str:
    """Returns the kind of a value, with its article: "an int", "the class ReLU"."""
    if value is None or isinstance(value, type):
        return "None" if value is None else f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def named(value: Any) -> str:
    """Returns the text of a value given for a name, in short."""
    return f"{value!r:.100}" if isinstance(value, str) else shown(value)


def check_name(where: str, name: Any, cls: Any) -> None:
    """Raises ConfigError unless `name` may name a parameter, a buffer or a module of a `cls`."""
    if not isinstance(name, str) or not name or "." in name:
        raise ConfigError(message(where, f"{named(name)} is no name for a parameter, a buffer or a module",
                                  "use a string that is not empty and has no dot: dots divide the names of a path"))
    if name.startswith("__") or name in cls._needed:
        raise ConfigError(message(where, f"{name} is a part of every {cls.__name__}, and cannot be replaced",
                                  "choose another name"))


def names_of(cls: type) -> set[str]:
    """Returns the names of a class that no attribute may take: methods, properties, private ones, `training`."""
    return {name for base in cls.__mro__[:-1] for name, v in vars(base).items() if name == "training" or (
        not name.startswith("__") and (name.startswith("_") or isinstance(v, (FunctionType, property))))}
