"""Functions that are composed of other ops beside their twins: more of tests/op_twins_nn.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.nn import functional
from tests.op_checks import broadcasting
from tests.op_twins import Draw, F, Twin, floats, nchw, shapes, some, torch, twin
from tests.op_twins_nn import TWINS

# ---- numbers ---------------------------------------------------------------------------------------------------------

# name -> the range of the elements
CURVES = {"expm1": (-2, 2), "log1p": (-0.6, 2), "sinh": (-3, 3), "cosh": (-3, 3), "tan": (-1.2, 1.2), "atan": (-4, 4),
          "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "erfc": (-2, 2), "exp2": (-3, 3), "logit": (0.1, 0.9)}
PAIRS = ("atan2", "hypot", "fmod")
ACTIVATIONS = ("celu", "glu", "hardshrink", "hardsigmoid", "hardtanh", "logsigmoid", "mish", "selu", "softshrink",
               "softsign", "tanhshrink")
F_TWICE = {"hardsigmoid": lambda t: F().relu6(t + 3) / 6}   # of what PyTorch has no second gradient of


def _curve(name: str, low: float, high: float) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        return Twin(getattr(ops, name), lambda t: getattr(torch(), name)(t), [floats(draw(shapes), 1, low, high)])
    return make


def _pair(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        a, b = draw(broadcasting())
        theirs = (lambda x, y: x - (x / y).trunc().detach() * y) if name == "fmod" else getattr(torch(), name)
        return Twin(getattr(ops, name), theirs, [floats(a, 1), floats(b, 2, 0.7, 2.5)])
    return make


def _activation(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        shape = draw(shapes)
        shape = (*shape[:-1], 2 * shape[-1]) if name == "glu" else shape
        theirs = F_TWICE.get(name) or (lambda t: getattr(F(), name)(t))
        return Twin(getattr(functional, name), theirs, [floats(shape, 1, -4.0, 4.0)])
    return make


TWINS |= {name: _curve(name, *span) for name, span in CURVES.items()}
TWINS |= {name: _pair(name) for name in PAIRS}
TWINS |= {name: _activation(name) for name in ACTIVATIONS}


@twin
def threshold(draw: Draw) -> Twin:
    return Twin(lambda x: ops.threshold(x, 0.3, 7.0), lambda t: F().threshold(t, 0.3, 7.0), [floats(draw(shapes), 1)])


@twin
def prelu(draw: Draw) -> Twin:
    c = draw(some)
    return Twin(ops.prelu, nchw(lambda t, w: F().prelu(t, w)),
                [floats((2, 3, 2, c), 1), floats((draw(st.sampled_from([1, c])),), 2)])


@twin
def softmin(draw: Draw) -> Twin:
    return Twin(ops.softmin, lambda t: F().softmin(t, -1), [floats(draw(shapes), 1)])


@twin
def gumbel_softmax(draw: Draw) -> Twin:
    """The same noise on both sides; that of ours is drawn from numbers that PyTorch's side draws, too."""
    shape, hard = draw(shapes), draw(st.booleans())

    def ours(x: Any) -> Any:
        alpha.manual_seed(1)
        return ops.gumbel_softmax(x, 0.7, hard)

    def theirs(t: Any) -> Any:
        alpha.manual_seed(1)
        u = torch().tensor(ops.rand(shape, "float64").numpy()) * (1 - 2.0 ** -24) + 2.0 ** -25
        y = F().softmax((t - (-u.log()).log()) / 0.7, -1)
        return F().one_hot(y.argmax(-1), shape[-1]) - y.detach() + y if hard else y
    return Twin(ours, theirs, [floats(shape, 1)])


@twin
def lerp(draw: Draw) -> Twin:
    a, b = draw(broadcasting())
    weight = draw(st.sampled_from([0.2, 0.5, 1.0, None]))
    if weight is None:
        return Twin(ops.lerp, lambda x, y, w: torch().lerp(x, y, w), [floats(a, 1), floats(b, 2), floats(b, 3, -1, 2)])
    return Twin(lambda x, y: ops.lerp(x, y, weight), lambda x, y: torch().lerp(x, y, weight),
                [floats(a, 1), floats(b, 2)])


