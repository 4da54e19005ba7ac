"""What a program launches, found out on a device that only pretends: its kernels can be compiled before it runs.

    units = rehearse(program, "sm_90a")     # no GPU is needed, nothing is computed and nothing compiled
    compile_all("sm_90a", units)

Memory has addresses and no content, launches do nothing, and what is read back is 0. Plans are made as on the device,
so the kernels are those that it would choose. Afterwards the process is of no use for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from alpha.core.errors import DeviceError, message
from alpha.cuda.runtime import memory, tensor_map, toolchain
from alpha.cuda.runtime.context import capability_of, context
from alpha.cuda.runtime.toolchain import Unit

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
DEVICES = {"sm_75": Device("T4", 40, 65_536, 1_590_000, 5_001_000, 256),
           "sm_80": Device("A100", 108, 166_912, 1_410_000, 1_215_000, 5120),
           "sm_86": Device("RTX 3090", 82, 101_376, 1_695_000, 9_751_000, 384),
           "sm_89": Device("RTX 4090", 128, 101_376, 2_520_000, 10_501_000, 384),
           "sm_90a": Device("H100", 132, 232_448, 1_980_000, 2_619_000, 5120),
           "sm_100": Device("B200", 148, 232_448, 1_965_000, 3_996_000, 8192),
           "sm_120": Device("RTX 5090", 170, 101_376, 2_407_000, 14_001_000, 512)}


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
    error = type("Error", (Exception,), {})
    stream = SimpleNamespace(handle=0, synchronize=_nothing, wait_for_event=_nothing)
    event = SimpleNamespace(query=lambda: True, synchronize=_nothing, time_since=lambda other: 0.0)
    event.record = lambda stream: event
    context.driver = SimpleNamespace(
        Error=error, MemoryError=error, Event=lambda *flags: event, event_flags=SimpleNamespace(DISABLE_TIMING=0),
        function_attribute=SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=0),
        mem_get_info=lambda: (PLENTY, PLENTY), memcpy_htod_async=_nothing, memcpy_dtod_async=_nothing,
        memcpy_dtoh_async=lambda out, *rest: out.fill(0))
    context.index, context.arch, context.name, context.open = 0, arch, device.name, True
    context.sm_count, context.max_shared, context.capability = device.sm_count, device.max_shared, capability_of(arch)
    context.nbytes, context.rates = PLENTY, lambda: device[3:]  # type: ignore[method-assign]
    context.stream = context.copy_stream = stream
    context.here.entered = True
    addresses = count(1 << 36, 1 << 36)  # so far from each other that no block reaches the next
    main = SimpleNamespace(allocate=lambda nbytes: next(addresses), free_held=_nothing, active_bytes=0, managed_bytes=0)
    memory.pool = memory.Pool(main, SimpleNamespace(allocate=np.empty))
    tensor_map.status_of = lambda *arguments: 0
    function = SimpleNamespace(shared_size_bytes=0, set_attribute=_nothing, _launch_kernel=_nothing)
    launched: dict[Unit, Any] = {}

    def module(unit: Unit) -> Any:
        return launched.setdefault(unit, SimpleNamespace(get_function=lambda entry: function))

    toolchain.module, toolchain.is_at_hand = module, lambda unit: True
    program()
    return list(launched)


def _nothing(*arguments: Any) -> None:
    pass
