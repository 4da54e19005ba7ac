"""The methods that a device must have beneath the ops, and the lazy door to each device.

A backend is a package `alpha.<name>` whose `BACKEND` has the methods below and whose import binds the
implementations of the ops (`@relu.impl("<name>")`). Nothing is imported before a tensor asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from alpha.core.errors import DeviceError, message, shown

Array = Any  # of a backend, for a tensor's elements: np.ndarray on the CPU

HALF_DTYPES = frozenset({"float16", "bfloat16"})
FLOAT_DTYPES = HALF_DTYPES | {"float32", "float64"}
INT_DTYPES = frozenset({"int32", "int64", "uint8"})
DTYPES = FLOAT_DTYPES | INT_DTYPES | {"bool"}
# Bytes of an element
ITEMSIZE = {"bool": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "float64": 8, "int64": 8}

BACKENDS = ("cpu", "cuda")


class Device(Protocol):
    """One kind of device. Arrays are C-contiguous; dtypes are names such as "float32"."""

    name: str
    dtypes: frozenset[str]
    array_name: str  # of the class of arrays, for messages
    flops_per_byte: float  # that take as long as a byte of memory: for estimates

    def check(self, device: str) -> None:
        """Raises DeviceError if this device is not there."""

    def prepare(self) -> None:
        """Does the work that the first op would wait for, once: loads the kernels of the CPU, and compiles them."""

    def by_equation(self, op: Any) -> None:
        """Gives an op with an equation or a rule an implementation, where this kind of device makes kernels of them."""

    def from_numpy(self, a: np.ndarray, device: str) -> Array:
        """Returns a new array with the elements of `a`."""

    def to_numpy(self, x: Array) -> np.ndarray:
        """Returns a new NumPy array with the elements of `x`."""

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
        """Begins to bring arrays to the host, beside later work; the function returned gives them as `to_numpy` would.

        They may not be changed before it is called.
        """

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Array:
        """Returns a new array filled with `value`."""

    def copy_into(self, dst: Array, src: Array) -> None:
        """Overwrites the elements of `dst` with the elements of `src` (same shape and dtype)."""

    def accept(self, x: Any) -> Array | None:
        """Returns an implementation's result as an array that ops can read; None if it is none of this backend."""

    def has_nan(self, x: Array) -> bool:
        """Tells whether any element is NaN."""

    def synchronize(self) -> None:
        """Returns when all work handed to the device has ended."""

    def mark(self) -> Any:
        """Returns a mark in the stream of work, `b.time_since(a)` is in ms; None where the host itself computes."""


class Memory(Protocol):
    """The memory of arrays: which others share it, how often it changed (alpha.core.versions), how much there is."""

    def memory_key(self, x: Array) -> int:
        """Returns a number that all arrays over the memory of x share as long as it lives."""

    def is_sole(self, t: Any) -> bool:
        """Tells whether a gradient may be added to in place: ops can, and no other tensor has its memory.

        Where they cannot, sums are new arrays.
        """

    def forget(self, arrays: Sequence[Array]) -> None:
        """Drops data derived from the elements of arrays, which an op is about to change in place.

        The op's implementation may leave there data derived from the new elements.
        """

    def history(self, x: Array) -> Any:
        """Returns the alpha.core.versions.History of the memory of x, the same for all arrays over it, or None."""

    def histories(self, arrays: Sequence[Array]) -> list[Any]:
        """Returns the history of the memory of each array, made if need be."""

    def memory_limit(self) -> int:
        """Returns the bytes that arrays may take in all."""

    def memory_stats(self) -> dict[str, int]:
        """Returns bytes: live, cached, peak (of live, since the last reset)."""

    def reset_peak_memory(self) -> None:
        """Makes the present live bytes the peak."""


