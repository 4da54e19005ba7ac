"""Functions that are composed of other ops: special values, integers, what PyTorch refuses second gradients of, errors.

tests/op_twins_composed.py has values and gradients of both orders over drawn shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.errors import AlphaError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import floats, integers, refused

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]
INF, NAN = np.inf, np.nan
filled = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
SPECIAL = np.array([NAN, INF, -INF, 0, 1, -1, 0.5, -0.5, 1e-30, -1e-30, 1e30, -1e30, 20, -20, 88, -88, 3, -3],
                   np.float32)


def same(ours: Any, theirs: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Values, shapes and dtypes, of tensors or of tuples of them."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            same(a, b, rtol, atol)
        return
    assert ours.shape == tuple(theirs.shape) and ours.dtype == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=rtol, atol=atol)


# ---- special values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, near", [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("name", ["expm1", "log1p", "sinh", "cosh", "atan", "asin", "acos", "exp2", "erfc"])
def test_curves_at_special_values(name: str, dtype: str, near: float) -> None:
    x = SPECIAL.astype(dtype)
    same(getattr(ops, name)(alpha.tensor(x)), getattr(torch, name)(torch.tensor(x)), max(near, 1e-5 * (name == "erfc")))


@pytest.mark.parametrize("dtype, near", [("float32", 5e-7), ("float64", 1e-13), ("float16", 6e-4)])
@pytest.mark.parametrize("name, low, high", [("expm1", -8, 8), ("log1p", -0.99, 9), ("sinh", -8, 8), ("cosh", -8, 8),
                                             ("tan", -1.5, 1.5), ("atan", -9, 9), ("asin", -1, 1), ("acos", -1, 1),
                                             ("exp2", -9, 9)])
def test_curves_in_every_precision(name: str, low: float, high: float, dtype: str, near: float) -> None:
    x = np.linspace(low, high, 4001).astype(dtype)
    expected = getattr(torch, name)(torch.tensor(x.astype(np.float64))).numpy()
    y = getattr(ops, name)(alpha.tensor(x)).numpy().astype(np.float64)
    assert_equal_at(y, expected, rtol=near, atol=near / 1e3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["atan2", "fmod", "hypot"])
def test_pairs_at_special_values(name: str, dtype: str) -> None:
    some = SPECIAL[1:] if name == "hypot" else SPECIAL      # where one is infinite and one NaN, NaN wins here
    some = np.append(some, np.float32(-0.0)) if name == "atan2" else some[np.abs(some) < 1e20]
    a, b = (x.astype(dtype) for x in np.meshgrid(some, some))
    ours = getattr(ops, name)(alpha.tensor(a), alpha.tensor(b))
    same(ours, getattr(torch, name)(torch.tensor(a), torch.tensor(b)), 2e-6)


def test_fmod_of_integers_and_numbers() -> None:
    for dtype in ("int32", "int64", "uint8"):
        a = integers((7,), 1, 0 if dtype == "uint8" else -9, 9).astype(dtype)
        same(alpha.tensor(a).fmod(4), torch.tensor(a).fmod(4))
        same(alpha.tensor(a).fmod(alpha.tensor(a * 0 + 3)), torch.tensor(a).fmod(torch.tensor(a * 0 + 3)))
    a = floats((9,), 1)
    same(alpha.tensor(a).fmod(-0.7), torch.tensor(a).fmod(-0.7), 1e-15)


@pytest.mark.parametrize("name", ["hardtanh", "hardshrink", "softshrink", "hardsigmoid", "celu", "selu", "mish",
                                  "logsigmoid", "softsign", "tanhshrink", "hardswish"])
def test_activations_and_their_gradients_where_pieces_meet(name: str) -> None:
    x = np.array([-4, -3, -1, -0.5, 0, 0.5, 1, 3, 4, 20, -20], np.float32)
    ours, theirs = alpha.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, t = getattr(F, name)(ours), getattr(torch.nn.functional, name)(theirs)
    same(y, t, 2e-6, 1e-7)
    y.sum().backward()
    t.sum().backward()
    assert_equal_at(ours.grad, theirs.grad.numpy(), rtol=2e-6, atol=1e-7)
    half = getattr(F, name)(alpha.tensor(x.astype(np.float16)))
    assert half.dtype == "float16"
    assert_equal_at(half.numpy().astype(np.float32), t.detach().half().numpy().astype(np.float32), rtol=1e-3, atol=1e-4)


def test_gumbel_softmax_draws_as_often_as_the_classes_say() -> None:
    alpha.manual_seed(3)
    logits = alpha.tensor(np.log(np.array([0.1, 0.2, 0.7], np.float32))).expand(4000, 3)
    drawn = F.gumbel_softmax(logits, hard=True)
    assert set(np.unique(drawn.numpy().round(6))) == {0.0, 1.0} and (drawn.sum(1).numpy().round(5) == 1).all()
    assert_equal_at(drawn.mean(0), np.array([0.1, 0.2, 0.7]), atol=0.03)


# ---- integers, and what the host counts ------------------------------------------------------------------------------


@given(shape=filled, data=st.data())
def test_integers_along_axes(shape: tuple, data: Any) -> None:
    a = integers(shape, 1)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, t = alpha.tensor(a), torch.tensor(a)
    same(x.prod(axis), t.prod(axis))
    same(x.prod(), t.prod())
    same(x.cumprod(axis), t.cumprod(axis))
    same(x.diff(2, axis), t.diff(2, axis))
    same(x.count_nonzero(axis), t.count_nonzero(axis))
    same(x.median(axis).values, t.median(axis).values)
    same(x.roll(3, axis), t.roll(3, axis))
    counts = [k % 3 for k in range(shape[axis])]
    same(x.repeat_interleave(counts, axis), t.repeat_interleave(torch.tensor(counts), axis))
    same(alpha.unique(x, return_inverse=True, return_counts=True), t.unique(return_inverse=True, return_counts=True))
    same(alpha.unique(x, axis=axis), t.unique(dim=axis))
    weights = floats((a.size,), 2)
    flat = np.abs(a).reshape(-1)
    same(alpha.tensor(flat).bincount(minlength=9), torch.tensor(flat).bincount(minlength=9))
    same(alpha.tensor(flat).bincount(alpha.tensor(weights)), torch.tensor(flat).bincount(torch.tensor(weights)))


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), offset=st.integers(-5, 5))
def test_diagonals(rows: int, columns: int, offset: int) -> None:
    a = integers((2, rows, columns), 1)
    x, t = alpha.tensor(a), torch.tensor(a)
    same(x.diagonal(offset, 1, 2), t.diagonal(offset, 1, 2))
    same(x.diagonal(offset, -1, 0), t.diagonal(offset, -1, 0))
    same(x[0].diag(offset), t[0].diag(offset))
    same(x[0, 0].diag(offset), t[0, 0].diag(offset))


def test_a_diagonal_matrix_has_zeros_beside_an_infinity() -> None:
    assert alpha.diag(alpha.tensor([INF, 1.0])).tolist() == [[INF, 0.0], [0.0, 1.0]]


@given(shape=filled, data=st.data())
def test_quantiles(shape: tuple, data: Any) -> None:
    axis = data.draw(st.sampled_from([None, *range(-len(shape), len(shape))]))
    q = data.draw(st.sampled_from([0.0, 0.3, 1.0, [0.25, 0.5]]))
    a, keep = floats(shape, 1), data.draw(st.booleans())
    if data.draw(st.booleans()):
        a.reshape(-1)[0] = NAN
    wanted = torch.tensor(q, dtype=torch.float64)
    for way in ("linear", "lower", "higher", "nearest", "midpoint"):
        same(alpha.quantile(alpha.tensor(a), q, axis, keep, way),
             torch.quantile(torch.tensor(a), wanted, axis, keep, interpolation=way), 1e-12)
    same(alpha.tensor(a).median(0), torch.tensor(a).median(0))


def test_parts() -> None:
    a = integers((3, 5, 4), 1)
    x, t = alpha.tensor(a), torch.tensor(a)
    for parts in (1, 2, 3, 7, [1, 3], [-1, 9], [4, 2], []):
        same(x.tensor_split(parts, 1), t.tensor_split(parts, 1))
    for shifts, axes in ((1, 0), (-2, 1), ((1, -1), (0, 2)), (8, 1), (3, None)):
        same(x.roll(shifts, axes), t.roll(shifts, axes))
    for name in ("vstack", "hstack", "dstack"):
        for part in (0, (0, 0), slice(None)):
            same(getattr(alpha, name)([x[part], x[part]]), getattr(torch, name)([t[part], t[part]]))
    same(alpha.tensor(a[:0]).prod(), torch.tensor(a[:0]).prod())
    same(x.take_along_dim(alpha.tensor([3, 0])), t.take_along_dim(torch.tensor([3, 0])))
    for made, expected in ((x.new_zeros(2, 3), t.new_zeros(2, 3)), (x.new_ones((2,)), t.new_ones((2,))),
                           (x.new_full((2,), 7), t.new_full((2,), 7)), (x.new_tensor([1, 2]), t.new_tensor([1, 2])),
                           (x.new_zeros(2, dtype="float32"), t.new_zeros(2, dtype=torch.float32))):
        same(made, expected)


@given(shape=filled)
def test_isclose(shape: tuple) -> None:
    a, b = floats(shape, 1), floats(shape, 1) * (1 + 1e-5 * np.sign(floats(shape, 2)))
    a.reshape(-1)[:2] = [INF, NAN][:a.size]
    b.reshape(-1)[:2] = [INF, NAN][:a.size]
    b.reshape(-1)[-1] = -INF
    for options in ({}, {"rtol": 1e-4}, {"atol": 3.0, "equal_nan": True}):
        same(alpha.isclose(alpha.tensor(a), alpha.tensor(b), **options),
             torch.isclose(torch.tensor(a), torch.tensor(b), **options))
        assert alpha.allclose(alpha.tensor(a), alpha.tensor(b), **options) is torch.allclose(
            torch.tensor(a), torch.tensor(b), **options)


def test_16_bits_are_computed_in_float32() -> None:
    a = floats((40, 33), 1, 0.9, 1.1).astype(np.float16)
    x, exact = alpha.tensor(a), torch.tensor(a.astype(np.float64))
    y, other, TF = x.flip(0), exact.flip(0), torch.nn.functional
    for ours, theirs in ((x.prod(1), exact.prod(1)), (x.cumprod(1), exact.cumprod(1)),
                         (F.rms_norm(x, (33,)), TF.rms_norm(exact, (33,))),
                         (F.cosine_similarity(x, y), TF.cosine_similarity(exact, other)),
                         (F.pairwise_distance(x, y), TF.pairwise_distance(exact, other))):
        assert ours.dtype == "float16"
        assert_equal_at(ours.numpy().astype(np.float64), theirs.numpy(), rtol=6e-4, atol=1e-5)
    for loss in (F.soft_margin_loss(x, x.sign()), F.triplet_margin_loss(x, x, x), F.poisson_nll_loss(x, x),
                 F.gaussian_nll_loss(x, x, x), F.multi_margin_loss(x, alpha.zeros((40,), "int64"))):
        assert loss.dtype == "float32"


# ---- losses ----------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 4), c=st.integers(2, 5), p=st.integers(1, 2), data=st.data())
def test_multi_margin_loss(n: int, c: int, p: int, data: Any) -> None:
    a, w, labels = floats((n, c), 1), floats((c,), 2, 0.1, 2.0), integers((n,), 3, 0, c)
    reduction = data.draw(st.sampled_from(["mean", "sum", "none"]))
    x, t = alpha.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    layer = nn.MultiMarginLoss(p, 0.7, alpha.tensor(w), reduction=reduction)
    ours = layer(x, alpha.tensor(labels))
    theirs = torch.nn.MultiMarginLoss(p, 0.7, torch.tensor(w), reduction=reduction)(t, torch.tensor(labels))
    same(ours, theirs, 1e-12)
    ours.sum().backward()
    theirs.sum().backward()
    assert_equal_at(x.grad, t.grad.numpy(), rtol=1e-12, atol=1e-12)
    same(F.multi_margin_loss(x[0], alpha.tensor(labels)[0], reduction=reduction),
         torch.nn.functional.multi_margin_loss(t[0], torch.tensor(labels)[0], reduction=reduction), 1e-12)


def test_a_small_variance_counts_as_eps_and_keeps_its_gradient() -> None:
    v, t = alpha.tensor([1e-9, 0.5], requires_grad=True), torch.tensor([1e-9, 0.5], requires_grad=True)
    F.gaussian_nll_loss(alpha.tensor([1.0, 2.0]), alpha.tensor([1.5, 1.0]), v, eps=1e-3).backward()
    torch.nn.functional.gaussian_nll_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0]), t, eps=1e-3).backward()
    assert_equal_at(v.grad, t.grad.numpy(), rtol=1e-6)
    same(F.gaussian_nll_loss(alpha.tensor([1.0]), alpha.tensor([3.0]), 0.5),
         torch.nn.functional.gaussian_nll_loss(torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([0.5])), 1e-6)


LOSSES = [("TripletMarginLoss", dict(margin=0.5, swap=True), 3), ("SoftMarginLoss", {}, 1),
          ("CosineEmbeddingLoss", dict(margin=0.2), 2), ("MarginRankingLoss", dict(margin=0.2), 2),
          ("HingeEmbeddingLoss", dict(margin=0.4), 1), ("PoissonNLLLoss", dict(full=True), 1),
          ("GaussianNLLLoss", dict(full=True), 1)]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name, settings, tensors", LOSSES, ids=[name for name, *_ in LOSSES])
def test_layers_of_losses(name: str, settings: dict, tensors: int, reduction: str) -> None:
    arrays = [floats((4, 3), k) for k in range(tensors)]
    if name == "CosineEmbeddingLoss":
        arrays.append(np.array([1.0, -1, -1, 1]))
    elif tensors < 3:
        arrays.append(np.abs(np.sign(floats((4, 3), 7))) if "NLL" in name else np.sign(floats((4, 3), 7)))
    if name == "GaussianNLLLoss":
        arrays.append(floats((4, 3), 8, 0.1, 2.0))
    ours = getattr(nn, name)(reduction=reduction, **settings)(*[alpha.tensor(a) for a in arrays])
    same(ours, getattr(torch.nn, name)(reduction=reduction, **settings)(*[torch.tensor(a) for a in arrays]), 1e-12)


# ---- layers ----------------------------------------------------------------------------------------------------------

LAYERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("SELU", {}, (3, 4)), ("CELU", {"alpha": 0.7}, (3, 4)), ("Softsign", {}, (3, 4)), ("Softmin", {"dim": 1}, (3, 4)),
    ("Softshrink", {"lambd": 0.3}, (3, 4)), ("Hardshrink", {"lambd": 0.3}, (3, 4)), ("Tanhshrink", {}, (3, 4)),
    ("Threshold", {"threshold": 0.2, "value": 5.0}, (3, 4)), ("RMSNorm", {"normalized_shape": (3, 4)}, (2, 3, 4)),
    ("Unflatten", {"dim": 1, "unflattened_size": (2, -1)}, (3, 4)), ("GLU", {"dim": 0}, (4, 3)),
    ("LayerNorm", {"normalized_shape": 4, "bias": False}, (3, 4)), ("Mish", {}, (3, 4)), ("LogSigmoid", {}, (3, 4))]


@pytest.mark.parametrize("name, settings, shape", LAYERS, ids=[name for name, *_ in LAYERS])
def test_layers(name: str, settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    a = floats(shape, 1).astype(np.float32)
    ours, theirs = getattr(nn, name)(**settings), getattr(torch.nn, name)(**settings)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    same(ours(alpha.tensor(a)), theirs(torch.tensor(a)), 2e-6, 1e-6)
    assert type(ours).__name__ in repr(ours)


def test_layers_of_maps() -> None:
    a = floats((2, 5, 6, 3), 1).astype(np.float32)
    x, t = alpha.tensor(a), torch.tensor(a).movedim(-1, 1)
    same(nn.Softmax2d()(x), torch.nn.Softmax2d()(t).movedim(1, -1), 1e-6, 1e-6)
    rows = nn.Unfold(2, dilation=2, padding=1, stride=2)(x)
    w = alpha.tensor(floats((4, 2, 2, 3), 2).astype(np.float32))
    y = ops.conv2d(x, w, 2, 1, 2)
    same(rows @ w.reshape(4, -1).T, torch.tensor(y.reshape(2, -1, 4).numpy()), 1e-5, 1e-5)
    back = nn.Fold((5, 6), 2, dilation=2, padding=1, stride=2)(rows)
    count = nn.Fold((5, 6), 2, 2, 1, 2)(nn.Unfold(2, 2, 1, 2)(ops.ones_like(x)))
    assert_equal_at(back, (count * x).numpy(), atol=1e-5)
    same(nn.CosineSimilarity(-1)(x, x * x), torch.nn.CosineSimilarity(1)(t, t * t), 1e-5, 1e-6)
    same(nn.PairwiseDistance(3, keepdims=True)(x, x * x),
         torch.nn.PairwiseDistance(3, keepdim=True)(torch.tensor(a), torch.tensor(a) ** 2), 1e-5)


# ---- what is refused -------------------------------------------------------------------------------------------------

X, V, L = alpha.ones((2, 4)), alpha.ones((3,)), alpha.tensor([0, 1])
REFUSED: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: X.narrow(1, 3, 2), ("start 3 and length 2 leave axis 1 of length 4",)),
    (lambda: X.select(1, 4), ("index 4 is out of range for axis 1 of length 4", "-4 to 3")),
    (lambda: X.tensor_split(0), ("0 parts",)),
    (lambda: X.tensor_split("a"), ('indices_or_sections is "a"', "[1, 4]")),
    (lambda: X.roll((1, 2), 0), ("2 shifts and 1 axes",)),
    (lambda: X.repeat_interleave([1, 2, 3], 0), ("repeats is [1, 2, 3], x has 2 slices",)),
    (lambda: X.repeat_interleave(-1), ("repeats is -1",)),
    (lambda: X.diagonal(0, 1, 1), ("twice",)),
    (lambda: X[0].trace(), ("x has 1 axes, 2 are needed", "diagonal(0, -2, -1)")),
    (lambda: alpha.ones((2, 2, 2)).diag(), ("x has 3 axes, 1 or 2",)),
    (lambda: alpha.vstack([]), ("there is no tensor",)),
    (lambda: alpha.hstack([X, 3]), ("xs is", "each a Tensor, is needed")),
    (lambda: alpha.ones((0,)).median(), ("holds no element",)),
    (lambda: X.quantile(1.5), ("q is 1.5, numbers in [0, 1]",)),
    (lambda: X.quantile("a"), ('q is "a"',)),
    (lambda: L.quantile(0.5), ("x has dtype int64", "astype")),
    (lambda: X.quantile(0.5, interpolation="cubic"), ("interpolation is", "linear")),
    (lambda: X.bincount(), ("x has dtype float32",)),
    (lambda: alpha.tensor([-1, 2]).bincount(), ("a number of -1",)),
    (lambda: L.bincount(V), ("weights (3,)",)),
    (lambda: X.logit(0.7), ("eps is 0.7, a number in [0, 0.5]",)),
    (lambda: alpha.addmm(X, X, X), ("a has 4 columns, b has 2 rows",)),
    (lambda: alpha.addmm(V, X, X.T), ("x has shape (3,), the product (2, 2)",)),
    (lambda: alpha.addmm(X, V, X), ("(3,) and (2, 4), 2 axes are needed",)),
    (lambda: F.glu(alpha.ones((2, 3))), ("axis -1 has 3 elements, an even number",)),
    (lambda: F.prelu(X, V), ("weight has shape (3,), x has (2, 4)",)),
    (lambda: F.softshrink(X, -0.5), ("lambd is -0.5",)),
    (lambda: F.gumbel_softmax(X, tau=0.0), ("tau is 0.0",)),
    (lambda: F.layer_norm(X, (3,)), ("x has shape (2, 4), normalized_shape is (3,)",)),
    (lambda: F.rms_norm(X, (4,), V), ("gamma has shape (3,), (4,) is needed",)),
    (lambda: ops.rms_norm(X, normalized_ndim=3), ("cannot normalise 3 axes of shape (2, 4)",)),
    (lambda: F.instance_norm(alpha.ones((2, 1, 1, 3))), ("1 pixel",)),
    (lambda: F.instance_norm(alpha.ones((2, 2, 2, 3)), V, V), ("running statistics", "use_input_stats=False")),
    (lambda: F.conv1d(alpha.ones((2, 5)), alpha.ones((3, 2, 5))), ("x has 2 axes, 3 are needed (N L C)",)),
    (lambda: F.conv1d(alpha.ones((2, 5, 4)), X), ("weight has 2 axes, 3 are needed",)),
    (lambda: F.max_pool1d(X, 2), ("x has 2 axes",)),
    (lambda: F.unfold(X, 2), ("x has 2 axes, 4 are needed",)),
    (lambda: F.unfold(alpha.ones((1, 2, 2, 1)), 3), ("(3, 3)", "does not fit into a map of (2, 2)")),
    (lambda: F.fold(alpha.ones((1, 3, 4)), (3, 3), 2), ("(1, 3, 4), (N, 4, 4 * C) is needed",)),
    (lambda: F.cosine_similarity(X, V), ("do not broadcast",)),
    (lambda: F.triplet_margin_loss(X, X, V), ("do not broadcast",)),
    (lambda: F.triplet_margin_loss(X, X, X, margin=-1), ("margin is -1",)),
    (lambda: F.cosine_embedding_loss(X, X, V), ("target (3,)",)),
    (lambda: F.multi_margin_loss(X, L, p=3), ("p is 3", "1 to 2")),
    (lambda: F.multi_margin_loss(X, L, weight=V), ("weight has shape (3,), there are 4 classes",)),
    (lambda: F.multi_margin_loss(X, alpha.tensor([0, 4])), ("label 4 at position 1 is outside [0, 4)",)),
    (lambda: F.multi_margin_loss(X, X), ("labels",)),
    (lambda: F.gaussian_nll_loss(X, X, V), ("var has shape (3,), x has (2, 4)",)),
    (lambda: F.gaussian_nll_loss(X, X, X * -1), ("a variance is -1.0",)),
    (lambda: F.soft_margin_loss(X, X, reduction="avg"), ('reduction is "avg"',)),
    (lambda: nn.Softmax2d()(X), ("x has 2 axes, 3 or 4",)),
    (lambda: nn.CELU(0.0), ("alpha is 0.0",)),
    (lambda: nn.RMSNorm(()), ("RMSNorm", "normalized_shape=()")),
    (lambda: nn.Unflatten(1, "a"), ('unflattened_size is "a"',)),
]


@pytest.mark.parametrize("call, said", REFUSED)
def test_refusals_name_the_values_and_the_fix(call: Callable[[], Any], said: tuple[str, ...]) -> None:
    with refused(AlphaError, *said):
        call()
