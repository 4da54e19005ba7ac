"""Module: a layer or a model, that is, parameters, buffers, submodules and a forward function.

Parameters, buffers and submodules are plain attributes; a Module finds them by looking at itself, so a subclass
needs no call of `super().__init__()` and no registration::

    class Scale(nn.Module):
        def __init__(self, channels):
            self.weight = nn.Parameter(ops.ones((channels,)))

        def forward(self, x):
            return x * self.weight
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from alpha.errors import AlphaError, CheckpointError, message
from alpha.graph import no_grad, state
from alpha.tensor import Tensor

Hook = Callable[..., Any]


class Parameter(Tensor):
    """A leaf tensor that a Module owns and an optimizer changes.

    Args:
        source: tensor whose elements it takes over (they are not copied).
        requires_grad: False freezes it.
    """

    __slots__ = ()

    def __init__(self, source: Tensor, requires_grad: bool = True) -> None:
        super().__init__(source.data, source.shape, source.dtype, source.device)
        self.requires_grad_(requires_grad)


class Module:
    """Base of layers and models; a subclass defines `forward`.

    Attributes:
        training: True after train() and at first, False after eval(); dropout and batch norm look at it.
    """

    training = True
    _buffers: tuple[str, ...] = ()          # names of the attributes that are buffers
    _pre_hooks: tuple[Hook, ...] = ()
    _hooks: tuple[Hook, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the output; what a call of the module runs between its hooks."""
        raise NotImplementedError(message(type(self).__name__, "it has no forward method",
                                          "define forward(self, x) in the class"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = state.layers
        state.layers = (*before, self)      # lets an error name the layer
        try:
            for hook in self._pre_hooks:
                args = _replaced(hook(self, args), args)
            output = self.forward(*args, **kwargs)
            for hook in self._hooks:
                output = _replaced(hook(self, args, output), output)
            return output
        finally:
            state.layers = before

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (list, tuple)) and any(isinstance(v, (Module, Parameter)) for v in value):
            raise AlphaError(message(type(self).__name__, f"attribute {name} is a plain {type(value).__name__} of "
                                     "layers, whose parameters nobody would find", "wrap it: nn.ModuleList([...])"))
        object.__setattr__(self, name, value)

    # ---- contents ----------------------------------------------------------------------------------------------------

    def register_buffer(self, name: str, value: Tensor | None) -> None:
        """Makes `value` the attribute `name`, a tensor that is saved and moved with the parameters but not trained."""
        self._buffers = (*self._buffers, name)
        setattr(self, name, value)

    def _paths(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yields (path, module) of this module and of all below it; a shared module once per path."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child._paths(f"{prefix}.{name}" if prefix else name)

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the parameters and buffers that are attributes of this very module."""
        for name, value in vars(self).items():
            if isinstance(value, Parameter) or (name in self._buffers and value is not None):
                yield name, value

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yields (name, module) of the modules that are attributes of this one."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Yields (path, module) of this module (path "") and of all below it, each module once."""
        seen: set[int] = set()
        for path, module in self._paths():
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module

    def modules(self) -> Iterator[Module]:
        """Yields this module and all below it."""
        return (module for _, module in self.named_modules())

    def _named_tensors(self, parameters: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, t in module._own():
                if isinstance(t, Parameter) == parameters and id(t) not in seen:
                    seen.add(id(t))
                    yield f"{path}.{name}" if path else name, t

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yields (path, parameter) of this module and of all below it, each parameter once."""
        return self._named_tensors(parameters=True)

    def parameters(self) -> Iterator[Parameter]:
        """Yields the parameters of this module and of all below it, each once."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (path, buffer) of this module and of all below it, each buffer once."""
        return self._named_tensors(parameters=False)

    def num_parameters(self) -> int:
        """Returns the number of elements of all parameters."""
        return sum(p.size for p in self.parameters())

    # ---- modes and moves ---------------------------------------------------------------------------------------------

    def apply(self, f: Callable[[Module], Any]) -> Module:
        """Calls `f` on this module and on all below it, and returns this module."""
        for module in self.modules():
            f(module)
        return self

    def train(self, mode: bool = True) -> Module:
        """Sets training mode (True) or inference mode (False) here and below, and returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Sets inference mode here and below, and returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Unfreezes (True) or freezes (False) all parameters, and returns the module."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Drops the gradients of all parameters."""
        for p in self.parameters():
            p.grad = None

    def to(self, device: str | None = None, dtype: str | None = None) -> Module:
        """Moves parameters and buffers to a device, casts the floating ones to a dtype, and returns the module.

        The Parameter objects stay the same; gradients are dropped. Create the optimizer after this call: its own
        tensors follow the parameters that it is given.
        """
        for t in [*self.parameters(), *(b for _, b in self.named_buffers())]:
            moved = t.detach().to(device or t.device)
            moved = moved.astype(dtype) if dtype and t.is_floating_point else moved
            t.data, t.dtype, t.device, t.grad = moved.data, moved.dtype, moved.device, None
        return self

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all parameters and buffers by path, detached; they share their elements with the module."""
        return {f"{path}.{name}" if path else name: t.detach()
                for path, module in self._paths() for name, t in module._own()}

    def load_state_dict(self, values: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Overwrites parameters and buffers with `values`, cast to the dtype and device that they have here.

        Args:
            values: Tensor or NumPy array by path, in the layouts of this module (NHWC, OHWI).
            strict: False permits missing and unexpected names; a shape must fit in any case.
        Returns:
            (missing, unexpected): names that only the module or only `values` has.
        Raises:
            CheckpointError: names or shapes differ. It lists all that differ, and nothing has been loaded.
        """
        own = self.state_dict()
        missing = [name for name in own if name not in values]
        unexpected = [name for name in values if name not in own]
        misshapen = [name for name in own if name in values and tuple(values[name].shape) != own[name].shape]
        if misshapen or (strict and (missing or unexpected)):
            raise CheckpointError(_mismatch(type(self).__name__, own, values, missing, unexpected, misshapen))
        with no_grad():  # values may be parameters
            for path, module in self._paths():
                for name, t in module._own():
                    key = f"{path}.{name}" if path else name
                    if key in values:
                        t.copy_(values[key])
        return missing, unexpected

    # ---- hooks -------------------------------------------------------------------------------------------------------

    def register_forward_pre_hook(self, hook: Hook) -> Callable[[], None]:
        """Calls `hook(module, args)` before forward; what it returns, unless None, replaces args (a tuple).

        Returns a function that removes the hook.
        """
        self._pre_hooks = (*self._pre_hooks, hook)
        return lambda: setattr(self, "_pre_hooks", tuple(h for h in self._pre_hooks if h is not hook))

    def register_forward_hook(self, hook: Hook) -> Callable[[], None]:
        """Calls `hook(module, args, output)` after forward; what it returns, unless None, replaces the output.

        Returns a function that removes the hook.
        """
        self._hooks = (*self._hooks, hook)
        return lambda: setattr(self, "_hooks", tuple(h for h in self._hooks if h is not hook))

    def register_backward_hook(self, hook: Hook) -> Callable[[], None]:
        """Calls `hook(module, g)` with the gradient of the output (one Tensor); a returned Tensor replaces it.

        Returns a function that removes the hook.
        """
        def watch(module: Module, args: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda g: hook(module, g))
        return self.register_forward_hook(watch)

    @property
    def hooked(self) -> bool:
        """True where the module has hooks, so that its own output must exist."""
        return bool(self._hooks or self._pre_hooks)

    # ---- what containers and the summary ask -------------------------------------------------------------------------

    def fused_with(self, following: Module) -> Callable[[Tensor], Tensor] | None:
        """Returns a function that equals `following(self(x))` in one op, or None where there is no such op.

        Sequential asks each layer this about the next one, unless either has hooks.
        """
        return None

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        """Returns the multiply-accumulates of one call: (nominal, without those on padded zeros)."""
        return 0, 0

    def extra_repr(self) -> str:
        """Returns the settings that the repr shows in parentheses."""
        return ""

    def __repr__(self) -> str:
        children = list(self.named_children())
        if not children:
            return f"{type(self).__name__}({self.extra_repr()})"
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in children]
        return f"{type(self).__name__}({self.extra_repr()}\n  " + "\n  ".join(lines) + "\n)"


def _replaced(new: Any, old: Any) -> Any:
    return old if new is None else new


def _mismatch(where: str, own: Mapping[str, Tensor], values: Mapping[str, Any], missing: list[str],
              unexpected: list[str], misshapen: list[str]) -> str:
    """The message of load_state_dict: everything that differs, at once."""
    found = []
    if missing:
        found.append(f"{len(missing)} missing: {', '.join(missing)}")
    if unexpected:
        close = {name: difflib.get_close_matches(name, missing or list(own), n=1) for name in unexpected}
        found.append(f"{len(unexpected)} unexpected: " + ", ".join(
            f"{name} (did you mean {guess[0]}?)" if guess else name for name, guess in close.items()))
    if misshapen:
        found.append(f"{len(misshapen)} of another shape: " + ", ".join(
            f"{name} {tuple(values[name].shape)}, the module has {own[name].shape}" for name in misshapen))
    fix = "load it into the model that it was saved from, or pass strict=False to skip names"
    if any(_moved_channels(tuple(values[name].shape)) == own[name].shape for name in misshapen):
        fix = "filters look like PyTorch's OIHW: alpha.checkpoint.from_torch_state_dict(values, model) converts them"
    return message(f"{where}.load_state_dict", "; ".join(found), fix)


def _moved_channels(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else ()
