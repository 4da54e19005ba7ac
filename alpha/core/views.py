"""Classes of results that refuse uses which would go wrong without a word; an op names one of them in `gives`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from alpha.core.errors import GraphError, message, shown
from alpha.core.graph import state
from alpha.core.inputs.ints import as_int
from alpha.core.tensor import Tensor

_array: Any = Tensor.__dict__["array"]  # the place for it that every tensor has


class View(Tensor):
    """A tensor that shares its elements with the tensor that it was made of: see alpha.core.inplace.kin."""

    __slots__ = ()
    shares = "always"

    @classmethod
    def of(cls, y: Tensor) -> View:
        """Returns a view over the array of a tensor, at its place in the graph, which belongs to no family yet."""
        made = cls(y.array, y.shape, y.dtype, y.device)
        made._node, made._requires_grad = y._node, y._requires_grad
        return made


class PossibleView(Tensor):
    """A view that a gradient of alpha's own has made: in the memory of another where no element had to move."""

    __slots__ = ()
    shares = "sometimes"


class Spread(Tensor):
    """A tensor whose elements are few, over and over: a gradient of sums.  They are written out when `array` is read.

    Attributes:
        spread: the elements as an array of the tensor's shape that has no memory of its own, not to be changed, for
            implementations that read arrays of any strides; None once they are written.
    """

    __slots__ = ("few", "spread")
    few: Tensor | None
    spread: Any

    def __init__(self, few: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__(None, shape, few.dtype, few.device)
        self.few, self.spread = few, np.broadcast_to(few.array, shape)

    @property
    def array(self) -> Any:
        if self.few is not None:
            before, state.quiet = state.quiet, True
            try:
                self.array = self.few.expand(self.shape).array
            finally:
                state.quiet = before
        return _array.__get__(self)

    @array.setter
    def array(self, data: Any) -> None:
        _array.__set__(self, data)
        self.few = self.spread = None   # a holder of the array may change it


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
