"""`alpha.nn.utils`: parameters that are computed from others, as PyTorch's torch.nn.utils has them."""

import sys

from alpha.interop import twins
from alpha.nn.utils.parametrize import register_parametrization, remove_parametrizations, spectral_norm, weight_norm

__all__ = ["register_parametrization", "remove_parametrizations", "spectral_norm", "weight_norm"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.nn.utils", name, twins.UTILS, sys.modules[__name__])
