"""Data sets made of others: some items, several one after another, arrays that go together.

    train, val = random_split(data, [0.9, 0.1], seed=1)
    loader = DataLoader(ConcatDataset([train, more]), 64, shuffle=True)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any

import numpy as np

from alpha.core.errors import ArgumentError, DataError, message, shown
from alpha.core.inputs.arguments import bound, checked
from alpha.core.inputs.ints import as_int, has_bool, no_bools
from alpha.core.inputs.kinds import Kind, Many, Seed
from alpha.core.tensor import Tensor

DataSets = Annotated[Sequence[Any], Many(Kind(), text="a list of data sets")]
Lengths = Annotated[Sequence[float], Many(Kind(), text="a list of numbers of items, or of shares,")]


def _checked_data(where: str, data: Any) -> Any:
    """Returns data that has items.  Raises DataError for data without, and for a tuple of arrays."""
    if isinstance(data, tuple):
        raise DataError(message(where, f"data is a tuple of {len(data)}, whose items are not those of the arrays in it",
                                "pass TensorDataset(images, labels)"))
    try:
        has_items = len(data) >= 0 and hasattr(data, "__getitem__")
    except TypeError:
        has_items = False
    if not has_items:
        raise DataError(message(where, f"data is {shown(data)}, without a length or items",
                                "pass an object with __len__ and __getitem__"))
    return data


def _as_array(where: str, a: Any) -> np.ndarray:
    """Returns a tensor, or data that NumPy reads, as an array.  Raises DataError for lists of unequal lengths."""
    try:
        return a.detach().numpy() if isinstance(a, Tensor) else np.asarray(a)
    except ValueError:
        raise DataError(message(where, "a list has parts of unequal lengths", "pass arrays")) from None


def place(where: str, index: Any, count: int) -> int:
    """Returns an index from 0 on.  Raises ArgumentError for none; IndexError, by which a loop over items ends."""
    k = as_int(index)
    if k is None:
        raise ArgumentError(message(where, f"the index is {shown(index)}, an int is needed", "count from 0"))
    if not -count <= k < count:
        raise IndexError(message(where, f"index {k} is outside of {count} items", "count from 0"))
    return k % count


class TensorDataset:
    """Items of arrays that go together: item k is (a[k], b[k], ...).

    Args:
        arrays: tensors, on the CPU from then on, or NumPy arrays, with as many rows each.
    Raises:
        DataError: there is none, or their numbers of rows differ.
    """

    @bound
    def __init__(self, *arrays: Any) -> None:
        self.tensors = tuple([_as_array("TensorDataset", a) for a in arrays])
        rows = [a.shape[0] if a.ndim else None for a in self.tensors]
        if not rows or rows[0] is None or len(set(rows)) > 1:
            raise DataError(message("TensorDataset", f"the arrays have {rows} rows", "pass arrays of one row for each "
                                    "item", shapes=[a.shape for a in self.tensors]))

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        if isinstance(index, slice):
            try:
                return tuple([a[no_bools(index)] for a in self.tensors])
            except (TypeError, ValueError) as error:
                raise ArgumentError(message("TensorDataset", f"the index {shown(index)}: {error}", "use ints"
                                            )) from None
        k = place("TensorDataset", index, len(self))
        return tuple([a[k] for a in self.tensors])


class Subset:
    """The items of a data set that `indices` names, in that order.

    Attributes:
        classes: of the data set, where it has them.
    Raises DataError for a tuple of arrays, ArgumentError for an index that is none of the data's.
    """

    @bound
    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset = _checked_data("Subset", dataset)
        found = _as_array("Subset", indices)
        if has_bool(indices):
            found = found.astype(object)    # neither a mask nor indices
        count = len(dataset)
        if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < -count
                                               or found.max() >= count)):
            raise ArgumentError(message("Subset", f"indices are {shown(indices)}, the data has {count} items",
                                        "pass a list of numbers from 0 on"))
        self.indices = [int(k) for k in found]
        if hasattr(dataset, "classes"):
            self.classes = dataset.classes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[place("Subset", index, len(self))]]


class ConcatDataset:
    """The items of several data sets, one after another.

    Attributes:
        classes: of the data sets, where all have the same.
    """

    @checked
    def __init__(self, datasets: DataSets) -> None:
        self.datasets = [_checked_data("ConcatDataset", data) for data in datasets]
        if not self.datasets:
            raise DataError(message("ConcatDataset", "there are no data sets", "pass a list of at least one"))
        self.ends = list(accumulate(map(len, self.datasets)))
        names = [tuple(getattr(data, "classes", ())) for data in self.datasets]
        if names[0] and names.count(names[0]) == len(names):
            self.classes = names[0]

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: Any) -> Any:
        k = place("ConcatDataset", index, len(self))
        part = bisect_right(self.ends, k)
        return self.datasets[part][k - (self.ends[part - 1] if part else 0)]


@checked
def random_split(dataset: Any, lengths: Lengths, seed: Seed = 0) -> list[Subset]:
    """Returns disjoint random parts of a data set.

    Args:
        dataset: any object with __len__ and __getitem__.
        lengths: numbers of items that add up to all, or shares that add up to 1: then the items that rounding down
            leaves over go to the first parts, one each.
        seed: of the order; the same seed gives the same parts.
    Raises:
        ArgumentError: the lengths do not add up.  DataError: for a tuple of arrays.
    """
    count = len(_checked_data("random_split", dataset))
    # A float32 of 0.1 is meant as 0.1, and not as the 0.100000001 that float64 makes of it.
    lengths = [float(str(n)) if isinstance(n, np.floating) else n for n in lengths]
    if lengths and all(isinstance(n, float) for n in lengths) and min(lengths) >= 0 and abs(sum(lengths) - 1) < 1e-6:
        sizes = [int(n * count) for n in lengths]
        for k in range(count - sum(sizes)):
            sizes[k % len(sizes)] += 1
    elif lengths and all((items := as_int(n)) is not None and items >= 0 for n in lengths) and sum(lengths) == count:
        sizes = [int(n) for n in lengths]
    else:
        raise ArgumentError(message("random_split", f"lengths are {shown(lengths)}, the data has {count} items",
                                    "pass numbers that add up to that, or shares (floats) that add up to 1"))
    order = np.random.default_rng(seed).permutation(count)
    return [Subset(dataset, part) for part in np.split(order, list(accumulate(sizes))[:-1])]
