"""Data sets that worker processes can import."""

from __future__ import annotations

import ctypes
import os
import random
import time
from typing import Any

import numpy as np

IMAGES = np.random.default_rng(0).integers(0, 256, (50, 12, 10, 3)).astype(np.uint8)
LABELS = np.arange(50) % 5


class Items:
    """Images and labels as items, one by one; `bad` names an item that fails."""

    def __init__(self, bad: int = -1, dies: int = -1) -> None:
        self.bad, self.dies = bad, dies

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index == self.bad:
            raise OSError("the disk is gone")
        if index == self.dies:
            os._exit(3)
        return IMAGES[index], int(LABELS[index])


class Draws:
    """Items that draw from the generators of Python and NumPy."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.array([random.random(), np.random.rand()]), index


def noisy(image: np.ndarray, rng: Any) -> np.ndarray:
    """A transform with a generator of its own."""
    return image.astype(np.float32) + rng.standard_normal(image.shape).astype(np.float32)


def halved(image: np.ndarray) -> np.ndarray:
    """A transform that keeps 8 bits."""
    return image // 2


class Stuck:
    """Items whose workers come to a stop: behind a pipe that nobody reads, asleep, or with the interpreter's lock."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index > 10 and self.how == "busy":
            time.sleep(60)
        if index > 10 and self.how == "locked":
            ctypes.PyDLL(None).sleep(60)
        return np.zeros(1 << 18 if self.how == "full" else 3, np.float32), index
