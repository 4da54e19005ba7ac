"""Linear algebra beside its twins: what does not depend on the signs of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from alpha.ops import linalg
from tests.op_twins import Draw, Twin, floats, some, torch, twin
from tests.op_twins_parts import TWINS

__all__ = ["TWINS"]


def matrices(draw: Draw, n: int, m: int | None = None) -> np.ndarray:
    """Matrices far from singular ones, one or two."""
    lead = draw(st.sampled_from([(), (2,)]))
    shape = (*lead, n, n if m is None else m)
    return floats(shape, 1, -0.5, 0.5) + np.eye(*shape[-2:]) * (2 + np.arange(shape[-1]))


def _plain(name: str, theirs: str | None = None) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        return Twin(getattr(linalg, name), lambda t: getattr(torch().linalg, theirs or name)(t),
                    [matrices(draw, draw(some))])
    return make


TWINS |= {name: _plain(name) for name in ("inv", "det")}


@twin
def slogdet(draw: Draw) -> Twin:
    return Twin(lambda x: linalg.slogdet(x).logabsdet, lambda t: torch().linalg.slogdet(t)[1],
                [-matrices(draw, draw(some))])


@twin
def solve(draw: Draw) -> Twin:
    n, k = draw(some), draw(some)
    a = matrices(draw, n)
    b = floats((*a.shape[:-2], n, k), 2)
    return Twin(linalg.solve, lambda s, t: torch().linalg.solve(s, t), [a, b])


@twin
def cholesky(draw: Draw) -> Twin:
    def f(module: Any) -> Callable[..., Any]:
        return lambda x: module.cholesky(x @ x.mT)
    return Twin(f(linalg), lambda t: torch().linalg.cholesky(t @ t.mT), [matrices(draw, draw(some))])


@twin
def qr(draw: Draw) -> Twin:
    """Of tall matrices; columns of Q and rows of R with the sign that makes R's diagonal positive."""
    n = draw(some)
    a = matrices(draw, n + draw(st.integers(0, 1)), n)

    def f(module: Any) -> Callable[..., Any]:
        def both(x: Any) -> Any:
            q, r = module.qr(x)
            return (q * q)[..., :n, :] @ (r * r) + (q * 3.0 @ (r * 2.0))[..., :n, :]
        return both
    return Twin(f(linalg), lambda t: f(torch().linalg)(t), [a])


@twin
def eigh(draw: Draw) -> Twin:
    def f(module: Any) -> Callable[..., Any]:
        def both(x: Any) -> Any:
            w, v = module.eigh(x + x.mT)
            return (v * v) * w[..., None, :] + w[..., None]
        return both
    return Twin(f(linalg), lambda t: f(torch().linalg)(t), [matrices(draw, draw(some))])


@twin
def svd(draw: Draw) -> Twin:
    n = draw(some)
    wide = draw(st.integers(-1, 1))
    a = matrices(draw, max(1, n + wide), n)

    def f(call: Callable[..., Any]) -> Callable[..., Any]:
        def both(x: Any) -> Any:
            u, w, vt = call(x)
            return (u * u) @ (vt * vt * w[..., None]) + (u * w[..., None, :]) @ vt * 0.5
        return both
    return Twin(f(linalg.svd), lambda t: f(lambda s: torch().linalg.svd(s, full_matrices=False))(t), [a])
