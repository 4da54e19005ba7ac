"""The names of algorithms, and what a call asked for: a name, whether it insists on it, and in which precision.

A name that a call writes is strict: what it cannot compute is an error. A name from ALPHA_CONV_ALGORITHM, or the one
that a gradient inherits from its forward call, is a preference: where it does not serve, the choice is free.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Union

from alpha.core.config import config
from alpha.core.errors import ConfigError
from alpha.core.inputs.kinds import Choice

CONV_NAMES = ("auto", "direct", "im2col", "winograd", "fft", "strassen", "sparse")
PRODUCT_NAMES = ("auto", "direct", "strassen")
LINEAR_NAMES = (*PRODUCT_NAMES, "sparse")


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


class AlgorithmKind(Choice):
    """None, or a name; what an op hands to its gradients is taken as it is."""

    stub = "str | None"

    def __init__(self, *names: str) -> None:
        super().__init__(*names, error=ConfigError)
        self.text = f"None, {self.text}"
        self.fix = "pass one of those for {name}; auto is the default"

    def read(self, value: Any) -> Any:
        if value is None or value.__class__ is Request:
            return value
        return super().read(value)


def conv_request(value: Any) -> Any:
    """Returns the Request of a convolution's argument `algorithm`; what is no name is left for its kind to refuse."""
    if value is None:
        return Request(config.conv_algorithm, False, _precision())
    return _strict(value, CONV_NAMES)


def product_request(value: Any) -> Any:
    """As conv_request, for a matrix product, which no setting has a preference for."""
    return Request("auto", False, _precision()) if value is None else _strict(value, PRODUCT_NAMES)


def linear_request(value: Any) -> Any:
    """As product_request, for a linear layer."""
    return Request("auto", False, _precision()) if value is None else _strict(value, LINEAR_NAMES)


def _strict(value: Any, names: tuple[str, ...]) -> Any:
    return Request(value, value != "auto", _precision()) if value.__class__ is str and value in names else value


def _precision() -> str:
    return "tf32" if config.precision == "tf32" else "fp32"


ConvAlgorithm = Annotated[Union[str, None], AlgorithmKind(*CONV_NAMES)]
LinearAlgorithm = Annotated[Union[str, None], AlgorithmKind(*LINEAR_NAMES)]
ProductAlgorithm = Annotated[Union[str, None], AlgorithmKind(*PRODUCT_NAMES)]
