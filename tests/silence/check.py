"""Which settings are silent, and which have no call or no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.silence import layers, ops, runs, training
from tests.silence.found import public, settings_of
from tests.silence.seen import REFUSED, seen
from tests.silence.values import others as other_values

TABLES = {"ops": ops.CALLS, "alpha": ops.CALLS, "F": ops.F_CALLS, "Tensor": ops.METHOD_CALLS, "nn": layers.LAYERS,
          "init": layers.INIT, "utils": layers.UTILS, "func": ops.FUNC_CALLS, "optim": layers.OPTIMIZERS,
          "schedule": layers.SCHEDULES}
WHOLE = {**training.CALLS, **runs.CALLS, **layers.METHODS, **layers.OPTIMIZERS}


def calls_of(name: str) -> list[ops.Call]:
    """Returns the base calls of a public name, ops.relu say."""
    place, _, short = name.partition(".")
    return WHOLE.get(name) or TABLES.get(place, {}).get(short) or []


def values_of(name: str, setting: str, default: Any, kind: Any) -> list[Any]:
    """Returns the values that a setting is given."""
    place, _, short = name.partition(".")
    tables = {"nn": [layers.VALUES], "F": [ops.VALUES]}.get(place, [ops.VALUES, layers.VALUES, training.VALUES,
                                                                    runs.VALUES])
    for key in (f"{name}.{setting}", f"{short}.{setting}"):
        for table in tables:
            if key in table:
                return table[key]
    return other_values(setting, default, kind)


def silent(calls: list[Callable[..., Any]], f: Callable[..., Any], setting: str, value: Any,
           base: list[str]) -> bool:
    """Whether no call changes with a setting, and not all refuse it."""
    others = [(call, before) for call, before in zip(calls, base)
              if getattr(call, "fixed", {}).get(setting, REFUSED) is not value]
    refusals = 0
    for call, before in others:
        try:
            after = seen(call, f, {setting: value})
        except Exception as error:
            raise AssertionError(f"{setting}={value!r} raises {type(error).__name__}: {error}") from error
        if after.startswith(REFUSED):
            refusals += 1
        elif after != before:
            return False
    return refusals < len(others)


def findings(name: str, f: Callable[..., Any], reasons: dict[str, str]) -> Iterator[str]:
    """Yields a line for each setting of a callable that is silent, or that no call or no value covers."""
    settings = {setting: how for setting, how in settings_of(f).items()
                if f"{name}.{setting}" not in reasons and f"*.{setting}" not in reasons}
    if not settings:
        return
    calls = calls_of(name)
    if not calls:
        yield f"{name} has settings ({', '.join(settings)}) and no base call"
        return
    try:
        base = [seen(call, f, {}) for call in calls]
    except Exception as error:
        yield f"{name}: its base call raises {type(error).__name__}: {error}"
        return
    for k, answer in enumerate(base):
        if answer.startswith(REFUSED):
            yield f"{name}: its base call {k} is {answer}"
            return
    for setting, (default, kind) in settings.items():
        values = values_of(name, setting, default, kind)
        if not values:
            yield f"{name}: {setting} has no other value than {default!r}"
        for value in values:
            try:
                if silent(calls, f, setting, value, base):
                    yield f"{name}: {setting}={value!r} changes nothing"
            except AssertionError as error:
                yield f"{name}: {error}"


def all_findings(reasons: dict[str, str]) -> list[str]:
    """Returns the lines of all public callables."""
    return [line for name, f in public().items() for line in findings(name, f, reasons)]
