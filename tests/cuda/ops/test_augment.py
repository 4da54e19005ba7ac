"""Augmentation in CUDA against the CPU's: the same choices, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops import augment
from alpha.data import Augment, Dataset, Images
from tests.cuda.agree import Case, agree

pytestmark = pytest.mark.cuda

MEAN, STD = np.array([0.4914, 0.4822, 0.4465], np.float32), np.array([0.2470, 0.2435, 0.2616], np.float32)
ALL = dict(crop=4, flip=True, cutout=8)


def images(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape)).astype(np.uint8)


def order(count: int, batch: int) -> np.ndarray:
    return np.random.default_rng(batch).integers(0, count, batch)


def case(pixels: np.ndarray, batch: int, **attrs) -> Case:
    channels = pixels.shape[3]
    return Case("augment_images", pixels, order(len(pixels), batch), np.resize(MEAN, channels),
                np.resize(STD, channels), exact=True, **attrs)


CASES = [
    case(images(20, 32, 32, 3), 9),
    case(images(20, 32, 32, 3), 30, seed=7, epoch=3, **ALL),
    case(images(20, 32, 32, 3), 20, seed=2 ** 63 + 5, epoch=99_999, **ALL),
    case(images(9, 8, 6, 1), 25, crop=3),
    case(images(9, 7, 5, 3), 25, flip=True),                   # 105 elements: no packets
    case(images(9, 7, 5, 3), 25, seed=1, crop=1, flip=True, cutout=3),
    case(images(9, 5, 9, 4), 25, cutout=64),                   # holes as large as the image
    case(images(9, 5, 9, 5), 25, crop=9, cutout=1),
    case(images(3, 33, 31, 7), 2, **ALL),                      # several blocks for an image
    case(images(1, 1, 1, 1), 1, **ALL),
    case(images(2, 4, 4, 3), 0, **ALL),
    Case("augment_images", images(6, 8, 8, 3), np.arange(6), MEAN, STD, np.array([0, 9, 3, 2 ** 37, 1, 7]), exact=True,
         seed=3, epoch=2, **ALL),
]


@pytest.mark.parametrize("one", CASES, ids=str)
def test_agrees_with_the_cpu_in_every_bit(one: Case) -> None:
    agree(one)


def test_an_image_needs_more_blocks_than_a_grid_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "MAX_BLOCKS", 2)
    agree(case(images(3, 33, 31, 7), 2, **ALL))
    agree(case(images(3, 40, 40, 4), 2, **ALL))


def test_an_index_out_of_range_yields_nan() -> None:
    pixels = images(4, 4, 4, 3)
    x, index, mean, std = (alpha.tensor(a, device="cuda") for a in (pixels, np.array([1, 4, -1, 0]), MEAN, STD))
    nan = np.isnan(ops.augment_images(x, index, mean, std, **ALL).numpy()).reshape(4, -1)
    assert nan.all(1).tolist() == [False, True, True, False] and not nan[[0, 3]].any()


def test_batches_are_those_of_the_cpu() -> None:
    """Order, augmentation, labels: an epoch of a data set that stays on the device, bit for bit."""
    pixels, labels = images(21, 8, 8, 3), np.arange(21)
    data = Dataset("random", tuple(map(str, labels)), MEAN, STD, pixels, labels, pixels, labels)
    epochs = []
    for device in ("cpu", "cuda"):
        source = Images(pixels, labels, data, device)
        epochs.append([(x, y) for x, y in source.batches(8, seed=3, epoch=5, augment=Augment(2, True, 3))])
    assert len(epochs[1]) == 3 and {t.device for pair in epochs[1] for t in pair} == {"cuda"}
    for pair, there in zip(*epochs):
        for ours, theirs in zip(pair, there):
            assert ours.dtype == theirs.dtype and ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_a_std_that_is_not_above_0_yields_nan() -> None:
    std = np.array([0.25, 0.0, -0.25], np.float32)
    x = [alpha.tensor(a, device="cuda") for a in (images(4, 5, 7, 3), np.arange(4), MEAN, std)]
    y = ops.augment_images(*x, **ALL).numpy()
    assert np.isfinite(y[..., 0]).all() and np.isnan(y[..., 1:]).all()
