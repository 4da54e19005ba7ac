"""Parameters that are computed from others: weight norm, spectral norm, and functions of one's own.

A layer keeps them in a submodule `parametrizations`, with the names of PyTorch's torch.nn.utils.parametrizations, and
computes the parameter each time it is read: `layer.weight` is a tensor with a gradient. State, copies and moves are
as of any submodule.
"""

from __future__ import annotations

from typing import Any

from alpha import ops
from alpha.core.errors import ConfigError, DTypeError, NotFoundError, ShapeError, message, shown
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Count, Positive
from alpha.core.tensor import Tensor
from alpha.nn.conv import ConvTranspose2d
from alpha.nn.functional import normalize
from alpha.nn.linear import Linear
from alpha.nn.module import Module, Parameter
from alpha.nn.volumes.conv import ConvTranspose3d
from alpha.ops.reduce import normal_axis

FIRST_ITERATIONS = 15   # of a spectral norm, when it is made


class Parametrizations(Module):
    """The modules that compute parameters of a layer, by their names."""

    def __contains__(self, name: object) -> bool:
        return isinstance(vars(self).get(name), Module)     # type: ignore[call-overload]


class Chain(Module):
    """A parameter and the modules that are called on it one after the other."""

    def __init__(self, original: Parameter) -> None:
        self.original = original

    def forward(self) -> Tensor:
        value: Tensor = self.original
        for part in self.children():
            value = part(value)
        return value


class WeightNorm(Module):
    """weight = original0 * original1 / |original1|, the norm over all axes but one."""

    def __init__(self, weight: Parameter, dim: int | None) -> None:
        self.dim = dim
        with no_grad():
            self.original0 = Parameter(_norm(weight.detach(), dim), weight.requires_grad)
        self.original1 = weight

    def forward(self) -> Tensor:
        return self.original1 * (self.original0 / _norm(self.original1, self.dim))


def _norm(v: Tensor, dim: int | None) -> Tensor:
    """Returns the length of v; with an axis, of each of its slices, with the other axes kept."""
    if dim is None:
        return ops.vector_norm(v)
    return ops.vector_norm(v, 2, tuple([k for k in range(v.ndim) if k != dim]), True) if v.ndim > 1 else ops.abs(v)


class SpectralNorm(Module):
    """y = weight / s, s its largest singular value as a matrix, found by power iteration.

    Buffers: _u (rows,), _v (columns,): the singular vectors so far, columns in PyTorch's order.
    """

    def __init__(self, weight: Tensor, n_power_iterations: int, eps: float, dim: int, turned: bool) -> None:
        self.n_power_iterations, self.eps = n_power_iterations, eps
        n = weight.ndim
        axes = [0, n - 1, *range(1, n - 1)] if turned else [*range(n)]
        self.order = (dim, *[k for k in axes if k != dim])
        with no_grad():
            matrix = self._matrix(weight.detach())
            for name, size in zip(("_u", "_v"), matrix.shape):
                start = ops.randn(size, device=weight.device).astype(weight.dtype)
                self.register_buffer(name, normalize(start, axis=0, eps=eps))
            self._iterate(matrix, FIRST_ITERATIONS)

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.permute(self.order).reshape(weight.shape[self.order[0]], -1)

    def _iterate(self, matrix: Tensor, times: int) -> tuple[Tensor, Tensor]:
        """Moves the singular vectors, and returns them."""
        u, v = vars(self)["_u"], vars(self)["_v"]
        new_u, new_v = u, v
        for _ in range(times):
            new_u = normalize(ops.mv(matrix, new_v), axis=0, eps=self.eps)
            new_v = normalize(ops.mv(matrix.mT, new_u), axis=0, eps=self.eps)
        u.copy_(new_u)
        v.copy_(new_v)
        return new_u, new_v

    def forward(self, weight: Tensor) -> Tensor:
        matrix = self._matrix(weight)
        u, v = vars(self)["_u"], vars(self)["_v"]
        if self.training:
            with no_grad():
                u, v = self._iterate(matrix.detach(), self.n_power_iterations)
        return weight / (u * ops.mv(matrix, v)).sum()


# ---- public functions ------------------------------------------------------------------------------------------------


def _parameter(where: str, module: Any, name: str) -> Parameter:
    """Returns the parameter of a layer.  Raises AlphaError unless it has such a one and may compute it."""
    if not isinstance(module, Module):
        raise DTypeError(message(where, f"module is {shown(module)}, a Module is needed", "pass the layer itself"))
    found = vars(module).get(name)
    if not isinstance(found, Parameter):
        computed = name in vars(module).get("parametrizations", ())
        raise ConfigError(message(where, f"{type(module).__name__} has {name}, which is computed already" if computed
                                  else f"{type(module).__name__} has no parameter {name}",
                                  f'remove_parametrizations(layer, "{name}") first' if computed else
                                  f"it has {', '.join(n for n, _ in module.named_parameters()) or 'none'}"))
    if isinstance(module, Linear) and module.flattened:
        raise ConfigError(message(where, "a Linear with flattened= has columns in another order in PyTorch's files, "
                                  "which a computed weight would not turn", "make the Linear without flattened"))
    return found


def _is_turned(module: Module, name: str) -> bool:
    return name in module.torch_channels_first


def _replace(module: Module, name: str, made: Module, *turned: str) -> None:
    """Has a module compute a parameter of a layer; `turned` as of torch_channels_first."""
    if _is_turned(module, name):
        made.torch_channels_first, made.torch_space = turned, module.torch_space
    delattr(module, name)
    if "parametrizations" not in vars(module):
        module.add_module("parametrizations", Parametrizations())
    setattr(vars(module)["parametrizations"], name, made)