@twin
def addcmul(draw: Draw) -> Twin:
    """And addcdiv."""
    a, b = draw(broadcasting())

    def of(m: Any) -> Callable[..., Any]:
        return lambda x, y, z: m.addcmul(x, y, z, value=1.5) + m.addcdiv(x, y, z) * m.addcdiv(x, z, y, value=-2)
    return Twin(of(ops), of(torch()), [floats(a, 1), floats(b, 2, 0.5, 2.0), floats(a, 3, 0.5, 2.0)])


@twin
def addmm(draw: Draw) -> Twin:
    """And baddbmm."""
    m, k, n, beta = draw(some), draw(some), draw(some), draw(st.sampled_from([0, 1, 0.5]))
    wide = draw(st.booleans())

    def of(f: Any) -> Callable[..., Any]:
        return lambda x, a, b: f.addmm(x, a[0], b[0], beta=beta, alpha=2) + f.baddbmm(x, a, b) * 1.5
    return Twin(of(ops), of(torch()), [floats((m, n) if wide else (n,), 1), floats((2, m, k), 2), floats((2, k, n), 3)])


@twin
def nan_to_num(draw: Draw) -> Twin:
    a = floats(draw(shapes), 1)
    a.reshape(-1)[:3] = [np.nan, np.inf, -np.inf][:a.size]
    return Twin(lambda x: ops.nan_to_num(x, 0.5, 3.0, -2.0), lambda t: torch().nan_to_num(t, 0.5, 3.0, -2.0), [a])


# ---- along axes ------------------------------------------------------------------------------------------------------

# name -> a function of a tensor and an axis, of either side
ALONG: dict[str, Callable[[Any, Any, int], Any]] = {
    "prod": lambda m, x, k: m.prod(x, k),
    "cumprod": lambda m, x, k: m.cumprod(x, k),
    "diff": lambda m, x, k: m.diff(x, 1, k, None, x) + m.diff(x, 1, k, x * 2),
    "narrow": lambda m, x, k: m.narrow(x, k, -1, 1) + m.narrow(x, k, 0, x.shape[k]),
    "select": lambda m, x, k: m.select(x, k, -1),
    "tensor_split": lambda m, x, k: m.tensor_split(x, 2, k)[0] * m.tensor_split(x, [1, 5], k)[0],
    "roll": lambda m, x, k: m.roll(x, -1, k) * m.roll(x, 2) - m.roll(x, (1, 2), (k, 0)),
    "repeat_interleave": lambda m, x, k: m.repeat_interleave(x, 2, k),
    "median": lambda m, x, k: m.median(x, k)[0] * m.median(x),
    "quantile": lambda m, x, k: m.quantile(x, 0.3, k) + m.quantile(x, 0.7) - m.quantile(x, 0.5, k,
                                                                                        interpolation="midpoint"),
    "vstack": lambda m, x, k: m.vstack([x, x * 2]),
    "hstack": lambda m, x, k: m.hstack([x, x * 2]),
    "dstack": lambda m, x, k: m.dstack([x, x * 2]),
    "broadcast_to": lambda m, x, k: m.broadcast_to(x, (2, *x.shape)),
    "take_along_dim": lambda m, x, k: m.take_along_dim(x, x.detach().argsort(k), k),
}


def _along(f: Callable[[Any, Any, int], Any]) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        shape = draw(shapes)
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        a = floats(shape, 1)
        a.reshape(-1)[:draw(st.integers(0, 2))] = 0     # products of one and of two zeros
        return Twin(lambda x: f(ops, x, axis), lambda t: f(torch(), t, axis), [a])
    return make


TWINS |= {name: _along(f) for name, f in ALONG.items()}
for _name in ("median", "quantile", "take_along_dim"):     # of elements that differ
    TWINS[_name] = (lambda f: lambda draw: Twin(lambda x: f(ops, x, -1), lambda t: f(torch(), t, -1),
                                                [floats(draw(shapes), 1)]))(ALONG[_name])


@twin
def diagonal(draw: Draw) -> Twin:
    """And trace, and diag of both kinds."""
    m, n, offset = draw(some), draw(some), draw(st.integers(-1, 1))

    def of(f: Any) -> Callable[..., Any]:
        return lambda x: (f.diagonal(x, offset, 1, 2).sum() + f.trace(x[0]) * f.diag(x[0], offset).sum()
                          + f.diag(x[0, 0], offset))
    return Twin(of(ops), of(torch()), [floats((2, m, n), 1)])


