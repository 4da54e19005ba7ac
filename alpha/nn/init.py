"""Initial values of parameters, drawn from alpha.random: the same after the same manual_seed, on every device.

Each function overwrites the tensor that it is given and returns it. Fans are PyTorch's, read in our layouts:
a weight has shape (out, ..., in), so fan_in = in * window and fan_out = out * window, window = product of the axes
between. For the weight of a ConvTranspose2d, (in, FH, FW, out/groups), the two change names, as they do in PyTorch.
"""

from __future__ import annotations

import math
import sys
from typing import TypeVar

import numpy as np

from alpha import ops
from alpha.core.errors import ConfigError, ShapeError, message
from alpha.core.inputs.arguments import bound, checked
from alpha.core.inputs.kinds import FanMode, Finite, NonNegative, Number, ShapeLike
from alpha.core.tensor import Tensor
from alpha.interop import twins

T = TypeVar("T", bound=Tensor)

GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0)}


@checked
def fans(shape: ShapeLike) -> tuple[int, int]:
    """Returns (fan_in, fan_out) of a weight of shape (out, ..., in).  Raises ShapeError below two axes."""
    if not isinstance(shape, tuple) or len(shape) < 2:
        raise ShapeError(message("init", f"a tensor of shape {shape} has no fan-in and fan-out",
                                 "use uniform_, normal_ or constant_ for biases and scales"))
    if 0 in shape:
        raise ShapeError(message("init", f"a tensor of shape {shape} has no element", "pass a weight with elements"))
    window = math.prod(shape[1:-1])
    return shape[-1] * window, shape[0] * window


@checked
def gain(nonlinearity: str, a: Finite = 0.0) -> float:
    """Returns the factor that keeps the variance through a nonlinearity; `a` is the slope of "leaky_relu".

    Raises ConfigError for an unknown name.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + a * a))
    if nonlinearity not in GAINS:
        raise ConfigError(message("init", f"no gain is known for {nonlinearity!r}",
                                  f"use one of {sorted([*GAINS, 'leaky_relu'])}"))
    return GAINS[nonlinearity]


@bound
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Returns `gain` under PyTorch's name; param: the slope of "leaky_relu", 0.01 if it is None."""
    return gain(nonlinearity, 0.01 if param is None else param)


def _fan(shape: tuple[int, ...], mode: FanMode) -> int:
    return fans(shape)[mode == "fan_out"]


def _stretched(t: T, drawn: Tensor, factor: float, shift: float) -> T:
    """t = drawn * factor + shift, in NumPy: a model for the GPU is made without waiting for compiled CPU kernels."""
    t.copy_(np.asarray(drawn.numpy() * np.float32(factor) + np.float32(shift)))
    return t


@checked
def uniform_(t: T, low: Finite = 0.0, high: Finite = 1.0) -> T:
    """t ~ U[low, high)."""
    return _stretched(t, ops.rand(t.shape), high - low, low)


@checked
def normal_(t: T, mean: Finite = 0.0, std: NonNegative = 1.0) -> T:
    """t ~ N(mean, std^2)."""
    return _stretched(t, ops.randn(t.shape), std, mean)


@checked
def trunc_normal_(t: T, mean: Finite = 0.0, std: NonNegative = 1.0, a: Finite = -2.0, b: Finite = 2.0) -> T:
    """t ~ N(mean, std^2), drawn again where it is outside of [a, b].

    Raises ConfigError where a is not below b, or next to nothing of the distribution is in [a, b].
    """
    if not a < b:
        raise ConfigError(message("init", f"a={a} is not below b={b}", "pass the lower limit first"))
    values = np.asarray(ops.randn(t.shape).numpy().astype(np.float64) * std + mean)
    for _ in range(1000):
        outside = (values < a) | (values > b)
        count = int(outside.sum())
        if not count:
            break
        values[outside] = ops.randn((count,)).numpy().astype(np.float64) * std + mean
    else:
        raise ConfigError(message("init", f"next to nothing of N({mean}, {std}^2) is in [{a}, {b}]",
                                  "choose limits around the mean"))
    t.copy_(values)
    return t


@checked
def eye_(t: T) -> T:
    """t = ones on the diagonal of a matrix, else 0."""
    if len(t.shape) != 2:
        raise ShapeError(message("init", f"a tensor of shape {t.shape} has no diagonal", "pass a matrix"))
    t.copy_(np.eye(*t.shape))
    return t


@checked
def orthogonal_(t: T, gain: Finite = 1.0) -> T:
    """t = gain * rows (or columns, the fewer of them) that are orthonormal; (out, ..., in) is read as (out, rest).

    Source: Saxe et al., arXiv 1312.6120.
    """
    rows = t.shape[0] if t.shape else 0
    if len(t.shape) < 2 or 0 in t.shape:
        raise ShapeError(message("init", f"a tensor of shape {t.shape} is no matrix",
                                 "pass a weight of two axes or more"))
    drawn = ops.randn((rows, t.numel() // rows)).numpy().astype(np.float64)
    q, r = np.linalg.qr(drawn if drawn.shape[0] >= drawn.shape[1] else drawn.T)
    q = q * np.sign(np.diag(r))
    t.copy_(((q if drawn.shape[0] >= drawn.shape[1] else q.T) * gain).reshape(t.shape))
    return t


@checked
def constant_(t: T, value: Number) -> T:
    """t = value."""
    t.copy_(ops.full(t.shape, value, dtype=t.dtype, device=t.device))
    return t


@checked
def zeros_(t: T) -> T:
    """t = 0."""
    return constant_(t, 0.0)


@checked
def ones_(t: T) -> T:
    """t = 1."""
    return constant_(t, 1.0)


@checked
def xavier_uniform_(t: T, gain: Finite = 1.0) -> T:
    """t ~ U[-b, b), b = gain * sqrt(6 / (fan_in + fan_out)).  Source: Glorot and Bengio, AISTATS 2010."""
    bound = gain * math.sqrt(6.0 / sum(fans(t.shape)))
    return uniform_(t, -bound, bound)


@checked
def xavier_normal_(t: T, gain: Finite = 1.0) -> T:
    """t ~ N(0, s^2), s = gain * sqrt(2 / (fan_in + fan_out)).  Source: Glorot and Bengio, AISTATS 2010."""
    return normal_(t, 0.0, gain * math.sqrt(2.0 / sum(fans(t.shape))))


@checked
def kaiming_uniform_(t: T, a: Finite = 0.0, mode: FanMode = "fan_in", nonlinearity: str = "leaky_relu") -> T:
    """t ~ U[-b, b), b = gain * sqrt(3 / fan).  Source: He et al., arXiv 1502.01852.

    Args:
        a: slope of the leaky ReLU behind the layer; a = sqrt(5) gives b = 1 / sqrt(fan_in), the default of layers.
        mode: "fan_in" keeps the variance of activations, "fan_out" the variance of gradients.
        nonlinearity: see `gain`.
    """
    bound = gain(nonlinearity, a) * math.sqrt(3.0 / _fan(t.shape, mode))
    return uniform_(t, -bound, bound)


@checked
def kaiming_normal_(t: T, a: Finite = 0.0, mode: FanMode = "fan_in", nonlinearity: str = "leaky_relu") -> T:
    """t ~ N(0, s^2), s = gain / sqrt(fan).  Source: He et al., arXiv 1502.01852.  Args: as kaiming_uniform_."""
    return normal_(t, 0.0, gain(nonlinearity, a) / math.sqrt(_fan(t.shape, mode)))


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.nn.init", name, twins.INIT, sys.modules[__name__])
