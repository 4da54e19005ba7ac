"""Parameter: what a Module owns and an optimizer changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.errors import ShapeError, message
from alpha.inputs.arguments import checked
from alpha.tensor import Tensor

_data: Any = Tensor.__dict__["data"]    # the slot that `Parameter.data` stands in front of


class Parameter(Tensor):
    """A leaf tensor that a Module owns and an optimizer changes.

    Args:
        source: tensor whose elements it takes over (they are not copied).
        requires_grad: False freezes it.
    """

    __slots__ = ()

    @checked
    def __init__(self, source: Tensor, requires_grad: bool = True) -> None:
        super().__init__(source.data, source.shape, source.dtype, source.device)
        self.requires_grad_(requires_grad)

    def _set_data(self, data: Any) -> None:
        array = isinstance(data, np.ndarray)
        if hasattr(self, "requires_grad") and (isinstance(data, Tensor) or (array and not self._fits(data))):
            raise ShapeError(message("Parameter.data", f"it is set to {'an array' if array else 'a Tensor'} of "
                                     f"shape {data.shape}, {data.dtype}, and is memory of {self.shape}, {self.dtype}",
                                     "overwrite the elements: p.copy_(...); or set a new nn.Parameter(...)"))
        _data.__set__(self, data)

    def _fits(self, a: np.ndarray) -> bool:
        return self.device == "cpu" and (a.shape, a.dtype.name) == (self.shape, self.dtype)

    def _replace(self, other: Tensor) -> None:
        """Takes the elements of another tensor over, with their dtype and device."""
        _data.__set__(self, other.data)
        self.dtype, self.device = other.dtype, other.device

    data = property(_data.__get__, _set_data)   # type: ignore[assignment]
