"""Steps of images and their mixing in CUDA against the CPU's: the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops import augment
from alpha.data import DataLoader, Images
from alpha.data.augment import Augment
from alpha.data.augmentations import AUGMENTATIONS
from alpha.data.sets import Dataset
from tests.augmentation.pictures import MEAN, draws, pictures
from tests.augmentation.test_steps import SINGLE
from tests.cuda.agree import Case, agree

pytestmark = pytest.mark.cuda

EVERYTHING = ("erasing,grey=0.3,jitter,blur,affine,resizedcrop,randaugment,trivialaugment,autoaugment,sharpness,"
              "posterize,solarize,equalize,autocontrast,invert,rotation")


def case(name: str, count: int, *shape: int) -> Case:
    images = pictures(count, *shape)
    images[0] = 7
    rows = Augment(steps=name).rows(np.arange(count), shape, seed=5, epoch=2)
    return Case("transform_images", images, np.arange(count)[::-1].copy(), rows, MEAN[:shape[2]], exact=True)


@pytest.mark.parametrize("name", SINGLE)
def test_steps_agree_with_the_cpu_in_every_bit(name: str) -> None:
    agree(case(name, 5, 9, 11, 3))


@pytest.mark.parametrize("shape", [(24, 20, 3), (7, 5, 1), (1, 1, 3), (2, 3, 3)], ids=str)
def test_all_steps_one_after_another(shape: tuple[int, int, int]) -> None:
    agree(case(EVERYTHING, 3, *shape))


def test_no_steps_and_no_images() -> None:
    images = pictures(3)
    agree(Case("transform_images", images, np.arange(3), np.zeros((3, 0, 16), np.int32), MEAN, exact=True))
    agree(Case("transform_images", images, np.arange(0), np.zeros((0, 2, 16), np.int32), MEAN, exact=True))


def test_an_index_out_of_range_yields_a_black_image() -> None:
    rows = AUGMENTATIONS["jitter"]().rows(draws(3), (24, 20))
    args = (pictures(3), np.array([1, -1, 3]), rows, MEAN)
    y = ops.transform_images(*[alpha.tensor(a, device="cuda") for a in args]).numpy()
    assert y[0].any() and not y[1:].any()


def test_mixing_agrees_with_the_cpu_in_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = np.array([[0.3, 0.3, 0, 0, 0, 0], [1, 0, 1, 2, 4, 7], [0.25, 0.75, 0, 0, 6, 3]], np.float32)
    one = Case("mix_images", rng.standard_normal((4, 6, 7, 3)).astype(np.float32), table, exact=True)
    agree(one)
    monkeypatch.setattr(augment, "MAX_BLOCKS", 1)
    agree(Case("mix_images", rng.standard_normal((4, 12, 9, 5)).astype(np.float32), table, exact=True))


@pytest.mark.parametrize("text", ["randaugment(n=1),crop=2,flip", "jitter,altflip,mixup,cutmix"])
def test_batches_are_those_of_the_cpu(text: str) -> None:
    pixels, labels = pictures(11, 8, 8), np.arange(11) % 4
    data = Dataset("random", tuple("abcd"), MEAN, MEAN, pixels, labels, pixels, labels)
    augmentation = Augment.parse(text)
    for make in (lambda device: Images(pixels, labels, data, device).batches(4, seed=3, epoch=5, augment=augmentation),
                 lambda device: DataLoader((pixels, labels), 4, augment=text, seed=3, shuffle=True, device=device,
                                           workers=1).batches(5)):
        for here, there in zip(make("cpu"), make("cuda"), strict=True):
            for ours, theirs in zip(here, there):
                assert theirs.device == "cuda" and ours.numpy().tobytes() == theirs.numpy().tobytes()
