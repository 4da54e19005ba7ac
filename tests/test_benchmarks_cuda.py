"""The parts of the GPU benchmarks that need no GPU: shapes, bars, the reference in float64, judging, the digits."""

from __future__ import annotations

import hashlib
import pickle
import tarfile

import numpy as np
import pytest

from alpha.data.public import cifar
from benchmarks import cuda_overhead, digits_archive
from benchmarks.bandwidth_jobs import FAMILIES
from benchmarks.shapes import SHAPES, bar, waves

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
BY_NAME = {shape.name: shape for shape in SHAPES}


def test_the_shapes_have_the_operations_of_the_table() -> None:
    """GFLOP of each layer as published beside PyTorch's figures."""
    expected = dict(v1=38.7, v2=38.7, v3=38.7, v4=38.7, v5=9.7, d32=19.3, d16=19.3, d8=19.3, d4=9.7, e32=53.7, e16=53.7,
                    e8=53.7, e4=26.8, p32=2.1, b128=9.7, b128d=4.8, in3=1.8)
    assert {name: round(shape.desc.nominal_flops / 1e9, 1) for name, shape in BY_NAME.items()} == expected


@pytest.mark.parametrize(("name", "pass_name", "cudnn", "expected"), [
    ("v1", "fprop", 40, 0.9), ("v3", "fprop", 43, 0.9), ("v4", "fprop", 43, 1.3), ("v5", "fprop", 24, 1.3),
    ("d4", "fprop", 26, 1.3), ("v1", "dgrad", 27, 1.0), ("d16", "dgrad", 30, 1.5), ("p32", "dgrad", 10, 1.5),
    ("d4", "dgrad", 6, 3.0), ("e4", "dgrad", 6, 3.0), ("e8", "dgrad", 18, 1.5), ("v1", "wgrad", 39.9, 1.2),
    ("v2", "wgrad", 65, None)])
def test_the_bar_of_a_pass(name: str, pass_name: str, cudnn: float, expected: float | None) -> None:
    assert bar(BY_NAME[name], pass_name, cudnn) == expected


def test_waves_of_blocks() -> None:
    assert waves(BY_NAME["v1"].desc, 132) == 4096 / 132
    assert waves(BY_NAME["v5"].desc, 132) == 64 / 132


def test_every_kernel_that_is_measured_exists() -> None:
    torch = pytest.importorskip("torch")
    from alpha.core.op import registry
    from benchmarks.bandwidth_jobs import Data
    from benchmarks.cuda_bandwidth import attributes
    for family in FAMILIES.values():
        for job in family(Data(torch, "cpu", "float32", 1)):
            op = registry[job.op]
            assert attributes(op, job.attrs).keys() >= set(job.attrs) - {"kernel_size"}
            assert len(job.make()) >= len(op.args), job.op


def test_overhead_is_given_per_op() -> None:
    found = cuda_overhead.figures({"an op": [3.0, 1.0, 2.0], "a chain there": [100.0],
                                   "a chain there and back": [250.0]})
    assert found["an op"] == {"median": 2.0, "min": 1.0}
    assert found["a node's way back, its op counted"] == {"median": 3.0, "min": 3.0}


# ---- the digits archive ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", cifar.FORMS["cifar10"], ids=["python", "binary"])
def test_the_archive_is_read_as_cifar10(form: cifar.Form, tmp_path, capsys) -> None:
    pytest.importorskip("sklearn")
    path = digits_archive.write(tmp_path, form, seed=3, train_images=200, test_images=50)
    assert path == cifar.find("cifar10", tmp_path) == tmp_path / form.archive
    data = cifar.read("cifar10", path)
    assert "is not the published" in capsys.readouterr().err
    assert data.train_images.shape == (200, 32, 32, 3) and data.test_images.shape == (50, 32, 32, 3)
    assert np.bincount(data.train_labels).tolist() == [20] * 10 and np.bincount(data.test_labels).tolist() == [5] * 10
    assert data.classes == tuple("0123456789")
    rng = np.random.default_rng(3)
    images, labels = digits_archive.made(*digits_archive.sources(3)[0], 200, rng)
    assert np.array_equal(data.train_images, images) and np.array_equal(data.train_labels, labels)
    assert images.std(axis=(0, 1, 2)).min() > 30


def test_the_python_form_has_the_entries_of_a_cifar10_batch(tmp_path) -> None:
    pytest.importorskip("sklearn")
    form = cifar.FORMS["cifar10"][0]
    with tarfile.open(digits_archive.write(tmp_path, form, train_images=100, test_images=20)) as tar:
        batches = {name.rpartition("/")[2]: pickle.loads(tar.extractfile(name).read()) for name in tar.getnames()}
    assert set(batches) == set(form.files)
    assert set(batches["data_batch_2"]) == {"batch_label", "labels", "data", "filenames"}
    assert batches["data_batch_2"]["batch_label"] == "training batch 2 of 5"
    assert batches["data_batch_2"]["data"].shape == (20, 3072) and batches["data_batch_2"]["data"].dtype == np.uint8
    assert batches["batches.meta"]["label_names"] == list("0123456789")


def test_equal_seeds_give_equal_bytes(tmp_path) -> None:
    pytest.importorskip("sklearn")
    form = cifar.FORMS["cifar10"][1]
    made = [digits_archive.write(tmp_path / str(k), form, seed, 60, 20) for k, seed in enumerate((0, 0, 1))]
    first, again, other = (hashlib.sha256(path.read_bytes()).hexdigest() for path in made)
    assert first == again != other


def test_no_digit_is_in_both_parts() -> None:
    pytest.importorskip("sklearn")
    (train, train_labels), (test, test_labels) = digits_archive.sources(0)
    assert len(train) == len(train_labels) == 1437 and len(test) == len(test_labels) == 360
    assert np.bincount(test_labels).min() >= 34
    known = {image.tobytes() for image in train}
    assert not any(image.tobytes() in known for image in test)
