"""Tensors from nothing: constants, ranges and random numbers.  Plain functions, not ops: nothing flows through them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from alpha import random
from alpha.backend import FLOAT_DTYPES, get_backend
from alpha.errors import ConfigError, DTypeError, ShapeError, message
from alpha.tensor import Number, Tensor, dtype_name, tensor


def as_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Returns a shape given as an int or a sequence of ints.  Raises ShapeError if it is neither, or negative."""
    try:
        sizes = tuple([index(n) for n in shape]) if isinstance(shape, (tuple, list)) else (index(shape),)
    except TypeError:
        raise ShapeError(message(where, f"shape is {shape!r}, an int or a tuple of ints is needed",
                                 f"write {where}((2, 3))")) from None
    if any(n < 0 for n in sizes):
        raise ShapeError(message(where, f"shape {sizes} has a negative size", "pass sizes of at least 0"))
    return sizes


def full(shape: int | Sequence[int], value: Number, dtype: Any = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns a tensor filled with a value.

    Args:
        shape: int or tuple of ints.
        value: number.
        dtype: name or NumPy dtype.
        device: "cpu", "cuda" or "cuda:<index>".
        requires_grad: whether backward is to leave a gradient in `.grad`.
    Raises:
        ShapeError, DTypeError, DeviceError: the shape is no shape, the device lacks the dtype, or is not there.
    """
    sizes, name, backend = as_shape(shape, "full"), dtype_name(dtype), get_backend(device)
    if name not in backend.dtypes:
        raise DTypeError(message("full", f"the {backend.name} backend has no {name}, it has "
                                 f"{', '.join(sorted(backend.dtypes))}", "choose one of those, or another device"))
    made = Tensor(backend.full(sizes, value, name, device), sizes, name, backend.name)
    return made.requires_grad_() if requires_grad else made


def zeros(shape: int | Sequence[int], dtype: Any = "float32", device: str = "cpu",
          requires_grad: bool = False) -> Tensor:
    """Returns a tensor of zeros.  See full."""
    return full(shape, 0, dtype, device, requires_grad)


def ones(shape: int | Sequence[int], dtype: Any = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns a tensor of ones.  See full."""
    return full(shape, 1, dtype, device, requires_grad)


def arange(start: Number, stop: Number | None = None, step: Number = 1, dtype: Any = None, device: str = "cpu",
           requires_grad: bool = False) -> Tensor:
    """Returns start, start + step, ... below stop; with one number, 0, 1, ... below it.

    Args:
        start, stop, step: numbers; step is not 0.
        dtype: default int64 if all three are integers, else float32.
        device, requires_grad: see full.
    Raises:
        ConfigError: step is 0.
    """
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ConfigError(message("arange", "step is 0", "pass a step above or below 0", start=first, stop=last))
    values = np.arange(first, last, step)
    return tensor(values, dtype or ("int64" if values.dtype.kind in "iub" else "float32"), device, requires_grad)


def rand(shape: int | Sequence[int], dtype: Any = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns numbers from [0, 1), uniform, multiples of 2^-24, from the stream that `manual_seed` starts.

    They are made on the host, so that a seed gives the same numbers on every device. See full.
    """
    return _drawn("rand", random.uniform, shape, dtype, device, requires_grad)


def randn(shape: int | Sequence[int], dtype: Any = "float32", device: str = "cpu",
          requires_grad: bool = False) -> Tensor:
    """Returns standard normal numbers from the stream that `manual_seed` starts.  See rand."""
    return _drawn("randn", random.normal, shape, dtype, device, requires_grad)


def _drawn(where: str, draw: Any, shape: Any, dtype: Any, device: str, requires_grad: bool) -> Tensor:
    sizes, name = as_shape(shape, where), dtype_name(dtype)
    if name not in FLOAT_DTYPES:
        raise DTypeError(message(where, f"dtype {name} holds no fractions", 'choose a float dtype such as "float32"'))
    count = prod(sizes)
    seed, offset = random.reserve(count)
    values = draw(seed, random.STREAMS["default"], offset, count).reshape(sizes)
    return tensor(values, name, device, requires_grad)


def full_like(x: Tensor, value: Number) -> Tensor:
    """Returns a tensor of the shape, dtype and device of x, filled with a value."""
    return full(x.shape, value, x.dtype, x.device)


def zeros_like(x: Tensor) -> Tensor:
    """Returns zeros of the shape, dtype and device of x."""
    return full_like(x, 0)


def ones_like(x: Tensor) -> Tensor:
    """Returns ones of the shape, dtype and device of x."""
    return full_like(x, 1)


def rand_like(x: Tensor) -> Tensor:
    """Returns uniform random numbers of the shape, dtype and device of x.  See rand."""
    return rand(x.shape, x.dtype, x.device)


def randn_like(x: Tensor) -> Tensor:
    """Returns standard normal random numbers of the shape, dtype and device of x.  See rand."""
    return randn(x.shape, x.dtype, x.device)