# ---- vectors, windows, attention -------------------------------------------------------------------------------------


@twin
def rms_norm(draw: Draw) -> Twin:
    n, m, eps = draw(some), draw(st.integers(1, 4)), draw(st.sampled_from([None, 1e-3]))
    whole = draw(st.sampled_from([(m,), (2, m)]))
    return Twin(lambda x, g: functional.rms_norm(x, whole, g, eps),
                lambda t, g: F().rms_norm(t, whole, g, eps or 2e-16),
                [floats((n, 2, m), 1), floats(whole, 2)])


@twin
def cosine_similarity(draw: Draw) -> Twin:
    a, axis = draw(shapes), draw(st.integers(0, 0))
    return Twin(lambda x, y: ops.cosine_similarity(x, y, axis), lambda x, y: F().cosine_similarity(x, y, axis),
                [floats(a, 1), floats(a, 2)])


@twin
def pairwise_distance(draw: Draw) -> Twin:
    a, p, keep = draw(shapes), draw(st.sampled_from([1.0, 2.0, 3.0])), draw(st.booleans())
    return Twin(lambda x, y: ops.pairwise_distance(x, y, p, keepdims=keep),
                lambda x, y: F().pairwise_distance(x, y, p, keepdim=keep), [floats(a, 1), floats(a, 2, 3.0, 5.0)])


def _window(draw: Draw) -> tuple[dict[str, Any], int, int, int]:
    k, h, w, c = (draw(some), draw(some)), draw(st.integers(3, 5)), draw(st.integers(3, 5)), draw(some)
    return dict(kernel_size=k, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 1)),
                dilation=draw(st.integers(1, 2 if max(k) < 3 else 1))), h, w, c


@twin
def unfold(draw: Draw) -> Twin:
    how, h, w, c = _window(draw)
    taps = how["kernel_size"][0] * how["kernel_size"][1]

    def theirs(t: Any) -> Any:
        rows = F().unfold(t.movedim(-1, 1), **how)      # (N, C * taps, L)
        return rows.reshape(2, c, taps, -1).permute(0, 3, 2, 1).reshape(2, -1, taps * c)
    return Twin(lambda x: ops.unfold(x, **how), theirs, [floats((2, h, w, c), 1)])


@twin
def fold(draw: Draw) -> Twin:
    how, h, w, c = _window(draw)
    taps = how["kernel_size"][0] * how["kernel_size"][1]
    count = ops.unfold(ops.zeros((1, h, w, 1)), **how).shape[1]

    def theirs(t: Any) -> Any:
        rows = t.reshape(2, -1, taps, c).permute(0, 3, 2, 1).reshape(2, c * taps, -1)
        return F().fold(rows, (h, w), **how).movedim(1, -1)
    return Twin(lambda x: ops.fold(x, (h, w), **how), theirs, [floats((2, count, taps * c), 1)])


