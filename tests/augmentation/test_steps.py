"""ops.transform_images and ops.mix_images on the CPU: compiled and NumPy's versions have the same bits; refusals."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.cpu.augment.steps import mirrored
from alpha.data.augmentations import AUGMENTATIONS
from alpha.errors import DTypeError, ShapeError
from alpha.ops.augment import Code
from tests.augmentation.pictures import MEAN, draws, pictures, step, transformed
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("images are compared both ways here")

SINGLE = sorted(name for name, cls in AUGMENTATIONS.items() if not cls().mixes)


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("shape", [(24, 20, 3), (7, 5, 1), (1, 1, 3), (2, 3, 3), (3, 40, 1)], ids=str)
def test_compiled_steps_are_numpys_in_every_bit(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(12, *shape)
    images[0] = 7
    rows = AUGMENTATIONS[name]().rows(draws(12), shape[:2])
    with config(cpu_kernels=False):
        expected = transformed(images, rows)
    assert np.array_equal(transformed(images, rows), expected)


@pytest.mark.parametrize("radius", [1, 4, 13])
def test_a_blur_wider_than_the_image_mirrors_it_again(radius: int) -> None:
    from alpha.data.augmentations.colours import blurs
    images = pictures(3, 4, 3)
    rows = blurs(np.array([0.7, 3.0, 50.0]), radius)
    with config(cpu_kernels=False):
        expected = transformed(images, rows)
    assert np.array_equal(transformed(images, rows), expected)
    padded = np.pad(images.astype(float), ((0, 0), (radius, radius), (radius, radius), (0, 0)), "reflect")
    for k in range(3):
        weights = rows[k, 0, 2:3 + radius] / 65536
        line = np.concatenate([weights[:0:-1], weights])
        inner = sum(line[i] * line[j] * padded[k, i:i + 4, j:j + 3] for i in range(len(line)) for j in range(len(line)))
        assert np.abs(inner - expected[k]).max() < 0.51


def test_places_outside_are_mirrored_at_the_ends() -> None:
    for n in (2, 3, 5):
        reach = np.arange(-3 * n, 4 * n)
        expected = np.pad(np.arange(n), (3 * n, 3 * n), "reflect")
        assert np.array_equal(mirrored(reach, n), expected)


def test_an_image_without_steps_is_copied(cpu_kernels: str) -> None:
    images = pictures(4)
    for rows in (np.zeros((4, 0, 16), np.int32), np.zeros((4, 3, 16), np.int32)):
        y = transformed(images, rows)
        assert np.array_equal(y, images) and not np.shares_memory(y, images)


def test_steps_follow_each_other_and_keep_is_passed_over(cpu_kernels: str) -> None:
    images, rows = pictures(4), np.zeros((4, 5, 16), np.int32)
    rows[:, 1, 0] = Code.INVERT
    rows[:, 3, :2] = Code.POSTERIZE, 0xF0
    rows[1, 3, 0] = rows[2, :, 0] = Code.KEEP
    y = transformed(images, rows)
    assert np.array_equal(y[0], (255 - images[0]) & 0xF0) and np.array_equal(y[1], 255 - images[1])
    assert np.array_equal(y[2], images[2]) and np.array_equal(y[3], (255 - images[3]) & 0xF0)


def test_images_are_taken_by_index(cpu_kernels: str) -> None:
    images, index = pictures(5), np.array([4, 4, 0])
    rows = np.zeros((3, 1, 16), np.int32)
    rows[1, 0, 0] = Code.INVERT
    y = ops.transform_images(*[alpha.tensor(a) for a in (images, index, rows, MEAN)]).numpy()
    assert np.array_equal(y, np.stack([images[4], 255 - images[4], images[0]]))


def test_erasing_paints_the_mean_noise_or_a_value(cpu_kernels: str) -> None:
    images = pictures(2, 30, 28)
    for fill, word in ((-1, 0), (9, 0), (-2, 12345)):
        y = step(images, Code.ERASE, 3, 4, 20, 26, fill, word)
        inside = y[:, 3:20, 4:26]
        rest = np.ones(images.shape, bool)
        rest[:, 3:20, 4:26] = False
        assert np.array_equal(y[rest], images[rest])
        if fill == -1:
            assert (inside == np.array([64, 128, 191])).all()
        elif fill == 9:
            assert (inside == 9).all()
        else:
            counts = np.bincount(inside[0].reshape(-1), minlength=256)
            assert np.array_equal(inside[0], inside[1]) and abs(inside.mean() - 127.5) < 6 and counts.max() < 20
    other = step(images, Code.ERASE, 3, 4, 20, 26, -2, 12346)
    assert not np.array_equal(other, y)


def test_the_op_refuses_what_does_not_fit() -> None:
    images, index, rows = pictures(2), np.arange(2), np.zeros((2, 1, 16), np.int32)

    def call(*given: np.ndarray) -> None:
        ops.transform_images(*[alpha.tensor(a) for a in given])

    with refused(DTypeError, "transform_images: images has dtype float32, uint8 is needed", 'images.astype("uint8")'):
        call(images.astype(np.float32), index, rows, MEAN)
    with refused(DTypeError, "rows has dtype int64, int32 is needed"):
        call(images, index, rows.astype(np.int64), MEAN)
    for wrong in (rows[:1], rows[..., :9], rows[:, 0]):
        with refused(ShapeError, "transform_images: the shapes do not fit", "rows for each image"):
            call(images, index, wrong, MEAN)
    with refused(ShapeError, "index reaches from 0 to 2, there are 2 images", "number the images from 0"):
        call(images, np.array([0, 2]), rows, MEAN)
    with refused(ShapeError, "images are 1 x 4097 pixels, 4096 are the most of an edge", "scale them down"):
        call(np.zeros((1, 1, 4097, 1), np.uint8), index[:1], rows[:1], MEAN[:1])


def test_mixing_is_its_equation(cpu_kernels: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 6, 7, 3)).astype(np.float32)
    table = np.array([[0.3, 0.3, 0, 0, 0, 0], [1, 0, 1, 2, 4, 7], [1, 1, 0, 0, 0, 0], [0.25, 0.75, 0, 0, 6, 3]],
                     np.float32)
    y = ops.mix_images(alpha.tensor(x), alpha.tensor(table)).numpy()
    for k, (outside, inside, top, left, bottom, right) in enumerate(table):
        share = np.full((6, 7, 1), outside, np.float32)
        share[int(top):int(bottom), int(left):int(right)] = inside
        assert np.array_equal(y[k], share * x[k + 1] + (np.float32(1) - share) * x[k])
    assert np.array_equal(y[2], x[3])


def test_mixing_refuses_what_does_not_fit() -> None:
    x, table = np.zeros((3, 4, 4, 1), np.float32), np.zeros((2, 6), np.float32)
    with refused(DTypeError, "mix_images: table has dtype float64, float32 is needed", 'table.astype("float32")'):
        ops.mix_images(alpha.tensor(x), alpha.tensor(table, "float64"))
    with refused(ShapeError, "mix_images: x has shape (2, 4, 4, 1), table (2, 6)", "one image more"):
        ops.mix_images(alpha.tensor(x[:2]), alpha.tensor(table))
