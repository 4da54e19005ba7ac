"""Tensor: elements on a device, and its place in the autograd graph.  The arithmetic lives in alpha.ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from alpha.core import versions
from alpha.core.conversions import Conversions
from alpha.core.device import FLOAT_DTYPES, get_backend
from alpha.core.errors import AlphaError, ArgumentError, DTypeError, GraphError, ShapeError, message, shown
from alpha.core.inputs.arguments import bound, bound_methods, checked
from alpha.core.inputs.dtypes import DTypeOrNone, check_values, dtype_name
from alpha.core.leftover import Leftover
from alpha.core.methods import Methods, Number
from alpha.core.mode import grad_enabled
from alpha.core.names import DEVICES, DTYPES, Shape
from alpha.core.table import TABLE, provides, settle


class Handle:
    """Result of registering a hook: `handle.remove()`, or `handle()`, removes the hook."""

    __slots__ = ("remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self.remove = remove

    def __call__(self) -> None:
        self.remove()


@bound_methods("detach", "edge", "seed", "with_data")
class Tensor(Conversions["Tensor"], Methods["Tensor"]):
    """A dense array of one dtype on one device.

    Attributes:
        array: the elements, C-contiguous, as the backend keeps them (np.ndarray on the CPU).
        shape, dtype, device: tuple of int; a name such as "float32"; "cpu", "cuda" or "cuda:<index>".
        requires_grad: whether backward is to reach this tensor.
        grad: the gradient that backward left on a leaf, a Tensor of the same shape, dtype and device, or None.

    Made by `alpha.tensor(...)` and by ops. Elements change only through optimizers, `copy_`, and `+=` and its like.
    """

    spread: Any = None  # of a tensor whose array is not written yet: see alpha.core.views.Spread
    shares = ""  # "always" or "sometimes": whether the tensor that this one was made of has the same elements

    __slots__ = ("__weakref__", "_grad", "_hooks", "_kin", "_node", "_requires_grad", "array", "device", "dtype",
                 "shape")

    def __init__(self, data: Any, shape: tuple[int, ...] = (), dtype: str = "", device: str = "") -> None:
        if not device:
            raise ArgumentError(message("Tensor", f"it is made of {shown(data)} alone", "call alpha.tensor(values); of "
                                        "a shape alpha.zeros(shape)"))
        self.array = data
        self.shape = shape if shape.__class__ is Shape else Shape(shape)
        self.dtype = dtype
        self.device = device
        self._requires_grad = False
        self._grad: Tensor | None = None
        self._node: tuple[Any, int] | None = None  # (the Node that made it, which of its outputs it is)
        self._hooks: list[Callable[[Tensor], Tensor | None]] | None = None
        self._kin: Any = None  # of a tensor that has views, or is a view

    # ---- facts -------------------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        """Whether backward is to reach this tensor; to set it is `requires_grad_`."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward left on a leaf; a gradient to be set has the tensor's shape, dtype and device."""
        g = self._grad
        return g if g.__class__ is not Leftover else g.read()  # type: ignore[union-attr]

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        if gradient is not None:
            if not isinstance(gradient, Tensor):
                raise ArgumentError(message("grad", f"it is set to {shown(gradient)}, a Tensor or None is needed",
                                            "wrap it: alpha.tensor(gradient)"))
            self._check_like(gradient, "grad")
        self._grad = gradient

    @property
    def is_leaf(self) -> bool:
        """True where no op made this tensor, as far as the graph knows."""
        return self._node is None

    def numpy(self) -> np.ndarray:
        """Returns the elements as a new NumPy array on the host."""
        settle()
        return get_backend(self.device).to_numpy(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        a = self.numpy()
        return a if dtype is None else a.astype(dtype)

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """Hands the elements to another library, which shares them: `torch.from_dlpack(t)`, `np.from_dlpack(t)`.

        Args:
            stream: the consumer's CUDA stream, which then waits for ours; None and 1 are the legacy default stream.
            max_version: newest DLPack version that the consumer reads.
            dl_device: device that the consumer wants; only the tensor's.
            copy: True: hand over a copy.
        Raises:
            GraphError: the tensor requires a gradient.  DeviceError: dl_device is another one.
        The elements live until the consumer lets go of them. A consumer that works on a CUDA stream other than the
        legacy default stream must have finished by then, since the memory is reused at once.
        """
        return TABLE["export"](self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return get_backend(self.device).dlpack_device()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA's array interface, version 3, for CuPy, Numba and the like; not for bfloat16, nor on the CPU."""
        if self.device == "cpu" or self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__")  # alpha.interop.twins has the message
        TABLE["hand_over"]("__cuda_array_interface__", self)
        backend = get_backend(self.device)
        return {"shape": tuple(self.shape), "typestr": np.dtype(self.dtype).str,
                "data": (backend.address(self.array), False),
                "version": 3, "strides": None, "stream": backend.stream_handle()}

    def item(self) -> Number:
        """Returns the only element as a Python number.  Raises ShapeError if there are more."""
        if self.numel() != 1:
            raise ShapeError(message("item", f"a tensor of shape {self.shape} has {self.numel()} elements, not 1",
                                     "reduce it first: t.sum().item() or t.mean().item()"))
        return self.numpy().item()

    def tolist(self) -> Any:
        """Returns the elements as nested Python lists."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        """Returns the only element of a tensor of integers, for counting or picking: range(t), names[t]."""
        if self.dtype == "bool" or self.dtype in FLOAT_DTYPES or self.numel() != 1:
            raise DTypeError(message("index", f"{shown(self)} is no int", "one element of integers is: "
                                     "t.argmax(), t.long()"))
        return int(self.item())

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        return TABLE["ufunc"](ufunc, method, inputs, settings)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError(message("len", "a tensor without axes has no length", "use t.item() for its only element"))
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        corner = self[tuple(slice(0, min(n, 4)) for n in self.shape)] if self.numel() > 64 else self
        text = np.array2string(corner.detach().numpy(), precision=4, separator=", ", prefix="tensor(")
        cut = f", corner of {self.shape}" if corner is not self else ""
        leaf = ", requires_grad=True" if self.requires_grad else ""
        tail = f", grad_fn={self._node[0].op.name}" if self._node else leaf
        where = "" if self.device == "cpu" else f", device={self.device!r}"
        return f"tensor({text}{cut}, shape={self.shape}, dtype={self.dtype}{where}{tail})"

    # ---- graph -------------------------------------------------------------------------------------------------------

    def edge(self) -> Any:
        """Returns where a gradient of this tensor goes: (node, output), the leaf itself, or None."""
        return TABLE["edge"](self)

    @property
    def _version(self) -> int:
        """How often the elements were changed in place, by whatever name."""
        return versions.version(self.device, self.array)

    def _rebind(self, array: Any) -> None:
        """Gives the tensor another array; holders of arrays of tensors learn it from versions.newest."""
        self.array, self._kin = array, None
        versions.note(())

    def seed(self, gradient: Tensor | None) -> Tensor:
        """Returns the gradient to start a backward pass with: 1 for a scalar, else the one given, checked."""
        if not self.requires_grad:
            raise GraphError(message("backward", f"a tensor of shape {self.shape} depends on nothing that requires a "
                                     "gradient", "create the inputs with requires_grad=True, outside of no_grad()"))
        if gradient is None:
            if self.numel() != 1:
                raise ShapeError(message("backward", f"a tensor of shape {self.shape} is not a scalar",
                                         "reduce it: t.sum().backward(), or pass backward(gradient)"))
            return Tensor(get_backend(self.device).full(self.shape, 1, self.dtype, self.device), self.shape, self.dtype,
                          self.device)
        if not isinstance(gradient, Tensor):
            raise ArgumentError(message("backward", f"gradient is {shown(gradient)}, a Tensor is needed",
                                        "wrap it: alpha.tensor(gradient)"))
        self._check_like(gradient, "backward")
        return gradient

    def _check_like(self, gradient: Tensor, where: str) -> None:
        """Raises ShapeError for a gradient of another shape, dtype or device than the tensor."""
        if (gradient.shape, gradient.dtype, gradient.device) != (self.shape, self.dtype, self.device):
            raise ShapeError(message(where, "the gradient and the tensor differ", "pass a gradient like it",
                                     gradient=(gradient.shape, gradient.dtype, gradient.device),
                                     tensor=(self.shape, self.dtype, self.device)))

    @checked
    def backward(self, gradient: Tensor | None = None, *, retain_graph: bool | None = None,
                 create_graph: bool = False) -> None:
        """Adds the gradients of this tensor to the `.grad` of the leaves that it depends on.

        Args:
            gradient: gradient of this tensor, of its shape; needed unless it has one element.
            retain_graph: keep saved values for another pass; default create_graph.
            create_graph: make the gradients differentiable themselves.
        Raises:
            GraphError: no leaf requires a gradient, or the saved values were freed or changed.
        """
        keep = create_graph if retain_graph is None else retain_graph
        TABLE["backward"]([(self, self.seed(gradient))], retain_graph=keep, create_graph=create_graph)

    def detach(self) -> Tensor:
        """Returns a tensor of the same elements that the graph does not know."""
        kind = self.__class__ if self.shares else Tensor
        made = kind(self.array, self.shape, self.dtype, self.device)
        return made if self.shares == "sometimes" else TABLE["alias"](self, made)

    @property
    def data(self) -> Tensor:
        """The elements without the graph, as of `detach()`; to set it writes them. `array` is the memory itself."""
        return self.detach()

    @data.setter
    def data(self, source: Tensor | np.ndarray) -> None:
        if getattr(source, "array", None) is not self.array:    # as it is behind `t.data += x`
            self.copy_(source.detach() if isinstance(source, Tensor) else source)

    def with_data(self, data: Any) -> Tensor:
        """Returns a tensor like this one, without a graph, over an array of its backend; for alpha's own use."""
        return Tensor(data, self.shape, self.dtype, self.device)

    @checked
    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Sets requires_grad of a leaf and returns the tensor."""
        if requires_grad and not self.is_floating_point:
            raise DTypeError(message("requires_grad_", f"dtype {self.dtype} has no gradients",
                                     'use a float tensor: t.astype("float32")'))
        if self._node is not None:
            raise GraphError(message("requires_grad_", "only a leaf can be changed, this tensor was made by "
                                     f"{self._node[0].op.name}", "detach it first: t.detach()"))
        self._requires_grad = requires_grad
        return self

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Handle:
        """Calls `hook(gradient)` when backward has this tensor's gradient; a returned Tensor replaces it.

        Returns a handle: `handle.remove()`, or `handle()`, removes the hook.
        """
        if not self.requires_grad:
            raise GraphError(message("register_hook", "this tensor does not require a gradient",
                                     "create it with requires_grad=True"))
        if self._node is None:
            self._hooks = hooks = self._hooks if self._hooks is not None else []
        else:
            node, index = self._node
            node.hooks = node.hooks if node.hooks is not None else {}
            hooks = node.hooks.setdefault(index, [])
        hooks.append(hook)
        return Handle(lambda: hooks.remove(hook) if hook in hooks else None)

    def copy_(self, source: Tensor | np.ndarray) -> Tensor:
        """Overwrites the elements with the elements of `source` (same shape; cast to this dtype); outside of the graph.

        All tensors that share elements with it see it, views too. Raises ShapeError; GraphError where the source's
        gradient would be lost, or where this tensor was expanded: nothing is changed then.
        """
        TABLE["refuse_part"](self, "copy_")
        if not isinstance(source, (Tensor, np.ndarray, list, tuple, int, float)):
            raise ArgumentError(message("copy_", f"source is {shown(source)}, a Tensor or a NumPy array is needed",
                                        "wrap it: alpha.tensor(source)"))
        source = source if isinstance(source, (Tensor, np.ndarray)) else tensor(source)
        if isinstance(source, Tensor) and source.requires_grad and grad_enabled():
            raise GraphError(message("copy_", f"the source of shape {source.shape} requires a gradient, which would be "
                                     "lost", "use the source itself, or copy_(source.detach())"))
        shape = tuple(source.shape)
        if shape != self.shape:
            raise ShapeError(message("copy_", f"the source has shape {shape}, the tensor {self.shape}",
                                     "pass a source of the same shape"))
        if not isinstance(source, Tensor) or (source.device, source.dtype) != (self.device, self.dtype):
            source = tensor(source, self.dtype, self.device)
        TABLE["overwrite"]("copy_", self, source.array)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor: return TABLE["deep_copy"](self, memo)
    def __reduce__(self) -> tuple[Any, ...]: return TABLE["reduced"](self)


_new: Any = object.__new__


def made(cls: type[Tensor], data: Any, shape: tuple[int, ...], dtype: str, device: str) -> Tensor:
    """Returns `cls(data, shape, dtype, device)`, in half the time: for results of ops."""
    t = _new(cls)
    t.array, t.dtype, t.device = data, dtype, device
    t.shape = shape if shape.__class__ is Shape else Shape(shape)
    t._requires_grad = False
    t._grad = t._node = t._hooks = t._kin = None
    return t


@bound
def from_dlpack(x: Any) -> Tensor:
    """Returns a tensor that shares its elements with an array of another library, on the CPU or on CUDA.

    Args:
        x: an object with `__dlpack__` (arrays of NumPy, PyTorch, CuPy, JAX), or else `__cuda_array_interface__` (Numba,
            PyCUDA): C-contiguous, writable, not requiring a gradient. Our stream waits for the producer's work.
    Raises:
        AlphaError: the memory is read-only, ill-aligned, or kept back by the producer.
        ShapeError: it is not C-contiguous.  DTypeError, DeviceError: alpha lacks the dtype or the device.
    The memory lives until the last tensor that uses it is gone. `alpha.tensor(x)` copies instead.
    """
    data, shape, dtype, device = TABLE["take_over"](x)
    return Tensor(data, shape, DTYPES[dtype], DEVICES[device])


@provides("tensor")
@checked
def tensor(array: Any, dtype: DTypeOrNone = None, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """Returns a tensor with a copy of the elements of `array`.

    Args:
        array: a NumPy array, a number, nested lists, a Tensor (detached), or anything that NumPy makes an array of.
        dtype: name or NumPy dtype; default: the array's or tensor's own, else float32 for Python floats
            and int64 for Python integers.
        device: "cpu", "cuda" or "cuda:<index>"; the tensor's own `device` is "cpu" or "cuda", of which a process
            uses one GPU.
        requires_grad: whether backward is to leave a gradient in `.grad`.
    Raises:
        ShapeError: the nested lists are of unequal lengths.  ArgumentError: another library keeps the elements.
        DTypeError: the dtype is unknown, the device does not have it, or integers of it cannot hold an element.
        DeviceError: the device is not there.
    """
    typed = hasattr(array, "dtype")
    try:
        host = array.numpy() if isinstance(array, Tensor) else np.asarray(array)
    except (ValueError, OverflowError) as error:
        raise ShapeError(message("tensor", f"the nested lists are no array of one shape: {error}",
                                 "make the lists of each level equally long, by padding them say")) from error
    except (RuntimeError, TypeError) as error:  # of another library's tensors
        if isinstance(error, AlphaError):
            raise
        raise ArgumentError(message("tensor", f"the elements are not handed over: {error}", "pass a NumPy array, of "
                                    "PyTorch x.detach().float().numpy(), say")) from error
    name = dtype_name(dtype) if dtype is not None else dtype_name(
        host.dtype if typed or host.dtype.kind != "f" else "float32")
    backend = get_backend(device)
    if dtype is None and isinstance(array, Tensor) and array.dtype in backend.dtypes:
        name = array.dtype  # bfloat16 comes to the host as float32
    if name not in backend.dtypes:
        raise DTypeError(message("tensor", f"the {backend.name} backend has no {name}, it has "
                                 f"{', '.join(sorted(backend.dtypes))}", "choose one of those, or another device"))
    check_values(host, name)
    held = "float32" if name == "bfloat16" else name  # NumPy has no bfloat16: the device converts
    made = Tensor(backend.from_numpy(np.ascontiguousarray(host, dtype=held).reshape(host.shape), device),
                  host.shape, DTYPES[held], DEVICES[backend.name]).astype(name)
    return made.requires_grad_() if requires_grad else made
