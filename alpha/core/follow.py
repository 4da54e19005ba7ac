"""Float32 beside the 16 bits of a precision mode: the result of a pointwise op, or of a concatenation.

`x + self.scale * y` of a float32 parameter and 16-bit activations is computed in float32 and rounded once, to the 16
bits. Backward gets the args as they were given, 16 bits where they had them. It computes in float32 too, so that the
gradient of the parameter is float32 all the way, and the gradient of the activations is rounded once. Backward needs
no mode: the args' dtypes decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from alpha.core.device import HALF_DTYPES, device_type
from alpha.core.inputs.returned import Spec
from alpha.core.op import Op
from alpha.core.precision import mode
from alpha.core.table import provides, registry
from alpha.core.tensor import Tensor

WIDE = "float32"


@provides("followed")
def followed(op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> list[Tensor]:
    """Calls an op with tensors of float32 and of the dtype of the mode in force; the result has the latter."""
    dtype = mode().dtype
    if op.variadic:     # elements are moved: float32 ones are rounded first
        return op._run([[narrow(t, dtype) for t in value] for value in args], attrs)
    return _following(op, dtype)._run(args, attrs)


def narrow(x: Any, dtype: str) -> Any:
    """Returns a float32 tensor in another floating dtype, and whatever else as it is."""
    return x.astype(dtype) if isinstance(x, Tensor) and x.dtype == WIDE else x


def wide(x: Any) -> Any:
    """Returns a tensor of 16 bits in float32, and whatever else as it is."""
    return x.astype(WIDE) if isinstance(x, Tensor) and x.dtype in HALF_DTYPES else x


class _Wide:
    """The values of the forward pass for a gradient, in float32; a tensor is converted when it is asked for."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._values, name)
        found = WIDE if value in HALF_DTYPES and name.endswith("_dtype") else wide(value)
        setattr(self, name, found)
        return found


class _Following(Op):
    """An op whose tensors are float32 or 16 bits, and whose result has the 16 bits."""

    __slots__ = ("dtype", "of")

    def __init__(self, of: Op, dtype: str) -> None:
        self.of, self.dtype = of, dtype
        body = vars(of.written)
        super().__init__(type(of.name, (), {
            **{name: body[name] for name in ("args", "saves", "outs", "dtypes", "scalars", "label") if name in body},
            "__module__": of.__module__, "mixed": " ".join([arg.name for arg in of.args]), "cheap": True,
            "shape": self._shape(of.shape), "vjp": self._vjp if of.differentiable else None}))

    def bind(self, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[list[Any], dict[str, Any], bool]:
        return list(args), attrs, False     # the op has put them in order

    def _shape(self, shape: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(shape)
        def of_these(*args: Any, **attrs: Any) -> Spec:
            found = shape(*args, **attrs)
            return found if found.__class__ is Spec else Spec(found, self.dtype)
        return of_these

    def _vjp(self, g: Tensor, s: Any, needs: Sequence[bool], **attrs: Any) -> list[Any]:
        g, seen = wide(g), _Wide(s)
        if self.of.vjp:
            found = self.of.vjp(g, seen, needs, **attrs)
        else:
            found = [self.of._vjp_of(arg.name)(g, seen, **attrs) if need else None
                     for arg, need in zip(self.args, needs)]
        return [narrow(r, getattr(s, arg.dtype_key) or WIDE) for arg, r in zip(self.args, found)]

    def _find(self, device: str) -> Callable[..., Any]:
        kind = device_type(device)
        run, cast = self.of.impls.get(kind) or self.of._find(device), registry["cast"].impls[kind]

        def widened(*arrays: Any, **attrs: Any) -> Any:
            y = run(*[cast(a, dtype=WIDE) if str(getattr(a, "dtype", "")) in HALF_DTYPES else a for a in arrays],
                    **attrs)
            return cast(y, dtype=self.dtype) if str(y.dtype) == WIDE else y
        self.impls[kind] = widened
        return widened


@cache
def _following(op: Op, dtype: str) -> _Following:
    return _Following(op, dtype)
