"""What a matrix product may name on CUDA: Strassen's algorithm has no kernels there."""

from __future__ import annotations

from alpha.cuda.conv.planner import ABSENT
from alpha.errors import ConfigError, message
from alpha.ops.algorithms.names import Request


def check_algorithm(op: str, request: Request) -> None:
    """Refuses a strict request for it; a preference is passed over.  Raises ConfigError."""
    if request.strict and request.name == "strassen":
        raise ConfigError(message(op, f"{request.name} {ABSENT}",
                                  'write algorithm="auto", or move the tensors: x.to("cpu")'))
