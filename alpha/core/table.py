"""The table of functions that methods of Tensor call, by name: ops, and the parts of alpha that stand above Tensor.

`x + y` is TABLE["add"](x, y), and `x.backward()` is TABLE["backward"](...). Ops are entered by alpha.ops, the rest by
the file that defines it, with `@provides(name)`. So Tensor imports none of them, and each of them imports Tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

TABLE: dict[str, Callable[..., Any]] = {}
registry: dict[str, Any] = {}   # every alpha.core.op.Op, by its name


def provides(name: str) -> Callable[[F], F]:
    """Enters the decorated function under a name."""
    def enter(f: F) -> F:
        if TABLE.setdefault(name, f) is not f:
            raise KeyError(f"{name} is in the table already")
        return f
    return enter
