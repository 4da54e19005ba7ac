"""Tensors from nothing: constants, ranges and random numbers.  Plain functions, not ops: nothing flows through them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np

from alpha import random
from alpha.core.device import FLOAT_DTYPES, get_backend
from alpha.core.errors import ConfigError, DTypeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.dtypes import DType, DTypeOrNone, check_value
from alpha.core.inputs.ints import as_int
from alpha.core.inputs.kinds import Count, FiniteNumber, Number, ShapeLike, Size
from alpha.core.inputs.sizes import check_host, check_size
from alpha.core.names import DEVICES, DTYPES
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor

F = TypeVar("F", bound=Callable[..., Tensor])


def _shape_of_ints(f: F) -> F:
    """Makes a function of a shape take its ints one by one, too, as PyTorch does: zeros(2, 3)."""
    @wraps(f)
    def call(*args: Any, **settings: Any) -> Tensor:
        if len(args) > 1 and as_int(args[0]) is not None and as_int(args[1]) is not None:
            count = next((k for k, n in enumerate(args) if as_int(n) is None), len(args))
            args = (args[:count], *args[count:])
        return f(*args, **settings)
    return call  # type: ignore[return-value]


@public(top=True)
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
    made = Tensor(backend.full(shape, value, dtype, device), shape, DTYPES[dtype], DEVICES[backend.name])
    return made.requires_grad_() if requires_grad else made


@public(top=True, spread=True)
@_shape_of_ints
@checked
def zeros(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
          requires_grad: bool = False) -> Tensor:
    """Returns a tensor of zeros: zeros((2, 3)) or zeros(2, 3).  See full."""
    return _filled("zeros", shape, 0, dtype, device, requires_grad)


@public(top=True, spread=True)
@_shape_of_ints
@checked
def ones(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns a tensor of ones: ones((2, 3)) or ones(2, 3).  See full."""
    return _filled("ones", shape, 1, dtype, device, requires_grad)


@public(top=True)
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


@public(top=True, spread=True)
@_shape_of_ints
@checked
def rand(shape: ShapeLike, dtype: DType = "float32", device: str = "cpu",
         requires_grad: bool = False) -> Tensor:
    """Returns numbers from [0, 1), uniform, multiples of 2^-24, from the stream that `manual_seed` starts.

    They are made on the host, so that a seed gives the same numbers on every device. rand((2, 3)) or rand(2, 3): see
    full.
    """
    return _drawn("rand", random.uniform, shape, dtype, device, requires_grad)


@public(top=True, spread=True)
@_shape_of_ints
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


@public(top=True)
@checked
def full_like(x: Tensor, value: Number) -> Tensor:
    """Returns a tensor of the shape, dtype and device of x, filled with a value."""
    return full(x.shape, value, x.dtype, x.device)


@public(top=True)
@checked
def zeros_like(x: Tensor) -> Tensor:
    """Returns zeros of the shape, dtype and device of x."""
    return full_like(x, 0)


@public(top=True)
@checked
def ones_like(x: Tensor) -> Tensor:
    """Returns ones of the shape, dtype and device of x."""
    return full_like(x, 1)


@public(top=True)
@checked
def rand_like(x: Tensor) -> Tensor:
    """Returns uniform random numbers of the shape, dtype and device of x.  See rand."""
    return rand(x.shape, x.dtype, x.device)


@public(top=True)
@checked
def randn_like(x: Tensor) -> Tensor:
    """Returns standard normal random numbers of the shape, dtype and device of x.  See rand."""
    return randn(x.shape, x.dtype, x.device)


@public(top=True)
@checked
def linspace(start: FiniteNumber, stop: FiniteNumber, steps: Count, dtype: DType = "float32", device: str = "cpu",
             requires_grad: bool = False) -> Tensor:
    """Returns `steps` numbers from start to stop, both included, evenly apart.  See full."""
    first, last = float(start), float(stop)
    if not np.isfinite(last - first):
        raise ConfigError(message("linspace", f"start {first} and stop {last} are too far apart",
                                  "pass numbers that differ by less than 1.8e308"))
    check_host("linspace", (steps,), "float64")
    made = tensor(np.linspace(first, last, steps), dtype, device)
    return made.requires_grad_() if requires_grad else made


@public(top=True)
@checked
def randint(low: int, high: int | ShapeLike | None = None, shape: ShapeLike | None = None, dtype: DType = "int64",
            device: str = "cpu") -> Tensor:
    """Returns integers from [low, high), or from [0, low) without high: `randint(10, (2, 3))`, `randint(1, 7, (2, 3))`.

    Args:
        low, high: the first number, and the one behind the last; 2^53 apart at most.
        shape: int or tuple of ints.
        dtype, device: see full.
    Raises:
        ConfigError: there is no number in [low, high).
    They are drawn from the stream that `manual_seed` starts, on the host: see rand.
    """
    if shape is None:
        high, shape = None, () if high is None else (high,) if isinstance(high, int) else tuple(high)
    first, last = (0, low) if high is None else (low, high)
    if not isinstance(last, int):
        raise ConfigError(message("randint", f"high is {shown(last)}, an int is needed", "pass randint(1, 7, (2, 3))"))
    if not 0 < last - first <= 2 ** 53:
        raise ConfigError(message("randint", f"low {first} and high {last} leave {last - first} numbers",
                                  "pass a high above low, and at most 2^53 above it"))
    check_host("randint", shape, "float64")
    count = prod(shape)
    seed, offset = random.reserve(2 * count)
    parts = random.uniform(seed, random.STREAMS["default"], offset, 2 * count).astype(np.float64)
    share = parts[:count] + parts[count:] * 2.0 ** -24      # 48 bits of it
    values = np.minimum((share * (last - first)).astype(np.int64), last - first - 1) + first
    return tensor(values.reshape(shape), dtype, device)


@public(top=True)
@checked
def randperm(n: Size, device: str = "cpu") -> Tensor:
    """Returns the integers from 0 to n - 1 in random order, int64, from the stream that `manual_seed` starts."""
    check_host("randperm", (n,), "float64")
    seed, offset = random.reserve(2 * n)
    bits = random.random_bits(seed, random.STREAMS["default"], offset, 2 * n).astype(np.uint64)
    return tensor(np.argsort((bits[0::2] << np.uint64(32)) | bits[1::2], kind="stable"), "int64", device)


@public(top=True)
@checked
def from_numpy(array: np.ndarray) -> Tensor:
    """Returns a tensor of the elements and the dtype of an array: a copy, unlike PyTorch's.

    `alpha.from_dlpack(array)` shares the memory. Raises DTypeError if alpha lacks the dtype.
    """
    return tensor(array)
