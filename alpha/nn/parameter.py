"""Parameter: a tensor that a Module owns and an optimizer changes."""

from __future__ import annotations

from alpha.core.inplace.kin import alias
from alpha.core.inputs.arguments import checked
from alpha.core.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that a Module owns and an optimizer changes.

    Args:
        source: tensor whose elements it takes over (they are not copied).
        requires_grad: False freezes it.
    """

    __slots__ = ()

    @checked
    def __init__(self, source: Tensor, requires_grad: bool = True) -> None:
        super().__init__(source.array, source.shape, source.dtype, source.device)
        alias(source, self)
        self.requires_grad_(requires_grad)

    def _replace(self, other: Tensor) -> None:
        """Takes the elements of another tensor over, with their dtype and device."""
        self._rebind(other.array)
        self.dtype, self.device = other.dtype, other.device
