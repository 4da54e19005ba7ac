"""Collectives between GPUs by NCCL's C library, on a stream of their own.

    compute stream   ... kernels that write x | event ready        ...        | waits for done | reads the result
    NCCL's stream                 waits for ready | ncclAllReduce | event done

A collective begins when x is written, beside later kernels; `wait` makes the compute stream wait, not the host. The
unique id of a communicator travels by MPI.

Bits: NCCL adds in an order that depends on its algorithm and protocol, and on the number of ranks. Two runs have the
same bits where NCCL_ALGO and NCCL_PROTO are fixed (docs/how_to/distributed.md).
Source: NVIDIA, NCCL's API documentation and the names and numbers of nccl.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from alpha.core.errors import DeviceError, message
from alpha.core.tensor import Tensor
from alpha.cuda.runtime import backlog, memory
from alpha.cuda.runtime.context import context

if TYPE_CHECKING:
    from alpha.dist.communicator import Communicator

NAMES = ("libnccl.so.2", "libnccl.so")
TYPES = {"uint8": 1, "bool": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "bfloat16": 9}     # ncclDataType_t
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}  # ncclRedOp_t
OLDEST = 21000      # 2.10, the first with ncclAvg and bfloat16


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (ctypes.POINTER(_INT),),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_POINTER), _INT, UniqueId, _INT),
    "ncclAllReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclReduceScatter": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclBroadcast": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER)}


def load(names: tuple[str, ...] = NAMES) -> tuple[ctypes.CDLL | None, str]:
    """Returns NCCL's library and "", or None and why it cannot be used."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")      # read when a communicator is made
    why = ""
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            why = why or str(error)
            continue
        for function, arguments in SIGNATURES.items():
            getattr(library, function).argtypes = arguments
            getattr(library, function).restype = _INT
        library.ncclGetErrorString.argtypes, library.ncclGetErrorString.restype = (_INT,), ctypes.c_char_p
        version = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(version))
        if version.value < OLDEST:
            return None, f"NCCL's version is {version.value}, {OLDEST} is the oldest that serves"
        return library, ""
    return None, why


class Engine:
    """NCCL's communicator of the ranks, and its stream.

    Args:
        library: as `load` returned it.
        comm: the ranks, by which the unique id travels.
    Raises:
        DeviceError: NCCL refuses.
    """

    def __init__(self, library: Any, comm: Communicator) -> None:
        self._library, self._size = library, comm.size
        identifier = UniqueId()
        if comm.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(identifier))
        text = comm.gather(bytes(identifier).hex() if comm.rank == 0 else "")[0]
        identifier = UniqueId.from_buffer_copy(bytes.fromhex(text))
        self._comm = ctypes.c_void_p()
        if not context.here.entered:
            context.enter()
        self._call("ncclCommInitRank", ctypes.byref(self._comm), comm.size, identifier, comm.rank)
        self._stream = context.driver.Stream()

    def another(self) -> Engine:
        """Returns this engine: collectives of two communicators on one GPU may wait for each other for ever."""
        return self

    def all_reduce(self, x: Tensor, op: str) -> Callable[[], Tensor]:
        """Begins the reduction of x, of any shape; the function returned gives the result, of the shape of x."""
        return self._begun(x, x.shape, lambda source, out: (
            "ncclAllReduce", source, out, x.numel(), TYPES[x.dtype], OPS[op]))

    def reduce_scatter(self, x: Tensor, op: str) -> Callable[[], Tensor]:
        """As all_reduce, of which each rank gets its part.  x: (size * k, ...).  Result: (k, ...)."""
        shape = (x.shape[0] // self._size, *x.shape[1:])
        return self._begun(x, shape, lambda source, out: (
            "ncclReduceScatter", source, out, x.numel() // self._size, TYPES[x.dtype], OPS[op]))

    def broadcast(self, x: Tensor, root: int) -> Callable[[], Tensor]:
        """Begins to send x of rank `root` to all.  Result: shape of x."""
        return self._begun(x, x.shape, lambda source, out: (
            "ncclBroadcast", source, out, x.numel(), TYPES[x.dtype], root))

    def all_gather(self, x: Tensor) -> Callable[[], Tensor]:
        """Begins to bring the tensors of all ranks together.  Result: shape (size, *x.shape)."""
        return self._begun(x, (self._size, *x.shape), lambda source, out: (
            "ncclAllGather", source, out, x.numel(), TYPES[x.dtype]))

    def _begun(self, x: Tensor, shape: tuple[int, ...], arguments: Callable[[int, int], tuple[Any, ...]]
               ) -> Callable[[], Tensor]:
        """Starts a collective as soon as x is written; the function returned has the compute stream wait for its end."""
        if memory.recorder:
            raise memory.recorder.refusal("ranks exchange a tensor")
        source, out = x.array, memory.empty(shape, x.dtype)
        address = source.ptr    # writes an array that waits for a reader
        backlog.run()
        if x.numel():
            self._stream.wait_for_event(memory.event().record(context.stream))
            self._call(*arguments(address, out.ptr), self._comm, ctypes.c_void_p(self._stream.handle))
        done = memory.event().record(self._stream)
        memory.pool.until(done, (source, out))
        return partial(self._ended, Tensor(out, shape, x.dtype, x.device), done)

    @staticmethod
    def _ended(result: Tensor, done: Any) -> Tensor:
        backlog.run()
        context.stream.wait_for_event(done)
        return result

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = self._library.ncclGetErrorString(status)
            raise DeviceError(message("alpha.dist", f"{name} failed with {status}: "
                                      f"{text.decode() if text else 'an unknown error'}",
                                      "NCCL_DEBUG=INFO tells why; without libnccl.so.2 ranks use MPI"))
