"""Steps against torchvision's functions, where the definition is the same: values to a unit of uint8."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from alpha.data.augmentations.colours import blurs
from alpha.data.augmentations.geometry import affine_maps, crops
from alpha.data.augmentations.policies import CIFAR, NAMES, magnitudes, operation_rows
from alpha.data.augmentations.steps import fraction, moves
from alpha.ops.augment import Code
from tests.augmentation.pictures import by_torchvision, pictures, step, torchvision_functional, transformed

pytestmark = [pytest.mark.torch,
              pytest.mark.same_without_kernels("images are compared both ways here")]

IMAGES = pictures(6)
THEIRS = {"identity": "Identity", "shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateX",
          "translate_y": "TranslateY", "rotate": "Rotate", "brightness": "Brightness", "colour": "Color",
          "contrast": "Contrast", "sharpness": "Sharpness", "posterize": "Posterize", "solarize": "Solarize",
          "autocontrast": "AutoContrast", "equalize": "Equalize", "invert": "Invert"}


def agree(ours: np.ndarray, theirs: np.ndarray, units: int = 1) -> None:
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= units
    assert not np.array_equal(ours, IMAGES[:len(ours)])


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.77, 1.5, 2.6])
@pytest.mark.parametrize("code, name", [(Code.BRIGHTNESS, "adjust_brightness"), (Code.CONTRAST, "adjust_contrast"),
                                        (Code.SATURATION, "adjust_saturation"), (Code.SHARPNESS, "adjust_sharpness")])
def test_factors(code: int, name: str, factor: float) -> None:
    f = getattr(torchvision_functional(), name)
    # A grey that is one off is as many off as the factor says.
    agree(step(IMAGES, code, int(fraction(factor))), by_torchvision(IMAGES, lambda x: f(x, factor)),
          1 + math.ceil(abs(1 - factor)))


@pytest.mark.parametrize("share", [-0.5, -0.2, 0.03, 0.25, 0.5])
def test_hue(share: float) -> None:
    f = torchvision_functional().adjust_hue
    agree(step(IMAGES, Code.HUE, int(fraction(share))), by_torchvision(IMAGES, lambda x: f(x, share)))


def test_operations_without_a_fraction_have_the_same_bits() -> None:
    functional = torchvision_functional()
    dark = IMAGES // 2 + 30
    for code, number, f in ((Code.INVERT, 0, functional.invert), (Code.EQUALIZE, 0, functional.equalize),
                            (Code.POSTERIZE, 0xE0, lambda x: functional.posterize(x, 3)),
                            (Code.SOLARIZE, 77, lambda x: functional.solarize(x, 77))):
        agree(step(IMAGES, code, number), by_torchvision(IMAGES, f), 0)
        assert np.array_equal(step(dark, code, number), by_torchvision(dark, f))
    agree(step(dark, Code.AUTOCONTRAST), by_torchvision(dark, functional.autocontrast))
    agree(step(IMAGES, Code.GREY), by_torchvision(IMAGES, lambda x: functional.rgb_to_grayscale(x, 3)))


@pytest.mark.parametrize("sigma, size", [(0.4, 3), (1.3, 5), (4.0, 9)])
def test_blur(sigma: float, size: int) -> None:
    f = torchvision_functional().gaussian_blur
    agree(transformed(IMAGES, blurs(np.full(6, sigma), size // 2)),
          by_torchvision(IMAGES, lambda x: f(x, [size, size], [sigma, sigma])))


@pytest.mark.parametrize("angle, shift, scale, shear", [
    (17.0, (0, 0), 1.0, (0, 0)), (-33.0, (2, -3), 1.2, (0, 0)), (5.0, (0, 1), 0.8, (12.0, -7.0)),
    (0.0, (-4, 0), 1.0, (0, 20.0)), (180.0, (0, 0), 1.0, (0, 0))])
@pytest.mark.parametrize("bilinear", [True, False])
def test_affine(angle: float, shift: tuple[int, int], scale: float, shear: tuple[float, float], bilinear: bool) -> None:
    functional = torchvision_functional()
    mode = functional.InterpolationMode.BILINEAR if bilinear else functional.InterpolationMode.NEAREST
    theirs = by_torchvision(IMAGES, lambda x: functional.affine(x, angle, list(shift), scale, list(shear), mode,
                                                                fill=[99.0]))
    many = np.ones(6)
    maps = affine_maps(angle * many, (shift[0] * many, shift[1] * many), scale * many,
                       (shear[0] * many, shear[1] * many), (24, 20))
    rows = moves(maps, (24, 20), bilinear=bilinear, fill=99)
    differ = (np.abs(transformed(IMAGES, rows).astype(int) - theirs) > 1).any(-1)
    if bilinear:    # torchvision weighs what is at the border twice, once for the image and once for what is outside
        rows[:, :, 8] = 0
        differ = differ[(transformed(np.full_like(IMAGES, 255), rows) == 255).all(-1)]
        assert differ.size > 1500
    # Half way between two pixels each library may take the other one; bilinear values have shares of 12 bits.
    assert differ.mean() < (0.002 if bilinear else 0.01)


def test_resized_crop() -> None:
    f = torchvision_functional().resized_crop
    for box in ((0, 0, 24, 20), (3, 5, 11, 7), (20, 0, 4, 20), (23, 19, 1, 1)):
        ours = transformed(IMAGES, crops(np.tile(box, (6, 1)), (24, 20)))
        theirs = by_torchvision(IMAGES, lambda x, box=box: f(x, *box, [24, 20], antialias=False))
        assert np.abs(ours.astype(int) - theirs).max() <= 1


def magnitude_of(space: Any, name: str, level: int, bins: int) -> tuple[float, bool]:
    values, signed = space[THEIRS[name]]
    return (float(values[level]) if values.ndim > 0 else float(values)), signed


@pytest.mark.parametrize("policy", ["randaugment", "trivialaugment", "autoaugment"])
def test_operations_and_magnitudes_of_policies(policy: str) -> None:
    functional = torchvision_functional()
    from torchvision.transforms import autoaugment
    bins = 10 if policy == "autoaugment" else 31
    space = {"randaugment": lambda: autoaugment.RandAugment()._augmentation_space(31, (24, 20)),
             "trivialaugment": lambda: autoaugment.TrivialAugmentWide()._augmentation_space(31),
             "autoaugment": lambda: autoaugment.AutoAugment(
                 autoaugment.AutoAugmentPolicy.CIFAR10)._augmentation_space(10, (24, 20))}[policy]()
    names = NAMES if policy == "autoaugment" else NAMES[:-1]
    assert {THEIRS[name] for name in names} == set(space) | ({"Identity"} if policy == "autoaugment" else set())
    for name in names[policy == "autoaugment":]:
        for level in (0, 4, bins - 1):
            theirs, signed = magnitude_of(space, name, level, bins)
            which = np.full(6, NAMES.index(name))
            amount = magnitudes(which, np.full(6, level / (bins - 1)), (24, 20), wide=policy == "trivialaugment")
            assert amount[0] == pytest.approx(theirs, abs=1e-4)
            for sign in (1, -1) if signed else (1,):
                ours = transformed(IMAGES, operation_rows(which, sign * amount, (24, 20), 0))
                made = by_torchvision(IMAGES, lambda x, name=name, m=sign * theirs: autoaugment._apply_op(
                    x, THEIRS[name], m, functional.InterpolationMode.NEAREST, None))
                # Half way between two pixels, as on the diagonal at 135 degrees, each may take the other one.
                assert (np.abs(ours.astype(int) - made) > 2).any(-1).mean() < 0.04, (name, level)


def test_the_pairs_for_cifar() -> None:
    torchvision_functional()
    from torchvision.transforms import autoaugment
    theirs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10).policies
    ours = [tuple((THEIRS[NAMES[which]], p, level) for which, p, level in pair) for pair in CIFAR]
    assert ours == [tuple((name, p, level or 0) for name, p, level in pair) for pair in theirs]
