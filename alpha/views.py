"""Classes of results that refuse what would go wrong without a word; an op names one of them in `gives`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from alpha.errors import GraphError, message, shown
from alpha.inputs.ints import as_int
from alpha.tensor import Tensor


class View(Tensor):
    """A tensor over the memory of the one that it was made of."""

    __slots__ = ()
    shares = "always"


class PossibleView(Tensor):
    """A tensor over the memory of the one that it was made of where no element had to move, else over its own."""

    __slots__ = ()
    shares = "sometimes"


class Extremes(Tensor):
    """The largest or smallest elements, without their places: no pair of values and indices, to unpack or to pick from.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[Tensor]:
        raise GraphError(message("max or min", f"the result of shape {self.shape} has the values only, and is no pair "
                                 "to be unpacked", "y = x.max(axis) has the values, x.argmax(axis) the indices; to go "
                                 "through the values: for k in range(len(y)): y[k, ...]"))

    def __getitem__(self, key: Any) -> Tensor:
        if as_int(key) is not None:
            raise GraphError(message("max or min", f"[{shown(key)}] would be an element of the values, of shape "
                                     f"{self.shape}; the result is no pair", "y = x.max(axis) has the values, "
                                     "x.argmax(axis) the indices; one of the values: y[k, ...]"))
        return super().__getitem__(key)
