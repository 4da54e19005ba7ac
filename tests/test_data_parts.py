"""Data sets made of others: parts, random splits, several in a row, arrays that go together."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    ImageFolder,
    Images,
    Subset,
    TensorDataset,
    random_split,
    steps_per_epoch,
)
from alpha.errors import AlphaError, ArgumentError, DataError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
IMAGES = np.zeros((10, 2, 2, 1), np.uint8)
X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)


def test_arrays_that_go_together() -> None:
    data = TensorDataset(alpha.tensor(X), Y)
    assert len(data) == 10 and data[3][0].tolist() == [6, 7] and data[-1][1] == 9
    x, y = next(iter(DataLoader(data, 4)))
    assert x.tolist() == X[:4].tolist() and y.tolist() == [0, 1, 2, 3] and y.dtype == "int64"
    with refused(DataError, "TensorDataset: the arrays have [10, 9] rows"):
        TensorDataset(X, Y[:9])
    with refused(DataError, "TensorDataset: the arrays have [] rows"):
        TensorDataset()


def test_parts_in_an_order_of_their_own() -> None:
    data = Subset(TensorDataset(X, Y), alpha.tensor([7, 1, -1]))
    assert len(data) == 3 and [int(y) for _, y in data] == [7, 1, 9] and data[-1][1] == 9
    assert next(iter(DataLoader(data, 8)))[1].tolist() == [7, 1, 9]
    assert len(Subset(data, [])) == 0 and Subset(data, [2, 0])[0][1] == 9
    for wrong in ([10], [-11], [0.5], [[1]]):
        with refused(ArgumentError, "Subset: indices are", "the data has 10 items"):
            Subset(TensorDataset(X, Y), wrong)
    with pytest.raises(IndexError, match="Subset: index 3 is outside of 3 items"):
        data[3]
    with refused(DataError, "Subset: data is a tuple of 2", "TensorDataset(images, labels)"):
        Subset((X, Y), [0])
    with refused(DataError, "Subset: data is 3, without a length or items"):
        Subset(3, [0])


def test_random_splits() -> None:
    data = list(range(11))
    a, b, c = random_split(data, [0.5, 0.25, 0.25], seed=3)
    assert [len(a), len(b), len(c)] == [6, 3, 2] and sorted([*a, *b, *c]) == data
    assert list(a) == list(random_split(data, [6, 3, 2], seed=3)[0]) != list(random_split(data, [6, 3, 2], seed=4)[0])
    assert [len(part) for part in random_split(data, (11, 0))] == [11, 0]
    for wrong in ([6, 4], [0.5, 0.4], [12, -1], []):
        with refused(ArgumentError, "random_split: lengths are", "the data has 11 items"):
            random_split(data, wrong)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_shares_may_be_floats_of_numpy(kind: type) -> None:
    for shares in ([0.9, 0.1], [0.1, 0.9], [0.7, 0.2, 0.1]):
        plain = random_split(range(1000), shares, seed=3)
        assert [list(p) for p in random_split(range(1000), [kind(n) for n in shares], seed=3)] == [*map(list, plain)]
    with refused(ArgumentError, "random_split: lengths are [nan, 1.0]"):
        random_split(X, [kind("nan"), kind(1)])


def test_parts_of_data_keep_the_names_of_its_classes() -> None:
    data = TensorDataset(X, Y)
    data.classes = ("a", "b")
    parts = random_split(Subset(data, range(8)), [0.5, 0.5])
    assert [part.classes for part in parts] == [("a", "b")] * 2 and ConcatDataset(parts).classes == ("a", "b")
    assert not hasattr(Subset(TensorDataset(X, Y), [0]), "classes")
    assert not hasattr(ConcatDataset([*parts, TensorDataset(X, Y)]), "classes")
    pictures = TensorDataset(IMAGES, Y % 2)
    pictures.classes = ("cat", "dog")
    whole = Dataset.of("pets", Subset(pictures, range(6)), Subset(pictures, range(6, 10)))
    assert whole.classes == ("cat", "dog")


def test_several_in_a_row() -> None:
    data = ConcatDataset([Subset("abc", [0, 2]), [], "xyz"])
    assert len(data) == 5 and "".join(data) == "acxyz" and data[-1] == "z" and data[2] == "x"
    with pytest.raises(IndexError, match="ConcatDataset: index -6 is outside of 5 items"):
        data[-6]
    with refused(DataError, "ConcatDataset: there are no data sets"):
        ConcatDataset([])
    with refused(DataError, "ConcatDataset: data is a tuple of 2"):
        ConcatDataset([(X, Y)])


@pytest.mark.parametrize("processes", [False, True])
def test_workers_read_them(processes: bool) -> None:
    train, val = random_split(ConcatDataset([TensorDataset(X, Y), TensorDataset(X, Y + 10)]), [15, 5])
    loader = DataLoader(train, 4, shuffle=True, workers=2, processes=processes)
    found = [int(y) for _, labels in loader for y in labels.numpy()]
    assert sorted([*found, *(int(y) for _, y in val)]) == list(range(20))


def test_what_is_no_data_is_refused() -> None:
    for call in (lambda: TensorDataset([[1], [1, 2]]), lambda: ConcatDataset(None), lambda: ConcatDataset([list]),
                 lambda: random_split(X, None), lambda: random_split(X, {}), lambda: Subset(X, [[1], [1, 2]]),
                 lambda: Subset(np.array(3), [0]), lambda: steps_per_epoch(4, 0), lambda: Images(X, Y, None, "cpu"),
                 lambda: Images(X, Y, Dataset.of("a", (IMAGES, Y), (IMAGES, Y)), "cpu"),
                 lambda: Dataset("a", ("b",), X, X, IMAGES, 3, IMAGES, Y), lambda: Dataset.of("a", (IMAGES, Y)),
                 lambda: Dataset.of("a", (IMAGES, [*"abcdefghij"]), (IMAGES, Y)), lambda: Images(
                     IMAGES, IMAGES[..., 0], Dataset.of("a", (IMAGES, Y), (IMAGES, Y)), "cpu"),
                 lambda: Dataset.of("a", (IMAGES, [[1], [1, 2]] * 5), (IMAGES, Y)),
                 lambda: Dataset.of("a", (IMAGES, Y), (IMAGES, Y), classes=[]),
                 lambda: Dataset("a", (1,), X[0], X[0], IMAGES, Y, IMAGES, Y), lambda: ImageFolder(3)):
        with pytest.raises(AlphaError, match="\nhelp: "):
            call()
