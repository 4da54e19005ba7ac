"""DataLoader: any source, any number of workers, the same batches; and what it says of data that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha.data import Augment, DataLoader, Dataset, ImageFolder, Images, items
from alpha.errors import ConfigError, DataError
from tests.loader_sets import IMAGES, LABELS, Draws, Items, noisy
from tests.op_checks import refused

MEAN, STD = np.array([0.25, 0.5, 0.75], np.float32), np.array([0.5, 0.25, 1.0], np.float32)
SETTINGS: dict[str, Any] = dict(shuffle=True, seed=3, augment="crop=2,flip,cutout=4", mean=MEAN, std=STD)


def epochs(loader: DataLoader, count: int = 2) -> list[tuple[np.ndarray, ...]]:
    return [tuple(t.numpy() for t in batch) for _ in range(count) for batch in loader]


def same(a: list, b: list) -> None:
    assert len(a) == len(b) > 0
    for first, second in zip(a, b):
        assert all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(first, second, strict=True))


def test_batches_are_those_of_images_that_are_resident() -> None:
    data = Dataset("x", tuple("abcde"), MEAN, STD, IMAGES, LABELS, IMAGES, LABELS)
    images = Images(IMAGES, LABELS, data, "cpu")
    expected = [tuple(t.numpy() for t in batch) for epoch in range(2)
                for batch in images.batches(16, seed=3, epoch=epoch, augment=Augment(2, True, 4))]
    for source in ((IMAGES, LABELS), data, Items()):
        same(epochs(DataLoader(source, 16, **SETTINGS)), expected)
    same(epochs(DataLoader((IMAGES, LABELS), 16, resident=False, **SETTINGS)), expected)


@pytest.mark.parametrize("workers, processes", [(1, False), (3, False), (2, True)])
def test_workers_change_nothing(workers: int, processes: bool) -> None:
    for source, more in ((Items(), SETTINGS), ((IMAGES, LABELS), {**SETTINGS, "resident": False}),
                         (Items(), dict(shuffle=True, transform=noisy))):
        with_workers = DataLoader(source, 7, workers=workers, processes=processes, **more)
        same(epochs(with_workers), epochs(DataLoader(source, 7, **more)))
        with_workers.close()


def test_what_processes_draw_does_not_depend_on_their_number() -> None:
    found = []
    for workers in (1, 2):
        loader = DataLoader(Draws(), 5, shuffle=True, workers=workers, processes=True, prefetch=1)
        found.append(epochs(loader))
        loader.close()
    same(*found)
    assert not np.array_equal(found[0][0][0], found[0][5][0])    # another epoch


def test_an_item_does_not_depend_on_the_batch_size_and_an_epoch_can_begin_in_the_middle() -> None:
    small, large = (DataLoader(Items(), size, **SETTINGS) for size in (5, 25))
    x, labels = zip(*epochs(small, 1))
    y, others = zip(*epochs(large, 1))
    assert np.array_equal(np.concatenate(x), np.concatenate(y))
    assert np.array_equal(np.concatenate(labels), np.concatenate(others))
    same([tuple(t.numpy() for t in b) for b in small.batches(0, start_step=7)], list(zip(x, labels))[7:])
    assert len(small) == 10 and len(DataLoader(Items(), 16)) == 4 and len(DataLoader(Items(), 16, drop_last=True)) == 3
    assert small.epoch == 1


def test_parts_other_than_images_come_as_they_are() -> None:
    x, t = np.random.default_rng(0).standard_normal((10, 4)), np.arange(20.0).reshape(10, 2)
    batch = next(iter(DataLoader((x, t, np.arange(10, dtype=np.int32)), 4)))
    assert [(p.dtype, p.shape) for p in batch] == [("float32", (4, 4)), ("float32", (4, 2)), ("int64", (4,))]
    assert np.array_equal(batch[0].numpy(), x[:4].astype(np.float32))
    grey = next(iter(DataLoader((IMAGES[..., 0], LABELS), 4, resident=False)))[0]
    assert grey.shape == (4, 12, 10, 1) and grey.numpy().max() <= 1
    listed = next(iter(DataLoader([(np.ones(3), 1.5), (np.zeros(3), 2.5)], 2)))
    assert listed[1].tolist() == [1.5, 2.5] and listed[1].dtype == "float32"


def test_a_file_larger_than_what_is_read_stays_on_disk(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "images", np.uint8, "w+", shape=IMAGES.shape)
    mapped[:] = IMAGES
    for more in ({}, {"resident": False, "workers": 2}):
        same(epochs(DataLoader((mapped, LABELS), 16, **SETTINGS, **more)), epochs(DataLoader(Items(), 16, **SETTINGS)))


@pytest.mark.torch
def test_tensors_and_data_sets_of_torch_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    images = torch.from_numpy(IMAGES.astype(np.float32) / 255).permute(0, 3, 1, 2)
    loader = DataLoader(torch.utils.data.TensorDataset(images, torch.from_numpy(LABELS)), 16)
    x, y = next(iter(loader))
    assert x.shape == (16, 12, 10, 3) and y.dtype == "int64"
    assert np.array_equal(x.numpy(), IMAGES[:16].astype(np.float32) / 255)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 10), ("dog", 200)):
        (tmp_path / name).mkdir()
        for k, size in enumerate(((8, 6), (16, 12), (9, 9))):
            image.new("RGB", size, (shade, 0, k)).save(tmp_path / name / f"{k}.png")
        (tmp_path / name / "notes.txt").write_text("no picture")
    folder = ImageFolder(tmp_path, size=(6, 8))
    assert folder.classes == ("cat", "dog") and len(folder) == 6
    x, y = next(iter(DataLoader(folder, 6, workers=2)))
    assert x.shape == (6, 6, 8, 3) and y.tolist() == [0, 0, 0, 1, 1, 1]
    assert x.numpy()[:, 0, 0, 0] * 255 == pytest.approx([10] * 3 + [200] * 3)
    data = Dataset.of("pets", folder, folder)
    assert data.classes == ("cat", "dog") and data.train_images.shape == (6, 6, 8, 3)
    with refused(DataError, "items differ in shape or dtype: item 0: uint8 (6, 8, 3), int64 (); item 1: uint8 (12, 16"):
        next(iter(DataLoader(ImageFolder(tmp_path), 6)))
    (tmp_path / "cat" / "0.png").write_bytes(b"no picture")
    with refused(DataError, "item 0 of ImageFolder failed", "0.png cannot be read"):
        next(iter(DataLoader(folder, 6)))
    with refused(DataError, "has no pictures in 0 folders"):
        ImageFolder(tmp_path / "cat")
    with refused(DataError, "cannot be read: No such file"):
        ImageFolder(tmp_path / "gone")


def test_a_folder_of_pictures_whose_labels_or_pixels_would_be_others(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in (".git", "cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    (tmp_path / "cat" / "._0.png").write_bytes(b"what a Mac leaves")
    folder = ImageFolder(tmp_path)
    assert folder.classes == ("cat", "dog") and [label for _, label in folder.files] == [0, 1]
    image.fromarray(np.full((4, 4), 3000, np.uint16)).save(tmp_path / "dog" / "1.png")
    with refused(DataError, "1.png cannot be read: its pixels are of mode I;16, 8 bits a channel are needed"):
        ImageFolder(tmp_path)[2]
    (tmp_path / "bird").mkdir()
    with refused(DataError, "bird has no pictures", "remove the folder"):
        ImageFolder(tmp_path)


@pytest.mark.parametrize("more", [{}, {"workers": 2}, {"workers": 1, "processes": True}])
def test_an_item_that_fails_is_named(more: dict) -> None:
    loader = DataLoader(Items(bad=33), 8, **more)
    with refused(DataError, "DataLoader: item 33 of Items failed: OSError: the disk is gone", "look at data[33]"):
        list(loader)
    loader.close()


def test_a_worker_process_that_dies_is_told() -> None:
    with refused(DataError, "DataLoader: a worker process has ended", "processes=False"):
        list(DataLoader(Items(dies=9), 4, workers=1, processes=True))


def test_data_that_no_process_can_get_is_told() -> None:
    with refused(DataError, "processes=False"):
        list(DataLoader(Items(), 4, workers=1, processes=True, transform=lambda image: image))


def test_what_is_no_data_is_refused() -> None:
    for make, error, text in (
            (lambda: DataLoader(3), DataError, "data is 3, without __len__ and __getitem__"),
            (lambda: DataLoader((IMAGES, LABELS[:7])), DataError, "the arrays have 50 and 7 items"),
            (lambda: DataLoader([], 4), DataError, "0 images make no batch of 4"),
            (lambda: DataLoader(Items(), 51, drop_last=True), DataError, "50 images make no batch of 51"),
            (lambda: DataLoader(Items(), 0), ConfigError, "batch_size is 0"),
            (lambda: DataLoader(Items(), workers=10 ** 9), ConfigError, "workers=1000000000, 1024 are the most"),
            (lambda: DataLoader(Items(), mean=True), ConfigError, "mean is True, finite numbers are needed"),
            (lambda: DataLoader(Items(), augment="turn"), ConfigError, "'turn' is unknown"),
            (lambda: DataLoader(Items(), resident=True), DataError, "resident=True is for arrays of 8-bit images"),
            (lambda: list(DataLoader([1, 2])), DataError, "item 0 is 1"),
            (lambda: list(DataLoader([("a", 2)])), DataError, "part 0 of item 0 is"),
            (lambda: list(DataLoader((np.ones((4, 3)),), augment="flip")), DataError, "augment is for images of 8"),
            (lambda: list(DataLoader(Items(), transform=lambda x: x.nothing)), DataError, "transform failed on item 0"),
            (lambda: DataLoader(Items()).batches(-1), DataError, "epoch -1, step 0 does not exist")):
        with refused(error, text):
            make()


def test_gradients_flow_through_a_batch_of_tensors_on_the_device() -> None:
    x, y = next(iter(DataLoader(Items(), 8, workers=1)))
    w = alpha.zeros((3, 5), requires_grad=True)
    alpha.ops.cross_entropy(x.mean((1, 2)) @ w, y).backward()
    assert w.grad is not None and np.isfinite(w.grad.numpy()).all()


def test_the_benchmark_of_loaders_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from benchmarks import loader
    loader.main(["--device", "cpu", "--models", "lenet5", "--images", "40", "--precision", "fp32", "--batch-size", "16",
                 "--workers", "1", "--repeats", "1", "--output", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and "| bare steps         |" in lines[1] and lines[1].endswith("100.0 % |")
    assert len((tmp_path / "loader.jsonl").read_text().splitlines()) == 6


def test_the_items_of_pytorchs_side() -> None:
    pytest.importorskip("torch")
    from benchmarks.torch_loader import CroppedItems
    items = CroppedItems(3)
    x, y = items[2]
    assert x.shape == (3, 32, 32) and y == 2 and float(x.abs().max()) <= 2


@pytest.mark.parametrize("column", [
    [1, 2, 3], [np.int64(1), np.int64(2), np.int64(3)], [1, np.int64(2), 3], [True, False, True], [1.5, 2.0, 3.0],
    [np.float32(1), np.float32(2), np.float32(3)], list(np.ones((3, 2, 2), np.uint8)), list(np.ones((3, 2))),
    list(np.ones((3, 2), np.int32)), [alpha.ones((2,)).numpy()] * 3])
def test_the_short_way_to_a_batch_gives_what_the_long_one_does(column: list) -> None:
    rows = [(np.full((4, 2), k, np.uint8), value) for k, value in enumerate(column)]
    found = items.stack("here", rows, range(3))
    expected = items._stack("here", [items.as_arrays("here", row, k) for k, row in enumerate(rows)], range(3))
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


def test_numbers_that_no_integer_of_64_bits_holds() -> None:
    with refused(DataError, "part 1 of item 0 is"):
        items.stack("here", [(np.ones(2, np.uint8), 1 << 70), (np.ones(2, np.uint8), 2)], range(2))
