"""alpha.nn.functional against torch.nn.functional: what has arguments in its order, and what is of lines."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
import alpha.nn.functional as F
from alpha import nn
from alpha.gradcheck import assert_equal_at
from tests.op_checks import floats, like_torch

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]
TF = torch.nn.functional
sides = st.integers(1, 4)


def first(f: Any) -> Any:
    """A function of PyTorch's lines or maps, channels first, as one of channels last."""
    return lambda t, *rest: f(t.movedim(-1, 1), *rest).movedim(1, -1)


def own_order(y: Any) -> Any:
    """y, whose gradient comes in the order of its axes: PyTorch's instance_norm misreads one in another order."""
    if y.requires_grad:
        y.register_hook(lambda g: g.contiguous())
    return y


def agree(ours: Any, theirs: Any, *shapes: tuple[int, ...], low: float = -2.0) -> None:
    like_torch(ours, theirs, [floats(shape, k, low) for k, shape in enumerate(shapes)], 1e-9, 1e-9)


@given(n=st.integers(2, 3), c=sides, training=st.booleans(), affine=st.booleans())
def test_batch_norm(n: int, c: int, training: bool, affine: bool) -> None:
    own, other = (alpha.zeros((c,), "float64"), alpha.ones((c,), "float64")), (torch.zeros(c).double(),
                                                                              torch.ones(c).double())
    shapes = [(n, 3, 2, c), *[(c,)] * (2 * affine)]
    agree(lambda x, *w: F.batch_norm(x, *own, *w, training=training, momentum=0.3, eps=1e-3),
          first(lambda t, *w: TF.batch_norm(t, *other, *w, training=training, momentum=0.3, eps=1e-3)), *shapes)
    for a, b in zip(own, other):
        assert_equal_at(a, b.numpy(), rtol=1e-9, atol=1e-12)


@given(n=sides, c=sides, groups=st.integers(1, 2), affine=st.booleans())
def test_other_norms(n: int, c: int, groups: int, affine: bool) -> None:
    whole = (3, 2 * c)
    agree(lambda x, *w: F.layer_norm(x, whole, *w), lambda t, *w: TF.layer_norm(t, whole, *w), (n, *whole),
          *[whole] * (2 * affine))
    channels = [(2 * c,)] * (2 * affine)
    agree(lambda x, *w: F.group_norm(x, groups, *w), first(lambda t, *w: TF.group_norm(t, groups, *w)),
          (n, 2, 3, 2 * c), *channels)
    agree(lambda x, *w: F.instance_norm(x, None, None, *w),
          first(lambda t, *w: own_order(TF.instance_norm(t, None, None, *w))),
          (n, 2, 3, 2 * c), *channels)
    statistics = floats((2 * c,), 7), floats((2 * c,), 8, 0.5)
    agree(lambda x, *w: F.instance_norm(x, *map(alpha.tensor, statistics), *w, use_input_stats=False),
          first(lambda t, *w: own_order(TF.instance_norm(t, *map(torch.tensor, statistics), *w,
                                                         use_input_stats=False))),
          (n, 2, 3, 2 * c), *channels)


@given(length=st.integers(5, 8), c=sides, k=st.integers(1, 3), s=st.integers(1, 2), ceil=st.booleans())
def test_lines(length: int, c: int, k: int, s: int, ceil: bool) -> None:
    p, x = k // 2, (2, length, c)
    for padding in (p, "same") if s == 1 else (p,):
        agree(lambda x, w, b: F.conv1d(x, w, b, s, padding, 2), first(  # noqa: B023
            lambda t, w, b: TF.conv1d(t, w.movedim(-1, 1), b, s, padding, 2)), x, (3, k, c), (3,))  # noqa: B023
    agree(lambda x: F.max_pool1d(x, k, s, p, 1, ceil), first(lambda t: TF.max_pool1d(t, k, s, p, 1, ceil)), x)
    agree(lambda x: F.avg_pool1d(x, k, s, p, ceil, False), first(lambda t: TF.avg_pool1d(t, k, s, p, ceil, False)), x)
    agree(lambda x: F.adaptive_avg_pool1d(x, 3), first(lambda t: TF.adaptive_avg_pool1d(t, 3)), x)
    agree(lambda x: F.adaptive_max_pool1d(x, 3), first(lambda t: TF.adaptive_max_pool1d(t, 3)), x)
    a = floats(x, 1)
    _, index = F.max_pool1d(alpha.tensor(a), k, s, p, return_indices=True)
    expected = TF.max_pool1d(torch.tensor(a).movedim(-1, 1), k, s, p, return_indices=True)[1].movedim(1, -1)
    assert (index.numpy() == expected.numpy()).all()


def test_groups_of_a_convolution_along_a_line() -> None:
    agree(lambda x, w: F.conv1d(x, w, groups=2), first(lambda t, w: TF.conv1d(t, w.movedim(-1, 1), groups=2)),
          (2, 6, 4), (6, 3, 2))


def test_whole_channels_are_dropped() -> None:
    x = alpha.ones((50, 3, 4, 20))
    for drop, layer in ((F.dropout2d, nn.Dropout2d(0.25)), (F.dropout1d, nn.Dropout1d(0.25))):
        alpha.manual_seed(4)
        y = drop(x, 0.25)
        means = y.numpy().mean((1, 2))
        assert set(np.unique(y.numpy())) == {0.0, np.float32(1 / 0.75)} and set(np.unique(means.round(5))) == {
            0.0, np.float32(1 / 0.75).round(5)}
        assert 0.65 < (means > 0).mean() < 0.85
        alpha.manual_seed(4)
        assert (layer(x).numpy() == y.numpy()).all()
        assert drop(x, 0.25, training=False) is x and layer.eval()(x) is x


def test_activations_take_inplace_and_can_be_pickled() -> None:
    x = alpha.tensor([-1.0, 0.5, 7.0])
    for name in ("relu", "relu6", "silu", "hardswish", "hardsigmoid", "mish", "selu"):
        f = getattr(F, name)
        expected = getattr(TF, name)(torch.tensor([-1.0, 0.5, 7.0]))
        for y in (f(x), f(x, inplace=True), f(x, True), nn.Lambda(pickle.loads(pickle.dumps(f)))(x)):
            assert_equal_at(y, expected.numpy(), rtol=1e-6)
        assert x.tolist() == [-1.0, 0.5, 7.0] and f.__name__ == name and f.__doc__
    assert nn.Sequential(F.mish, F.elu)(x).shape == (3,)
