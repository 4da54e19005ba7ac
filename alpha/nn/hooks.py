"""Hooks of a module: functions called before its forward, after it, and with the gradient of its output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from alpha.core.errors import ArgumentError, DTypeError, message
from alpha.core.inputs import aliases
from alpha.core.inputs.arguments import bound_methods, what_it_takes
from alpha.core.tensor import Handle, Tensor
from alpha.nn.attributes import a_

Hook = Callable[..., Any]


@bound_methods()
class Hooks:
    """The hooks of a Module; `Module.__call__` runs them."""

    _pre_hooks: tuple[Hook, ...] = ()
    _hooks: tuple[Hook, ...] = ()

    def register_forward_pre_hook(self, hook: Hook) -> Handle:
        """Calls `hook(module, args)` before forward; its result, unless None, replaces args.

        Args:
            hook: returns None, the new args as a tuple, or the only new argument.
        Returns:
            a handle: `handle.remove()`, or `handle()`, removes the hook.
        Raises:
            DTypeError: the hook cannot be called.
        """
        return self._register("_pre_hooks", "register_forward_pre_hook", hook)

    def register_forward_hook(self, hook: Hook) -> Handle:
        """Calls `hook(module, args, output)` after forward; its result, unless None, replaces the output.

        Args:
            hook: returns None or the new output. Where the output is a Tensor, that is a Tensor, or a tuple, a list or
                a dict; a call of the module raises DTypeError for anything else.
        Returns:
            a handle: `handle.remove()`, or `handle()`, removes the hook.
        Raises:
            DTypeError: the hook cannot be called.
        """
        return self._register("_hooks", "register_forward_hook", hook)

    def register_backward_hook(self, hook: Hook) -> Handle:
        """Calls `hook(module, g)` with the gradient of the output (one Tensor); a returned Tensor replaces it.

        Returns:
            a handle: `handle.remove()`, or `handle()`, removes the hook.
        Raises:
            DTypeError: the hook cannot be called. A call of the module raises it where the output is no Tensor.
        """
        _check_callable(self, "register_backward_hook", hook)

        def watch(module: Hooks, args: Any, output: Tensor) -> None:
            if not isinstance(output, Tensor):
                raise DTypeError(message(type(module).__name__, f"its output is {a_(output)}, a backward "
                                         "hook needs one Tensor", "register the hook on the tensor in question: "
                                         "t.register_hook(...)"))
            if output.requires_grad:
                output.register_hook(lambda g: hook(module, g))
        return self.register_forward_hook(watch)

    @property
    def hooked(self) -> bool:
        """True where the module has hooks, so that its own output must exist."""
        return bool(self._hooks or self._pre_hooks)

    def _register(self, kind: str, method: str, hook: Hook) -> Handle:
        _check_callable(self, method, hook)
        entry = _Entry(hook)
        object.__setattr__(self, kind, (*getattr(self, kind), entry))
        return Handle(lambda: object.__setattr__(self, kind, tuple(h for h in getattr(self, kind) if h is not entry)))


class _Entry:
    """One registration of a hook: the same hook may be registered twice and removed once."""

    __slots__ = ("hook",)

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args)


def new_args(module: Hooks, hook: Hook, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments of forward after a pre-hook."""
    new = hook(module, args)
    if new is None:
        return args
    return new if isinstance(new, tuple) else (new,)


def new_output(module: Hooks, hook: Hook, args: tuple[Any, ...], output: Any) -> Any:
    """Returns the output after a forward hook.  Raises DTypeError where it cannot stand for a Tensor."""
    new = hook(module, args, output)
    if new is None:
        return output
    if isinstance(output, Tensor) and not isinstance(new, (Tensor, tuple, list, dict)):
        raise DTypeError(message(type(module).__name__, f"a forward hook returned {a_(new)}, the output "
                                 "is a Tensor", "return the new output as a Tensor, or None to keep the output"))
    return new


def _check_callable(module: Hooks, method: str, hook: Any) -> None:
    if not callable(hook):
        raise DTypeError(message(f"{type(module).__name__}.{method}", f"the hook is {a_(hook)}, a "
                                 "function is needed", "pass the function itself, without calling it"))


def called_anew(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls the forward of a module, which a call did not fit, by alpha's names for PyTorch's: `layer(input=x)`.

    Raises ArgumentError where they do not fit either.
    """
    try:
        signature = inspect.signature(module.forward)
    except ValueError:      # a function of C that has none: it raises its error again
        return module.forward(*args, **kwargs)
    as_here = aliases.renamed(kwargs, list(signature.parameters)[len(args):]) or kwargs
    try:
        signature.bind(*args, **as_here)
    except TypeError as error:
        raise ArgumentError(message(type(module).__name__, str(error), what_it_takes(module.forward))) from None
    return module.forward(*args, **as_here)
