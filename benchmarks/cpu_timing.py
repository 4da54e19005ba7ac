"""What benchmarks of single ops need of the CPU: the same names as benchmarks/cuda_timing.py has for a GPU."""

from __future__ import annotations

import os
import time
from math import ceil
from typing import Any

import numpy as np

from alpha.backend import get_backend
from benchmarks import checks, rounds
from benchmarks.environment import environment
from benchmarks.rounds import ROUNDS, WINDOW_MS, Side

ROTATED = 64 << 20  # bytes that buffers rotate over, so that few of them stay in a cache
STREAM = None
_clock = time.perf_counter


def start(command: str, *packages: str) -> dict[str, Any]:
    """Returns the facts that go beside every figure."""
    get_backend("cpu")
    return environment(command, *packages)


def count_processor_time() -> None:
    """Counts the processor's time from now on, on a machine that others use too.  Raises UnfairError on several cores."""
    global _clock
    cores = len(os.sched_getaffinity(0))
    if cores > 1:
        checks.refuse(f"the clock of the processor adds up all threads, and this process may use {cores} cores",
                      "let it use one: taskset -c 0 python -m ...", where="benchmarks")
    _clock = time.process_time


def peer_device() -> str:
    return "cpu"


def strict_torch() -> Any:
    """Returns PyTorch, told to use every core that this process may use."""
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


def wrap(t: Any) -> np.ndarray:
    """Returns a contiguous PyTorch tensor as an array over the same memory."""
    return t.numpy()


def view(x: np.ndarray) -> Any:
    """Returns an array as a PyTorch tensor over the same memory."""
    import torch
    return torch.from_numpy(x)


def sets_for(nbytes: int) -> int:
    """Returns how many sets of buffers to rotate among."""
    return max(1, min(8, ceil(ROTATED / nbytes)))


def synchronize() -> None:
    """Nothing runs behind the caller's back."""


def window_ms(side: Side, count: int) -> float:
    """Returns the mean time of a call in milliseconds."""
    begin = _clock()
    for k in range(count):
        side.call(k)
    return (_clock() - begin) * 1e3 / count


def alternate(sides: dict[str, Side], count: int = ROUNDS, window: float = WINDOW_MS) -> dict[str, list[float]]:
    """Returns the milliseconds of a call per round, the sides taking turns."""
    return rounds.in_windows(sides, count, window, window_ms)
