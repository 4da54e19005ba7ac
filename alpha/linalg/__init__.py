"""`alpha.linalg`: linear algebra of the last two axes, on the host, with gradients of every order."""

import sys

from alpha.interop import twins
from alpha.ops import vector_norm as norm
from alpha.ops.linalg import cholesky, det, eigh, inv, qr, slogdet, solve, svd

__all__ = ["cholesky", "det", "eigh", "inv", "norm", "qr", "slogdet", "solve", "svd"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.linalg", name, twins.LINALG, sys.modules[__name__])
