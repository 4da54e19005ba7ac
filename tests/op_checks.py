"""What the tests of ops share: shapes that broadcast, a comparison with PyTorch, and the reading of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.gradcheck import assert_equal_at

shapes = st.lists(st.sampled_from([1, 2, 3, 5]), max_size=4).map(tuple)


@st.composite
def broadcasting(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, in either direction: sizes become 1, leading axes go."""
    whole = draw(shapes)
    parts = []
    for _ in range(2):
        cut = [1 if draw(st.booleans()) else n for n in whole]
        parts.append(tuple(cut[draw(st.integers(0, len(whole))):]))
    return parts[0], parts[1]


def floats(shape: Sequence[int], seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, tuple(shape))


def integers(shape: Sequence[int], seed: int = 0, low: int = -4, high: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, tuple(shape))


def leaf(shape: Sequence[int], seed: int = 0, low: float = -2.0, high: float = 2.0) -> alpha.Tensor:
    """A float64 tensor to differentiate by."""
    return alpha.tensor(floats(shape, seed, low, high), requires_grad=True)


def check_sample_norm_of_nearly_equal_elements(shape: tuple[int, ...], groups: int, device: str = "cpu",
                                               again: bool = False) -> None:
    """y and the gradients against float64, where what a float32 mean leaves out shows.

    Args:
        groups: of group norm; 0 for layer norm.
        again: whether the gradients are made to be differentiated again.
    """
    rng = np.random.default_rng(0)
    x = (1.7 + 0.011 * rng.standard_normal(shape)).astype(np.float32)
    g, gamma = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[-1:]))
    t, scale = (alpha.tensor(a, device=device, requires_grad=True) for a in (x, gamma))
    y = ops.group_norm(t, scale, groups=groups) if groups else ops.layer_norm(t, scale)
    dx, dgamma = alpha.grad(y, [t, scale], alpha.tensor(g, device=device), create_graph=again)

    split = (shape[0], -1, groups, shape[-1] // groups) if groups else shape
    axes = (1, 3) if groups else len(shape) - 1
    wide, v = (a.astype(np.float64).reshape(split) for a in (x, g.astype(np.float64) * gamma))
    istd = 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    xhat = (wide - wide.mean(axes, keepdims=True)) * istd
    expected = istd * (v - v.mean(axes, keepdims=True) - xhat * (v * xhat).mean(axes, keepdims=True))
    for name, ours, theirs in (("y", y, xhat.reshape(shape) * gamma), ("dx", dx, expected.reshape(shape)),
                               ("dgamma", dgamma, (g * xhat.reshape(shape)).reshape(-1, shape[-1]).sum(0))):
        assert_equal_at(ours, theirs, atol=2e-6 * np.abs(theirs).max(), name=name)


def like_torch(ours: Callable[..., Any], theirs: Callable[..., Any], arrays: Sequence[np.ndarray], rtol: float = 1e-12,
               atol: float = 1e-12) -> None:
    """Asserts that values and gradients of two functions agree, with a random gradient of the result."""
    torch = pytest.importorskip("torch")
    xs = [alpha.tensor(a, requires_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, expected = ours(*xs), theirs(*ts)
    assert_equal_at(y.detach(), expected.detach().numpy(), rtol=rtol, atol=atol, name="y")
    g = floats(y.shape, seed=99).astype(y.dtype)
    y.backward(alpha.tensor(g))
    expected.backward(torch.tensor(g))
    for k, (x, t) in enumerate(zip(xs, ts)):
        assert x.grad is not None and x.grad.dtype == x.dtype
        assert_equal_at(x.grad, t.grad.numpy(), rtol=rtol, atol=atol, name=f"gradient of argument {k}")


@contextmanager
def refused(error: type[Exception], *parts: str) -> Iterator[None]:
    """Asserts that the block raises an error whose message has every part, among them some help."""
    with pytest.raises(error) as caught:
        yield
    for part in (*parts, "\nhelp: "):
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"


def is_contiguous(*tensors: alpha.Tensor) -> bool:
    """Tells whether the elements are laid out as every implementation may assume."""
    return all(type(t.array) is np.ndarray and t.array.flags.c_contiguous and t.array.shape == t.shape
               and t.array.dtype == t.dtype for t in tensors)
