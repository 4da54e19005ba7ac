"""Data sets that worker processes can import."""

from __future__ import annotations

import os
import random
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
