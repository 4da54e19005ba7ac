"""What a matrix product may name on CUDA: Strassen's algorithm and the skipping of zeros have no kernels there."""

from __future__ import annotations

from alpha.cuda.conv.planner import ABSENT
from alpha.errors import ConfigError, message
from alpha.ops.algorithms.names import Request


def check_algorithm(op: str, request: Request) -> None:
    """Refuses a strict request for one of them; a preference is passed over.  Raises ConfigError."""
    if request.strict and request.name in ("strassen", "sparse"):
        raise ConfigError(message(op, f"{request.name} {ABSENT}",
                                  'write algorithm="auto", or move the tensors: x.to("cpu")'))
