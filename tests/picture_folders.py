"""Folders of small pictures for tests: squares of a colour that tells the class, on noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

COLOURS = {"blue": (20, 20, 220), "green": (20, 200, 20), "red": (220, 20, 20)}


def drawn(colour: tuple[int, int, int], seed: int) -> np.ndarray:
    """Returns a picture of 40x48 pixels."""
    image = np.random.default_rng(seed).integers(0, 90, (40, 48, 3)).astype(np.uint8)
    image[8:32, 12:36] = colour
    return image


def folder(place: Path, count: int, names: tuple[str, ...] = tuple(COLOURS), first: int = 0) -> Path:
    """Makes a folder with a folder for each name, each with so many pictures, and returns it."""
    image_of = pytest.importorskip("PIL.Image")
    for name in names:
        (place / name).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            image_of.fromarray(drawn(COLOURS[name], first + k)).save(place / name / f"{k:03}.png")
    return place
