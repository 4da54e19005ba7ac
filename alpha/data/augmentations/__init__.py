"""The augmentations that have a name: items of `augment=` and `--augment`, beside crop, flip, cutout and altflip."""

from alpha.data.augmentations.base import AUGMENTATIONS, Augmentation
from alpha.data.augmentations.colours import (
    AutoContrast,
    Blur,
    Equalize,
    Erasing,
    Grey,
    Invert,
    Jitter,
    Posterize,
    Sharpness,
    Solarize,
)
from alpha.data.augmentations.geometry import Affine, ResizedCrop, Rotation
from alpha.data.augmentations.mixing import CutMix, Mixup
from alpha.data.augmentations.policies import AutoAugment, RandAugment, TrivialAugment

__all__ = ["AUGMENTATIONS", "Affine", "Augmentation", "AutoAugment", "AutoContrast", "Blur", "CutMix", "Equalize",
           "Erasing", "Grey", "Invert", "Jitter", "Mixup", "Posterize", "RandAugment", "ResizedCrop", "Rotation",
           "Sharpness", "Solarize", "TrivialAugment"]
