"""A module called with other parameters than its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpha.core.errors import ArgumentError, NotFoundError, ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.tensor import Tensor
from alpha.nn import Module


@checked
def functional_call(module: Any, parameters: Any, args: Any = (), kwargs: Any = None, *, strict: bool = False) -> Any:
    """Returns module(*args, **kwargs) with other tensors in the place of its parameters and buffers, for this call.

    Args:
        module: a Module, which has its own tensors again afterwards. A change of a buffer in place is made to the
            tensor that is given.
        parameters: tensor by path, as of dict(module.named_parameters()); or a tuple of such dicts. They may be
            computed, and have gradients.
        args: a tuple of arguments, or one tensor.
        kwargs: a dict of named ones.
        strict: whether all parameters and buffers must be given.
    Raises:
        ArgumentError: module is none, or parameters holds anything else.  NotFoundError: a path is not there, or, with
            strict, is missing.
        ShapeError: a tensor has another shape.
    """
    if not isinstance(module, Module):
        raise ArgumentError(message("functional_call", f"module is {shown(module)}, a Module is needed",
                                    "call a function itself"))
    dicts = parameters if isinstance(parameters, (tuple, list)) else (parameters,)
    if any(not isinstance(d, Mapping) or not all(isinstance(t, Tensor) for t in d.values()) for d in dicts):
        raise ArgumentError(message("functional_call", f"parameters is {shown(parameters)}, a dict of tensors is "
                                    "needed", "pass dict(module.named_parameters()), or one like it"))
    values = {path: t for d in dicts for path, t in d.items()}
    places: dict[str, tuple[Any, str]] = {}
    for path, owner in module._paths():
        places.update({f"{path}.{name}".lstrip("."): (owner, name) for name, _ in owner._own()})
    wrong = [path for path in values if path not in places] or (
        [path for path in places if path not in values] if strict else [])
    if wrong:
        said = "missing" if wrong[0] in places else "no parameter of the module"
        raise NotFoundError(message("functional_call", f"{', '.join(wrong[:5])} is {said}",
                                    f"it has {', '.join([*places][:8])}"))
    for path, t in values.items():
        owner, name = places[path]
        if t.shape != vars(owner)[name].shape:
            raise ShapeError(message("functional_call", f"{path} has shape {vars(owner)[name].shape}, {t.shape} is "
                                     "given", "pass a tensor of that shape"))
    before = {path: vars(places[path][0])[places[path][1]] for path in values}
    try:
        for path, t in values.items():
            vars(places[path][0])[places[path][1]] = t
        positional = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        return module(*positional, **(kwargs or {}))
    finally:
        for path, t in before.items():
            vars(places[path][0])[places[path][1]] = t