class Lazy(Protocol):
    """Arrays that are not elements yet: facts that alpha.recompute needs to make a result again as it was.

    `progress` and `inferring` are not called where arrays always have elements.
    """

    def form(self, x: Array) -> list[str] | None:
        """Returns a list whose text says in which form x is read now; None for an array that always has elements.

        "" as long as it is not written; then "elements", or "planes", and "merged" once elements were made of those:
        they have lost the digits that planes do not hold, and planes made of them differ from the former. It is the
        memory's, and outlives it.
        """

    def progress(self, x: Array) -> str | None:
        """Returns a text that is another one once x has been written, or brought to another form; None for an array
        that always has elements."""

    def write_as(self, x: Array, form: str) -> None:
        """Has x brought to that form, if it has not come further yet; "" leaves it as it is."""

    def held(self, x: Array) -> Array:
        """Returns x in the form that it has now, whatever becomes of x: for an array that is written."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """For a block that makes results again: arrays that wait to be written go on waiting, as they would without."""

    def inferring(self) -> AbstractContextManager[None]:
        """For a block of work that is recorded and has no backward pass. The host's time does not count, so pointwise
        ops on small arrays, too, wait to become one pass (docs/explanation/fusion.md); and the form in which
        kernels read an activation is kept for its other readers, as it does not stay for long."""


class Recording(Protocol):
    """Work that is recorded, to be repeated: alpha.capture, alpha.inference."""

    def record(self, function: Callable[[list[Array]], list[Array]], inputs: Sequence[Array],
               forget: Callable[[], None]) -> Any:
        """Returns the recording of `function` on arrays like `inputs`: a Recording of alpha.cuda.runtime.recording, or
        of alpha.cpu.recording. Nothing is computed yet."""

    def recorder(self) -> Any:
        """Returns the object that orders the calls of a recorded function, and has numbers for steps of optimizers: a
        Recorder of the same modules; None while nothing is recorded."""


class Interop(Protocol):
    """Methods by which other libraries share arrays (alpha/interop/dlpack.py)."""

    alignment: int  # bytes that the address of an array must be a multiple of, besides the size of its elements

    def dlpack_device(self) -> tuple[int, int]:
        """Returns type and index of the device, as DLPack numbers them."""

    def address(self, x: Array) -> int:
        """Returns where the elements of `x` start."""

    def wrap(self, address: int, shape: tuple[int, ...], dtype: str, owner: Any) -> Array:
        """Returns an array over memory of another owner; `owner` is dropped when it is no longer in use."""

    def stream_handle(self) -> int | None:
        """Returns the stream that all work of this backend runs on, None where there are no streams."""

    def give_to(self, stream: int | None) -> None:
        """Makes a stream of another library wait for all work so far; -1: it has seen to that itself."""

    def wait_for(self, stream: int) -> None:
        """Makes our stream wait for all work of another library's stream."""


class Backend(Device, Memory, Lazy, Recording, Interop, Protocol):
    """All that the ops, the graph and the rest of alpha ask of one kind of device."""


def device_type(device: str) -> str:
    """Returns "cuda" for "cuda:1".  Raises DeviceError for a name that no backend has."""
    if not isinstance(device, str):
        raise DeviceError(message("device", f"{shown(device)} is not a device", 'use "cpu", "cuda" or "cuda:<index>"'))
    kind, _, index = device.partition(":")
    if kind not in BACKENDS or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise DeviceError(message("device", f"{device!r} is not a device", 'use "cpu", "cuda" or "cuda:<index>"'))
    return kind


@cache
def get_backend(device: str) -> Backend:
    """Returns the backend of a device, importing it on first use.  Raises DeviceError if it is not there."""
    name = device_type(device)
    try:
        backend: Backend = import_module(f"alpha.{name}").BACKEND
    except ModuleNotFoundError as error:
        if error.name != f"alpha.{name}":
            raise
        raise DeviceError(message("device", f"this build of alpha has no {name!r} backend, asked for {device!r}",
                                  'use device="cpu"')) from error
    backend.check(device)
    return backend
