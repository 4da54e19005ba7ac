"""What the tests of augmentations share: pictures, steps of one picture, and torchvision's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.data.augmentations.base import Draws
from alpha.data.augmentations.steps import rows_of

MEAN = np.array([0.25, 0.5, 0.75], np.float32)


def pictures(count: int, h: int = 24, w: int = 20, c: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth patterns with noise: every level and hue occurs, and neighbours differ."""
    rng = np.random.default_rng(seed)
    line, column = np.mgrid[:h, :w]
    waves = rng.uniform(0.05, 0.6, (count, c, 3))
    found = [np.stack([128 + 110 * np.sin(a * line + b * column + 9 * d) for a, b, d in image], -1) for image in waves]
    return np.clip(np.stack(found) + rng.normal(0, 9, (count, h, w, c)), 0, 255).astype(np.uint8)


def transformed(images: np.ndarray, rows: np.ndarray, mean: np.ndarray = MEAN) -> np.ndarray:
    """ops.transform_images of all images, on the CPU."""
    index = np.arange(len(images))
    return ops.transform_images(*[alpha.tensor(a) for a in (images, index, rows, mean[:images.shape[3]])]).numpy()


def step(images: np.ndarray, code: int, *numbers: Any) -> np.ndarray:
    """One step, the same of all images."""
    return transformed(images, rows_of(code, *numbers, count=len(images)))


def draws(count: int, seed: int = 3, epoch: int = 1, place: int = 0) -> Draws:
    return Draws(seed, epoch, np.arange(count), place)


def torchvision_functional() -> Any:
    """torchvision.transforms.functional, or a skip."""
    torch = pytest.importorskip("torch")
    try:
        library = torch.library.Library("torchvision", "DEF")   # of a torch without its operators
        for name in ("nms(Tensor a, Tensor b, float c) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"):
            library.define(name)
    except RuntimeError:
        pass
    try:
        from torchvision.transforms import functional
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"torchvision does not start: {error}")
    return functional


def by_torchvision(images: np.ndarray, function: Any) -> np.ndarray:
    """What a function of images (N, C, H, W) makes of images (N, H, W, C)."""
    import torch
    x = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, 3, 1)))
    return np.moveaxis(function(x).numpy(), 1, 3)
