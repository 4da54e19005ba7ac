"""What a call may name on CUDA: the direct kernels, whichever of them the planner takes."""

from __future__ import annotations

import sys
from functools import lru_cache

from alpha.config import config
from alpha.errors import ConfigError, message
from alpha.ops.algorithms.names import Request

SERVED = ("auto", "direct")


def check_algorithm(op: str, request: Request) -> None:
    """Refuses a strict request that no kernel serves; a preference falls to the planner.  Raises ConfigError."""
    if request and request.name not in SERVED:
        _not_served(op, request)


def _not_served(op: str, request: Request) -> None:
    if request.strict:
        raise ConfigError(message(op, f"{request.name} has no CUDA kernels, CUDA computes {SERVED[1]} alone",
                                  'write algorithm="auto", or move the tensors: x.to("cpu")'))
    if config.debug > 2:
        _tell(op, request.name)


@lru_cache(maxsize=64)
def _tell(op: str, name: str) -> None:
    print(f"alpha: {op}: {name} is preferred, and has no CUDA kernels: direct is taken", file=sys.stderr)
