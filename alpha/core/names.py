"""Dtypes and devices of tensors are strings, shapes are tuples; all have the attributes that users expect."""

from __future__ import annotations

from math import prod
from typing import Any

from alpha.core.device import DTYPES as NAMES
from alpha.core.device import FLOAT_DTYPES, ITEMSIZE, device_type, get_backend
from alpha.core.table import TABLE


def _missing(thing: Any, what: str, name: str, fix: str) -> Exception:
    return TABLE["missing"](  # type: ignore[no-any-return]
        what, name, {} if name.startswith("__") else {name: fix}, thing)


class DType(str):
    """The name of a dtype, "float32" say, with its facts."""

    __slots__ = ()

    @property
    def is_floating_point(self) -> bool:
        return self in FLOAT_DTYPES

    @property
    def is_complex(self) -> bool:
        return False

    @property
    def is_signed(self) -> bool:
        return self not in ("uint8", "bool")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self]

    def __getattr__(self, name: str) -> Any:
        raise _missing(self, f"dtype {self}", name, "a dtype is its name, a str, with is_floating_point, is_signed and "
                       "itemsize; np.finfo(dtype) and np.iinfo(dtype) have its limits")


class Device(str):
    """The name of a device: `alpha.device("cuda:0")`, `alpha.device("cuda", 0)`; a string does as well.

    Args:
        name: "cpu", "cuda" or "cuda:<index>".
        index: of the GPU, where the name has none.
    Raises:
        DeviceError: it is none.
    """

    __slots__ = ()

    def __new__(cls, name: Any, index: int | None = None) -> Device:
        made = name if index is None else f"{name}:{index}"
        device_type(made)
        return super().__new__(cls, made)

    @property
    def type(self) -> str:
        """ "cpu" or "cuda"."""
        return device_type(self)

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """Number of the GPU; None on the CPU."""
        number = self.partition(":")[2]
        return None if self == "cpu" else int(number) if number else get_backend(self).dlpack_device()[1]

    def __getattr__(self, name: str) -> Any:
        raise _missing(self, f"device {self}", name, "a device is its name, a str, with type and index")

    def __enter__(self) -> None:
        raise _missing(self, f"device {self}", "device of a block", f'pass device="{self}" to what is made, or move '
                       "it: x.to(device), model.to(device)")

    def __exit__(self, *error: object) -> None:
        """For the sake of `with`, which looks for it first."""


class Shape(tuple[int, ...]):
    """The lengths of the axes of a tensor: a tuple of ints that knows their product."""

    __slots__ = ()

    def numel(self) -> int:
        """Returns the number of elements."""
        return prod(self)

    def __getattr__(self, name: str) -> Any:
        raise _missing(self, "shape", name, "a shape is a tuple of ints, with numel()")


DTYPES = {name: DType(name) for name in sorted(NAMES)}
DEVICES = {name: Device(name) for name in ("cpu", "cuda")}
