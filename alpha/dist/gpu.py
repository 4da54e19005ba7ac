"""GPUs of ranks: how many there are, which one a rank has, and NCCL on them (alpha.dist.nccl)."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from alpha.core.errors import DeviceError, message

if TYPE_CHECKING:
    from alpha.dist.communicator import Communicator


def device_count() -> int:
    """Returns the number of GPUs that the driver shows.  Raises DeviceError where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(message("alpha.dist", f"there is no CUDA driver: {error}",
                                  'install it, or start with device="cpu"')) from error
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def bus_id() -> str:
    """Returns the PCI address of this process's GPU, which tells it apart from others of its machine."""
    from alpha.cuda.runtime.context import context
    try:
        return str(context.driver.Device(context.index).pci_bus_id())
    except context.driver.Error:    # a driver that has none, as the emulated one
        return f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} {context.index}"


def load() -> tuple[Any, str]:
    """Returns NCCL's library and "", or None and why there is none."""
    from alpha.dist import nccl
    return nccl.load()


def connected(library: Any, comm: Communicator) -> Any:
    """Returns NCCL's engine of these ranks."""
    from alpha.dist import nccl
    return nccl.Engine(library, comm)
