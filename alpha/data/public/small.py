"""Two small data sets that need no download: handwritten digits, as scikit-learn has them, and made-up images."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from alpha.core.errors import DataError, message
from alpha.data.sets import Dataset, register_dataset, statistics, stratified
from alpha.random import STREAMS, random_bits


def _digits_table() -> np.ndarray:
    """Returns 64 pixels and the label of each digit.  Shape (1797, 65), float64.

    Importing scikit-learn would take longer than all else before the first step, and the file alone is needed.
    Raises:
        DataError: if it is not there, or damaged.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(message("digits", "it is part of scikit-learn, which is not installed",
                                'pip install ".[data]"'))
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",")
        if table.shape != (1797, 65):
            raise ValueError(f"it has the shape {table.shape} and not (1797, 65)")
        return table
    except (OSError, EOFError, ValueError) as error:
        raise DataError(message("digits", f"{path} of scikit-learn cannot be read: {error}",
                                "pip install --force-reinstall scikit-learn")) from error


@register_dataset(augment="crop=2")  # half a pixel of the original; no flip, as a mirrored digit is another shape
def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 pixels and 17 grey levels, as 32x32x3: each pixel becomes 4x4 equal ones.

    The test set is a fixed fifth, 360 images, with every digit in proportion; 1,437 images remain for training.
    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998, as in scikit-learn.
    """
    table = _digits_table()
    pixels, labels = table[:, :-1], table[:, -1]
    grey = np.round(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    images = grey.repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3)
    labels = labels.astype(np.int64)
    test = stratified(labels, 360, seed=0)
    mean, std = statistics(grey[~test].repeat(3, axis=3))  # equal pixels change neither
    return Dataset("digits", tuple("0123456789"), mean, std, images[~test], labels[~test], images[test], labels[test])


@register_dataset
def synthetic(seed: int) -> Dataset:
    """8,192 + 2,048 images of ten random 8x8 colour patterns, enlarged to 32x32 and mixed with as much noise."""
    train, total, num_classes = 8192, 10240, 10
    stream = STREAMS["synthetic"]
    pattern = random_bits(seed, stream, 0, num_classes * 8 * 8 * 3).reshape(num_classes, 8, 8, 3) >> np.uint32(25)
    noise = random_bits(seed, stream, 1 << 20, total * 32 * 32 * 3 // 4).view(np.uint8).reshape(total, 32, 32, 3)
    labels = np.arange(total, dtype=np.int64) % num_classes
    images = pattern.astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)[labels] + (noise >> 1)
    return Dataset("synthetic", tuple(f"pattern {k}" for k in range(num_classes)), *statistics(images[:train]),
                   images[:train], labels[:train], images[train:], labels[train:])
