"""Checks of the results of implementations and gradients: number, kind of array, shape, dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from alpha.core.device import Backend, get_backend
from alpha.core.errors import DeviceError, DTypeError, GraphError, ShapeError, message
from alpha.core.tensor import Tensor


class Spec(NamedTuple):
    """Shape and dtype of one output."""

    shape: tuple[int, ...]
    dtype: str


def watched(op: Any, implementation: Callable[..., Any], args: Sequence[Any], device: str) -> Callable[..., Any]:
    """Returns an implementation that raises GraphError if its first call changes an arg which `mutates` does not name.

    The arg gets its elements back then.
    """
    backend = get_backend(device)
    if backend.recorder() is not None:
        return implementation   # elements cannot be read now
    held = [(arg.name, t.array) for arg, value in zip(op.args, args) if arg.name not in op.mutates
            for t in (value if arg.many else (value,)) if isinstance(t, Tensor)]

    def run(*arrays: Any, **attrs: Any) -> Any:
        before = [_copy(backend, x, device) for _, x in held]
        result = implementation(*arrays, **attrs)
        changed = [k for k, (_, x) in enumerate(held)
                   if backend.to_numpy(x).tobytes() != backend.to_numpy(before[k]).tobytes()]
        for k in changed:
            backend.copy_into(held[k][1], before[k])
        if changed:
            name = held[changed[0]][0]
            raise GraphError(message(op.name, f"its {backend.name} implementation changes the elements of {name}, "
                                     "which `mutates` does not name", "write into a new array; or declare it in the "
                                     f'class: mutates = "{name}"'))
        op.looked_at.add(id(implementation))
        return result

    return run


def _copy(backend: Backend, x: Any, device: str) -> Any:
    made = backend.full(tuple(x.shape), 0, str(x.dtype), device)
    backend.copy_into(made, x)
    return made


def accept(op: Any, result: Any, specs: Any, dtype: str, device: str, arrays: Sequence[Any] = ()) -> list[Any]:
    """Returns the arrays that an implementation has returned, if they agree with the shape rule.

    One in the memory of an arg (of `arrays`) is copied: a result is a tensor of its own.
    """
    backend, names = get_backend(device), " ".join(op.outs) or "none"
    made = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
    for what, found in (("shape rule", specs or ()), (f"{backend.name} implementation", made)):
        if len(found) != len(op.outs):
            raise ShapeError(message(op.name, f"its {what} returned {len(found)} results, it has "
                                     f"{len(op.outs)} ({names})", "return one for each of `outs`, as a tuple"))
    for k, (spec, data, name) in enumerate(zip(specs or (), made, op.outs)):
        shape, kind = spec if spec.__class__ is Spec else (spec, dtype)
        if not isinstance(shape, tuple):
            raise ShapeError(message(op.name, f"its shape rule returned {shape!r} for {name}",
                                     "return a tuple of ints, or Spec(shape, dtype)"))
        made[k] = array = backend.accept(data)
        if array is None:
            raise DeviceError(message(
                op.name, f"its {backend.name} implementation returned {kind_of(data)} for {name}, "
                f"arrays of {backend.name} are {backend.array_name}",
                "return such an array; one of another kind is lost to the ops that read it next"))
        if tuple(array.shape) != shape or array.dtype != kind:
            error, says = (ShapeError, "shape") if tuple(array.shape) != shape else (DTypeError, "dtype")
            raise error(message(
                op.name, f"its {backend.name} implementation returned {name} with {says} {getattr(array, says)}, "
                f"its shape rule says {shape if says == 'shape' else kind}", "correct the one that is wrong",
                returned=(tuple(array.shape), str(array.dtype)), expected=(shape, kind)))
    taken = {backend.memory_key(x) for value in arrays for x in (value if isinstance(value, list) else (value,))
             if x is not None and backend.accept(x) is x}
    for k, array in enumerate(made):
        if (key := backend.memory_key(array)) in taken:
            made[k] = _copy(backend, array, device)
        taken.add(key)
    return made


def refuse_gradient(op: str, name: str, result: Any, meta: Any) -> NoReturn:
    """Raises for a gradient that is not like its arg."""
    where, fix = f"backward of {op}", f"correct vjp_{name.partition('[')[0]} of the op"
    if isinstance(meta, list):
        found = f"{len(result)} gradients" if isinstance(result, (list, tuple)) else kind_of(result)
        raise ShapeError(message(where, f"the gradient of {name} is {found}, {name} has {len(meta)} tensors",
                                 f"{fix}: return a list of one gradient for each"))
    if not isinstance(result, Tensor):
        raise DTypeError(message(where, f"the gradient of {name} is {kind_of(result)}, a Tensor is "
                                 "needed", f"{fix}: compute it with ops"))
    what, kind = ("shape", ShapeError) if result.shape != meta[0] else ("dtype", DTypeError)
    raise kind(message(where, f"the gradient of {name} has {what} {getattr(result, what)}, {name} has "
                       f"{meta[what == 'dtype']}", fix))


def kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a Tensor"
    module = type(value).__module__
    return f"a {type(value).__name__}" if module == "builtins" else f"a {module}.{type(value).__name__}"
