"""Members of a Tensor beside arithmetic: sizes, other dtypes and devices, formats; and answers to unknown names."""

from __future__ import annotations

import html
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from alpha.core.device import DTYPES, FLOAT_DTYPES, ITEMSIZE, get_backend
from alpha.core.errors import ArgumentError, DTypeError, MissingError, message, shown
from alpha.core.inputs.arguments import bound, bound_methods
from alpha.core.inputs.dtypes import dtype_name
from alpha.core.inputs.ints import as_int
from alpha.core.methods import spread
from alpha.core.table import TABLE

TensorT = TypeVar("TensorT")    # is Tensor


class Size(int):
    """The number of elements of a tensor; called, its shape, or the length of one axis: `x.size(0)`."""

    shape: tuple[int, ...]

    def __call__(self, axis: Any = None, **named: Any) -> Any:
        axis = named.pop("dim", axis) if named else axis
        rank = len(self.shape)
        if named or not (axis is None or ((k := as_int(axis)) is not None and -rank <= k < rank)):
            raise ArgumentError(message("size", f"axis {shown(next(iter(named), axis))} does not exist in a tensor of "
                                        f"{rank} axes", "x.shape has all sizes, x.size(0) the first"))
        return self.shape if axis is None else self.shape[axis]


class Truth(int):
    """A bool that may be called, `x.is_floating_point` and `x.is_floating_point()`, since PyTorch calls it."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


YES, NO = Truth(1), Truth(0)


@bound_methods()
class Casts(Generic[TensorT]):
    """Conversions to a dtype by its name."""

    __slots__ = ()

    def float(self) -> Any:
        """Returns the tensor in float32: itself if it has it."""
        return cast(Any, self).astype("float32")

    def double(self) -> Any:
        """Returns the tensor in float64, which the CPU has."""
        return cast(Any, self).astype("float64")

    def half(self) -> Any:
        """Returns the tensor in float16."""
        return cast(Any, self).astype("float16")

    def bfloat16(self) -> Any:
        """Returns the tensor in bfloat16, which a GPU has."""
        return cast(Any, self).astype("bfloat16")

    def long(self) -> Any:
        """Returns the tensor in int64; fractions are cut."""
        return cast(Any, self).astype("int64")

    def int(self) -> Any:
        """Returns the tensor in int32; fractions are cut."""
        return cast(Any, self).astype("int32")

    def byte(self) -> Any:
        """Returns the tensor in uint8."""
        return cast(Any, self).astype("uint8")

    def bool(self) -> Any:
        """Returns a bool tensor: True where an element is not 0."""
        return cast(Any, self).astype("bool")


@bound_methods("numel", "nelement", "dim", "element_size")
class Conversions(Casts[TensorT]):
    """Sizes, moves and formats of a tensor; it has no place for anything of its own."""

    __slots__ = ()

    if TYPE_CHECKING:
        data: Any
        shape: tuple[int, ...]
        dtype: str
        device: str
        requires_grad: bool

    @property
    def size(self) -> Size:
        """Number of elements; `x.size()` is the shape, and `x.size(0)` its first."""
        made = Size(prod(self.shape))
        made.shape = self.shape
        return made

    def numel(self) -> int:
        """Returns the number of elements."""
        return prod(self.shape)

    nelement = numel

    def dim(self) -> int:
        """Returns the number of axes."""
        return len(self.shape)

    ndimension = dim

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.numel() * self.itemsize

    def element_size(self) -> int:
        """Returns the bytes of an element."""
        return self.itemsize

    @property
    def is_floating_point(self) -> Truth:
        """Whether the elements are floats; it may be called, too."""
        return YES if self.dtype in FLOAT_DTYPES else NO

    @property
    def is_cuda(self) -> bool:
        return self.device != "cpu"

    @bound
    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False) -> TensorT:
        """Returns the tensor on a device, in a dtype: itself if it is there and has it; differentiable.

        Args:
            device: "cpu", "cuda" or "cuda:<index>"; or a dtype; or a tensor, whose device and dtype are meant.
            dtype: name or NumPy dtype.
            non_blocking: taken and not needed: copies wait where they must, and only there.
        Raises:
            DeviceError: the device is not there.  DTypeError: it does not have the dtype.
        """
        t = cast(Any, self)
        if not isinstance(device, str) and hasattr(device, "requires_grad") and hasattr(device, "device"):
            device, dtype = device.device, device.dtype if dtype is None else dtype
        elif device is not None and dtype is None and (not isinstance(device, str) or device in DTYPES):
            try:
                device, dtype = None, dtype_name(device)
            except DTypeError:
                raise ArgumentError(message("Tensor.to", f"device is {shown(device)}, a str is needed",
                                            'pass a device such as "cuda", or a dtype such as "float32"')) from None
        if dtype is not None:
            t = t.astype(dtype)
        if device is None or device == t.device or get_backend(device).name == t.device:
            return t
        return TABLE["to_device"](t, device=device)

    def cpu(self) -> TensorT:
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> TensorT:
        """Does `self.to("cuda")`; non_blocking: as of `to`."""
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    def astype(self, dtype: Any) -> TensorT:
        """Returns the tensor in a dtype: itself if it has it; differentiable between floating dtypes."""
        name = dtype_name(dtype)
        return self if name == self.dtype else TABLE["cast"](self, dtype=name)  # type: ignore[return-value]

    def type(self, dtype: Any = None) -> Any:
        """Returns the tensor in a dtype; without one, the name of its own."""
        return self.dtype if dtype is None else self.astype(dtype)

    def type_as(self, other: TensorT) -> TensorT:
        """Returns the tensor with the dtype and on the device of another."""
        return self.to(other)

    def clone(self) -> TensorT:
        """Returns a copy that the graph knows: y = x."""
        return TABLE["clone"](self)

    def contiguous(self) -> TensorT:
        """Returns the tensor itself; of a view whose elements lie apart in the whole, a tensor of its own."""
        t = cast(Any, self)
        return t if TABLE["dense"](t) else TABLE["own"](t)

    def is_contiguous(self) -> bool:
        """Tells whether elements lie side by side, in the order of their indices, in the whole that this shows."""
        return TABLE["dense"](cast(Any, self))

    def fill_(self, value: Any) -> TensorT:
        """Overwrites all elements with a number; see copy_."""
        t = cast(Any, self)
        return t.copy_(TABLE["full_like"](t.detach(), value))

    def zero_(self) -> TensorT:
        """Overwrites all elements with 0; see copy_."""
        return self.fill_(0)

    def new_zeros(self, *shape: Any, dtype: Any = None, device: Any = None) -> TensorT:
        """Returns zeros of a shape, in the dtype and on the device of this tensor unless others are named."""
        return self.new_full(spread(shape), 0, dtype, device)

    def new_ones(self, *shape: Any, dtype: Any = None, device: Any = None) -> TensorT:
        """Returns ones of a shape; see new_zeros."""
        return self.new_full(spread(shape), 1, dtype, device)

    def new_full(self, shape: Any, value: Any, dtype: Any = None, device: Any = None) -> TensorT:
        """Returns a tensor of a shape that is filled with a value; see new_zeros."""
        return TABLE["full"](shape, value, dtype or self.dtype, device or self.device)

    def new_tensor(self, values: Any, dtype: Any = None, device: Any = None) -> TensorT:
        """Returns a tensor of values, as alpha.tensor does; see new_zeros."""
        return TABLE["tensor"](values, dtype or self.dtype, device or self.device)

    def __round__(self, digits: Any = None) -> Any:
        """Returns the nearest integers; with digits, the nearest multiples of 10^-digits, as a tensor."""
        t = cast(Any, self)
        return round(t.item()) if digits is None else TABLE["round"](t, decimals=digits)

    def __format__(self, spec: str) -> str:
        return format(cast(Any, self).item(), spec) if spec else str(self)

    def _repr_html_(self) -> str:
        """Returns HTML for notebooks: the elements of a matrix or a vector as a table, up to 8 by 12 of them."""
        t = cast(Any, self).detach()
        head = f"<p>tensor, shape {t.shape}, {t.dtype}, {t.device}</p>"
        if len(t.shape) not in (1, 2) or not t.numel():
            return f"{head}<pre>{html.escape(repr(t))}</pre>"
        rows = (t if len(t.shape) == 2 else t.reshape(1, -1))[:8, :12].tolist()
        cells = ["".join(f"<td>{v:.4g}</td>" for v in row) for row in rows]
        return f"{head}<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            if name == "__cuda_array_interface__":      # its property found that there is none
                raise MissingError(message(name, f"there is none for {self.dtype} on {self.device}",
                                           "hand the tensor over by DLPack, or convert or move it first"))
            return TABLE["attribute"](self, "Tensor", name)
