"""The public names: every namespace that a user imports from, and its names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from alpha.core.op import Op

# A namespace and its heading, in the order of the site. alpha.models is the package models of a clone.
NAMESPACES = {
    "alpha": "Tensors, settings, the graph", "alpha.Tensor": "Methods of a tensor", "alpha.ops": "Ops",
    "alpha.nn": "Layers and losses", "alpha.nn.functional": "Layers as functions", "alpha.nn.init": "Initial weights",
    "alpha.nn.utils": "Parametrizations", "alpha.optim": "Optimizers", "alpha.optim.schedule": "Learning rates by step",
    "alpha.data": "Data sets, loaders, augmentation", "alpha.training": "fit and its parts",
    "alpha.checkpoint": "Weights in files", "alpha.onnx": "ONNX", "alpha.func": "Derivatives of functions",
    "alpha.linalg": "Linear algebra", "alpha.dist": "Several ranks", "alpha.testing": "Help for tests",
    "alpha.errors": "Errors", "models": "Shipped networks",
}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
QUOTED = re.compile(r"(: |-> )'([^']*)'")    # an annotation that is kept as text


@dataclass(frozen=True)
class Name:
    """A public name: where it stands, and the object."""

    space: str
    name: str
    thing: Any

    @property
    def full(self) -> str:
        return f"{self.space}.{self.name}"


def public(space: str) -> list[Name]:
    """Returns the names of a namespace, in alphabetical order."""
    owner = import_module("alpha").Tensor if space == "alpha.Tensor" else import_module(space)
    return [Name(space, name, inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name))
            for name in sorted(set(_listed(owner)), key=str.lower)]


def _listed(owner: Any) -> Iterator[str]:
    listed = getattr(owner, "__all__", None)
    if listed is not None:
        yield from listed
    if listed is None or owner.__name__ == "alpha":    # alpha.__all__ leaves out names that Python has, too
        for name in dir(owner):
            if name[0] != "_" and _belongs(owner, name, getattr(owner, name, None)):
                yield name


def _belongs(owner: Any, name: str, thing: Any) -> bool:
    """Whether a name of a module without `__all__`, or of a class, is its own, and not imported."""
    if not isinstance(owner, ModuleType):
        return True
    if owner.__name__ == "alpha":
        return isinstance(thing, Op) or getattr(thing, "__module__", "").startswith("alpha.ops.")
    if isinstance(thing, dict):
        return name.isupper()
    return getattr(thing, "__module__", "") == owner.__name__ and not isinstance(thing, ModuleType)


def methods(cls: type) -> list[tuple[str, Any]]:
    """Returns the public methods and properties that a class defines itself."""
    return [(name, thing) for name, thing in sorted(vars(cls).items()) if (name[0] != "_" or name == "__call__")
            and (callable(thing) or isinstance(thing, (property, staticmethod, classmethod)))
            and not isinstance(thing, type)]


def plain(thing: Any) -> Any:
    """Returns the function of a static or a class method."""
    return thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing


def signature(thing: Any) -> str:
    """Returns the parameters of a callable, with their types where they are told."""
    if isinstance(thing, Op):
        return "(" + thing.usage.partition("(")[2]
    try:
        found = inspect.signature(plain(thing))
    except (TypeError, ValueError):
        return "(...)"
    return ADDRESS.sub("", QUOTED.sub(r"\1\2", str(found))).removesuffix(" -> None")


def source(thing: Any) -> str:
    """Returns the file that defines a thing, such as "alpha/ops/conv.py"; "" where it has none."""
    module = getattr(plain(thing), "__module__", None) or ""
    if module.partition(".")[0] not in ("alpha", "models"):
        return ""
    file = getattr(import_module(module), "__file__", None) or ""
    parts = file.replace("\\", "/").split("/")
    top = module.partition(".")[0]
    return "/".join(parts[len(parts) - 1 - parts[::-1].index(top):]) if top in parts else ""
