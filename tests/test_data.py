"""Data sets and the validation split: their shapes, their determinism, and what is refused."""

import gzip
import hashlib
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha.cpu.augment import normalized
from alpha.data import load
from alpha.data.public import archives, cifar, idx, small
from alpha.data.sets import Dataset, register_dataset, split, stratified
from alpha.errors import ConfigError, DataError
from tests.augmentation.pictures import torchvision_functional
from tests.cifar_files import FILES, check_read, write_archive, write_folder
from tests.data_files import serving
from tests.picture_folders import folder

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def test_digits():
    data = load("digits")
    assert data.train_images.shape == (1437, 32, 32, 3) and data.test_images.shape == (360, 32, 32, 3)
    assert data.classes == tuple("0123456789")
    images = np.concatenate([data.train_images, data.test_images])
    assert images.min() == 0 and images.max() == 255
    assert (images[..., :1] == images).all() and (images[:, ::4, ::4] == images[:, 3::4, 3::4]).all()
    assert (abs(np.bincount(data.test_labels) - np.bincount(data.train_labels) / 4) < 1).all()
    again = load("digits", seed=1)
    assert np.array_equal(again.test_images, data.test_images)  # the test set does not move with the seed
    train = {image.tobytes() for image in data.train_images}
    assert not any(image.tobytes() in train for image in data.test_images)


@pytest.fixture(scope="module", name="data")
def synthetic():
    return load("synthetic")


def test_synthetic_is_learnable_and_a_function_of_the_seed(data):
    other = load("synthetic", seed=1)
    assert data.train_images.shape == (8192, 32, 32, 3) and data.test_images.shape == (2048, 32, 32, 3)
    assert np.array_equal(load("synthetic").test_images, data.test_images)
    assert not np.array_equal(other.test_images, data.test_images)
    centres = np.stack([data.train_images[data.train_labels == k].mean(0) for k in range(10)]).reshape(10, -1)
    test = data.test_images.reshape(2048, -1) - centres.mean(0)
    assert ((test @ (centres - centres.mean(0)).T).argmax(1) == data.test_labels).mean() > 0.95


def test_statistics_of_cifar(tmp_path):
    data = load("cifar10", write_folder(tmp_path / "f", FILES["cifar-10-binary.tar.gz"]))
    assert (data.mean.tolist(), data.std.tolist()) == tuple(np.float32(x).tolist() for x in cifar.STATISTICS["cifar10"])
    assert cifar.STATISTICS["cifar10"][1] == (0.2470, 0.2435, 0.2616)  # over pixels, not the mean of each image's own
    digits = load("digits")
    normal = normalized(digits.train_images, digits.mean, digits.std)
    np.testing.assert_allclose(normal.std((0, 1, 2), dtype=np.float64), 1, rtol=1e-3)


def test_an_unknown_data_set_is_refused():
    with pytest.raises(DataError, match=r"no data set 'digit'; did you mean 'digits'\?"):
        load("digit")


def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="register_dataset: a data set called 'digits' is registered already, by "):
        register_dataset("digits")(lambda: None)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"scikit-learn, which is not installed[\s\S]*help: pip install \"\.\[data\]\""):
        load("digits")


TABLE = gzip.compress(b"0,1\n")


@pytest.mark.parametrize("content", [None, b"0,1\n", TABLE, TABLE[:-9]], ids=["none", "raw", "small", "cut"])
def test_a_damaged_table_of_digits_is_named(content, tmp_path, monkeypatch):
    table = tmp_path / "datasets" / "data" / "digits.csv.gz"
    table.parent.mkdir(parents=True)
    if content:
        table.write_bytes(content)
    monkeypatch.setattr(small, "find_spec", lambda name: types.SimpleNamespace(origin=tmp_path / "__init__.py"))
    with pytest.raises(DataError, match=r"digits: .*digits\.csv\.gz of scikit-learn cannot be read: .*\nhelp: pip "):
        load("digits")


def test_statistics_of_digits_are_those_of_the_images():
    data = load("digits")
    for found, function in ((data.mean, np.mean), (data.std, np.std)):
        assert found.tobytes() == (function(data.train_images, axis=(0, 1, 2)).astype(np.float32) / 255).tobytes()


def test_digits_are_those_of_scikit_learn():
    pixels, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    table = small._digits_table()
    assert (table[:, :-1] == pixels).all() and (table[:, -1] == labels).all()


@pytest.mark.torch
def test_addresses_and_digests_are_those_that_torchvision_knows():
    torchvision_functional()
    from torchvision import datasets
    for source, name in ((datasets.CIFAR10, "cifar10"), (datasets.CIFAR100, "cifar100")):
        form = cifar.FORMS[name][0]
        assert source.filename == form.archive and source.url == cifar.URLS[0] + form.archive
        assert [md5 for _, md5 in source.train_list + source.test_list] == list(form.digests)
    for source, name in ((datasets.MNIST, "mnist"), (datasets.FashionMNIST, "fashion_mnist"),
                         (datasets.KMNIST, "kmnist")):
        assert set(source.mirrors) <= set(idx.SETS[name].urls)
        assert source.resources == [(f"{part}.gz", md5) for part, md5 in zip(idx.PARTS, idx.SETS[name].digests)]
    assert idx.EMNIST_FILE.urls == (datasets.EMNIST.url,) and idx.EMNIST_FILE.digest == datasets.EMNIST.md5
    assert (datasets.STL10.url, datasets.STL10.tgz_md5) == (archives.STL10_FILE.urls[0], archives.STL10_FILE.digest)
    assert [tuple(datasets.SVHN.split_list[k]) for k in ("train", "test")] == [
        (file.urls[0], file.name, file.digest) for file in archives.SVHN]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_download(tmp_path, monkeypatch, capsys, name):
    """The archive is fetched and checked, and read where it lies."""
    form = cifar.FORMS[name][0]
    write_archive(tmp_path / form.archive, FILES[form.archive])
    blob = (tmp_path / form.archive).read_bytes()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setitem(cifar.FORMS, name, (replace(form, sha256=hashlib.sha256(blob).hexdigest()),
                                            *cifar.FORMS[name][1:]))
    with serving({f"/kriz/{form.archive}": blob}) as server:
        monkeypatch.setattr("alpha.data.public.cifar.URLS", (f"{server.url}/kriz/",))
        check_read(load(name), name, form)
        check_read(load(name), name, form)
        assert len(server.asked) == 1   # the second time it was there
        assert f"downloading {server.url}/kriz/{form.archive} to data/" in capsys.readouterr().err


