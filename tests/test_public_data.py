"""Public data sets from files in their true formats: what is read, where they are found, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha.data import Dataset
from alpha.data.public import archives, idx, own
from alpha.data.public.fetch import File
from alpha.errors import DataError
from tests.data_files import emnist_archive, grey, md5, mnist_files, serving, stl10_files, tar_gz, write
from tests.data_files import idx as packed_idx
from tests.op_checks import refused
from train.program import main

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")


def load(name: str, place: Path | None = None, **more: Any) -> Dataset:
    return alpha.data.load(name, place, **more)


def check_mnist(data: Dataset) -> None:
    assert data.train_images.shape == (20, 32, 32, 3) and data.test_images.shape == (10, 32, 32, 3)
    assert np.array_equal(data.train_images[:, 2:-2, 2:-2, 1], grey(20, 0))
    assert np.array_equal(data.test_images[:, 2:-2, 2:-2, 2], grey(10, 1))
    assert not data.train_images[:, :2].any() and not data.train_images[:, :, -2:].any()
    assert np.array_equal(data.train_labels, np.arange(20) % 10)
    assert data.mean == pytest.approx(data.train_images.mean((0, 1, 2)) / 255, abs=1e-6)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, name: str, packed: bool) -> None:
    data = load(name, write(tmp_path, mnist_files(), packed))
    check_mnist(data)
    assert len(data.classes) == 10 and data.name == name


def test_idx_files_with_a_dot_and_where_debian_and_torchvision_put_them(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    dotted = {name.replace("-idx", ".idx"): blob for name, blob in mnist_files().items()}
    check_mnist(load("mnist", write(tmp_path / "dotted", dotted)))
    monkeypatch.chdir(tmp_path)
    assert Path("/usr/share/datasets/fashion-mnist") == idx.DEBIAN
    monkeypatch.setattr(idx, "DEBIAN", write(tmp_path / "debian", mnist_files(), packed=True))
    check_mnist(load("fashion_mnist"))
    write(tmp_path / "data" / "KMNIST" / "raw", mnist_files())
    check_mnist(load("kmnist"))
    with refused(DataError, "mnist: data/mnist has none of its files", "train-images-idx3-ubyte.gz"):
        load("mnist", download=False)


def test_idx_files_are_downloaded_to_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    packed = write(tmp_path / "source", mnist_files(), packed=True)
    files = {f"/m/{path.name}": path.read_bytes() for path in packed.iterdir()}
    with serving(files) as server:
        digests = tuple(md5(files[f"/m/{part}.gz"]) for part in idx.PARTS)
        monkeypatch.setitem(idx.SETS, "mnist", idx.SETS["mnist"]._replace(
            urls=("http://nowhere.invalid/", f"{server.url}/m/"), digests=digests))
        check_mnist(load("mnist"))
        (tmp_path / "data" / "mnist" / f"{idx.PARTS[3]}.gz").unlink()
        check_mnist(load("mnist"))
        assert [path for path, _ in server.asked] == [f"/m/{k}.gz" for k in (*idx.PARTS, idx.PARTS[3])]


@pytest.mark.parametrize("blob, shown", [
    (b"", "begins with , an IDX file of bytes with 000008"), (b"\0\0\x0d\x03" + bytes(12), "begins with 00000d03"),
    (packed_idx(grey(2, 0))[:-1], "has 1567 elements, its shape (2, 28, 28) has 1568"),
    (b"\0\0\x08\x03" + b"\xff" * 12, "its shape (4294967295, 4294967295, 4294967295)"),
    (b"\x1f\x8b\x08\x00" + bytes(9), "is not a whole file of gzip"), (b"\0\0\x08", "begins with 000008"),
])
def test_damaged_idx_files_are_refused(tmp_path: Path, blob: bytes, shown: str) -> None:
    write(tmp_path, {**mnist_files(), "train-images-idx3-ubyte": blob})
    with refused(DataError, "train-images-idx3-ubyte: ", shown, "download it again"):
        load("mnist", tmp_path)


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    files = mnist_files()
    write(tmp_path / "a", {**files, "train-labels-idx1-ubyte": files["t10k-labels-idx1-ubyte"]})
    with refused(DataError, "images of shape (20, 28, 28) and labels of (10,)"):
        load("mnist", tmp_path / "a")
    write(tmp_path / "b", {name: blob for name, blob in files.items() if "t10k" not in name})
    with refused(DataError, "b has none of its files", "t10k-images-idx3-ubyte.gz"):
        load("mnist", tmp_path / "b")
    with refused(DataError, "--data-dir ", "does not exist"):
        load("mnist", tmp_path / "c")
    write(tmp_path / "d", {**files, "train-labels-idx1-ubyte": packed_idx(np.arange(20))})
    with refused(DataError, "train_labels reach from 0 to 19, there are 10 classes"):
        load("mnist", tmp_path / "d")


@pytest.mark.parametrize("split, classes", [("balanced", 47), ("letters", 26), ("byclass", 62), ("digits", 10)])
def test_emnist(tmp_path: Path, split: str, classes: int) -> None:
    path = emnist_archive(tmp_path / "gzip.zip", split, min(classes, 10), first=int(split == "letters"))
    for place in (tmp_path, path):
        data = load(f"emnist_{split}", place)
        assert len(data.classes) == classes and np.array_equal(data.train_labels, np.arange(20) % 10)
        assert np.array_equal(data.train_images[:, 2:-2, 2:-2, 0], grey(20, 0).swapaxes(1, 2))
    with refused(DataError, "gzip.zip: has no emnist-bymerge-train-images-idx3-ubyte.gz"):
        load("emnist_bymerge", path)
    path.write_bytes(path.read_bytes()[:3000])
    with refused(DataError, "is not a whole zip archive"):
        load(f"emnist_{split}", path)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = pytest.importorskip("scipy.io")
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 15)).astype(np.uint8)
    for part in ("train", "test"):
        io.savemat(tmp_path / f"{part}_32x32.mat", {"X": images, "y": np.arange(15)[:, None] % 10 + 1})
    data = load("svhn", tmp_path)
    assert np.array_equal(data.train_images, images.transpose(3, 0, 1, 2)) and data.classes == tuple("0123456789")
    assert data.test_labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]
    io.savemat(tmp_path / "test_32x32.mat", {"X": images, "y": np.arange(14)})
    with refused(DataError, "X is uint8 (32, 32, 3, 15) and y ", "(32, 32, 3, N)"):
        load("svhn", tmp_path)
    io.savemat(tmp_path / "test_32x32.mat", {"X": images, "y": np.arange(15)})
    with refused(DataError, "labels reach from 0 to 14, 1 to 10 are needed"):
        load("svhn", tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(300))
    with refused(DataError, "is not a whole file of MATLAB"):
        load("svhn", tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    with refused(DataError, "svhn: reading files of MATLAB needs SciPy", 'pip install ".[data]"'):
        load("svhn", tmp_path)


def test_stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = stl10_files()
    write(tmp_path / "plain", files)
    (tmp_path / "packed").mkdir()
    archive = tmp_path / "packed" / "stl10_binary.tar.gz"
    archive.write_bytes(tar_gz(files))
    write(tmp_path / "inner" / "stl10_binary", files)
    for place in (tmp_path / "plain", tmp_path / "packed", archive, tmp_path / "inner"):
        data = load("stl10", place)
        assert data.train_images.shape == (12, 96, 96, 3) and data.test_images.shape == (11, 96, 96, 3)
        assert data.train_images.transpose(0, 3, 2, 1).tobytes() == files["train_X.bin"]
        assert data.test_labels.tolist() == [*range(10), 0]
    write(tmp_path / "plain", {"test_y.bin": bytes(5)})
    with refused(DataError, "has 304128 bytes, 5 images of test_y.bin have 138240"):
        load("stl10", tmp_path / "plain")
    write(tmp_path / "plain", {"test_y.bin": bytes(11)})
    with refused(DataError, "labels reach from 0 to 0, 1 to 10 are needed"):
        load("stl10", tmp_path / "plain")
    archive.write_bytes(tar_gz({"train_X.bin": b""}))
    with refused(DataError, "has no train_y.bin"):
        load("stl10", archive)
    archive.write_bytes(archive.read_bytes()[:40])
    with refused(DataError, "is not a whole .tar.gz file"):
        load("stl10", archive)
    monkeypatch.chdir(tmp_path)
    with refused(DataError, "stl10: data/stl10 has none of its files", "stl10_binary.tar.gz"):
        load("stl10", download=False)
    blob = tar_gz(files)
    with serving({"/s": blob}) as server:
        monkeypatch.setattr(archives, "STL10_FILE", File("stl10_binary.tar.gz", (f"{server.url}/s",), md5(blob)))
        assert len(load("stl10").train_labels) == 12


def tiny(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tcat, house cat\nn02\tdog\n")
    lines = []
    for k, name in enumerate(("n01", "n02")):
        (folder / "train" / name / "images").mkdir(parents=True)
        for j in range(3):
            pixels = np.full((64, 64) if j == 2 else (64, 64, 3), 100 * k + 20 * j, np.uint8)
            image.fromarray(pixels).save(folder / "train" / name / "images" / f"{name}_{j}.JPEG")
        image.fromarray(np.full((64, 64, 3), 100 * k, np.uint8)).save(folder / "val" / "images" / f"val_{k}.JPEG")
        lines.append(f"val_{k}.JPEG\t{name}\t0\t0\t9\t9\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def test_tiny_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tiny(tmp_path / "tiny-imagenet-200")
    for place in (tmp_path, root):
        data = load("tiny_imagenet", place)
        assert data.classes == ("dog", "cat") and data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert data.train_images[:, 5, 5, 0].tolist() == [100, 120, 140, 0, 20, 40]
        assert data.test_labels.tolist() == [1, 0] and data.test_images.shape == (2, 64, 64, 3)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn09\n")
    with refused(DataError, "tiny_imagenet: ", "is not whole: 'n09'", "unpack the archive again"):
        load("tiny_imagenet", tmp_path)
    (root / "val" / "val_annotations.txt").write_text("")
    with refused(DataError, "has 6 training and 0 validation images"):
        load("tiny_imagenet", tmp_path)


def test_tiny_imagenet_is_unpacked_within_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile
    monkeypatch.chdir(tmp_path)
    with refused(DataError, "data/tiny_imagenet has none of its files"):
        load("tiny_imagenet", download=False)
    root = tiny(tmp_path / "source" / "tiny-imagenet-200")
    with zipfile.ZipFile("a.zip", "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, path.relative_to(root.parent))
    with zipfile.ZipFile("b.zip", "w") as archive:
        archive.writestr("../../out.txt", "x")
    with serving({f"/{name}": (tmp_path / name).read_bytes() for name in ("a.zip", "b.zip")} | {"/c": b"PK"}) as server:
        for name, shown in (("b.zip", "has a file outside of its folder, ../../out.txt"), ("c", "is not a whole zip")):
            monkeypatch.setattr(own, "TINY", File(f"{name}.x", (f"{server.url}/{name}",)))
            with refused(DataError, shown, "download it again"):
                load("tiny_imagenet")
        monkeypatch.setattr(own, "TINY", File("a.zip", (f"{server.url}/a.zip",)))
        assert len(load("tiny_imagenet").train_labels) == 6
    assert not (tmp_path / "out.txt").exists()


def test_arrays_stay_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 12, 10, 3)).astype(np.uint8)
    for name, array in zip(own.ARRAYS, (images, np.arange(9) % 3, images[:4], np.arange(4) % 3)):
        np.save(tmp_path / name, array)
    data = load("arrays", tmp_path)
    assert isinstance(data.train_images.base, np.memmap) and np.array_equal(data.train_images, images)
    assert data.classes == ("0", "1", "2")
    (tmp_path / "test_labels.npy").write_bytes(b"no")
    with refused(DataError, "arrays: ", "test_labels.npy cannot be read", 'np.save("test_labels.npy", array)'):
        load("arrays", tmp_path)
    with refused(DataError, "arrays: --data-dir is not given"):
        load("arrays")


def test_the_command_trains_on_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "files", mnist_files())
    assert main(["--dataset", "mnist", "--data-dir", str(tmp_path / "files"), "--model", "lenet5", "--epochs", "1",
                 "--device", "cpu", "--output", str(tmp_path / "run")]) == 0
    assert "mnist: 18 images to train, 2 to validate, 10 to test" in capsys.readouterr().out
    with refused(DataError, "no data set 'mnis'; did you mean 'mnist'?"):
        load("mnis")
    assert load("digits").name == "digits"      # of the training program, which is beside alpha
