"""mixup and cutmix: shares, targets, and that nothing but (seed, epoch, image) and the order changes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn
from alpha.data import Augment, DataLoader, Dataset, Images
from alpha.data.augmentations import CutMix, Mixup
from alpha.data.augmentations.base import Draws
from alpha.data.augmentations.mixing import beta, mixed_shares
from alpha.errors import ConfigError, DataError
from alpha.training import fit
from tests.augmentation.pictures import pictures
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("images are compared both ways here")

COUNT, CLASSES = 30, 5
IMAGES = pictures(COUNT, 12, 10)
LABELS = np.arange(COUNT) % CLASSES
MEAN, STD = np.array([0.25, 0.5, 0.75], np.float32), np.array([0.5, 0.25, 1.0], np.float32)
DATA = Dataset("patterns", tuple("abcde"), MEAN, STD, IMAGES, LABELS, IMAGES, LABELS)


class Items:
    """A data set that makes its items."""

    classes = tuple("abcde")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, k: int) -> tuple[np.ndarray, int]:
        return IMAGES[k], int(LABELS[k])


def epoch_of(text: str, batch_size: int, start_step: int = 0, epoch: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    made = Images(IMAGES, LABELS, DATA, "cpu").batches(batch_size, seed=3, epoch=epoch, start_step=start_step,
                                                       augment=Augment.parse(text))
    return [(x.numpy(), y.numpy()) for x, y in made]


def joined(parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(column) for column in zip(*parts))


@pytest.mark.parametrize("alpha_", [0.05, 0.2, 0.7, 1.0, 2.0, 20.0, 100.0])
def test_shares_have_the_beta_distribution(alpha_: float) -> None:
    x = beta(alpha_, (np.arange(200_000) + 0.5) / 200_000)
    assert (np.diff(x) >= 0).all() and x[0] >= 0 and x[-1] <= 1
    assert x.mean() == pytest.approx(0.5, abs=1e-6)
    assert x.var() == pytest.approx(1 / (4 * (2 * alpha_ + 1)), rel=2e-3)
    fourth = 3 * (2 * alpha_ + 1) / (2 * alpha_ + 3)    # moment over the variance squared
    assert ((x - 0.5) ** 4).mean() / x.var() ** 2 == pytest.approx(fourth, rel=5e-3)


def test_mixup_joins_each_image_with_the_one_before_it() -> None:
    (x, y), (plain, labels) = joined(epoch_of("mixup(alpha=1)", 8)), joined(epoch_of("none", 8))
    assert x.dtype == y.dtype == np.float32 and y.shape == (COUNT, CLASSES)
    before, hot = np.roll(plain, 1, 0), np.eye(CLASSES, dtype=np.float32)[labels]
    for k in range(COUNT):
        share = np.vdot(x[k] - before[k], plain[k] - before[k]) / np.vdot(plain[k] - before[k], plain[k] - before[k])
        np.testing.assert_allclose(x[k], share * plain[k] + (1 - share) * before[k], atol=1e-5)
        np.testing.assert_allclose(y[k], share * hot[k] + (1 - share) * hot[k - 1], atol=1e-5)
    assert np.allclose(y.sum(1), 1, atol=1e-6)


def test_cutmix_shows_a_box_of_the_one_before() -> None:
    (x, y), (plain, labels) = joined(epoch_of("cutmix", 8)), joined(epoch_of("none", 8))
    before, hot, seen = np.roll(plain, 1, 0), np.eye(CLASSES)[labels], 0
    for k in range(COUNT):
        box = (x[k] != plain[k]).any(-1)
        assert np.array_equal(x[k][box], before[k][box])
        if box.any():
            rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
            area = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
            np.testing.assert_allclose(y[k], hot[k] * (1 - area / 120) + hot[k - 1] * area / 120, atol=1e-6)
            seen += 1
        else:
            assert y[k].max() == 1
    assert seen > COUNT // 2


def test_an_image_gets_one_of_several_mixings_with_its_probability() -> None:
    draws = Draws(0, 0, np.arange(4000), 3)
    shares, table = mixed_shares((Mixup(alpha=1), CutMix()), draws, (32, 32))
    by_box = table[:, 1] != table[:, 0]
    assert abs(by_box.mean() - 0.5) < 0.05 and (table[~by_box, 2:] == 0).all() and shares.dtype == np.float32
    stays = mixed_shares((Mixup(alpha=1, p=0.25),), draws, (32, 32))[0] == 1
    assert abs(stays.mean() - 0.75) < 0.03
    assert abs((mixed_shares((CutMix(p=0.25),), draws, (32, 32))[0] == 1).mean() - 0.75) < 0.04


@pytest.mark.parametrize("text", ["mixup", "mixup=0.5,cutmix,crop=2,flip", "altflip,randaugment,cutmix"])
def test_batches_workers_and_a_resumed_epoch_change_nothing(text: str) -> None:
    whole = joined(epoch_of(text, 7))
    for size in (1, 8, 30):
        assert all(np.array_equal(a, b) for a, b in zip(joined(epoch_of(text, size)), whole))
    rest = joined(epoch_of(text, 7, start_step=2))
    assert all(np.array_equal(a, b[14:]) for a, b in zip(rest, whole))
    sources: list[tuple[Any, dict[str, Any]]] = [
        ((IMAGES, LABELS), {}), ((IMAGES, LABELS), {"resident": False}), (DATA, {"workers": 2}), (Items(), {}),
        (Items(), {"workers": 3}), ((IMAGES, np.eye(CLASSES, dtype=np.float32)[LABELS]), {})]
    for source, more in sources:
        loader = DataLoader(source, 7, shuffle=True, seed=3, augment=text, mean=MEAN, std=STD, **more)
        found = joined([tuple(t.numpy() for t in batch) for batch in loader.batches(4)])
        assert all(np.array_equal(a, b) for a, b in zip(found, whole)), more
        loader.close()
    assert not np.array_equal(joined(epoch_of(text, 7, epoch=5))[0], whole[0])


def test_a_dropped_last_batch_leaves_the_others() -> None:
    loaders = [DataLoader((IMAGES, LABELS), 8, augment="mixup", drop_last=drop) for drop in (False, True)]
    all_, most = ([(x.numpy(), y.numpy()) for x, y in loader.batches(0)] for loader in loaders)
    assert len(all_) == 4 and len(most) == 3
    assert all(np.array_equal(a, b) for one, other in zip(most, all_) for a, b in zip(one, other))


def test_labels_and_classes_that_do_not_fit_are_refused() -> None:
    with refused(DataError, "the number of classes is not known", 'augment="mixup(classes=10)"'):
        DataLoader([(IMAGES[0], 0), (IMAGES[1], 1)], 2, augment="mixup")
    assert next(iter(DataLoader([(i, 0) for i in IMAGES], 2, augment="mixup(classes=7)")))[1].shape == (2, 7)
    with refused(DataError, "labels reach from 0 to 4, and targets have 3 classes", "mixup(classes=5)"):
        list(DataLoader((IMAGES, LABELS), 8, augment="mixup(classes=3)"))
    with refused(DataError, "mixup mixes images with their labels", "leave mixup out"):
        DataLoader((IMAGES, IMAGES[..., 0]), 8, augment="mixup(classes=3)")
    with refused(DataError, "cutmix mixes images with their labels"):
        DataLoader((IMAGES,), 8, augment="cutmix(classes=3)")
    with refused(ConfigError, "mixings are for 3 and 4 classes", "write classes= once"):
        Augment.parse("mixup(classes=3),cutmix(classes=4)")
    with refused(DataError, "augment is for images of 8 bits"):
        DataLoader((IMAGES.astype(np.float32), LABELS), 8, augment="mixup")


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce_with_logits"])
def test_losses_and_metrics_take_mixed_targets(loss: str) -> None:
    alpha.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12 * 10 * 3, CLASSES))
    metrics = {} if loss == "cross_entropy" else {"metrics": alpha.training.metrics.accuracy}
    val = {} if loss != "cross_entropy" else {"val_data": (IMAGES, LABELS)}
    history = fit(model, (IMAGES, LABELS), **val, epochs=40, batch_size=10, lr=0.02, mean=0.5, std=0.25, loss=loss,
                  augment="mixup,cutmix(p=0.5)", progress=False, **metrics)
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert 0.5 < history["train_accuracy"][-1] <= 1
    if val:
        assert history["val_accuracy"][-1] > 0.8


def test_rows_that_are_made_ahead_are_those_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "randaugment,jitter,flip"
    whole = joined(epoch_of(text, 7))
    for ahead in (1, 8, 14, 1000):
        monkeypatch.setattr("alpha.data.augment.AHEAD", ahead)
        assert all(np.array_equal(a, b) for a, b in zip(joined(epoch_of(text, 7)), whole))
    streamed = DataLoader(Items(), 7, shuffle=True, seed=3, augment=text, mean=MEAN, std=STD).batches(4)
    assert all(np.array_equal(x.numpy(), whole[0][7 * k:7 * k + 7]) for k, (x, _) in enumerate(streamed))