@checked
def weight_norm(module: Any, name: str = "weight", dim: Axis | None = 0) -> Any:
    """Makes a weight a length and a direction: weight = g * v / |v|, in `parametrizations.weight.original0` and 1.

    Args:
        module: a layer, which is changed and returned. Make its optimizer afterwards.
        name: of the parameter.
        dim: the axis whose slices have a length each, the outputs' as a rule; None: one for the whole.
    Raises:
        DTypeError: module is none.  ConfigError: it has no such parameter.  ShapeError: there is no such axis.
    Source: Salimans and Kingma, arXiv 1602.07868.
    """
    weight = _parameter("weight_norm", module, name)
    made = WeightNorm(weight, None if dim is None else normal_axis(dim, weight.ndim, "weight_norm"))
    _replace(module, name, made, *[n for n in ("original0", "original1") if getattr(made, n).ndim > 2])
    return module


@checked
def spectral_norm(module: Any, name: str = "weight", n_power_iterations: Count = 1, eps: Positive = 1e-12,
                  dim: Axis | None = None) -> Any:
    """Divides a weight by its largest singular value as a matrix: `parametrizations.weight.original` is trained.

    Args:
        module: a layer, which is changed and returned. Make its optimizer afterwards.
        name: of the parameter.
        n_power_iterations: steps towards the singular vectors, each time the weight is read in training.
        eps: least length of a vector that is divided by.
        dim: the axis of the matrix's rows; None: the outputs', 0, or the last one of a transposed convolution.
    Raises:
        DTypeError: module is none.  ConfigError: it has no such parameter.
        ShapeError: there is no such axis, or the parameter has one axis.
    Source: Miyato et al., arXiv 1802.05957.
    """
    weight = _parameter("spectral_norm", module, name)
    if weight.ndim < 2:
        raise ShapeError(message("spectral_norm", f"{name} has shape {weight.shape}, two axes or more are needed",
                                 "take weight_norm, or another parameter"))
    rows = (-1 if isinstance(module, (ConvTranspose2d, ConvTranspose3d)) else 0) if dim is None else dim
    part = SpectralNorm(weight, n_power_iterations, eps, normal_axis(rows, weight.ndim, "spectral_norm"),
                        _is_turned(module, name))
    return _chained(module, name, weight, part)


def _chained(module: Module, name: str, weight: Parameter, part: Module) -> Module:
    chain = Chain(weight)
    setattr(chain, "0", part)
    part.train(module.training)
    _replace(module, name, chain, "original")
    return module


@checked
def register_parametrization(module: Any, name: str, parametrization: Any) -> Any:
    """Makes a parameter the result of a module that is called on its value before, which stays the parameter.

    Args:
        module: a layer, which is changed and returned. Make its optimizer afterwards.
        name: of the parameter; if it is computed already, the new module is called on the result.
        parametrization: a module whose result has the shape of its argument. Where it has a method `right_inverse`,
            that says which parameter gives the value that there is.
    Raises:
        DTypeError: module or parametrization is no Module.  ConfigError: there is no such parameter.
        ShapeError: the result has another shape.
    """
    where = "register_parametrization"
    if not isinstance(parametrization, Module):
        raise DTypeError(message(where, f"parametrization is {shown(parametrization)}, a Module is needed",
                                 "write a Module whose forward takes the parameter; of a function nn.Lambda(f)"))
    held = vars(module).get("parametrizations") if isinstance(module, Module) else None
    chain = vars(held).get(name) if held is not None else None
    weight = chain.original if isinstance(chain, Chain) else _parameter(where, module, name)
    value = getattr(module, name).detach()
    with no_grad():
        inverse = getattr(type(parametrization), "right_inverse", None)
        start = value if inverse is None else inverse(parametrization, value)
        result = parametrization(start)
    if getattr(result, "shape", None) != value.shape or getattr(start, "shape", None) != weight.shape:
        raise ShapeError(message(where, f"{name} has shape {value.shape}, the result {getattr(result, 'shape', None)}",
                                 "return a tensor of the shape of the argument"))
    if isinstance(chain, Chain):
        setattr(chain, str(len(list(chain.children()))), parametrization)
        return module
    if inverse is not None:
        weight.copy_(start.detach())
    return _chained(module, name, weight, parametrization)


@checked
def remove_parametrizations(module: Any, name: str = "weight", leave_parametrized: bool = True) -> Any:
    """Makes a parameter that is computed a plain one again, and returns the layer.

    Args:
        module: a layer that weight_norm, spectral_norm or register_parametrization has changed.
        name: of the parameter.
        leave_parametrized: whether it keeps the value that is computed; else it has the value before, which
            weight_norm does not have as one tensor.
    Raises:
        DTypeError: module is none.  NotFoundError: the parameter is not computed.  ConfigError: see leave_parametrized.
    """
    held = vars(module).get("parametrizations") if isinstance(module, Module) else None
    if held is None or name not in held:
        raise NotFoundError(message("remove_parametrizations", f"{shown(module)} has no {name} that is computed",
                                    "call weight_norm or spectral_norm before, or leave this out"))
    made = vars(held)[name]
    if not leave_parametrized and not isinstance(made, Chain):
        raise ConfigError(message("remove_parametrizations", "the weight is computed from two tensors, "
                                  "leave_parametrized=False would leave none", "leave it out"))
    with no_grad():
        value = getattr(module, name).detach() if leave_parametrized else made.original.detach()
        kept = Parameter(ops.clone(value), next(made.parameters()).requires_grad)
    delattr(held, name)
    if not list(held.children()):
        del module.parametrizations
    setattr(module, name, kept)
    return module
