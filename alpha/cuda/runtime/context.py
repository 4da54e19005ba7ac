"""The device of this process: its primary context, one compute stream and one copy stream.

The primary context is the one that every CUDA library of the process shares, PyTorch too, so addresses pass freely
between them. Both streams order themselves with the legacy default stream, where PyTorch works unless told otherwise:
neither runs past work that the other was given before.

PyCUDA is imported here at first use and nowhere before, so that machines without it can import alpha.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from alpha.core.errors import DeviceError, message
from alpha.cuda.runtime import backlog

INSTALL = 'install PyCUDA (pip install ".[cuda]"; it needs the CUDA toolkit and a driver), or use device="cpu"'

OLDEST = (7, 5)  # compute capability with ldmatrix, and products of 16 bits on 8 of k
ASYNC = (8, 0)   # with copies to shared memory that wait for nobody, and products of bfloat16 and TF32
HOPPER = (9, 0)  # alone with wgmma
BLACKWELL, NEWEST = (10, 0), (99, 0)
ON_HOPPER = {"needs": HOPPER, "before": BLACKWELL}  # of a Kernel
PATIENCE = 0.1  # seconds that the exit waits for daemon threads


class Here(threading.local):
    """What is true of the thread that asks: whether it has the context.  The one question asked before a launch."""

    entered = False
    stay: Stay | None = None


class Stay:
    """A thread's hold on the context, which PyCUDA wants popped before the thread ends: its end drops this."""

    def __init__(self, context: Context) -> None:
        context.handle.push()
        self.context, self.thread = context, threading.get_ident()
        context.threads.add(self.thread)

    def __del__(self) -> None:
        self.context.threads.discard(self.thread)
        if self.context.open:
            self.context.handle.pop()


class Context:
    """What the backend knows of its device; the fields are set by `start`."""

    index: int | None = None  # number of the device among those that the driver shows
    driver: Any = None  # the module pycuda.driver
    handle: Any = None  # pycuda.driver.Context, the primary one
    stream: Any = None  # pycuda.driver.Stream; kernels run on it, in order
    copy_stream: Any = None  # another one
    capability: tuple[int, int] = (0, 0)  # (major, minor) of the compute capability
    arch: str = ""  # what kernels are compiled for, e.g. "sm_90a"
    name: str = ""
    sm_count: int = 0  # number of multiprocessors
    max_shared: int = 0  # bytes of shared memory that one block may ask for
    nbytes: int = 0  # of its memory
    open: bool = False  # whether the context can be used: not before the start, not in a forked child, not at exit

    def __init__(self) -> None:
        self.here = Here()
        self.threads: set[int] = set()               # identifiers of those that have entered
        self.at_exit: list[Callable[[], None]] = []  # called before the context is given up
        self._lock = threading.Lock()

    def start(self, index: int) -> None:
        """Makes device `index` the one of this process.  Raises DeviceError where there is none, or another one is."""
        with self._lock:
            if self.index is None:
                self._start(index)
            elif index != self.index:
                raise DeviceError(message("cuda", f"this process uses device {self.index}, {index} was asked for",
                                          f"use one GPU per process; CUDA_VISIBLE_DEVICES={index} makes it cuda:0"))
        if not self.here.entered:
            self.enter()

    def _start(self, index: int) -> None:
        driver = import_driver()
        try:
            driver.init()
            count = driver.Device.count()
        except driver.Error as error:
            raise DeviceError(message("cuda", f"the driver finds no usable GPU: {error}",
                                      'see whether nvidia-smi works, or use device="cpu"')) from error
        if index >= count:
            raise DeviceError(message("cuda", f"device {index} was asked for, the driver shows {count}",
                                      f'use device="cuda:0" to "cuda:{count - 1}"' if count else 'use device="cpu"'))
        try:
            self._open(driver, driver.Device(index))
        except driver.Error as error:
            raise DeviceError(message("cuda", f"device {index} cannot be used: {error}",
                                      "see with nvidia-smi who uses it, or choose another device")) from error
        self.index = index

    def _open(self, driver: Any, device: Any) -> None:
        attribute = driver.device_attribute
        check_capability(device.name(), device.compute_capability())
        self.driver, self.name, self.capability = driver, device.name(), device.compute_capability()
        self.arch = arch_of(*self.capability)
        self.sm_count = device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.max_shared = device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.nbytes = device.total_memory()
        self.handle = device.retain_primary_context()
        self.open = True
        self.enter()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._after_fork)
        self.stream, self.copy_stream = driver.Stream(), driver.Stream()

    @property
    def staged(self) -> bool:
        """Whether copies to shared memory pass through registers (copies.cuh); False before there is a device."""
        return (0, 0) < self.capability < ASYNC

    def rates(self) -> tuple[int, int, int]:
        """Returns the clocks of multiprocessors and of memory, in kHz, and the bits of the memory's bus."""
        attribute, device = self.driver.device_attribute, self.driver.Device(self.index)
        return (device.get_attribute(attribute.CLOCK_RATE), device.get_attribute(attribute.MEMORY_CLOCK_RATE),
                device.get_attribute(attribute.GLOBAL_MEMORY_BUS_WIDTH))

    def enter(self) -> None:
        """Makes the context current in this thread until it ends; asked for wherever `here.entered` is false.

        Raises DeviceError in a process that was forked from one that uses CUDA.
        """
        if not self.open:
            raise DeviceError(message(
                "cuda", "this process was forked from one that uses CUDA, whose contexts do not survive a fork",
                'start workers with multiprocessing.get_context("spawn"), or fork before the first CUDA tensor'))
        self.here.stay = Stay(self)
        self.here.entered = True

    def synchronize(self, others: bool = False) -> None:
        """Returns when both streams are empty, or those of other libraries too.

        Raises DeviceError for what went wrong in a kernel since.
        """
        if not self.here.entered:
            self.enter()
        backlog.run()
        with blaming:
            for waits in (self.handle,) if others else (self.copy_stream, self.stream):
                waits.synchronize()

    def _after_fork(self) -> None:
        self.open = self.here.entered = False

    def _leave(self) -> None:
        """Gives the context up at exit: PyCUDA lets what Python still holds of a dead context end without a word."""
        try:
            if self.open:
                backlog.waiting.clear()  # nobody reads what it would compute
                self._end_threads()
                self.handle.synchronize()
                for call in self.at_exit:
                    call()
        except self.driver.Error:  # reported where it happened, or nobody asked for the result
            pass
        self.open = self.here.entered = False
        self.handle.detach()

    def _end_threads(self) -> None:
        """Ends daemon threads that use the context: PyCUDA aborts when one goes down with the interpreter instead."""
        others = self.threads - {threading.get_ident()}
        for thread in others:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        deadline = time.monotonic() + PATIENCE
        while others & self.threads and time.monotonic() < deadline:  # one that waits for a lock does no harm
            time.sleep(0.001)


