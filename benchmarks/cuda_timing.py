"""Shared parts of benchmarks on a GPU: the facts beside a figure, arrays seen from both sides, windows between events.

Both libraries work in one process on one primary context, on the same memory. PyTorch's side runs where it finds no
GPU too (on the emulated driver, to test a benchmark): its tensors are then copies on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any

import numpy as np

from alpha.core.device import get_backend
from alpha.cuda.runtime import backlog, memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array
from alpha.cuda.runtime.recording import Recording
from alpha.errors import AlphaError
from benchmarks import rounds
from benchmarks.environment import SMI, environment, smi
from benchmarks.rounds import ROUNDS, WINDOW_MS, Side

SETS_PER_CACHE = 4  # buffers rotate over this many times the L2 cache


def start(command: str, *packages: str) -> dict[str, Any]:
    """Starts the device and returns the facts that go beside a figure.  Exits with a message where there is none."""
    try:
        get_backend("cuda")
    except AlphaError as error:
        sys.exit(str(error))
    return {**environment(command, "pycuda", *packages, on_gpu=True), "device": context.name, "arch": context.arch,
            "multiprocessors": context.sm_count, **smi(*SMI)}


def smi_during(side: Side, count: int) -> dict[str, str]:
    """Returns clocks and power while the device works through `count` calls."""
    for k in range(count):
        side.call(k)
    found = {f"{name} under load": value for name, value in smi("clocks.sm", "clocks.mem", "power.draw").items()}
    synchronize()
    return found


def strict_torch() -> Any:
    """Returns PyTorch, told to compute in float32 proper and to search for cuDNN's fastest algorithm."""
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch


def peer_device() -> str:
    """Returns where PyTorch's tensors live."""
    import torch
    return "cuda" if torch.cuda.is_available() else "cpu"


# ---- one memory, two libraries ---------------------------------------------------------------------------------------


def wrap(t: Any) -> Array:
    """Returns a contiguous PyTorch tensor as an array: the same memory on a GPU, a copy from the CPU."""
    dtype = str(t.dtype).removeprefix("torch.")
    if t.is_cuda:
        backlog.close()  # PyTorch does not wait for it
        return Array(memory.Lease(t), t.data_ptr(), tuple(t.shape), dtype, t.numel(), t.numel() * t.element_size())
    import torch
    bits = t.view(torch.int16) if dtype == "bfloat16" else t  # NumPy has no bfloat16
    return memory.upload(bits.numpy(), dtype)


class _Exposed:
    """An array as other libraries take it; they keep it alive."""

    def __init__(self, x: Array, typestr: str) -> None:
        self.array = x
        self.__cuda_array_interface__ = {"shape": x.shape, "typestr": typestr, "data": (x.ptr, False), "version": 3}


def view(x: Array) -> Any:
    """Returns an array as a PyTorch tensor: the same memory on a GPU, a copy on the CPU."""
    import torch
    typestr = {"bfloat16": "<i2", "bool": "|b1"}.get(x.dtype) or np.dtype(x.dtype).str
    if peer_device() == "cuda":
        backlog.close()
        t = torch.as_tensor(_Exposed(x, typestr), device="cuda")
    else:
        t = torch.from_numpy(memory.download(x, typestr))
    return t.view(torch.bfloat16) if x.dtype == "bfloat16" else t


def is_tensor(value: Any) -> bool:
    import torch
    return isinstance(value, torch.Tensor)


def l2_bytes() -> int:
    """Returns the size of the L2 cache."""
    driver = context.driver
    return driver.Device(context.index).get_attribute(driver.device_attribute.L2_CACHE_SIZE)


def sets_for(nbytes: int) -> int:
    """Returns how many sets of buffers to rotate among, so that no cache keeps one until its next turn."""
    return max(1, min(32, ceil(SETS_PER_CACHE * l2_bytes() / nbytes)))


# ---- time ------------------------------------------------------------------------------------------------------------


def synchronize() -> None:
    """Waits for all work of this process, PyTorch's too."""
    context.driver.Context.synchronize()


def window_ms(side: Side, count: int) -> float:
    """Returns the mean time of a call in milliseconds, between events around `count` calls in a row."""
    event = context.driver.Event
    synchronize()
    begin = event().record(side.stream)
    for k in range(count):
        side.call(k)
    end = event().record(side.stream)
    end.synchronize()
    return end.time_since(begin) / count


def alternate(sides: dict[str, Side], count: int = ROUNDS, window: float = WINDOW_MS) -> dict[str, list[float]]:
    """Returns the milliseconds of a call per round, the sides taking turns."""
    return rounds.in_windows(sides, count, window, window_ms)


@contextmanager
def replayed(sides: dict[str, Side], calls: int) -> Iterator[dict[str, Side]]:
    """Gives sides whose call repeats `calls` calls of the given ones as a CUDA graph, as training does: their time
    on the host is no figure of a kernel's.  Where PyTorch finds no GPU its calls are made one by one."""
    with ExitStack() as stack:
        yield {name: _replayed(side, calls, stack) for name, side in sides.items()}


def _replayed(side: Side, calls: int, stack: ExitStack) -> Side:
    import torch

    def run(*_: Any) -> list[Array]:
        for k in range(calls):
            side.call(k)
        return []
    run()  # arrays that are made once are there
    synchronize()
    if side.stream:
        recording = Recording(run, [])
        stack.callback(recording.close)
        return Side(lambda k: recording.replay([]), side.stream)
    if not torch.cuda.is_available():
        return Side(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return Side(lambda k: graph.replay())
