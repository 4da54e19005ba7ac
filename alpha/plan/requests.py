"""The request of a call: the name of an algorithm, whether the call insists on it, and its precision.

A name that a call writes is strict: a shape that it cannot compute is an error. A name from ALPHA_CONV_ALGORITHM, or a
name that a gradient inherits from its forward call, is a preference: where it does not serve, the choice is free.
"""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """The request of a call.

    Attributes:
        name: of the algorithm, or "auto".
        strict: whether anything else is an error.
        precision: "fp32" or "tf32", of the forward call: how far the results of its algorithm may be off.
    """

    name: str = "auto"
    strict: bool = False
    precision: str = "fp32"

    def __str__(self) -> str:
        return self.name + ("!" if self.strict else "")

    @property
    def inherited(self) -> Request:
        """The request of the call's gradients."""
        return self._replace(strict=False) if self.strict else self


AUTO = Request()
