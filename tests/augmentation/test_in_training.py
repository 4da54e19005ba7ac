"""Augmentations in the training program: mixed targets from end to end, views at test time, the page's pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from alpha.data import Augment, Dataset, Images
from alpha.errors import ConfigError
from benchmarks import augmentation_pictures
from tests.augmentation.pictures import pictures
from tests.op_checks import refused
from train.config import parse
from train.evaluation import batch_of_views
from train.program import main

pytestmark = pytest.mark.same_without_kernels("images are compared both ways here")

MEAN, STD = np.array([0.25, 0.5, 0.75], np.float32), np.array([0.5, 0.25, 1.0], np.float32)


def test_a_run_with_mixed_targets_resumes_with_the_same_bits(tmp_path: Path) -> None:
    flags = ["--dataset", "synthetic", "--device", "cpu", "--batch-size", "512", "--val-size", "64", "--augment",
             "randaugment,mixup,cutmix(p=0.5)", "--tta", "crop=2", "--tta-views", "2"]
    assert main([*flags, "--max-steps", "4", "--output", str(tmp_path / "whole")]) == 0
    assert main([*flags, "--max-steps", "2", "--output", str(tmp_path / "parts")]) == 0
    assert main([*flags, "--max-steps", "4", "--output", str(tmp_path / "parts"), "--resume"]) == 0
    whole, parts = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "parts"))
    assert whole["test_accuracy"] == parts["test_accuracy"] and whole["last"]["loss"] == parts["last"]["loss"]


def test_views_are_draws_of_augmentations() -> None:
    images, labels = pictures(10, 12, 12), np.arange(10) % 3
    data = Dataset("x", tuple("abc"), MEAN, STD, images, labels, images, labels)
    source = Images(images, labels, data, "cpu")
    found = [batch_of_views(source, np.arange(10)[k:k + 4], "rotation=30,flip", 3) for k in (0, 4, 8)]
    assert [len(views) for views, _ in found] == [3, 3, 3] and [len(y) for _, y in found] == [4, 4, 2]
    for k in range(3):
        expected = list(source.batches(4, epoch=k, shuffle=False, augment=Augment.parse("rotation=30,flip")))
        assert all(np.array_equal(x.numpy(), views[k].numpy()) for (x, _), (views, _) in zip(expected, found))
    assert len(batch_of_views(source, np.arange(4), "mirror_shift", 3)[0]) == 6


def test_views_that_cannot_be_are_refused() -> None:
    with refused(ConfigError, "tta: 'mixup' is not allowed, expected augmentations of one image", "leave mixup out"):
        parse(["--tta", "mixup"])
    with refused(ConfigError, "'mirro' is unknown"):
        parse(["--tta", "mirro"])
    with refused(ConfigError, "--tta-views has no effect beside --tta none"):
        parse(["--tta-views", "4"])
    with refused(ConfigError, "tta_views: 1 is not allowed"):
        parse(["--tta", "flip", "--tta-views", "1"])
    assert parse(["--tta", "crop=1,flip", "--tta-views", "4"]).tta_views == 4


def test_the_pictures_of_the_page_are_of_every_augmentation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert augmentation_pictures.main([str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    rows = dict(augmentation_pictures.rows())
    plain = rows.pop("none")
    assert len(rows) >= 22 and all((images != plain).any() for images in rows.values())