@twin
def scaled_dot_product_attention(draw: Draw) -> Twin:
    n, rows, columns, e = draw(some), draw(some), draw(some), draw(some)
    kind = draw(st.sampled_from(["none", "bool", "float", "causal", "learned"]))
    mask = np.random.default_rng(rows).random((n, 1, rows, columns)) < 0.5
    added = np.where(mask, floats((n, 1, rows, columns), 5), -np.inf)
    arrays = [floats((n, 2, rows, e), 1), floats((n, 2, columns, e), 2), floats((n, 2, columns, 2), 3)]

    def masked(made: Any) -> dict[str, Any]:
        return ({} if kind in ("none", "learned") else {"is_causal": True} if kind == "causal" else
                {"attn_mask": made(mask if kind == "bool" else added)})

    def ours(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        made = masked(lambda a: alpha.tensor(a if a.dtype == bool else a.astype(q.dtype), device=q.device))
        return ops.scaled_dot_product_attention(q, k, v, *bias, scale=0.8, **made)

    def theirs(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        made = masked(lambda a: torch().tensor(a, dtype=None if a.dtype == bool else q.dtype))
        kernels = torch().nn.attention
        with kernels.sdpa_kernel(kernels.SDPBackend.MATH):      # which has second gradients
            return F().scaled_dot_product_attention(q, k, v, *bias, scale=0.8, **made)
    return Twin(ours, theirs, arrays + [floats((rows, columns), 4)] * (kind == "learned"))


# ---- losses ----------------------------------------------------------------------------------------------------------


def _signs(shape: Any) -> np.ndarray:
    return np.where(np.arange(int(np.prod(shape))).reshape(shape) % 3 == 1, -1, 1)


def _margin(name: str, tensors: int, **attrs: Any) -> Callable[[Draw], Twin]:
    """A loss of tensors and of targets that are 1 or -1."""
    def make(draw: Draw) -> Twin:
        shape = (draw(some), draw(some)) if name == "cosine_embedding_loss" else draw(shapes)
        target = _signs(shape[:1] if name == "cosine_embedding_loss" else shape)
        given = {**attrs, "reduction": draw(st.sampled_from(["mean", "sum", "none"]))}
        return Twin(lambda *xs: getattr(ops, name)(*xs, alpha.tensor(target, device=xs[0].device), **given),
                    lambda *ts: getattr(F(), name)(*ts, torch().tensor(target), **given),
                    [floats(shape, k) for k in range(1, tensors + 1)])
    return make


TWINS |= {"cosine_embedding_loss": _margin("cosine_embedding_loss", 2, margin=0.1),
          "margin_ranking_loss": _margin("margin_ranking_loss", 2, margin=0.3),
          "hinge_embedding_loss": _margin("hinge_embedding_loss", 1, margin=0.8),
          "soft_margin_loss": _margin("soft_margin_loss", 1)}


@twin
def triplet_margin_loss(draw: Draw) -> Twin:
    shape, swap, p = draw(shapes), draw(st.booleans()), draw(st.sampled_from([1.0, 2.0]))
    given = dict(margin=0.7, swap=swap, p=p, reduction=draw(st.sampled_from(["mean", "sum", "none"])))
    return Twin(lambda *xs: ops.triplet_margin_loss(*xs, **given), lambda *ts: F().triplet_margin_loss(*ts, **given),
                [floats(shape, k) for k in (1, 2, 3)])


@twin
def multi_margin_loss(draw: Draw) -> Twin:
    n, c, weighted = draw(some), draw(st.integers(2, 4)), draw(st.booleans())
    p, reduction = draw(st.integers(1, 2)), draw(st.sampled_from(["mean", "sum", "none"]))
    given = dict(p=p, margin=0.6, reduction=reduction)
    target, weight = np.arange(n) % c, floats((c,), 3, 0.5, 2.0)

    def theirs(t: Any) -> Any:      # whose own has no second gradient; test_composed.py compares with it
        label = torch().tensor(target)[:, None]
        z = ((0.6 + t - t.gather(1, label)).relu() ** p).scatter(1, label, 0.0).sum(1) / c
        z = z * torch().tensor(weight, dtype=t.dtype)[label[:, 0]] if weighted else z
        return z if reduction == "none" else getattr(z, reduction)()
    return Twin(lambda x: ops.multi_margin_loss(
                    x, alpha.tensor(target, device=x.device), **given,
                    weight=alpha.tensor(weight.astype(x.dtype), device=x.device) if weighted else None),
                theirs, [floats((n, c), 1)])


@twin
def poisson_nll_loss(draw: Draw) -> Twin:
    shape = draw(shapes)
    given = dict(log_input=draw(st.booleans()), full=draw(st.booleans()),
                 reduction=draw(st.sampled_from(["mean", "sum", "none"])))
    target = np.arange(int(np.prod(shape))).reshape(shape) % 4 * 1.0
    return Twin(lambda x: ops.poisson_nll_loss(x, alpha.tensor(target.astype(x.dtype), device=x.device), **given),
                lambda t: F().poisson_nll_loss(t, torch().tensor(target, dtype=t.dtype), **given),
                [floats(shape, 1, 0.2, 2.0)])


@twin
def gaussian_nll_loss(draw: Draw) -> Twin:
    shape, kind = draw(shapes), draw(st.integers(0, 2))
    given = dict(full=draw(st.booleans()), reduction=draw(st.sampled_from(["mean", "sum", "none"])))
    spread = (shape, (*shape[:-1], 1), shape[:-1] if len(shape) > 1 else shape)[kind]
    return Twin(lambda x, y, v: ops.gaussian_nll_loss(x, y, v, **given),
                lambda x, y, v: F().gaussian_nll_loss(x, y, v, **given),
                [floats(shape, 1), floats(shape, 2), floats(spread, 3, 0.2, 2.0)])
