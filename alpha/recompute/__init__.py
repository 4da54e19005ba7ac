"""Memory for time: values for backward are kept or made again.  docs/explanation/memory.md tells how to choose.

    with alpha.config(recompute="cheap"):       # for all that is recorded in the block
        loss = ops.cross_entropy(model(x), y)
    loss.backward()

    block = alpha.recompute(block)              # a module or a function whose results are all made again
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from alpha.core.errors import ArgumentError, message, shown
from alpha.core.inputs.arguments import bound
from alpha.core.saved import remaking
from alpha.core.table import settle
from alpha.recompute import plan
from alpha.recompute.recipe import count

__all__ = ["recompute", "recompute_summary"]

MIB = 1 << 20


@bound
def recompute(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes the same, of whose calls backward keeps the inputs alone.

    Results between them are made again when backward needs them, convolutions and products too: about a third more time
    for that part of a network. Results and gradients have the same bits. The function itself runs once: random numbers
    are not drawn again, running statistics move once, hooks and prints happen once.

    Args:
        function: a module, or any function of tensors; it may call anything.
    Returns:
        a function of the same arguments. A module keeps its place in the network: call the result where the module was
        called.
    Raises:
        ArgumentError: it cannot be called.
    An op of one's own is made again if its class says `cheap = True`; results of others are kept.
    """
    if not callable(function):
        raise ArgumentError(message("recompute", f"{shown(function)} cannot be called", "pass a module or a function"))

    def call(*args: Any, **kwargs: Any) -> Any:
        before, plan.here.segment = plan.here.segment, True
        with plan.counting:
            remaking.segments += 1
        try:
            result = function(*args, **kwargs)
            settle()
            return result
        finally:
            plan.here.segment = before
            with plan.counting:
                remaking.segments -= 1
    return functools.wraps(function)(call) if hasattr(function, "__name__") else call


@bound
def recompute_summary(reset: bool = False) -> str:
    """Returns the bytes kept and made again since the count began, in words; `reset` begins it anew."""
    told = (f"kept {count.kept / MIB:,.1f} MiB, planned to make again {count.planned / MIB:,.1f} MiB, made again "
            f"{count.made / MIB:,.1f} MiB in {count.times} calls, {count.ms:,.1f} ms of the host")
    if reset:
        count.__init__()  # type: ignore[misc]
    return told
