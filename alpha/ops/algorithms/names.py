"""The names of algorithms as arguments of ops: which ones there are, and the alpha.plan.Request that a call makes."""

from __future__ import annotations

from typing import Annotated, Any, Union

from alpha.core.config import config
from alpha.core.errors import ConfigError
from alpha.core.inputs.kinds import Choice
from alpha.plan import Request

CONV_NAMES = ("auto", "direct", "im2col", "winograd", "fft", "strassen", "sparse")
PRODUCT_NAMES = ("auto", "direct", "strassen")
LINEAR_NAMES = (*PRODUCT_NAMES, "sparse")


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
