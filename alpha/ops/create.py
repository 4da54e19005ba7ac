"""Tensors from nothing: constants, ranges and random numbers.  Plain functions, not ops: nothing flows through them."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from alpha import random
from alpha.backend import FLOAT_DTYPES, get_backend
from alpha.errors import ConfigError, DTypeError, message, shown
from alpha.inputs.arguments import checked
from alpha.inputs.dtypes import DType, DTypeOrNone, check_value
from alpha.inputs.kinds import FiniteNumber, Number, ShapeLike
from alpha.inputs.sizes import check_host, check_size
from alpha.tensor import Tensor, tensor


@checked
def full(shape: ShapeLike, value: Number, dtype: DType = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns a tensor filled with a value.

    Args:
        shape: int or tuple of ints.
        value: number.
        dtype: name or NumPy dtype.
        device: "cpu", "cuda" or "cuda:<index>".
        requires_grad: whether backward is to leave a gradient in `.grad`.
    Raises:
        ShapeError, DeviceError: the shape is no shape, or the device is not there.
        DTypeError: the device lacks the dtype, or the dtype does not have the value.
        OutOfMemoryError: the host cannot hold it.
    """
    return _filled("full", shape, value, dtype, device, requires_grad)


def _filled(where: str, shape: Any, value: Number, dtype: str, device: str, requires_grad: bool) -> Tensor:
    backend = get_backend(device)
    if dtype not in backend.dtypes:
        raise DTypeError(message(where, f"the {backend.name} backend has no {dtype}, it has "
                                 f"{', '.join(sorted(backend.dtypes))}", "choose one of those, or another device"))
    check_value(where, value, dtype)
    check_size(where, shape)
    if backend.name == "cpu":
        check_host(where, shape, dtype)
    made = Tensor(backend.full(shape, value, dtype, device), shape, dtype, backend.name)
    return made.requires_grad_() if requires_grad else made


@checked
def zeros(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
          requires_grad: bool = False) -> Tensor:
    """Returns a tensor of zeros.  See full."""
    return _filled("zeros", shape, 0, dtype, device, requires_grad)


@checked
def ones(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns a tensor of ones.  See full."""
    return _filled("ones", shape, 1, dtype, device, requires_grad)


@checked
def arange(start: FiniteNumber, stop: FiniteNumber | None = None, step: FiniteNumber = 1,
           dtype: DTypeOrNone = None, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Returns start, start + step, ... below stop; with one number, 0, 1, ... below it.

    Args:
        start, stop, step: numbers; step is not 0.
        dtype: default int64 if all three are integers, else float32.
        device, requires_grad: see full.
    Raises:
        ConfigError: step is 0, or the numbers are too large or too many.
        DTypeError: the dtype does not have one of them.
    """
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ConfigError(message("arange", "step is 0", "pass a step above or below 0", start=first, stop=last))
    try:
        count = max(0, ceil((last - first) / step))
        check_host("arange", (count,), "float64")
        values = np.arange(first, last if count else first, step)
        if values.dtype.kind not in "biuf":
            raise OverflowError
    except OverflowError:
        raise ConfigError(message("arange", f"the numbers from {shown(first)} to {shown(last)} are too large",
                                  "pass numbers that int64 or float64 has")) from None
    return tensor(values, dtype or ("int64" if values.dtype.kind in "iub" else "float32"), device, requires_grad)


@checked
def rand(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns numbers from [0, 1), uniform, multiples of 2^-24, from the stream that `manual_seed` starts.

    They are made on the host, so that a seed gives the same numbers on every device. See full.
    """
    return _drawn("rand", random.uniform, shape, dtype, device, requires_grad)


@checked
def randn(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
          requires_grad: bool = False) -> Tensor:
    """Returns standard normal numbers from the stream that `manual_seed` starts.  See rand."""
    return _drawn("randn", random.normal, shape, dtype, device, requires_grad)


def _drawn(where: str, draw: Any, shape: Any, dtype: Any, device: str, requires_grad: bool) -> Tensor:
    if dtype not in FLOAT_DTYPES:
        raise DTypeError(message(where, f"dtype {dtype} holds no fractions", 'choose a float dtype such as "float32"'))
    backend = get_backend(device)
    if dtype not in backend.dtypes:
        raise DTypeError(message(where, f"the {backend.name} backend has no {dtype}, it has "
                                 f"{', '.join(sorted(backend.dtypes))}", "choose one of those, or another device"))
    check_host(where, shape, "float64")
    count = prod(shape)
    seed, offset = random.reserve(count)
    values = draw(seed, random.STREAMS["default"], offset, count).reshape(shape)
    return tensor(values, dtype, device, requires_grad)


@checked
def full_like(x: Tensor, value: Number) -> Tensor:
    """Returns a tensor of the shape, dtype and device of x, filled with a value."""
    return full(x.shape, value, x.dtype, x.device)


@checked
def zeros_like(x: Tensor) -> Tensor:
    """Returns zeros of the shape, dtype and device of x."""
    return full_like(x, 0)


@checked
def ones_like(x: Tensor) -> Tensor:
    """Returns ones of the shape, dtype and device of x."""
    return full_like(x, 1)


@checked
def rand_like(x: Tensor) -> Tensor:
    """Returns uniform random numbers of the shape, dtype and device of x.  See rand."""
    return rand(x.shape, x.dtype, x.device)


@checked
def randn_like(x: Tensor) -> Tensor:
    """Returns standard normal random numbers of the shape, dtype and device of x.  See rand."""
    return randn(x.shape, x.dtype, x.device)
