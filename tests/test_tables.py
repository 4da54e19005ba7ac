"""Pictures that a CSV file lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha.data import DataLoader, ImageTable
from alpha.errors import DataError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

LEVELS = (0, 60, 120, 180, 240)


@pytest.fixture(name="folder")
def pictures(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cats").mkdir()
    for k, level in enumerate(LEVELS):
        image.fromarray(np.full((6, 5, 3), level, np.uint8)).save(tmp_path / "cats" / f"{k}.png")
    return tmp_path


def table(folder: Path, text: str) -> Path:
    (folder / "table.csv").write_text(text)
    return folder / "table.csv"


@pytest.mark.parametrize("text", [
    "path,label\ncats/3.png,b\ncats/1.png,a\n", "cats/3.png,b\ncats/1.png,a",
    "\ufeffLabel , File\nb, cats/3.png\n\na,cats/1.png",
    'id,class,image\n7,b,"cats/3.png"\n8,a,cats/1.png\n'], ids=["names", "bare", "turned", "more"])
def test_rows_are_items_in_their_order(folder: Path, text: str) -> None:
    data = ImageTable(table(folder, text))
    assert data.classes == ("a", "b") and len(data) == 2 and not data.has_splits
    image, label = data[0]
    assert image.shape == (6, 5, 3) and image.dtype == np.uint8 and (image == 180).all() and label == 1
    assert data[-1][1] == 0 and ImageTable(folder / "table.csv", size=4)[0][0].shape == (4, 4, 3)
    with pytest.raises(IndexError):
        data[2]
    x, y = next(iter(DataLoader(data, 2)))
    assert x.shape == (2, 6, 5, 3) and y.tolist() == [1, 0]


def test_numbers_are_sorted_as_numbers_and_paths_are_relative_to_root(folder: Path) -> None:
    path = table(folder, "0.png,10\n1.png,9\n2.png,10\n")
    data = ImageTable(path, root=folder / "cats")
    assert data.classes == ("9", "10") and [label for _, label in data.files] == [1, 0, 1]
    assert (data[1][0] == 60).all()


def test_splits(folder: Path) -> None:
    path = table(folder, "path,label,split\ncats/0.png,b,train\ncats/1.png,a,TRAIN\ncats/2.png,b,val\n")
    train, test = ImageTable(path, split="train"), ImageTable(path, split="test")
    assert len(train) == 2 and len(test) == 1 and train.classes == test.classes == ("a", "b") and train.has_splits
    data = alpha.data.load("csv", path)
    assert data.train_labels.tolist() == [1, 0] and data.test_labels.tolist() == [1] and data.classes == ("a", "b")
    whole = alpha.data.load("csv", table(folder, "".join(f"cats/{k}.png,{k % 2}\n" for k in range(5))))
    assert len(whole.train_labels) == 4 and len(whole.test_labels) == 1


@pytest.mark.parametrize("text, shown", [
    ("", "has no rows"), ("path,label\n", "has no rows"), ("path,label\ncats/0.png,\n", "row 1 of"),
    ("cats/0.png\n", "a path and a label are needed"),
    ("path,label,split\ncats/0.png,a,maybe\n", "has split 'maybe'")])
def test_tables_that_are_none_are_refused(folder: Path, text: str, shown: str) -> None:
    with refused(DataError, "ImageTable: ", shown, "write "):
        ImageTable(table(folder, text))


def test_what_cannot_be_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(DataError, "cannot be read: No such file", "columns path and label"):
        ImageTable(folder / "none.csv")
    (folder / "table.csv").write_bytes(b"\xff\xfe,\n")
    with refused(DataError, "table.csv cannot be read"):
        ImageTable(folder / "table.csv")
    path = table(folder, "cats/0.png,a\ncats/9.png,b\n")
    with refused(DataError, "split='train', and ", "no column of that name", 'split="train"'):
        ImageTable(path, split="train")
    with refused(DataError, "9.png cannot be read"):
        ImageTable(path)[1]
    with refused(DataError, "9.png cannot be read"):
        alpha.data.load("csv", path)
    with refused(DataError, "csv: --data-dir is None, a CSV file is needed", "--dataset csv --data-dir pictures.csv"):
        alpha.data.load("csv")
    with refused(ShapeError, "size is "):
        ImageTable(path, size="big")
    only = table(folder, "path,label,split\ncats/0.png,a,train\n")
    with refused(DataError, "has no rows of split 'test'", "leave split out"):
        ImageTable(only, split="test")
    monkeypatch.setattr("alpha.data.tables.MOST_BYTES", 5)
    with refused(DataError, "has more than 5 bytes", "list pictures in it alone"):
        ImageTable(only)
