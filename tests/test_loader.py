"""DataLoader: any source, any number of workers, the same batches; and what it says of data that do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha.data import Augment, DataLoader, Dataset, Images, Subset, TensorDataset, items
from alpha.errors import ConfigError, DataError
from tests.loader_sets import IMAGES, LABELS, Draws, Items, noisy
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
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


FLOATS = IMAGES.astype(np.float32) / 255
NORMAL = (FLOATS - MEAN) / STD


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source, more", [
    ((IMAGES, LABELS), {}), (Items(), {}), (Subset(Items(), range(50)), {}), ((FLOATS, LABELS), {}),
    ((FLOATS.astype(np.float64), LABELS), {}), ((FLOATS.astype(np.float16), LABELS), {}),
    (TensorDataset(FLOATS, LABELS), {}), ((IMAGES, LABELS), {"transform": lambda x: x.astype(np.float32) / 255}),
    (Items(), {"transform": lambda x: x.astype(np.float32) / 255}),
    (Items(), {"transform": lambda x: x + np.uint8(0)})])
def test_mean_and_std_normalise_images_of_any_form(source: Any, more: dict, workers: int) -> None:
    loader = DataLoader(source, 50, mean=MEAN, std=STD, workers=workers, **more)
    x = next(iter(loader))[0]
    half = isinstance(source, tuple) and source[0].dtype == np.float16
    assert x.dtype == ("float16" if half else "float32")
    np.testing.assert_allclose(x.numpy(), NORMAL, rtol=0, atol=4e-3 if half else 1e-5)
    loader.close()


def test_images_of_floats_keep_their_elements_without_mean_and_std() -> None:
    assert np.array_equal(next(iter(DataLoader((FLOATS, LABELS), 50)))[0].numpy(), FLOATS)


@pytest.mark.parametrize("samples", [FLOATS.reshape(50, -1), FLOATS[..., 0], IMAGES.astype(np.int64), LABELS])
def test_mean_and_std_are_refused_where_samples_are_no_images(samples: np.ndarray) -> None:
    for make in (lambda: (samples, LABELS), lambda: [(a, 1) for a in samples]):
        for name in ("mean", "std"):
            with refused(DataError, f"{name} given", f"leave {name} out"):
                next(iter(DataLoader(make(), 8, **{name: 0.5})))


def test_a_mean_in_units_of_pixels_is_refused_for_images_of_8_bits() -> None:
    for source, more in (((IMAGES, LABELS), {}), (Items(), {}), (Items(), {"workers": 2})):
        for name, value in (("mean", 127.5), ("std", 64.0), ("mean", (0.5, 127.5, 0.5)), ("mean", -0.5)):
            with refused(ConfigError, f"{name}=", "is outside of 0 to 1: images of 8 bits, 0 to 255", "by 255"):
                next(iter(DataLoader(source, 8, **{name: value}, **more)))
    assert next(iter(DataLoader((FLOATS * 255, LABELS), 8, mean=127.5)))[0].numpy().min() < -100


class Masks:
    """Images, and masks that hold their first channel."""

    def __init__(self, dtype: str) -> None:
        self.masks = IMAGES[..., 0].astype(dtype)

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return IMAGES[index], self.masks[index]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("augment", ["flip", "altflip", Augment(crop=2, mask_fill=0),
                                     Augment(crop=3, altflip=True, mask_fill=0),
                                     Augment(crop=2, flip=True, mask_fill=0)])
def test_masks_are_moved_as_their_images(augment: Any, workers: int) -> None:
    settings = dict(shuffle=True, seed=2, augment=augment, workers=workers)
    still, moved = 0, 0
    for source in (Masks("int64"), (IMAGES, IMAGES[..., 0].astype(np.int64)), (IMAGES, FLOATS[..., :1] * 255)):
        loader = DataLoader(source, 16, **settings)
        for epoch in range(2):
            for x, mask in loader.batches(epoch):
                first = np.round(x.numpy()[..., 0] * 255)
                assert np.array_equal(first, np.round(mask.numpy().reshape(first.shape)))
                still += sum(any(np.array_equal(a, b) for b in IMAGES[..., 0]) for a in first)
                moved += len(first)
        loader.close()
    assert 0 <= still < 0.7 * moved


def test_what_a_crop_lets_into_masks_is_mask_fill() -> None:
    masks = np.ones((50, 12, 10), np.uint8)
    x, mask = next(iter(DataLoader((np.full_like(IMAGES, 255), masks), 50,
                                   augment=Augment(crop=3, cutout=4, mask_fill=-100), mean=0.0)))
    assert set(np.unique(mask.numpy())) == {-100, 1} and mask.dtype == "int64" and (masks == 1).all()
    assert (mask.numpy()[(x.numpy() == 1).all(-1)] == 1).all()
    assert (x.numpy()[mask.numpy() == -100] == 0).all()


def test_parts_that_would_stay_where_their_images_are_moved_are_refused() -> None:
    ones = np.ones((50, 12, 10))
    for part, augment, text in (
            (ones, "crop=2", "crop=2 lets pixels from outside into part 1"),
            (ones[:, None], "flip", "part 1 of shape (1, 12, 10) would stay"),
            (ones[:, ::2, ::2], "flip", "part 1 of shape (6, 5) would stay"),
            (np.ones((50, 3, 4)), "altflip", "part 1 of shape (3, 4) would stay"),
            (ones.astype(int), Augment(crop=2, mask_fill=0.5), "mask_fill=0.5, and part 1 is a map of int64"),
            (ones > 0, Augment(crop=2, mask_fill=-100), "mask_fill=-100, and part 1 is a map of bool"),
            (LABELS, Augment(crop=2, mask_fill=0), "mask_fill=0, and no part of a batch is a map")):
        for source in ((IMAGES, part), list(zip(IMAGES, part))):
            with refused(DataError, text):
                next(iter(DataLoader(source, 8, augment=augment)))
    assert next(iter(DataLoader((IMAGES, np.ones((50, 3, 4))), 8, augment="cutout=2")))[1].shape == (8, 3, 4)
    for wrong, text in ((dict(mask_fill=0), "mask_fill=0, and crop=0"),
                        (dict(crop=1, mask_fill="a"), 'mask_fill is "a"')):
        with refused(ConfigError, text):
            Augment(**wrong)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_masks_of_any_integers_become_int64(dtype: str) -> None:
    masks = (IMAGES[..., 0] // 2).astype(dtype)
    for source in ((IMAGES, masks), list(zip(IMAGES, masks)), (IMAGES, masks[..., None])):
        for workers in (0, 2):
            mask = next(iter(DataLoader(source, 8, workers=workers)))[1]
            assert mask.dtype == "int64" and np.array_equal(mask.numpy().reshape(8, 12, 10), masks[:8])


def test_workers_of_arrays_do_their_work() -> None:
    seen = DataLoader((IMAGES, LABELS), 16, workers=2, **SETTINGS)
    same(epochs(seen), epochs(DataLoader((IMAGES, LABELS), 16, **SETTINGS)))
    assert seen._workers.pool is not None
    seen.close()


@pytest.mark.torch
def test_images_of_torch_are_turned_as_arrays_too() -> None:
    torch = pytest.importorskip("torch")
    images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    x, mask = next(iter(DataLoader((images, images[:, 0]), 50)))
    assert np.array_equal(np.round(x.numpy() * 255), IMAGES) and mask.shape == (50, 12, 10)
    data = Dataset.of("x", (images, torch.from_numpy(LABELS)), (IMAGES, LABELS))
    assert np.array_equal(data.train_images, IMAGES)


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


@pytest.mark.parametrize("more", [{}, {"workers": 2}, {"workers": 1, "processes": True}])
def test_an_item_that_fails_is_named(more: dict) -> None:
    loader = DataLoader(Items(bad=33), 8, **more)
    with refused(DataError, "DataLoader: item 33 of Items failed: OSError: the disk is gone", "look at data[33]"):
        list(loader)
    loader.close()


def test_a_worker_process_that_dies_is_told() -> None:
    with refused(DataError, "DataLoader: a worker process has ended", "processes=False"):
        list(DataLoader(Items(dies=9), 4, workers=1, processes=True))


KILLED = """
import threading
from alpha.data import DataLoader
from tests.loader_sets import Stuck
if __name__ == "__main__":
    batches = iter(DataLoader(Stuck({how!r}), 2, workers=2, processes=True, prefetch=4))
    thread = threading.Thread(target=next, args=(batches,))
    thread.start()
    thread.join()
    print("begun", flush=True)
    threading.Event().wait(60)
