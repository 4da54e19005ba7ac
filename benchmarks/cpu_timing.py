"""Timing of single ops on the CPU: the same names as benchmarks/cuda_timing.py has for a GPU."""

from __future__ import annotations

import os
import time
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from alpha.core.device import get_backend
from benchmarks import rounds
from benchmarks.environment import environment
from benchmarks.rounds import ROUNDS, WINDOW_MS, Side

ROTATED = 64 << 20  # bytes that buffers rotate over, so that few of them stay in a cache
STREAM = None


def start(command: str, *packages: str) -> dict[str, Any]:
    """Returns the facts that go beside every figure."""
    get_backend("cpu")
    return environment(command, *packages)


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


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # cpu: of this process alone, beside others' work


def window_ms(side: Side, count: int, clock: str = "wall") -> float:
    """Returns the mean time of a call in milliseconds."""
    now = CLOCKS[clock]
    begin = now()
    for k in range(count):
        side.call(k)
    return (now() - begin) * 1e3 / count


def alternate(sides: dict[str, Side], count: int = ROUNDS, window: float = WINDOW_MS, clock: str = "wall"
              ) -> dict[str, list[float]]:
    """Returns the milliseconds of a call per round, the sides taking turns."""
    return rounds.in_windows(sides, count, window, partial(window_ms, clock=clock))
