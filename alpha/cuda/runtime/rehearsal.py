"""What a program launches, found out on a device that only pretends: its kernels can be compiled before it runs.

    units = rehearse(program, "sm_90a")     # no GPU is needed, nothing is computed and nothing compiled
    compile_all("sm_90a", units)

Memory has addresses and no content, launches do nothing, and what is read back is 0. Plans are made as on the device,
so the kernels are those that it would choose. Afterwards the process is of no use for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from alpha.cuda.runtime import memory, tensor_map, toolchain
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.toolchain import Unit
from alpha.errors import DeviceError, message

PLENTY = 1 << 40  # bytes


class Device(NamedTuple):
    """What plans depend on: multiprocessors, shared bytes of a block, clocks in kHz, bits of the memory bus."""

    name: str
    sm_count: int
    max_shared: int
    clock: int
    memory_clock: int
    bus: int


# One of each architecture; another device of it may have another number of multiprocessors, and other choices.
DEVICES = {"sm_80": Device("A100", 108, 166_912, 1_410_000, 1_215_000, 5120),
           "sm_86": Device("RTX 3090", 82, 101_376, 1_695_000, 9_751_000, 384),
           "sm_89": Device("RTX 4090", 128, 101_376, 2_520_000, 10_501_000, 384),
           "sm_90a": Device("H100", 132, 232_448, 1_980_000, 2_619_000, 5120)}


class _Pool:
    """A pool of addresses; `allocate` of page-locked memory returns an array."""

    active_bytes = managed_bytes = 0

    def __init__(self) -> None:
        self.next = 1 << 32

    def allocate(self, what: Any, dtype: Any = None) -> Any:
        if dtype is not None:
            return np.empty(what, dtype)
        address, self.next = self.next, self.next + -(-what // 256) * 256
        return address

    def free_held(self) -> None:
        pass

    stop_holding = free_held


class _Modules(dict[Unit, Any]):
    """Every module, as if it were loaded; its keys are those that were asked for."""

    def __contains__(self, unit: object) -> bool:
        return True

    def __missing__(self, unit: Unit) -> Any:
        function = SimpleNamespace(shared_size_bytes=0, set_attribute=_nothing, _launch_kernel=_nothing)
        self[unit] = SimpleNamespace(get_function=lambda entry: function)
        return self[unit]


class _Event:
    def record(self, stream: Any) -> _Event:
        return self

    def time_since(self, other: Any) -> float:
        return 0.0

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def rehearse(program: Callable[[], None], arch: str, device: Device | None = None) -> list[Unit]:
    """Runs a program on a device that pretends, and returns the units that it launches kernels of.

    Args:
        arch: of the device.
        device: its figures; those of DEVICES if it is None.
    Raises:
        DeviceError: no device of the architecture is known.  What the program raises.
    """
    if device is None and arch not in DEVICES:
        raise DeviceError(message("build-kernels", f"no device of {arch} is known, only of {', '.join(DEVICES)}",
                                  "build on the machine that has it, or leave --model out: all kernels are built then"))
    device = device or DEVICES[arch]
    names = SimpleNamespace(CLOCK_RATE=device.clock, MEMORY_CLOCK_RATE=device.memory_clock,
                            GLOBAL_MEMORY_BUS_WIDTH=device.bus, MAX_DYNAMIC_SHARED_SIZE_BYTES=0)
    error = type("Error", (Exception,), {})
    stream = SimpleNamespace(handle=0, synchronize=_nothing, wait_for_event=_nothing)
    context.driver = SimpleNamespace(
        Error=error, MemoryError=error, Event=lambda *flags: _Event(), event_flags=SimpleNamespace(DISABLE_TIMING=0),
        device_attribute=names, function_attribute=names,
        Device=lambda index: SimpleNamespace(get_attribute=lambda value: value),
        mem_get_info=lambda: (PLENTY, PLENTY), memcpy_htod_async=_nothing, memcpy_dtod_async=_nothing,
        memcpy_dtoh_async=lambda out, *rest: out.fill(0))
    context.index, context.arch, context.name, context.open = 0, arch, device.name, True
    context.sm_count, context.max_shared, context.capability = device.sm_count, device.max_shared, (int(arch[3]), 0)
    context.stream = context.copy_stream = stream
    context.here.entered = True
    memory.pool = memory.Pool(_Pool(), _Pool())
    tensor_map._encode = lambda: lambda *arguments: 0
    launched = toolchain._modules = _Modules()
    program()
    return list(launched)


def here() -> Device:
    """Returns the device of this process."""
    return Device(context.name, context.sm_count, context.max_shared, *context.rates())


def _nothing(*arguments: Any) -> None:
    pass
