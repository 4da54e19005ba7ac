"""Masks and boxes are moved as their images are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from alpha.data import Augment, DataLoader
from alpha.errors import ConfigError, DataError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("images are compared both ways here")

H, W, COUNT = 26, 20, 16


def blocks() -> tuple[np.ndarray, np.ndarray]:
    """Images that are black but for a box in white, and the boxes: left, top, right, bottom."""
    rng = np.random.default_rng(0)
    images, boxes = np.zeros((COUNT, H, W, 3), np.uint8), np.zeros((COUNT, 1, 4), np.int64)
    for k in range(COUNT):
        left, top = rng.integers(2, W - 9), rng.integers(2, H - 9)
        boxes[k, 0] = left, top, left + rng.integers(4, 8), top + rng.integers(4, 8)
        images[k, top:boxes[k, 0, 3], left:boxes[k, 0, 2]] = 255
    return images, boxes


def batches(parts: tuple[np.ndarray, ...], augment: Any, **more: Any) -> list[np.ndarray]:
    loader = DataLoader(parts, 5, augment=augment, seed=2, shuffle=True, **more)
    found = [np.concatenate(column) for column in zip(*[[t.numpy() for t in batch] for batch in loader.batches(3)])]
    loader.close()
    return found


@pytest.mark.parametrize("steps", ["rotation(40,bilinear=False)", "affine(degrees=20,shear=10,bilinear=False)",
                                   "rotation(30,bilinear=False),affine(bilinear=False)"])
@pytest.mark.parametrize("more", [{}, {"crop": 2, "flip": True}])
def test_masks_show_what_images_show(steps: str, more: dict[str, Any]) -> None:
    images, _ = blocks()
    x, masks = batches((images, images[..., 0]), Augment(steps=steps, mask_fill=0, **more))
    assert np.array_equal(x[..., 0], masks / np.float32(255)) and 0 < masks.mean() < 128
    marked = batches((images, images[..., 0].astype(np.int64)), Augment(steps=steps, mask_fill=-100, **more))[1]
    assert (marked == -100).any() and np.array_equal(np.where(marked == -100, 0, marked), masks)


@pytest.mark.parametrize("steps", ["randaugment(n=3,m=20)", "trivialaugment", "autoaugment"])
def test_policies_move_masks_and_leave_their_values(steps: str) -> None:
    rng = np.random.default_rng(1)
    images, masks = rng.integers(1, 256, (COUNT, H, W, 3)).astype(np.uint8), np.arange(H * W).reshape(1, H, W, 1)
    _, moved = batches((images, np.repeat(masks, COUNT, 0)), Augment(steps=steps, mask_fill=-1))
    outside = (moved[..., 0] == -1).mean()
    assert 0 < outside < 0.4 and np.isin(moved, np.arange(-1, H * W)).all()
    assert (np.sort(moved.reshape(COUNT, -1)) != np.arange(H * W)).any(1).any()


def test_a_resized_crop_needs_no_fill_and_keeps_inside() -> None:
    images, _ = blocks()
    x, masks = batches((images, images[..., 0]), "resizedcrop(scale=(0.3,0.6))")
    assert np.abs(x[..., 0] - masks / np.float32(255)).mean() < 0.1 and masks.any((1, 2)).mean() > 0.5
    with refused(ConfigError, "mask_fill=0, and crop=0: no pixel of a map is filled"):
        Augment(steps="resizedcrop", mask_fill=0)
    with refused(DataError, "rotation lets pixels from outside into part 1, a map of uint8 (26, 20)",
                 'Augment(steps="rotation", mask_fill=-100)', "or leave rotation out"):
        DataLoader((images, images[..., 0]), 5, augment="rotation")


@pytest.mark.parametrize("choices", [
    dict(crop=3), dict(flip=True), dict(crop=2, flip=True), dict(altflip=True),
    dict(steps="resizedcrop(scale=(0.4,0.9))"),
    dict(steps="rotation(40)"), dict(steps="affine(degrees=25,translate=0.2,shear=10)", flip=True, crop=1)],
    ids=str)
def test_boxes_are_around_what_moves(choices: dict[str, Any]) -> None:
    images, boxes = blocks()
    for more in ({}, {"resident": False, "workers": 1}):
        x, moved = batches((images, boxes), Augment(boxes=1, **choices), **more)
        assert moved.dtype == np.float32 and moved.shape == (COUNT, 1, 4)
        turned = 0
        for image, (left, top, right, bottom) in zip(x, moved[:, 0]):
            seen = image.max(-1) > 0.99
            rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
            if not len(rows):
                continue
            assert left - 1.01 <= columns[0] and columns[-1] + 1 <= right + 1.01
            assert top - 1.01 <= rows[0] and rows[-1] + 1 <= bottom + 1.01
            if not {"rotation", "affine"} & set(str(choices.get("steps", "")).replace("(", " ").split()):
                assert right - left <= columns[-1] - columns[0] + 4 and bottom - top <= rows[-1] - rows[0] + 4
            turned += 1
        assert turned >= 8 and (moved >= 0).all() and (moved[..., ::2] <= W).all() and (moved[..., 1::2] <= H).all()
        assert not np.array_equal(np.sort(moved.reshape(-1)), np.sort(boxes.reshape(-1)))


def test_a_box_that_has_left_the_image_is_empty() -> None:
    found = Augment(steps="affine(degrees=0,translate=1,scale=(1,1))").moved_boxes(
        np.tile([0, 0, 1, 1], (40, 2, 1)), np.arange(40), (8, 8), seed=0, epoch=0)
    area = (found[..., 2] - found[..., 0]) * (found[..., 3] - found[..., 1])
    assert found.shape == (40, 2, 4) and (area == 0).mean() > 0.4 and (area >= 0).all()


def test_boxes_that_are_none_are_refused() -> None:
    images, boxes = blocks()
    with refused(DataError, "boxes=1, and augment moves no pixels", "leave boxes out"):
        DataLoader((images, boxes), 5, augment=Augment(boxes=1, steps="grey"))
    for k, parts in ((2, (images, boxes)), (1, (images, boxes[:, 0])), (1, (images, boxes[..., :3]))):
        with refused(DataError, f"boxes={k}, and a batch has uint8 (26, 20, 3)", "shape (K, 4)"):
            DataLoader(parts, 5, augment=Augment(flip=True, boxes=k))
    with refused(DataError, "augment moves images of (26, 20), and part 1 of shape (1, 4)", "boxes=1"):
        DataLoader((images, boxes), 5, augment="flip")
