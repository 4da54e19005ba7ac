"""What the methods of Tensor call, by name: ops, and the parts of alpha that stand above Tensor.

`x + y` is TABLE["add"](x, y), and `x.backward()` is TABLE["backward"](...). Ops are entered by alpha.ops, the rest by
the file that defines it, with `@provides(name)`. So Tensor imports none of them, and each of them imports Tensor.

And the call of a layer that waits for its first reader, for whoever must have it computed: see alpha.fuse.follow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

TABLE: dict[str, Callable[..., Any]] = {}
registry: dict[str, Any] = {}   # every alpha.core.op.Op, by its name


class _Here(threading.local):
    """Of a thread.

    Attributes:
        call: the alpha.fuse.follow.Call whose result nobody has read yet; one at most.
        lock: held while one of the thread's calls is computed, by whoever reads its result.
    """

    call: Any = None

    def __init__(self) -> None:
        self.lock = threading.RLock()


here = _Here()


def settle() -> None:
    """Has the call computed that waits in this thread, if there is one.

    Call it before memory is changed or read without an op, and before a setting changes that ops look at.
    """
    if here.call is not None:
        here.call.settle()


def provides(name: str) -> Callable[[F], F]:
    """Enters the decorated function under a name."""
    def enter(f: F) -> F:
        if TABLE.setdefault(name, f) is not f:
            raise KeyError(f"{name} is in the table already")
        return f
    return enter
