"""Names and settings of augmentations: one registry for texts, lists and objects; what is refused, in which words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from alpha.data import Augment, DataLoader
from alpha.data.augmentations import AUGMENTATIONS, Affine, Erasing, Mixup, RandAugment
from alpha.data.augmentations.base import Draws
from alpha.errors import ArgumentError, ConfigError, DataError
from tests.augmentation.pictures import pictures
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("images are compared both ways here")

IMAGES, LABELS = pictures(12), np.arange(12)


def test_texts_lists_and_objects_say_the_same() -> None:
    parsed = Augment.parse("crop=2, randaugment(n=1, m=5), erasing(0.25, value=mean), flip")
    made = Augment(crop=2, flip=True, steps=[RandAugment(n=1, m=5), Erasing(p=0.25)])
    assert parsed == made == Augment.of(["crop=2", "flip", RandAugment(1, 5), "erasing(p=.25)"])
    assert Augment(steps="grey=0.2").steps == Augment.of(AUGMENTATIONS["grey"](0.2)).steps
    assert Augment.of(None) == Augment() and Augment.of(made) is made
    batches = [[x.numpy() for x, _ in DataLoader((IMAGES, LABELS), 5, augment=given)]
               for given in ("rotation=40,mixup(classes=12)", ["rotation(40)", Mixup(classes=12)],
                             Augment(steps=["rotation=40", "mixup(classes=12)"]))]
    assert all(np.array_equal(a, b) for other in batches[1:] for a, b in zip(batches[0], other))


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_the_text_of_an_augmentation_is_read_back(name: str) -> None:
    cls = AUGMENTATIONS[name]
    plain = cls()
    assert plain.name == name and str(plain) == name and cls.__doc__
    other = dataclasses.replace(plain, p=0.125)  # type: ignore[type-var]
    assert str(other) == f"{name}(p=0.125)" and Augment.parse(str(other)).steps == (other,)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        assert field.name in cls.__doc__ or f"{cls.__doc__}".count("as of"), field.name


def test_ranges_are_read_back() -> None:
    one = Affine(degrees=3, scale=(0.5, 2.0), fill="mean", bilinear=False)
    assert Augment.parse(str(one)).steps == (one,)


@pytest.mark.parametrize("text, shown", [
    ("erasin", ("'erasin' is unknown; did you mean 'erasing'?", "crop, flip, altflip, cutout, none, affine")),
    ("randaugment(k=2)", ("randaugment: there is no setting 'k'", "use one of n, m, fill, p")),
    ("randaugment(mm=2)", ("there is no setting 'mm'; did you mean 'm'?",)),
    ("erasing(p=2)", ("p is 2, a number in [0, 1] is needed",)),
    ("randaugment(n=0)", ("n is 0, an int from 1 to 8 is needed",)),
    ("randaugment(m=31)", ("m is 31, an int from 0 to 30 is needed",)),
    ("erasing(scale=(0.5,0.2))", ("erasing: scale=(0.5, 0.2) begins above its end", "scale=(0.2,0.5)")),
    ("erasing(ratio=(3,0.2))", ("ratio=(3.0, 0.2) begins above its end",)),
    ("resizedcrop(scale=0.5)", ("a pair of numbers in (0, 1] is needed",)),
    ("resizedcrop(scale=(0.5,0.1))", ("resizedcrop: scale=(0.5, 0.1) begins above",)),
    ("resizedcrop(ratio=(2,1))", ("resizedcrop: ratio=(2.0, 1.0) begins above",)),
    ("affine(scale=(2,1))", ("affine: scale=(2.0, 1.0) begins above",)),
    ("blur(sigma=(2,1))", ("blur: sigma=(2.0, 1.0) begins above",)),
    ("blur(kernel_size=4)", ("blur: kernel_size=4 has no middle", "odd number from 3 to 27")),
    ("blur(kernel_size=29)", ("an int from 1 to 27",)),
    ("jitter(0,0,0,0)", ("jitter: brightness, contrast, saturation and hue are all 0", "leave jitter out")),
    ("erasing(value=red)", ('value is "red"', "mean")),
    ("mixup(alpha=0)", ("alpha is 0, a number in (0, 100] is needed",)),
    ("rotation(degrees=200)", ("a number in [0, 180] is needed",)),
    ("grey,grey(p=1)", ("'grey' is named twice",)),
    ("grey(0.5,p=0.5)", ("gives a setting twice", "give each once by its name: p")),
    ("grey(1,2)", ("gives a setting twice, or more than there are",)),
    ("grey(p=", ("is no name with settings", 'write "grey"')),
    ("grey(p=open)", ('p is "open"',)),
    ("grey(p=print(1))", ("is no name with settings",)),
    ("2 grey", ("is no name with settings",)),
    ("grey(p=inf)", ("is no name with settings",)),
    ("(" * 3000, ("is no name with settings",)),
    ("lambda", ("'lambda' is unknown",)),
])
def test_texts_are_refused_with_what_to_write(text: str, shown: tuple[str, ...]) -> None:
    with pytest.raises((ConfigError, ArgumentError), match=r"\nhelp: ") as caught:
        Augment.parse(text)
    assert all(part in str(caught.value) for part in shown), str(caught.value)


def test_steps_and_channels_that_do_not_fit_are_refused() -> None:
    with refused(ConfigError, "steps is 3, names or augmentations are needed", "randaugment(n=2,m=9)"):
        Augment(steps=3)
    with refused(DataError, "jitter is for images of 1 or 3 channels, these have 4", "leave jitter out"):
        DataLoader((np.zeros((2, 4, 4, 4), np.uint8), LABELS[:2]), 2, augment="jitter")


def test_every_place_of_a_list_draws_its_own_numbers() -> None:
    first, second = (Draws(1, 2, np.arange(50), place) for place in (0, 1))
    words = np.stack([draws.words(k) for draws in (first, second) for k in (0, 5, 63)])
    assert len({row.tobytes() for row in words}) == 6
    again = Draws(1, 2, np.arange(50)[::-1], 0)
    assert np.array_equal(again.words(5)[::-1], first.words(5))
    assert not np.array_equal(Draws(1, 3, np.arange(50), 0).words(5), first.words(5))
    assert not np.array_equal(Draws(2, 2, np.arange(50), 0).words(5), first.words(5))
