"""What a call asked for: the name of an algorithm, whether it insists on it, and in which precision.

A name that a call writes is strict: what it cannot compute is an error. A name from ALPHA_CONV_ALGORITHM, or the one
that a gradient inherits from its forward call, is a preference: where it does not serve, the choice is free.
"""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """What a call asked for.

    Attributes:
        name: of the algorithm, or "auto".
        strict: whether anything else is an error.
        precision: "fp32" or "tf32", that of the forward call: how far the results of its algorithm may be off.
    """

    name: str = "auto"
    strict: bool = False
    precision: str = "fp32"

    def __str__(self) -> str:
        return self.name + ("!" if self.strict else "")

    @property
    def inherited(self) -> Request:
        """What the gradients of the call ask for."""
        return self._replace(strict=False) if self.strict else self


AUTO = Request()
