"""The table of functions that methods of Tensor call, by name: ops, and the parts of alpha that stand above Tensor.

`x + y` is TABLE["add"](x, y), and `x.backward()` is TABLE["backward"](...). The file that defines a thing enters it: an
op or a function of alpha.ops with `@public(...)`, all else with `@provides(name)`. So Tensor imports none of them, and
each of them imports Tensor.

The call of a layer that waits for its first reader stands here, too: see alpha.fuse.follow.
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
        call: the alpha.fuse.follow.Call whose result has no reader yet; one at most.
        lock: held while one of the thread's calls is computed, by the thread that reads its result.
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


def _enter(f: F) -> F:
    return provides(f.__name__)(f)


def public(*, top: bool | str = False, method: bool | str = False, functional: bool | str = False,
           inplace: bool = False, layer: str = "", keeps_channels: bool = False, onnx: str = "", spread: bool = False
           ) -> Callable[[F], F]:
    """Says, where a function or op of alpha.ops is defined, that it is public, and under which names.

    `python -m tools.names` writes the lists that follow, such as `__all__`; here the thing is entered into TABLE.
    A field that holds names takes True for the own name, or names in one string: "cat concat".

    Args:
        top: names in alpha.
        method: names as a method of Tensor, which is the first argument.
        functional: names in alpha.nn.functional, with the same arguments.
        inplace: alpha.nn.functional takes PyTorch's `inplace` too, and leaves x as it is.
        layer: the layers of alpha.nn that do no more than this op.
        keeps_channels: the last axis of y is that of x: the op may stand between a convolution and a Flatten.
        onnx: the operator of ONNX that does the same, with the same arguments.
        spread: the first argument is a shape, whose ints may be given one by one.
    """
    return _enter
