"""Every differentiable op beside its twin in PyTorch, over drawn shapes: tests/test_op_twins.py compares values and
gradients of both orders with it, tests/cuda/ops/test_op_twins.py those of the GPU with the CPU's.

What draws a case is a function of `draw`; it returns our function of tensors, PyTorch's, and the arrays that go in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.core.op import registry
from tests.op_checks import broadcasting

Draw = Callable[[Any], Any]
some = st.integers(1, 3)
shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


class Twin(NamedTuple):
    """A case: functions of the arrays, which are differentiated by all arrays of floats."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arrays: Sequence[np.ndarray]


TWINS: dict[str, Callable[[Draw], Twin]] = {}


def twin(make: Callable[[Draw], Twin]) -> Callable[[Draw], Twin]:
    TWINS[make.__name__] = make
    return make


def floats(shape: Sequence[int], seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Numbers that are apart from each other, so that no difference decides who is the largest."""
    rng = np.random.default_rng(seed)
    n = int(np.prod(shape, dtype=int))
    return ((rng.permutation(n) + rng.uniform(0.2, 0.8, n)) / max(n, 1) * (high - low) + low).reshape(tuple(shape))


def torch() -> Any:
    """Returns PyTorch; a stand-in where it is not installed, for tests that compute our side of a twin alone."""
    try:
        import torch as found
    except ModuleNotFoundError:
        return MagicMock()
    return found


def F() -> Any:
    return torch().nn.functional


def nchw(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of PyTorch's maps as one of ours."""
    return lambda t, *rest: f(t.movedim(-1, 1), *rest).movedim(1, -1)


def filters(t: Any) -> Any:
    """Filters (OC, FH, FW, IC) as PyTorch has them."""
    return t.permute(0, 3, 1, 2)


# ---- elementwise -----------------------------------------------------------------------------------------------------

# name -> PyTorch's function and the range of the elements
UNARY: dict[str, tuple[Callable[..., Any], float, float]] = {
    **{name: (lambda t, n=name: getattr(torch(), n)(t), -2.0, 2.0)
       for name in ("abs", "cos", "erf", "exp", "floor", "neg", "relu", "sigmoid", "sign", "sin", "tanh")},
    **{name: (lambda t, n=name: getattr(torch(), n)(t), 0.3, 2.0) for name in ("log", "sqrt")},
    **{name: (lambda t, n=name: getattr(F(), n)(t), -4.0, 7.0)
       for name in ("elu", "gelu", "hardswish", "leaky_relu", "relu6", "silu", "softplus")}}


def _unary(name: str, theirs: Callable[..., Any], low: float, high: float) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        shape = draw(shapes)
        return Twin(getattr(ops, name), theirs, [floats(shape, 1, low, high)])
    return make


TWINS |= {name: _unary(name, *how) for name, how in UNARY.items()}


def _binary(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        a, b = draw(broadcasting())
        return Twin(getattr(ops, name), getattr(torch(), name), [floats(a, 1, 0.4, 2.0), floats(b, 2, 0.5, 2.1)])
    return make


TWINS |= {name: _binary(name) for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum")}


@twin
def where(draw: Draw) -> Twin:
    a, b = draw(broadcasting())
    return Twin(lambda x, y: ops.where(x > y, x, y * 2.0), lambda x, y: torch().where(x > y, x, y * 2.0),
                [floats(a, 1), floats(b, 2)])


@twin
def clip(draw: Draw) -> Twin:
    return Twin(lambda x: ops.clip(x, -0.7, 1.1) * x, lambda t: t.clamp(-0.7, 1.1) * t, [floats(draw(shapes), 1)])


@twin
def cast(draw: Draw) -> Twin:
    return Twin(lambda x: x.astype("float32").astype(x.dtype) * x, lambda t: t.float().to(t.dtype) * t,
                [floats(draw(shapes), 1).astype(np.float32).astype(np.float64)])


@twin
def comparisons(draw: Draw) -> Twin:
    """And the quotient that is rounded down; masks are factors."""
    a, b = draw(broadcasting())

    def f(x: Any, y: Any) -> Any:
        return (x * (x < y) + y * (x >= y) + x * (x == y) + y * (x != y) - x * (x > y) - y * (x <= y)
                + x.detach() // y.detach())
    return Twin(f, f, [floats(a, 1).round(), floats(b, 2, 0.6, 2.0).round()])


@twin
def logical_and(draw: Draw) -> Twin:
    """And the others of logic."""
    def of(m: Any) -> Callable[..., Any]:
        def f(x: Any, y: Any) -> Any:
            a, b = x > 0, y > 0
            return (x * m.logical_and(a, b) + y * m.logical_or(a, b) - x * m.logical_xor(a, b) * y
                    + x * m.logical_not(a))
        return f
    a, b = draw(broadcasting())
    return Twin(of(ops), of(torch()), [floats(a, 1), floats(b, 2)])


@twin
def gelu_tanh(draw: Draw) -> Twin:
    return Twin(ops.gelu_tanh, lambda t: F().gelu(t, approximate="tanh"), [floats(draw(shapes), 1)])


@twin
def remainder(draw: Draw) -> Twin:
    a, b = draw(broadcasting())
    return Twin(ops.remainder, lambda x, y: x - (x / y).floor().detach() * y, [floats(a, 1), floats(b, 2, 0.6, 2.0)])


@twin
def transfer(draw: Draw) -> Twin:
    return Twin(lambda x: x.to("cpu").to(x.device) * x, lambda t: t * t, [floats(draw(shapes), 1)])


@twin
def keyed_dropout(draw: Draw) -> Twin:
    shape = draw(shapes)
    alpha.manual_seed(5)
    mask = ops.dropout(ops.ones(shape, dtype="float64"), 0.4).numpy()

    def ours(x: Any) -> Any:
        alpha.manual_seed(5)
        return ops.dropout(x, 0.4) * x
    return Twin(ours, lambda t: t * torch().tensor(mask, dtype=t.dtype) * t, [floats(shape, 1)])


# ---- reductions and shapes -------------------------------------------------------------------------------------------

def _reduction(name: str, **more: Any) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        shape = draw(shapes)
        axis, keep = draw(st.integers(-len(shape), len(shape) - 1)), draw(st.booleans())
        theirs = {"max": "amax", "min": "amin"}.get(name, name)
        return Twin(lambda x: getattr(ops, name)(x, axis, keepdims=keep) * 2.0,
                    lambda t: getattr(t, theirs)(axis, keepdim=keep, **more) * 2.0, [floats(shape, 1)])
    return make


TWINS |= {name: _reduction(name) for name in ("sum", "mean", "max", "min")}
TWINS["var"] = _reduction("var", correction=0)


@twin
def argmax(draw: Draw) -> Twin:
    n, m = draw(some), draw(st.integers(1, 5))
    return Twin(lambda x: x.sum(1) + ops.argmax(x, 1).astype(x.dtype), lambda t: t.sum(1) + t.argmax(1),
                [floats((n, m), 1)])


@twin
def sum_to(draw: Draw) -> Twin:
    n, m = draw(some), draw(some)
    return Twin(lambda x: ops.sum_to(x, (1, m)), lambda t: t.sum(0, keepdim=True), [floats((n, m), 1)])


@twin
def reshape_permute_flip(draw: Draw) -> Twin:
    a, b, c = draw(some), draw(some), draw(some)
    return Twin(lambda x: ops.flip(ops.permute(x, (2, 0, 1)), (0, 2)).reshape(c * a, b) * 3.0,
                lambda t: t.permute(2, 0, 1).flip(0, 2).reshape(c * a, b) * 3.0, [floats((a, b, c), 1)])


@twin
def concat_slice_pad(draw: Draw) -> Twin:
    n, a, b = draw(some), draw(some), draw(some)
    left, right = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return Twin(lambda x, y: ops.pad(ops.concat([x, y], 1), [(0, 0), (left, right)], 0.5)[:, 1:],
                lambda x, y: F().pad(torch().cat([x, y], 1), (left, right), value=0.5)[:, 1:],
                [floats((n, a), 1), floats((n, b), 2)])


@twin
def parts_added(draw: Draw) -> Twin:
    """Parts of a tensor, of which each gradient is added to those before."""
    n, cut = draw(st.integers(2, 5)), draw(st.integers(1, 4))

    def f(x: Any) -> Any:
        y = x * x
        return y[:, :cut] * y[:, -1:] + y[:, 1:2]

    return Twin(f, f, [floats((3, n + 2), 1)])


@twin
def expand(draw: Draw) -> Twin:
    n, m = draw(some), draw(some)
    return Twin(lambda x: ops.expand(x, (n, m, 2)) * 2.0, lambda t: t.expand(n, m, 2) * 2.0, [floats((m, 1), 1)])


@twin
def take(draw: Draw) -> Twin:
    n, m = draw(some), draw(some)
    index = np.array(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4)))
    return Twin(lambda x: ops.index_select(x, 0, alpha.tensor(index, device=x.device)) * 2.0,
                lambda t: t.index_select(0, torch().tensor(index)) * 2.0, [floats((n, m), 1)])


@twin
def tile(draw: Draw) -> Twin:
    n, m, times = draw(some), draw(some), (draw(some), draw(some))
    return Twin(lambda x: ops.tile(x, times) * 2.0, lambda t: t.tile(times) * 2.0, [floats((n, m), 1)])


@twin
def masked_select(draw: Draw) -> Twin:
    return Twin(lambda x: ops.masked_select(x, x > 0.5).sum() + x.sum(),
                lambda t: t.masked_select(t > 0.5).sum() + t.sum(), [floats(draw(shapes), 1)])


@twin
def resize(draw: Draw) -> Twin:
    h, w, size = draw(some), draw(some), (draw(some), draw(some))
    mode = draw(st.sampled_from(["bilinear", "bicubic"]))
    return Twin(lambda x: ops.interpolate(x, size, mode=mode),
                nchw(lambda t: F().interpolate(t, size, mode=mode)), [floats((2, h, w, 2), 1)])


@twin
def take_along_axis(draw: Draw) -> Twin:
    n, m = draw(some), draw(some)
    index = np.array([[draw(st.integers(0, n - 1)) for _ in range(m)] for _ in range(2)])
    return Twin(lambda x: ops.take_along_axis(x, alpha.tensor(index, device=x.device), 0) * 2.0,
                lambda t: t.take_along_dim(torch().tensor(index), 0) * 2.0, [floats((n, m), 1)])


@twin
def vector_norm(draw: Draw) -> Twin:
    n, m, p = draw(some), draw(some), draw(st.sampled_from([1, 2, 3]))
    return Twin(lambda x: ops.vector_norm(x, p, 1), lambda t: torch().linalg.vector_norm(t, p, 1), [floats((n, m), 1)])


@twin
def argsort(draw: Draw) -> Twin:
    n, m = draw(some), draw(st.integers(1, 5))
    return Twin(lambda x: ops.sort(x, -1)[0] * 2.0, lambda t: t.sort(-1)[0] * 2.0, [floats((n, m), 1)])


# ---- products, softmax -----------------------------------------------------------------------------------------------

@twin
def matmul(draw: Draw) -> Twin:
    b, i, j, k = draw(some), draw(some), draw(some), draw(some)
    return Twin(ops.matmul, torch().matmul, [floats((b, i, j), 1), floats((b, j, k), 2)])


@twin
def linear(draw: Draw) -> Twin:
    n, i, o = draw(some), draw(some), draw(some)
    act = draw(st.sampled_from([None, "relu"]))
    return Twin(lambda x, w, b: ops.linear(x, w, b, activation=act),
                lambda x, w, b: (F().relu if act else lambda t: t)(F().linear(x, w, b)),
                [floats((n, i), 1), floats((o, i), 2), floats((o,), 3)])


def _softmax(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        shape = draw(shapes)
        axis = draw(st.integers(0, len(shape) - 1))
        return Twin(lambda x: getattr(ops, name)(x, axis), lambda t: getattr(t, name)(axis), [floats(shape, 1)])
    return make


TWINS |= {name: _softmax(name) for name in ("softmax", "log_softmax")}


# ---- convolution -----------------------------------------------------------------------------------------------------

def _geometry(draw: Draw) -> tuple[dict[str, Any], int, int, int, int]:
    """Returns attributes of a convolution, the sides of maps and filters, and channels in and out."""
    groups, f, dilation = draw(st.sampled_from([1, 1, 2])), draw(some), draw(st.integers(1, 2))
    attrs = dict(stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 2)), dilation=dilation, groups=groups)
    side = max((f - 1) * dilation + 1 - 2 * attrs["padding"], 1) + draw(st.integers(0, 3))
    return attrs, side, f, groups * draw(some), groups * draw(some)


@twin
def conv2d(draw: Draw) -> Twin:
    attrs, side, f, c, oc = _geometry(draw)
    return Twin(lambda x, w: ops.conv2d(x, w, **attrs),
                nchw(lambda t, w: F().conv2d(t, filters(w), **attrs)),
                [floats((2, side, side + 1, c), 1), floats((oc, f, f, c // attrs["groups"]), 2)])


@twin
def conv2d_bias_act(draw: Draw) -> Twin:
    attrs, side, f, c, oc = _geometry(draw)
    return Twin(lambda x, w, b: ops.conv2d_bias_act(x, w, b, activation="relu", **attrs),
                nchw(lambda t, w, b: F().relu(F().conv2d(t, filters(w), b, **attrs))),
                [floats((2, side, side, c), 1), floats((oc, f, f, c // attrs["groups"]), 2), floats((oc,), 3)])


@twin
def conv_transpose2d(draw: Draw) -> Twin:
    f, s, c, oc = draw(some), draw(st.integers(1, 2)), draw(some), draw(some)
    p = draw(st.integers(0, f - 1))
    return Twin(lambda x, w: ops.conv_transpose2d(x, w, stride=s, padding=p),
                nchw(lambda t, w: F().conv_transpose2d(t, filters(w), stride=s, padding=p)),
                [floats((2, 3, 4, c), 1), floats((c, f, f, oc), 2)])


@twin
def conv2d_dgrad_add(draw: Draw) -> Twin:
    c, oc, f = draw(some), draw(some), draw(some)
    return Twin(lambda g, w, y: registry["conv2d_dgrad_add"](g, w, y, hw=(f + 2, f + 3)),
                nchw(lambda g, w, y: F().conv_transpose2d(g, filters(w)) + y.movedim(-1, 1)),
                [floats((2, 3, 4, oc), 1), floats((oc, f, f, c), 2), floats((2, f + 2, f + 3, c), 3)])


@twin
def coconv2d(draw: Draw) -> Twin:
    """Levels of one dilation each over as many channels: PyTorch's convolutions beside each other."""
    oc, c, s = draw(some), draw(some), draw(st.integers(1, 2))
    act = draw(st.sampled_from([None, "relu"]))

    def ours(x: Any, w: Any, b: Any) -> Any:
        y = ops.coconv2d_bias_act(x, w, b, dilations=(1, 2), channels=(oc, oc), stride=s, activation=act)
        return y + ops.coconv2d(x, w, dilations=(1, 2), channels=(oc, oc), stride=s)

    def theirs(t: Any, w: Any, b: Any) -> Any:
        w = filters(w)
        y = torch().cat([F().conv2d(t, w[:oc], None, s, 1, 1), F().conv2d(t, w[oc:], None, s, 2, 2)], 1)
        z = y + b.view(1, -1, 1, 1)
        return (F().relu(z) if act else z) + y
    return Twin(ours, nchw(theirs), [floats((2, 4, 5, c), 1), floats((2 * oc, 3, 3, c), 2), floats((2 * oc,), 3)])


def drawn(name: str, examples: int, check: Callable[[Twin], Any]) -> None:
    """Calls a function with a few cases of a twin, the same ones every time."""
    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(data=st.data())
    def run(data: Any) -> None:
        check(TWINS[name](data.draw))
    run()
