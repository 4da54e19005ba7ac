"""Arrays handed to other libraries and taken from them without a copy: DLPack, and CUDA's array interface.

A DLPack capsule carries a struct with address, shape, strides, dtype and device, and a function by which its taker says
that it is done. There are two forms of the struct; the newer one has a version, and a flag for memory that must not be
written. The layout is as in dlpack.h, https://github.com/dmlc/dlpack.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

from alpha.core.device import Backend, get_backend
from alpha.core.errors import AlphaError, DeviceError, DTypeError, GraphError, ShapeError, message
from alpha.core.inplace import kin
from alpha.core.table import provides
from alpha.core.versions import share

CPU, CUDA = 1, 2                                                                             # kDLCPU, kDLCUDA
CODES = {"int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "float16": (2, 16), "float32": (2, 32),
         "float64": (2, 64), "bfloat16": (4, 16), "bool": (6, 8)}                            # dtype -> (code, bits)
CARRIERS = {1: "uint8", 2: "float16", 4: "int32", 8: "int64"}  # bytes of an element -> a dtype of NumPy
NAMES = {code: name for name, code in CODES.items()}
VERSION = (1, 0)
READ_ONLY, COPIED = 1, 2                                                                     # flags


class Device(Structure):
    _fields_ = [("type", c_int32), ("index", c_int32)]


class DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Described(Structure):
    """DLTensor; strides count elements, and a null pointer there means C-contiguous."""

    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", DataType),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Described), ("manager", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", Described)]


# Name of a capsule -> its struct; a taken one gets another name, so that it is not taken twice.
FORMS = {b"dltensor": Managed, b"dltensor_versioned": ManagedVersioned}
USED = {Managed: b"used_dltensor", ManagedVersioned: b"used_dltensor_versioned"}

_api = ctypes.pythonapi
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_call_with_address = ctypes.CFUNCTYPE(None, c_void_p)
_capsule_rename = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))


def refuse_gradient(t: Any, where: str) -> None:
    """Raises GraphError for a tensor that requires a gradient: others would change it behind the graph."""
    if t.requires_grad:
        raise GraphError(message(where, f"a tensor of shape {t.shape} requires a gradient, which others do not see",
                                 "hand over t.detach()"))


@provides("hand_over")
def hand_over(where: str, t: Any) -> None:
    """Raises GraphError for a tensor whose elements another library may not write."""
    refuse_gradient(t, where)
    kin.hand_over(where, t)


@provides("export")
def export(t: Any, stream: int | None, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None,
           copy: bool | None) -> Any:
    """Returns a capsule over the elements of a tensor.  See Tensor.__dlpack__."""
    refuse_gradient(t, "__dlpack__")
    if not copy:
        kin.hand_over("__dlpack__", t)
    backend, data = get_backend(t.device), t.array
    here = backend.dlpack_device()
    if dl_device is not None and tuple(map(int, dl_device)) != here:
        raise DeviceError(message("__dlpack__", f"the tensor is on device {here}, {tuple(dl_device)} was asked for",
                                  'move it first: t.to("cpu") or t.to("cuda")'))
    if copy:
        data = backend.full(t.shape, 0, t.dtype, t.device)
        backend.copy_into(data, t.array)
    backend.give_to(stream)
    code, bits = CODES[t.dtype]
    # NumPy makes the capsule, as for an array of its own that keeps `data` alive, and ends it: that takes native code,
    # since it may happen in any thread, while an exception is on its way, or when the interpreter is gone.
    address = backend.address(data)
    if not copy:
        share(backend, address, data.nbytes, data)
    carrier = get_backend("cpu").wrap(address, t.shape, CARRIERS[bits // 8], data)
    capsule = carrier.__dlpack__() if max_version is None or max_version[0] < VERSION[0] else _versioned(carrier)
    managed = _struct(capsule)
    managed.tensor.device, managed.tensor.dtype = Device(*here), DataType(code, bits, 1)
    if copy and isinstance(managed, ManagedVersioned):
        managed.flags |= COPIED
    return capsule


def _versioned(array: np.ndarray) -> Any:
    try:
        return array.__dlpack__(max_version=VERSION)
    except TypeError:  # a NumPy from before versions; consumers take the older form too
        return array.__dlpack__()


def _struct(capsule: Any) -> Any:
    """Returns the struct of a capsule.  Raises AlphaError if it carries nothing that can still be taken."""
    at = id(capsule)  # the address of the object
    for name, form in FORMS.items():
        if _capsule_is(at, name):
            return form.from_address(_capsule_pointer(at, name))
    raise AlphaError(message("from_dlpack", "__dlpack__ returned no capsule that can be taken", "ask for a fresh one"))


class _Owner:
    """A struct that was taken; its end tells the producer that its memory is free."""

    def __init__(self, managed: Any) -> None:
        self.address, self.deleter = ctypes.addressof(managed), managed.deleter

    def __del__(self, call: Any = _call_with_address) -> None:  # bound here: the module may be gone by then
        if self.deleter:
            call(self.deleter)(self.address)


@provides("take_over")
def take(x: Any) -> tuple[Any, tuple[int, ...], str, str]:
    """Returns backend array, shape, dtype and device that `x` hands over.  See alpha.from_dlpack."""
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        kind, index = x.__dlpack_device__()
        if int(kind) not in (CPU, CUDA):
            raise DeviceError(message("from_dlpack", f"the elements are on DLPack device type {int(kind)}",
                                      "move them to the CPU (1) or to CUDA (2) first"))
        backend = get_backend("cpu" if kind == CPU else f"cuda:{index}")
        return _take_capsule(_ask(x, backend), backend)
    if hasattr(x, "__cuda_array_interface__"):
        return _take_interface(x, x.__cuda_array_interface__, get_backend("cuda"))
    raise DTypeError(message("from_dlpack", f"a {type(x).__name__} has no __dlpack__ and no __cuda_array_interface__",
                            "pass an array of NumPy, PyTorch, CuPy and the like, or copy: alpha.tensor(x)"))


def _ask(x: Any, backend: Backend) -> Any:
    """Returns the capsule of `x`, whose work our compute stream waits for."""
    stream = backend.stream_handle()
    given = {} if stream is None else {"stream": stream}
    try:
        try:
            return x.__dlpack__(**given, max_version=VERSION)
        except TypeError:  # a producer from before versions
            return x.__dlpack__(**given)
    except BufferError as error:
        raise AlphaError(message("from_dlpack", f"the {type(x).__name__} is not handed over: {error}",
                                 "pass a copy: alpha.tensor(x)")) from error


def _take_capsule(capsule: Any, backend: Backend) -> tuple[Any, tuple[int, ...], str, str]:
    managed = _struct(capsule)
    versioned = isinstance(managed, ManagedVersioned)
    if versioned and managed.major > VERSION[0]:
        raise AlphaError(message("from_dlpack", f"the producer speaks DLPack {managed.major}, alpha {VERSION[0]}",
                                 "copy the elements: alpha.tensor(x)"))
    _capsule_rename(id(capsule), USED[type(managed)])
    owner, t = _Owner(managed), managed.tensor
    shape = tuple(t.shape[k] for k in range(t.ndim))
    strides = tuple(t.strides[k] for k in range(t.ndim)) if t.strides else None
    dtype = NAMES.get((t.dtype.code, t.dtype.bits)) if t.dtype.lanes == 1 else None
    shown = dtype or f"of code {t.dtype.code}, {t.dtype.bits} bits, {t.dtype.lanes} lanes"
    read_only = versioned and bool(managed.flags & READ_ONLY)
    return _wrapped(backend, (t.data or 0) + t.byte_offset, shape, strides, shown, read_only, owner)


def _take_interface(x: Any, d: dict[str, Any], backend: Backend) -> tuple[Any, tuple[int, ...], str, str]:
    if d.get("mask") is not None:
        raise AlphaError(message("from_dlpack", "the array has a mask", "fill the masked elements, and pass the data"))
    dtype = np.dtype(d["typestr"])
    strides = d.get("strides") and tuple(n // dtype.itemsize for n in d["strides"])
    if d.get("stream") is not None:
        backend.wait_for(d["stream"])
    address, read_only = d["data"]
    return _wrapped(backend, address, tuple(d["shape"]), strides, dtype.name, read_only, x)


def _wrapped(backend: Backend, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: str,
             read_only: bool, owner: Any) -> tuple[Any, tuple[int, ...], str, str]:
    """Returns the array over memory of another library.  Raises AlphaErrors where alpha cannot use it."""
    if dtype not in backend.dtypes:
        raise DTypeError(message("from_dlpack", f"the elements are {dtype}, the {backend.name} backend has "
                                 f"{', '.join(sorted(backend.dtypes))}", "convert them first"))
    if read_only:
        raise AlphaError(message("from_dlpack", "the memory is read-only, and optimizers and copy_ write",
                                 "pass a copy: alpha.tensor(x)"))
    expected = contiguous_strides(shape)
    if strides and 0 not in shape and any(a != b for a, b, n in zip(strides, expected, shape) if n > 1):
        raise ShapeError(message("from_dlpack", "the elements are not C-contiguous", "pass np.ascontiguousarray(x) or "
                                 "x.contiguous()", shape=shape, strides=strides, expected=expected))
    alignment = max(CODES[dtype][1] // 8, backend.alignment)
    if 0 not in shape and address % alignment:
        raise AlphaError(message("from_dlpack", f"the elements start at {address:#x}, no multiple of {alignment} bytes",
                                 "pass a copy: x.clone() or x.copy()"))
    array = backend.wrap(address, shape, dtype, owner)
    share(backend, address, array.nbytes, array)
    return array, shape, dtype, backend.name


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a C-contiguous array."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 1, 0, -1):
        strides[k - 1] = strides[k] * shape[k]
    return tuple(strides)
