"""The stages of an op's call, and the results that are settled for all calls of one signature.

Every call is bound (names and attributes in order), checked (refusals, shapes and dtypes of results), computed (by
the implementation of the device), given (tensors made of its arrays), recorded (a node, where a gradient is wanted) and
told (to observers). Two stages depend on the op's class, and are chosen once, when it is made:

    compute   `changing` where it names args in `mutates`, else `computed`
    give      `joined` where its results are views, else `given`

A Settled has all that follows from shapes, dtypes, devices and attributes alone: it is worked out in the first call
of a signature, and looked up in later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from alpha.core import versions
from alpha.core.config import config
from alpha.core.device import FLOAT_DTYPES, ITEMSIZE, get_backend
from alpha.core.graph import Node, edge_of, state
from alpha.core.inplace import kin
from alpha.core.inputs.returned import Spec, accept, watched
from alpha.core.inputs.sizes import explain
from alpha.core.names import DEVICES, DTYPES, Shape
from alpha.core.saved import remaking
from alpha.core.tensor import Tensor, made
from alpha.core.trace import Trace, timed, watchers
from alpha.core.views import PossibleView, View

MOST = 256  # signatures of an op that are kept; the oldest goes
# While a function is recorded on the host: each takes an op, its implementation, and shapes and dtypes of the results;
# it returns a function that is called in the implementation's place.
recorders: list[Callable[[Any, Callable[..., Any], Any], Callable[..., Any]]] = []
FAR = 1 << 62   # bytes, where they are not counted


class Settled:
    """The facts that shapes, dtypes, devices and attributes of a call decide.

    Attributes:
        attrs: the canonical ones, held so that no others get their id, which is part of the key.
        device, dtype: of the args; where: of the results.
        specs: the result of the shape rule, a shape or a Spec for each out.
        outs: shape and dtype of each out.
        floats: which of the returned outs carry gradients.
        empty: whether there are no samples: no implementation is called then.
        arg_meta, out_meta, values: as each Node of such a call has them; see there.
        nbytes: of all args and outs, where the CPU is to decide by it whether a call is worth a recipe.
    """

    __slots__ = ("arg_meta", "attrs", "device", "dtype", "empty", "floats", "nbytes", "out_meta", "outs", "specs",
                 "values", "where")

    def __init__(self, op: Any, args: Sequence[Any], attrs: dict[str, Any], device: str, dtype: str) -> None:
        self.attrs, self.device, self.dtype = attrs, device, dtype
        self.where = DEVICES[attrs["device"]] if op.moves else device
        found = op.shape(*args, **attrs)
        self.specs: Any = (found,) if op.single else found
        several = self.specs if isinstance(self.specs, (tuple, list)) else ()   # else `accept` refuses it
        self.outs = [(s.shape, DTYPES.get(s.dtype, s.dtype)) if isinstance(s, Spec) else (s, dtype) for s in several]
        if op.own:
            self.outs = [(Shape(shape), kind) for shape, kind in self.outs]
        self.floats = [k for k, (_, kind) in enumerate(self.outs) if k < op.returned and kind in FLOAT_DTYPES]
        self.empty = op.batched and not args[0].shape[0]
        self.arg_meta = [_meta(value) for value in args]
        self.out_meta = [(*self.outs[k], self.where) for _, k in op.saved_outs if k < len(self.outs)]
        self.values: dict[str, Any] = {"_op": op}
        for arg, meta in zip(op.args, self.arg_meta):
            if meta.__class__ is list:
                self.values[arg.shape_key] = [m[0] for m in meta]
                self.values[arg.dtype_key] = meta[0][1] if meta else ""
            else:
                self.values[arg.shape_key], self.values[arg.dtype_key] = meta or (None, None)
        counted = op.own and device == "cpu"
        self.nbytes = sum([_nbytes(meta) for meta in (*self.arg_meta, *self.outs) if meta]) if counted else FAR


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return [(t.shape, t.dtype) for t in value] if value.__class__ is list else None


def _nbytes(meta: Any) -> int:
    if meta.__class__ is list:
        return sum([_nbytes(m) for m in meta])
    return prod(meta[0]) * ITEMSIZE[meta[1]]


# ---- compute ---------------------------------------------------------------------------------------------------------


def computed(op: Any, settled: Settled, args: Sequence[Any], attrs: dict[str, Any], arrays: Sequence[Any]) -> Any:
    """Returns the result of the implementation."""
    device = settled.device
    implementation = op.impls.get(device) or op._find(device)
    if recorders:
        implementation = recorders[-1](op, implementation, settled.outs)
    if settled.empty:
        implementation = partial(_zeros, settled.specs[0] if op.single else settled.specs, settled.dtype, device)
    if op.foreign and id(implementation) not in op.looked_at:
        implementation = watched(op, implementation, args, device)
    if config.watch and config.debug > 1:
        implementation = _traced(op, implementation, device)
    if watchers:
        implementation = watchers[-1].around(op, args, device, implementation)
    try:
        return implementation(*arrays, **attrs)
    except (MemoryError, OverflowError, ValueError) as error:
        explain(op.label, error, settled.specs, settled.dtype, args)
        raise


def changing(op: Any, settled: Settled, args: Sequence[Any], attrs: dict[str, Any], arrays: Sequence[Any]) -> Any:
    """As `computed`, of an op that changes args in place: versions are raised, and views that have copies follow."""
    if not attrs.get("training", True):     # a norm in inference changes nothing
        return computed(op, settled, args, attrs, arrays)
    followers = _announced(op, args, settled.device)
    if followers:
        arrays = op.check(args)[0]  # one may have got a copy
    result = computed(op, settled, args, attrs, arrays)
    for t, others in followers:
        if others:
            kin.follow(t, others)
    return result


def _announced(op: Any, args: Sequence[Any], device: str) -> list[Any]:
    """Raises the versions of the args that are about to change, and tells the backend.

    Returns the args that have views, with the views that have copies.
    """
    followers = []
    for arg, value in zip(op.args, args):
        if arg.name in op.mutates and value is not None:
            tensors = value if arg.many else (value,)
            related = [t for t in tensors if t._kin is not None]
            followers += [(t, others) for t in related if (others := kin.prepare(op.name, t)) or t._kin is not None]
            arrays = [t.array for t in tensors]
            versions.about_to_change(device, arrays)
            get_backend(device).forget(arrays)
            versions.note(versions.histories(device, arrays))
    return followers


def _zeros(specs: Any, dtype: str, device: str, *arrays: Any, **attrs: Any) -> Any:
    """Stands for the implementation of an op on no samples: returns zeros."""
    if isinstance(specs, list):
        return [_zeros(spec, dtype, device) for spec in specs]
    shape, kind = specs if specs.__class__ is Spec else (specs, dtype)
    return get_backend(device).full(shape, 0, kind, device)


def _traced(op: Any, implementation: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Wraps an implementation so that each call prints one line: op, shapes, attributes, time."""
    def run(*arrays: Any, **attrs: Any) -> Any:
        shapes = ", ".join("x".join(map(str, a.shape)) for a in arrays if hasattr(a, "shape"))
        settings = "".join(f" {name}={value}" for name, value in attrs.items())
        with timed(Trace(f"{op.name}({shapes}){settings} {device}"), get_backend(device).synchronize):
            return implementation(*arrays, **attrs)
    return run


