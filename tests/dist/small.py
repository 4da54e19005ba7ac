"""A network and a data set that train in a second, for `--import tests/dist/small.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha import nn
from alpha.data import Dataset
from alpha.training import register_dataset, register_model

SIDE = 8


@register_model
def small_norm_net(num_classes: int) -> nn.Module:
    """Convolutions with batch norm, and dropout."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2),
                         nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 9, num_classes))


@register_dataset(augment="crop=1,flip")
def small_images(seed: int) -> Dataset:
    """203 + 60 images of three classes; the last batch of 25 has 3 images fewer."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 263)
    images = (rng.integers(0, 120, (263, SIDE, SIDE, 3)) + 40 * labels[:, None, None, None]).astype(np.uint8)
    half = np.full(3, 0.5, np.float32)
    return Dataset("small_images", ("a", "b", "c"), half, half, images[:203], labels[:203], images[203:], labels[203:])


def settings(output: str, **changes: Any) -> Any:
    """Returns the Config of a run of one epoch."""
    from train.config import Config
    return Config.from_dict({"model": "small_norm_net", "dataset": "small_images", "device": "cpu", "epochs": 3,
                             "batch_size": 25, "val_size": 28, "ema": 0.9, "clip": 1.0, "lr": 0.05, "output": output,
                             **changes})
