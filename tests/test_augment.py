"""Augmentation and batches: what they do to a pixel, their statistics, and that they depend on nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.cpu.augment import augmented, below, image_words, mean_colour, normalized
from alpha.data import Augment, Dataset, Images, steps_per_epoch
from alpha.errors import ConfigError, DataError, DTypeError, ShapeError
from alpha.ops.augment import WORDS_PER_IMAGE
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
COUNT = 50
LABELS = np.arange(COUNT, dtype=np.int64)
# Pixel (row, column) of every image holds (row + 1, column + 1, image + 1), so 0 can only be padding.
ROWS, COLUMNS = np.mgrid[1:13, 1:11]
IMAGES = np.stack([np.stack([ROWS, COLUMNS, np.full_like(ROWS, k + 1)], -1) for k in range(COUNT)]).astype(np.uint8)
ALL = Augment(crop=2, flip=True, cutout=4)
MEAN, STD = np.array([0.25, 0.5, 0.75], np.float32), np.array([0.5, 0.25, 1.0], np.float32)
BLACK = np.zeros(3, np.uint8)
DATA = Dataset("numbered", tuple(map(str, range(COUNT))), MEAN, STD, IMAGES, LABELS, IMAGES, LABELS)


def words_of(count, seed=0):
    return image_words(seed, 0, count)


def test_parse():
    assert Augment.parse("none") == Augment()
    assert Augment.parse("crop,flip,cutout") == Augment(4, True, 16)
    assert Augment.parse(" cutout=8 , crop=2") == Augment(2, False, 8)


@pytest.mark.parametrize("text, shown", [("", "''"), ("crop,none", "'none' is unknown"), ("flip,flip", "twice"),
                                         ("crop=", "size ''"), ("crop=65", "1 to 64"), ("crop=-1", "1 to 64"),
                                         ("cutout=²", "1 to 64"), ("crop=" + "9" * 5000, "1 to 64")])
def test_parse_refuses(text, shown):
    with pytest.raises(ConfigError, match=r"^augment: ") as caught:
        Augment.parse(text)
    assert shown in str(caught.value) and "\nhelp: " in str(caught.value)


def looks(colour=BLACK, images=IMAGES, **choices):
    """The images after augmentation; they themselves stay as they are."""
    return augmented(images.copy(), words_of(len(images)), colour, **choices)


def tensors(images=IMAGES, index=LABELS, mean=MEAN, std=STD):
    return [alpha.tensor(a) for a in (images, index, mean, std)]


def test_the_op_is_its_parts():
    index = np.array([7, 7, 0, 49])
    y = ops.augment_images(*tensors(index=index), seed=5, epoch=2, crop=2, flip=True, cutout=4)
    words = image_words(5, 2, COUNT)[index]
    parts = normalized(augmented(IMAGES[index], words, mean_colour(MEAN), crop=2, flip=True, cutout=4), MEAN, STD)
    assert y.dtype == "float32" and np.array_equal(y.numpy(), parts)
    assert np.array_equal(ops.augment_images(*tensors(index=index)).numpy(), normalized(IMAGES[index], MEAN, STD))


def test_the_op_refuses_what_does_not_fit():
    with refused(DTypeError, "augment_images: images has dtype float32, uint8 is needed"):
        ops.augment_images(*tensors(images=IMAGES.astype(np.float32)))
    with refused(DTypeError, "index has dtype int32, int64 is needed"):
        ops.augment_images(*tensors(index=LABELS.astype(np.int32)))
    with refused(ShapeError, "mean, std (C,) are needed", "mean: (2,)"):
        ops.augment_images(*tensors(mean=MEAN[:2]))
    with refused(ShapeError, "index reaches from -1 to 50, there are 50 images"):
        ops.augment_images(*tensors(index=np.array([0, -1, 50])))
    for std in (STD * 0, np.array([0.5, -1, 1], np.float32), STD * np.float32(np.nan)):
        with refused(ConfigError, "augment_images: std is [", "pass a std above 0"):
            ops.augment_images(*tensors(std=std))
    with refused(ConfigError, "crop is -1, an int of at least 0 is needed"):
        ops.augment_images(*tensors(), crop=-1)


def test_nothing_changes_without_augmentation_and_the_input_never_does():
    before = IMAGES.copy()
    assert np.array_equal(looks(), IMAGES)
    ops.augment_images(*tensors(), crop=2, flip=True, cutout=4)
    list(Images(IMAGES, LABELS, DATA, "cpu").batches(8, augment=ALL))
    assert np.array_equal(IMAGES, before)


def test_crop_is_a_shift_with_black_borders():
    out = looks(crop=3).astype(int)
    padded = np.pad(IMAGES, ((0, 0), (3, 3), (3, 3), (0, 0)))
    seen = set()
    for k in range(COUNT):
        shifts = [(i, j) for i in range(7) for j in range(7)
                  if np.array_equal(out[k], padded[k, i : i + 12, j : j + 10])]
        assert len(shifts) == 1
        seen.add(shifts[0])
    assert {i for i, _ in seen} == {j for _, j in seen} == set(range(7))


def test_flip_mirrors_columns_only():
    out = looks(flip=True)
    mirrored = (out != IMAGES).any((1, 2, 3))
    assert 10 < mirrored.sum() < 40
    assert np.array_equal(out[mirrored], IMAGES[mirrored][:, :, ::-1])


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_cutout_paints_one_rectangle_in_the_fill_colour(size):
    fill = np.array([200, 201, 202], np.uint8)
    out = looks(fill, cutout=size)
    for k in range(COUNT):
        hole = (out[k] != IMAGES[k]).any(-1)
        rows, columns = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
        for lines, extent in ((rows, 12), (columns, 10)):
            assert min((size + 1) // 2, extent) <= len(lines) <= min(size, extent)
        assert hole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert hole.sum() == len(rows) * len(columns)
        assert (out[k][hole] == fill).all()


def test_cutout_reaches_every_pixel():
    images = np.zeros((2000, 12, 10, 1), np.uint8)
    hits = looks(np.array([1], np.uint8), images, cutout=1)
    assert (hits.sum((1, 2, 3)) == 1).all() and hits.any(0).all()


def test_one_channel():
    out = looks(np.array([255], np.uint8), IMAGES[..., :1], crop=1, flip=True, cutout=3)
    assert out.shape == (COUNT, 12, 10, 1) and (out == 255).any((1, 2, 3)).all()


def test_statistics():
    """Over 20,000 images every position is as frequent as the next, and the choices are independent."""
    count = 20_000
    words = words_of(count, seed=5)
    top, left = below(words[:, 0], 9), below(words[:, 1], 9)
    row, column = below(words[:, 2], 32), below(words[:, 3], 32)
    flip = words[:, 0] & 1
    for values, bins in ((top, 9), (left, 9), (row, 32), (column, 32), (flip, 2), (9 * top + left, 81),
                         (2 * top + flip, 18), (2 * left + flip, 18), (32 * row + column, 1024), (9 * row + top, 288)):
        observed = np.bincount(values, minlength=bins)
        assert len(observed) == bins
        chi_square = ((observed - count / bins) ** 2).sum() / (count / bins)
        assert abs(chi_square - (bins - 1)) < 5 * np.sqrt(2 * (bins - 1)), bins


def test_below_covers_the_ends():
    ends = np.array([0, 2**32 - 1], np.uint32)
    for limit in (1, 3, 9, 32, 1 << 31):
        assert below(ends, limit).tolist() == [0, limit - 1]


def test_words_differ_by_seed_epoch_and_image():
    first = image_words(0, 0, 64)
    assert first.shape == (64, WORDS_PER_IMAGE) and first.dtype == np.uint32
    assert np.array_equal(image_words(0, 0, 40), first[:40])
    for other in (image_words(1, 0, 64), image_words(0, 1, 64), image_words(0, 99_999, 64), np.roll(first, 1, 0)):
        assert not (other == first).all(1).any()


def test_normalize_matches_float64():
    expected = (IMAGES / 255.0 - MEAN) / STD
    out = normalized(IMAGES, MEAN, STD)
    assert out.dtype == np.float32 and out.shape == IMAGES.shape and out.flags.c_contiguous
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)
    assert mean_colour(MEAN).tolist() == [64, 128, 191]
    np.testing.assert_allclose(normalized(mean_colour(MEAN).reshape(1, 1, 1, 3), MEAN, STD), 0, atol=1 / 255 / 0.25)


def epoch_of(batch_size, start_step=0, **options):
    options = {"seed": 3, "epoch": 7, "augment": ALL, **options}
    images = Images(IMAGES, LABELS, DATA, "cpu")
    return [(x.numpy(), y.numpy()) for x, y in images.batches(batch_size, start_step=start_step, **options)]


def joined(parts):
    return tuple(np.concatenate(column) for column in zip(*parts))


@settings(max_examples=30, deadline=None)
@given(batch_size=st.integers(1, 60), other=st.integers(1, 60))
def test_an_image_looks_the_same_in_any_batch(batch_size, other):
    (x1, y1), (x2, y2) = joined(epoch_of(batch_size)), joined(epoch_of(other))
    assert np.array_equal(y1, y2) and np.array_equal(x1, x2)  # bitwise


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_resumed_epoch_goes_on_where_it_stopped(data):
    batch_size = data.draw(st.integers(1, 60))
    whole = epoch_of(batch_size)
    start = data.draw(st.integers(0, len(whole)))
    rest = epoch_of(batch_size, start)
    assert len(rest) == len(whole) - start
    for (x1, y1), (x2, y2) in zip(whole[start:], rest):
        assert np.array_equal(x1, x2) and np.array_equal(y1, y2)


def test_an_epoch_visits_every_image_once_in_a_new_order():
    orders = {tuple(joined(epoch_of(8, seed=seed, epoch=epoch))[1]) for seed in (0, 1) for epoch in range(5)}
    assert len(orders) == 10
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert joined(epoch_of(8, shuffle=False))[1].tolist() == list(range(COUNT))


def test_labels_stay_with_their_images():
    x, y = joined(epoch_of(8, augment=Augment()))
    assert x.dtype == np.float32 and y.dtype == np.int64
    assert np.array_equal(x, normalized(IMAGES[y], MEAN, STD))


def test_an_image_is_augmented_anew_in_each_epoch():
    epochs = [joined(epoch_of(COUNT, epoch=epoch)) for epoch in range(4)]
    image = [x[y == 11].tobytes() for x, y in epochs]
    assert len(set(image)) == 4


def test_the_last_batch():
    assert [len(y) for _, y in epoch_of(20)] == [20, 20, 10]
    assert [len(y) for _, y in epoch_of(20, drop_last=True)] == [20, 20]
    assert (steps_per_epoch(50, 20), steps_per_epoch(50, 20, True), steps_per_epoch(40, 20)) == (3, 2, 2)


@pytest.mark.parametrize("options, shown", [
    ({"batch_size": 0}, "no batch of 0"), ({"batch_size": 51, "drop_last": True}, "no batch of 51"),
    ({"batch_size": 8, "epoch": -1}, "epoch -1"), ({"batch_size": 8, "start_step": -1}, "step -1"),
    ({"batch_size": 8, "start_step": 8}, "step 8 does not exist: there are 7"),
])
def test_batches_refuse_at_the_call(options, shown):
    with pytest.raises(DataError, match=r"^batches: [\s\S]*\nhelp: ") as caught:
        Images(IMAGES, LABELS, DATA, "cpu").batches(**options)
    assert shown in str(caught.value)


def test_images_refuse_a_label_too_few():
    with refused(DataError, "images: there are 50 images and 49 labels"):
        Images(IMAGES, LABELS[1:], DATA, "cpu")


def test_the_cpu_shares_the_images():
    assert np.shares_memory(Images(IMAGES, LABELS, DATA, "cpu").images.array, IMAGES)


def test_batches_of_labels_refuse_a_fill_of_masks():
    with refused(ConfigError, "batches: mask_fill=-100, and there are labels and no masks"):
        epoch_of(8, augment=Augment(crop=2, mask_fill=-100))
