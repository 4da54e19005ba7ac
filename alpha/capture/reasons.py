"""Why a call of a captured function is a plain one: reasons in words, each with its remedy.

A reason is found in each call and put into words when a user asks, or is warned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from alpha.core.config import config
from alpha.core.errors import shown
from alpha.core.tensor import Tensor
from alpha.core.trace import watchers
from alpha.nn import Module

Words = tuple[str, str]  # the reason, and the remedy


class Why(NamedTuple):
    """A reason: a function that puts it into words, and its arguments."""

    words: Callable[..., Words]
    args: tuple[Any, ...] = ()

    def told(self) -> Words:
        return self.words(*self.args)


class State(NamedTuple):
    """The state of a captured function, for names."""

    items: Sequence[Any]        # modules and tensors as they were given
    optimizers: Sequence[Any]

    def name_of(self, wanted: Any) -> str:
        """Returns what a user calls a tensor or a module of the state."""
        for k, item in enumerate(self.items):
            if item is wanted:
                return f"{type(item).__name__} {k + 1} of the state"
            if isinstance(item, Module):
                for kind, found in (("parameter", item.named_parameters()), ("buffer", item.named_buffers()),
                                    ("module", item.named_modules())):
                    for name, part in found:
                        if part is wanted:
                            return f"{kind} {name}"
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for name, p in zip(group["names"], group["params"]):
                    if p is wanted:
                        return f"parameter {name} of the {type(optimizer).__name__}"
        return f"a tensor of shape {wanted.shape}" if isinstance(wanted, Tensor) else type(wanted).__name__


# ---- what keeps a call from being recorded or repeated ---------------------------------------------------------------

def switched_off() -> Words:
    return "ALPHA_CAPTURE is 0", "set ALPHA_CAPTURE=1, or alpha.config(capture=True)"


def by_a_setting(check_nan: bool, sync: bool) -> Words:
    name = "ALPHA_CHECK_NAN" if check_nan else "ALPHA_SYNC" if sync else "ALPHA_DEBUG above 1"
    return f"{name} looks at each op by itself", f"switch {name.split()[0]} off where speed counts"


def profiled() -> Words:
    return "alpha.profiler watches each op", "leave the block of the profiler"


def without_arguments() -> Words:
    return "the function is called without arguments", "pass at least one tensor, whose device is the function's"


def not_plain(k: int, text: str, is_tensor: bool) -> Words:
    if is_tensor:
        return f"argument {k + 1}, {text}, requires a gradient", "pass x.detach(), or put x into the state"
    return f"argument {k + 1} is {text}, not a tensor", "pass alpha.tensor(...), or leave it to the function"


def hooked(state: State, owner: Any) -> Words:
    return f"{state.name_of(owner)} has a hook, which must run in each call", "remove it: handle.remove()"


def gradient_added(state: State, t: Tensor) -> Words:
    return (f"{state.name_of(t)} has a gradient from before the call, which the function reads or adds to",
            "begin the function with optimizer.zero_grad(), or drop the gradients between calls")


def as_warned(text: str) -> Words:
    return text, "see the warning"


def gradient_missing(state: State, t: Tensor) -> Words:
    return (f"{state.name_of(t)} has no gradient, and had one in the call that was recorded",
            "use zero_grad() instead of zero_grad(set_to_none=False)")


# ---- what differs from call to call ----------------------------------------------------------------------------------

def obstacle(inputs: Sequence[Any], modules: Iterable[Module], tensors: Sequence[Tensor], state: State) -> Why | None:
    """Returns why a call must be a plain one, whatever was recorded; None where it may be a repetition."""
    if not inputs:
        return Why(without_arguments)
    for k, x in enumerate(inputs):
        if not isinstance(x, Tensor) or x.requires_grad:
            return Why(not_plain, (k, shown(x), isinstance(x, Tensor)))
    if not config.capture:
        return Why(switched_off)
    if config.check_nan or config.sync or config.debug > 1:
        return Why(by_a_setting, (config.check_nan, config.sync))
    if watchers:
        return Why(profiled)
    for m in modules:
        if m.hooked:
            return Why(hooked, (state, m))
    for t in tensors:
        if t._hooks:
            return Why(hooked, (state, t))
    return None


class Part(IntEnum):
    """Places in a key."""

    ARGUMENTS = 0
    GRAD = 1
    PRECISION = 2
    TENSOR_CORES = 3
    RECOMPUTE = 4
    TRAINING = 5
    REQUIRES_GRAD = 6
    STEPS = 7


def key_of(inputs: Sequence[Tensor], grad: bool, modules: Sequence[Module], tensors: Sequence[Tensor],
           forms: Iterable[Hashable]) -> tuple[Any, ...]:
    """Returns what a recording depends on, in the order of Part."""
    return (tuple([(x.shape, x.dtype, x.device) for x in inputs]), grad, config.precision, config.tensor_cores,
            config.recompute, tuple([m.training for m in modules]), tuple([t.requires_grad for t in tensors]),
            tuple(forms))


def difference(before: tuple[Any, ...], now: tuple[Any, ...], state: State, modules: Sequence[Module],
               tensors: Sequence[Tensor]) -> Words:
    """Puts into words what two calls differ in: the first part of their keys that is not the same."""
    at = next((k for k, (a, b) in enumerate(zip(before, now)) if a != b), 0)
    a, b = before[at], now[at]
    if at == Part.ARGUMENTS:
        return _arguments(a, b)
    if at == Part.TRAINING:
        k = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), 0)
        name = state.name_of(modules[k]) if k < len(modules) else "the modules"
        return f"{name} is switched between training and evaluation", "capture a function for each mode"
    if at == Part.REQUIRES_GRAD:
        k = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), 0)
        name = state.name_of(tensors[k]) if k < len(tensors) else "a tensor"
        return f"requires_grad of {name} changes", "keep it, or capture a function for each case"
    if at == Part.STEPS:
        return ("a setting of the optimizer that decides on its launches changes, or its state was loaded anew",
                "keep the setting: lr, and the other numbers, may change")
    name = "alpha.no_grad" if at == Part.GRAD else f"the setting {Part(at).name.lower()}"
    return f"{name} changes from call to call", "keep it, or capture a function for each case"


def _arguments(before: Sequence[Any], now: Sequence[Any]) -> Words:
    if len(before) != len(now):
        return f"the function gets {len(now)} arguments, {len(before)} before", "capture a function for each number"
    k = next(k for k, (a, b) in enumerate(zip(before, now)) if a != b)
    for what, fix, a, b in zip(("shape", "dtype", "device"), (
            "pass batches of one shape: DataLoader(drop_last=True), or pad them", "cast it to one dtype",
            "keep it on one device"), before[k], now[k]):
        if a != b:
            return f"{what} of argument {k + 1} changes, from {tuple(a) if what == 'shape' else a} to " \
                   f"{tuple(b) if what == 'shape' else b}", fix
    return "the arguments change", "pass arguments of one shape"