class _Blaming:
    """For a block: what the driver reports is said to be the failure of a kernel that was launched some time ago."""

    def __enter__(self) -> None: ...
    def __exit__(self, kind: Any, error: Any, tb: Any) -> None:
        if kind and issubclass(kind, context.driver.Error):
            raise DeviceError(message("cuda", f"a kernel failed: {error}", "run again with ALPHA_SYNC=1, which names "
                                      "the kernel; compute-sanitizer then shows the line")) from error


blaming = _Blaming()


def check_capability(name: str, capability: tuple[int, int]) -> None:
    """Raises DeviceError for a GPU that lacks what the kernels are made of, before anything is compiled for it."""
    if capability < OLDEST:
        has, needed = (".".join(map(str, pair)) for pair in (capability, OLDEST))
        raise DeviceError(message("cuda", f"{name} has compute capability {has}, the kernels need {needed}",
                                  'use a GPU of the Turing generation (2018) or later, or device="cpu"'))


def arch_of(major: int, minor: int) -> str:
    """Returns the architecture to compile for; that of Hopper has an "a", which unlocks its matrix instructions."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def lacks(needs: tuple[int, int]) -> str | None:
    """Returns that this process's device has less than a kernel needs, or None; there may be no device yet."""
    if (0, 0) < context.capability < needs:
        return "needs compute capability {}.{}, the device has {}.{}".format(*needs, *context.capability)
    return None


def capability_of(arch: str) -> tuple[int, int]:
    """Returns the compute capability of an architecture: (7, 5) of "sm_75", (12, 0) of "sm_120"."""
    return divmod(int(arch.removeprefix("sm_").rstrip("af")), 10)


def import_driver() -> ModuleType:
    """Returns pycuda.driver.  Raises DeviceError where PyCUDA or the driver's library is missing."""
    try:
        import pycuda.driver as driver
    except ImportError as error:
        if getattr(error, "name", None) == "pycuda":
            raise DeviceError(message("cuda", "PyCUDA is not installed", INSTALL)) from error
        raise DeviceError(message("cuda", f"PyCUDA cannot be loaded: {error}",
                                  'install the NVIDIA driver (libcuda.so.1), or use device="cpu"')) from error
    return driver


context = Context()