# ---- give ------------------------------------------------------------------------------------------------------------


def given(op: Any, settled: Settled, args: Sequence[Any], attrs: dict[str, Any], arrays: Sequence[Any],
          result: Any) -> list[Tensor]:
    """Returns the results as tensors, each looked at first where the op or its implementation is a user's."""
    if op.checked:
        result = accept(op, (result,) if op.single else result, settled.specs, settled.dtype, settled.where,
                        arrays if op.foreign else ())
    elif op.single:
        shape, dtype = settled.outs[0]
        return [made(op.gives, result, shape, dtype, settled.where)]
    return [made(op.gives, data, shape, dtype, settled.where)
            for (shape, dtype), data in zip(settled.outs, result or ())]


def joined(op: Any, settled: Settled, args: Sequence[Any], attrs: dict[str, Any], arrays: Sequence[Any],
           result: Any) -> list[Tensor]:
    """As `given`, of an op that makes views: the family of the arg learns of them, but not of a gradient's."""
    outs = given(op, settled, args, attrs, arrays, result)
    if state.quiet:
        outs[0].__class__ = View if op.name == "reshape" else PossibleView
    else:
        kin.join(args[0], outs[0], op.name, attrs)
    return outs


# ---- record ----------------------------------------------------------------------------------------------------------


def recorded(op: Any, settled: Settled, args: Sequence[Any], attrs: dict[str, Any], needs: Sequence[bool],
             outs: list[Tensor]) -> None:
    """Makes the Node of a call and points the returned floating outputs to it."""
    edges: list[Any] = []
    newest = versions.newest
    for value, need in zip(args, needs):
        if not need:
            edges.append([None] * len(value) if value.__class__ is list else None)
        elif value.__class__ is list:
            edges.append([t.edge() for t in value])
        else:
            at = value._node
            edges.append(value if at is None else at if at[0].order > newest else edge_of(value, at))
    saved: list[Any] = []
    arrays: list[Any] = []
    for _, k in op.saved_args:
        value = args[k]
        saved.append(value)
        arrays.append(value.array if isinstance(value, Tensor)
                      else [t.array for t in value] if value.__class__ is list else None)
    for name, k in op.saved_outs:
        saved.append(None if name in op.spares and attrs[op.spares[name]] is None else outs[k].array)
    node = Node(op, attrs, edges, needs, saved, arrays, settled.arg_meta, settled.out_meta, settled.values)
    if settled.nbytes >= remaking.worth["cpu"] or remaking.segments or config.recompute not in ("auto", "none"):
        remaking.plan(node, args, outs)
    if watchers:
        watchers[-1].recorded(node)
    for k in settled.floats:
        t = outs[k]
        t._requires_grad = True
        t._node = (node, k)