"""


def processes_of(session: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "stat=,args=", "-g", str(session)], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if not line.startswith("Z")]


@pytest.mark.skipif(sys.platform != "linux", reason="ps and its sessions are Linux's")
def test_worker_processes_end_with_the_program(tmp_path: Path) -> None:
    """Workers wait for a full pipe, sleep, or hold the interpreter's lock; a thread that has ended started them."""
    root, runs = Path(alpha.__file__).parents[1], []
    sent = {"full": signal.SIGTERM, "busy": signal.SIGKILL, "locked": signal.SIGKILL}
    try:
        for how in sent:
            program = tmp_path / f"{how}.py"
            program.write_text(KILLED.format(how=how))
            runs.append(subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, start_new_session=True,
                                         stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(root)}))
        for run, by in zip(runs, sent.values()):
            assert run.stdout is not None and run.stdout.readline() == b"begun\n"
            assert len(processes_of(run.pid)) >= 4   # it, the fork server and two workers
            run.send_signal(by)
            run.wait(20)
        end = time.monotonic() + 20
        while (left := {how: processes_of(run.pid) for how, run in zip(sent, runs)}) and any(left.values()):
            assert time.monotonic() < end, left
            time.sleep(0.05)
    finally:
        for run in runs:
            if processes_of(run.pid):
                os.killpg(run.pid, signal.SIGKILL)
            run.communicate()


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
            (lambda: DataLoader(Items(), prefetch=2), ConfigError, "prefetch=2, and workers=0"),
            (lambda: DataLoader((IMAGES, LABELS), workers=2, resident=True), ConfigError,
             "workers=2, and resident=True"),
            (lambda: DataLoader((IMAGES, ["cat"] * 50)), DataError, "classes, numbers = np.unique(names"),
            (lambda: DataLoader((IMAGES, [[1], [1, 2]] * 25)), DataError, "part 1 of the data is"),
            (lambda: DataLoader((IMAGES, np.full(50, 1j))), DataError, "numbers are needed"),
            (lambda: list(DataLoader([(IMAGES[0], "cat")])), DataError, "classes.index(name)"),
            (lambda: list(DataLoader([(IMAGES[0], [[1], [1, 2]])])), DataError, "part 1 of item 0 is"),
            (lambda: list(DataLoader((IMAGES, np.full(50, 2 ** 63, np.uint64)))), DataError, "the largest of int64"),
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
