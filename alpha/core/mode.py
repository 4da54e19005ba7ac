"""Gradient mode: whether ops record the graph, in a thread or task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from alpha.core.errors import GraphError, message
from alpha.core.inputs.arguments import bound

recording: ContextVar[bool] = ContextVar("recording", default=True)  # per thread and task: is the graph recorded
_blocks: ContextVar[tuple[set_grad_enabled, ...]] = ContextVar("blocks", default=())  # entered here, not left yet


def grad_enabled() -> bool:
    """Tells whether ops record the graph, in this thread or task."""
    return recording.get()


class set_grad_enabled:
    """For a block: switches the recording of the graph on or off, in this thread or asyncio task alone.

    As a decorator it does so for each call of a function; for a generator or a coroutine, while its body runs.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        _blocks.set((*_blocks.get(), self))
        recording.set(self.enabled)

    def __exit__(self, *error: object) -> None:
        left = _blocks.get()
        for k in range(len(left) - 1, -1, -1):  # blocks of generators may end in any order, and in another task
            if left[k] is self:
                left = left[:k] + left[k + 1:]
                break
        _blocks.set(left)
        recording.set(left[-1].enabled if left else True)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        enabled = self.enabled
        if inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def stepwise(*args: Any, **kwargs: Any) -> Any:
                return _stepwise(function(*args, **kwargs), enabled)
            return stepwise
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with set_grad_enabled(enabled):
                    return await function(*args, **kwargs)
            return awaited
        if inspect.isasyncgenfunction(function):
            raise GraphError(message("no_grad", f"{function.__name__} is an asynchronous generator, whose body runs "
                                     "after its call", "write the block inside of it: with alpha.no_grad(): ..."))

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(enabled):
                return function(*args, **kwargs)
        return plain


def _stepwise(generator: Any, enabled: bool) -> Any:
    """Runs a generator with the graph recorded or not, and its reader in the mode of before."""
    try:
        step, given = generator.send, None
        while True:
            with set_grad_enabled(enabled):
                value = step(given)
            try:
                step, given = generator.send, (yield value)
            except GeneratorExit:
                raise
            except BaseException as error:
                step, given = generator.throw, error
    except StopIteration as end:
        return end.value
    finally:
        with set_grad_enabled(enabled):
            generator.close()


@bound
def no_grad() -> set_grad_enabled:
    """For a block or as a decorator: ops leave no graph, their outputs need no gradient."""
    return set_grad_enabled(False)


@bound
def enable_grad() -> set_grad_enabled:
    """For a block or as a decorator inside `no_grad`: ops record the graph again."""
    return set_grad_enabled(True)
