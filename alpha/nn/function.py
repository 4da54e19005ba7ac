"""Functions as layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from alpha.core.errors import DTypeError, message
from alpha.core.inputs.arguments import bound
from alpha.core.tensor import Tensor
from alpha.nn.attributes import a_
from alpha.nn.module import Module


class Lambda(Module):
    """y = function(x): a function, such as an op, as a layer.

    Containers make it of functions by themselves: `nn.Sequential(conv, ops.relu)`. Parameters that a function uses are
    not found: write a Module, or give them to the module around it.
    Args:
        function: takes the arguments of the layer.
    Raises:
        DTypeError: it is a class, a module, or cannot be called.
    """

    @bound
    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, Module):
            raise DTypeError(message("Lambda", f"{type(function).__name__} is a module already", "use it as it is"))
        check_callable("Lambda", "function", function)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def extra_repr(self) -> str:
        return _name(self.function)


def as_module(where: str, name: str, value: Any) -> Module:
    """Returns a module that computes `value`, a module or a function.

    Raises DTypeError for anything else; `where` and `name` say which entry of which container it is.
    """
    if isinstance(value, Module):
        return value
    check_callable(where, f"entry {name}", value)
    return Lambda(value)


def check_callable(where: str, what: str, value: Any) -> None:
    """Raises DTypeError unless `value` is a function: a callable that is no class."""
    if isinstance(value, type):
        raise DTypeError(message(where, f"{what} is {a_(value)}, a module is needed",
                                 f"make one of the class: {value.__name__}(...)"))
    if isinstance(value, Tensor):
        raise DTypeError(message(where, f"{what} is {a_(value)} of shape {value.shape}, a module is "
                                 "needed", "set tensors as attributes of a module: self.weight = nn.Parameter(...)"))
    if callable(value):
        return
    fix = "pass modules, such as nn.ReLU(), or functions, such as ops.relu"
    if value is None:
        fix = "leave it out, or pass nn.Identity()"
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        fix = f"names come from a dict: {{{value[0]!r}: ..., ...}}"
    elif isinstance(value, Mapping):
        fix = "pass one dict of all layers, and nothing beside it"
    elif hasattr(value, "__iter__") and not isinstance(value, str):
        fix = f"write {where}(*layers) for a list of layers" if where == "Sequential" else "pass the layers one by one"
    raise DTypeError(message(where, f"{what} is {a_(value)}, a module or a function is needed", fix))


def _name(function: Any) -> str:
    """Returns how a function is called, in short."""
    if isinstance(function, partial):
        settings = [repr(a) for a in function.args] + [f"{k}={v!r}" for k, v in function.keywords.items()]
        return ", ".join([_name(function.func), *settings])
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]
