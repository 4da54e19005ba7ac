"""Names in registries: a file or a notebook cell that runs again replaces its own, and nothing else."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.aliases import ADVICE


def origin(thing: Any) -> str:
    """Returns where a function or a class was written: its file, or the module `__main__` for typed-in code.

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
    return [inspect.unwrap(f) for f in found if inspect.isfunction(f)]


def check_free(where: str, what: str, name: str, had: Any, new: Any, fix: str = "choose another name") -> None:
    """Raises ConfigError if something that was written elsewhere has the name.

    Args:
        where, what: the asker, and the kind of thing that is registered, for the message.
        had: the holder of the name, None if there is none; a function, a class, or its `origin`.
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
    """Returns "; did you mean <the nearest known name>?", or the advice for a known habit, or ""."""
    if isinstance(name, str) and name not in known and "accumul" in name:
        return "; " + ADVICE["accumulate"]
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
    """Returns the result of a decorator that is written with a name, or without: @where, @where() or @where("name").

    Args:
        given: its argument: the function or class, a name, or None.
        entry: makes the registered object of a function or class.
    """
    def take(thing: Any) -> Any:
        if not callable(thing):
            raise ConfigError(message(where, f"{shown(thing)} is no function and no class",
                                      f"write @{where} above a function or a class"))
        if not isinstance(given, str) and not hasattr(thing, "__name__"):
            raise ConfigError(message(where, f"{shown(thing)} has no name", f'give it one: {where}("name")(...)'))
        register(registry, where, what, given if isinstance(given, str) else default_name(thing), entry(thing), thing)
        return thing
    return take if given is None or isinstance(given, str) else take(given)


def parameters_of(function: Any) -> dict[str, bool]:
    """Returns the names that a function or class takes, and whether it needs each.  Raises ConfigError for no such."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):     # nothing to call, or a built-in one, which does not tell its parameters
        raise ConfigError(message("signature", f"{shown(function)} is no function and no class of Python's own kind",
                                  "pass one that is written in Python, or a registered name")) from None
    return {p.name: p.default is p.empty for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def takes_both(where: str, what: str, function: Callable[..., Any]) -> None:
    """Raises ConfigError for a function that cannot be called with (outputs, targets)."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(message(where, f"{what} does not take (outputs, targets): {error}",
                                  "let it take both, and nothing else that has no default")) from error
    except ValueError:  # of a built-in function, which does not tell its parameters
        pass


def call_with(where: str, function: Callable[..., Any], *first: Any, **known: Any) -> Any:
    """Calls a function with `first`, and with the known values that it takes.

    Raises ConfigError if it needs another one.
    """
    takes = dict(list(parameters_of(function).items())[len(first):])
    unknown = [name for name, needed in takes.items() if needed and name not in known]
    if unknown:
        raise ConfigError(message(where, f"it needs {unknown[0]!r}; it may take {', '.join(known)}",
                                  f"give {unknown[0]} a default, or rename it"))
    taken = {name: value for name, value in known.items() if name in takes}
    try:
        inspect.signature(function).bind(*first, **taken)
    except TypeError as error:
        raise ConfigError(message(where, f"{shown(function)} does not take what it is given: {error}",
                                  f"let it take {len(first)} arguments, and of {', '.join(known)} what it needs")
                          ) from None
    return function(*first, **taken)