def test_a_failed_download_says_what_else_to_do(tmp_path, monkeypatch):
    with serving({}) as server:
        monkeypatch.setattr("alpha.data.public.cifar.URLS", (f"{server.url}/",))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DataError, match=r"could not be downloaded: [\s\S]*Not Found[\s\S]*--dataset digits"):
            load("cifar10")


def pictures(**changes):
    fields = {"name": "small", "classes": ("a", "b"),
              "mean": np.full(3, 0.5, np.float32), "std": np.ones(3, np.float32),
              "train_images": np.zeros((4, 5, 6, 3), np.uint8), "train_labels": np.array([0, 1, 0, 1]),
              "test_images": np.zeros((2, 5, 6, 3), np.uint8), "test_labels": np.array([1, 0])}
    return Dataset(**{**fields, **changes})


@pytest.mark.parametrize("changes, shown", [
    ({"train_images": np.zeros((4, 5, 6, 3), np.float32)}, "float32 (4, 5, 6, 3), expected uint8"),
    ({"test_images": np.zeros((2, 6, 5, 3), np.uint8)}, "(2, 6, 5, 3), expected uint8 (N, H, W, C) with (H, W, C) = ("),
    ({"train_labels": np.array([0, 1, 0])}, "int64 (3,), expected int64 (4,)"),
    ({"train_labels": np.zeros(4, np.int32)}, "int32 (4,)"),
    ({"train_labels": np.array([0, 1, 2, 1])}, "from 0 to 2, there are 2"),
    ({"test_labels": np.array([-1, 0])}, "from -1 to 0"), ({"std": np.zeros(3, np.float32)}, "std > 0"),
    ({"mean": np.zeros(1, np.float32)}, "3 channels"),
    ({"mean": np.full(3, 127.5, np.float32)}, "0 to 255, are scaled to 0 to 1"),
    ({"std": np.full(3, 64, np.float32)}, "0 to 255, are scaled to 0 to 1"),
    ({"mean": np.full(3, np.nan, np.float32)}, "0 to 255, are scaled to 0 to 1"),
    ({"test_images": np.zeros((0, 5, 6, 3), np.uint8), "test_labels": np.zeros(0, np.int64)}, "at least one"),
])
def test_a_data_set_that_does_not_fit_together_is_refused(changes, shown):
    assert pictures().image_shape == (5, 6, 3)
    with pytest.raises(DataError, match=r"^data set small: [\s\S]*\nhelp: ") as caught:
        pictures(**changes)
    assert shown in str(caught.value)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.data())
def test_stratified_keeps_proportions(labels, data):
    labels = np.array(labels)
    size = data.draw(st.integers(0, len(labels)))
    mask = stratified(labels, size, seed=data.draw(st.integers(0, 3)))
    assert mask.sum() == size
    share = size / len(labels)
    for k in range(6):
        assert abs(mask[labels == k].sum() - share * (labels == k).sum()) <= 1


def test_split_divides_the_training_images_alone(data):
    parts = split(data, 0.1, seed=0)
    assert len(parts.val_labels) == 819 and len(parts.train_labels) == 8192 - 819
    both = np.concatenate([parts.train_images, parts.val_images])
    assert sorted(hash(i.tobytes()) for i in both) == sorted(hash(i.tobytes()) for i in data.train_images)
    assert len(split(data, 100, seed=0).val_labels) == 100
    none = split(data, 0, seed=0)
    assert len(none.val_labels) == 0 and np.array_equal(none.train_images, data.train_images)
    again, other = split(data, 0.1, seed=0), split(data, 0.1, seed=1)
    assert np.array_equal(again.val_images, parts.val_images) and not np.array_equal(other.val_images, parts.val_images)


@pytest.mark.parametrize("size", [-1, 4, 5000])
def test_split_leaves_something_to_train_on(size):
    with pytest.raises(DataError, match=rf"val_size {size} holds out {size} of 4"):
        split(pictures(), size, 0)


def test_split_takes_a_share_or_a_whole_number():
    with pytest.raises(DataError, match=r"val_size 2\.7 is neither a share below 1 nor a number of images"):
        split(pictures(), 2.7, 0)
    assert len(split(pictures(), 2.0, 0).val_labels) == 2


def test_a_path_that_is_too_long_is_to_be_shortened():
    with pytest.raises(DataError, match="cannot be read: File name too long\\nhelp: shorten the path"):
        load("cifar10", "x" * 5000)


def test_a_folder_is_loaded_by_its_path_and_its_settings_are_refused_elsewhere(tmp_path):
    found = load(str(folder(tmp_path, 5)), image_size=8)
    assert found.classes == ("blue", "green", "red") and found.image_shape == (8, 8, 3)
    with pytest.raises(DataError, match="image_size=8 has no effect on the data set 'digits'\nhelp: leave image_size"):
        load("digits", image_size=8)
    with pytest.raises(DataError, match="skip_bad=True has no effect on the data set 'synthetic'"):
        load("synthetic", skip_bad=True)
