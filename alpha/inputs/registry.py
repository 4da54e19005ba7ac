"""Names of what is registered: a file or a notebook cell that runs again replaces its own, and nothing else."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from alpha.errors import ConfigError, message, shown


def origin(thing: Any) -> str:
    """Returns where a function or a class was written: its file, or the module `__main__` for what was typed in.

    A cell of a notebook is no file, and all cells together are one place.
    """
    codes = [f.__code__ for f in _functions(thing)]
    files = [code.co_filename for code in codes if os.path.isfile(code.co_filename)]
    module = getattr(thing, "__module__", None) or "__main__"
    if files:
        return os.path.realpath(files[0])
    file = getattr(sys.modules.get(module), "__file__", None)
    return os.path.realpath(file) if file and not codes else module


def _functions(thing: Any) -> list[Any]:
    found = list(vars(thing).values()) if isinstance(thing, type) else [inspect.unwrap(thing)]
    return [f for f in found if inspect.isfunction(f)]


def check_free(where: str, what: str, name: str, had: Any, new: Any, fix: str = "choose another name") -> None:
    """Raises ConfigError if a name is that of something that was written elsewhere.

    Args:
        where, what: who asks, and what is registered, for the message.
        had: what has the name, None if nothing has; a function, a class, or its `origin`.
        new: who wants it; the same.
    """
    if had is None:
        return
    old, place = (x if isinstance(x, str) else origin(x) for x in (had, new))
    if old != place:
        raise ConfigError(message(where, f"{what} called {name!r} is registered already, by {_short(old)}",
                                  f"{fix}; the same file or notebook may register it again"))


def _short(place: str) -> str:
    path = os.path.relpath(place) if os.path.isabs(place) else place
    return place if path.startswith("..") else path


def register(registry: dict[str, Any], where: str, what: str, name: str, entry: Any, written: Any) -> None:
    """Puts an entry under a name.  `written` is the function or class that is registered.  Raises ConfigError."""
    if not isinstance(name, str) or not name:
        raise ConfigError(message(where, f"{name!r:.80} is no name", f'write @{where}, or @{where}("name")'))
    had = registry.get(name)
    check_free(where, what, name, None if had is None else getattr(had, "written", had), written)
    registry[name] = entry


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """Returns "; did you mean <the nearest known name>?", or "" where none is near."""
    close = difflib.get_close_matches(str(name)[:100], list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def find(registry: Mapping[str, Any], where: str, what: str, name: Any) -> Any:
    """Returns the entry of a name.  Raises ConfigError, with the names that there are."""
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(message(where, f"there is no {what} {name!r:.80}{did_you_mean(name, registry)}",
                                  f"use one of {', '.join(sorted(registry))}, or register yours first"))
    return registry[name]


def decorator(registry: dict[str, Any], where: str, what: str, given: Any, entry: Callable[[Any], Any],
              default_name: Callable[[Any], str] = lambda thing: thing.__name__) -> Any:
    """Returns what a decorator returns that is written with a name, or without: @where, @where() or @where("name").

    Args:
        given: what it was called with: the function or class, a name, or None.
        entry: what is registered for a function or class.
    """
    def take(thing: Any) -> Any:
        if not callable(thing):
            raise ConfigError(message(where, f"{shown(thing)} is no function and no class",
                                      f"write @{where} above a function or a class"))
        register(registry, where, what, given if isinstance(given, str) else default_name(thing), entry(thing), thing)
        return thing
    return take if given is None or isinstance(given, str) else take(given)


def parameters_of(function: Any) -> dict[str, bool]:
    """Returns the names that a function or class takes, and whether it needs each."""
    found = inspect.signature(function).parameters.values()
    return {p.name: p.default is p.empty for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def call_with(where: str, function: Callable[..., Any], *first: Any, **known: Any) -> Any:
    """Calls a function with those of the known values that it takes, behind `first`.

    Raises ConfigError if it needs another one.
    """
    takes = dict(list(parameters_of(function).items())[len(first):])
    unknown = [name for name, needed in takes.items() if needed and name not in known]
    if unknown:
        raise ConfigError(message(where, f"it needs {unknown[0]!r}; it may take {', '.join(known)}",
                                  f"give {unknown[0]} a default, or rename it"))
    return function(*first, **{name: value for name, value in known.items() if name in takes})
