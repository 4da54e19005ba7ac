"""Linear algebra on the host: what alpha.linalg offers, and the ops under it with their gradients."""

from alpha.ops.linalg.functions import cholesky, det, eigh, inv, qr, slogdet, solve, svd

__all__ = ["cholesky", "det", "eigh", "inv", "qr", "slogdet", "solve", "svd"]
