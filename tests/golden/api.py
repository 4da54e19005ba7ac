"""The public names, a line each: signature, and the first line of the docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from alpha import ops
from alpha.core.op import Op

NAMESPACES = ("alpha", "alpha.ops", "alpha.nn", "alpha.nn.functional", "alpha.nn.init", "alpha.optim", "alpha.data",
              "alpha.training", "alpha.checkpoint", "alpha.onnx", "alpha.testing", "alpha.errors", "alpha.Tensor",
              "models")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def text() -> str:
    """Returns the record."""
    return "\n".join(line for space in NAMESPACES for line in lines(space)) + "\n"


def lines(space: str) -> Iterator[str]:
    """Gives the lines of a namespace: of its names, and of the methods of its classes."""
    owner = _owner(space)
    for name in sorted(_names(owner)):
        thing = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
        if space == "alpha" and getattr(ops, name, None) is thing and callable(thing):
            yield f"alpha.{name}: alpha.ops.{name}"
            continue
        yield _line(f"{space}.{name}", thing)
        if isinstance(thing, type) and not isinstance(owner, type) and name != "Tensor":
            for method, f in sorted(vars(thing).items()):
                if method[0] != "_" or method == "__call__":
                    yield _line(f"{space}.{name}.{method}", f)


def _owner(space: str) -> Any:
    return import_module("alpha").Tensor if space == "alpha.Tensor" else import_module(space)


def _names(owner: Any) -> Iterator[str]:
    listed = getattr(owner, "__all__", None)
    for name in listed if listed is not None else dir(owner):
        if listed is not None or (name[0] != "_" and _belongs(owner, getattr(owner, name, None))):
            yield name


def _belongs(owner: Any, thing: Any) -> bool:
    """Whether a name of a module without `__all__`, or of a class, is its own, and not one that it imports."""
    if not isinstance(owner, ModuleType):
        return True
    return getattr(thing, "__module__", owner.__name__) == owner.__name__ and not isinstance(thing, ModuleType)


def _line(name: str, thing: Any) -> str:
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    if isinstance(thing, ModuleType):
        return f"{name}: a module"
    doc = _first_line(thing)
    if isinstance(thing, Op):
        return f"{name}{thing.usage.partition('(')[1]}{thing.usage.partition('(')[2]} -- {doc}"
    if isinstance(thing, property):
        return f"{name}: a property -- {doc}"
    if not callable(thing):
        return f"{name}: {type(thing).__name__}"
    return f"{name}{_signature(thing)} -- {doc}"


def _signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return ADDRESS.sub("", str(found.replace(parameters=plain, return_annotation=found.empty)))


def _first_line(thing: Any) -> str:
    return (getattr(thing, "__doc__", None) or "").strip().partition("\n")[0]
