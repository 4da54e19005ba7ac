"""The public callables of alpha and their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import alpha
import models
from alpha import checkpoint, data, func, nn, onnx, ops, optim, profiler, training
from alpha.core.inputs.arguments import kinds_of
from alpha.core.inputs.kinds import Kind
from alpha.core.op import Op
from alpha.nn import functional, init, utils
from alpha.optim import schedule

PLACES = {"ops": ops, "alpha": alpha, "F": functional, "nn": nn, "utils": utils, "func": func,
          "optim": optim, "data": data,
          "training": training, "onnx": onnx, "checkpoint": checkpoint, "profiler": profiler, "models": models}
# Methods that Python or PyTorch's habits give a meaning of their own, found by their class.
METHODS = (alpha.Tensor, nn.Module, optim.Optimizer, optim.LossScaler, optim.Lookahead, optim.SAM,
           nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.BatchNorm2d, nn.MaxUnpool2d,
           data.DataLoader, training.Trainer)


def names_of(module: Any) -> list[str]:
    """Returns the public names of a module, as its __all__ has them or as it defines them."""
    own = [name for name, value in vars(module).items() if not name.startswith("_") and inspect.isfunction(value)
           and inspect.unwrap(value).__module__ == module.__name__]
    return sorted({*getattr(module, "__all__", own)})


def public() -> dict[str, Callable[..., Any]]:
    """Returns each public callable once, under the first of its names."""
    found: dict[str, Callable[..., Any]] = {}
    seen: set[int] = set()

    def take(name: str, f: Any) -> None:
        if callable(f) and id(f) not in seen:
            seen.add(id(f))
            found[name] = f

    for place, module in PLACES.items():
        for name in names_of(module):
            take(f"{place}.{name}", getattr(module, name))
    for place, module in (("schedule", schedule), ("init", init)):
        for name, f in vars(module).items():
            if inspect.isfunction(f) and not name.startswith("_") and inspect.unwrap(f).__module__ == module.__name__:
                take(f"{place}.{name}", f)
    for cls in METHODS:
        for base in cls.__mro__[:-1]:
            for name, f in vars(base).items():
                if inspect.isfunction(f) and not name.startswith("_"):
                    take(f"{cls.__name__}.{name}", f)
    return found


def settings_of(f: Callable[..., Any]) -> dict[str, tuple[Any, Kind | None]]:
    """Returns the parameters of a callable that have a default: the default, and what may be given."""
    if isinstance(f, Op):
        return {**{a.name: (None, None) for a in f.args if a.optional},
                **{name: (default, f.kinds.get(name)) for name, default in f.defaults.items()}}
    try:
        parameters = inspect.signature(f).parameters.values()
    except ValueError:      # a class of errors
        return {}
    code = inspect.unwrap(f.__init__ if isinstance(f, type) else f)
    kinds = kinds_of(code) if inspect.isfunction(code) else {}
    return {p.name: (p.default, kinds.get(p.name)) for p in parameters
            if p.default is not p.empty and not p.name.startswith("_")}
