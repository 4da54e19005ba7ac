"""The gradient of cross-entropy waits for its reader: planes for products, float32 for everyone else."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha.cuda.lazy.deferred import Deferred
from alpha.cuda.ops import loss
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.memory import Array
from alpha.ops.loss import cross_entropy_grad, label_cross_entropy
from tests.cuda.lazy.deferred_oracle import cuda, flag_of, held, on_fma_units, planes
from tests.cuda.lazy.operand_oracle import normal

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

ROWS, CLASSES = 70, 136
SHAPES = [(ROWS, CLASSES), (1030, 8), (3, 4104)]  # a warp, two threads and a block of threads for a row


class Loss:
    """The gradient of a loss: its inputs, its call, and what it is in float64."""

    def __init__(self, shape: tuple[int, int], smoothing: float = 0.0, reduction: str = "mean", g: float = 1.5,
                 spread: float = 1.0) -> None:
        self.x, self.g = spread * normal(*shape), np.full((), g, np.float32)
        self.labels = np.random.default_rng(7).integers(0, shape[1], shape[0])
        self.how = {"label_smoothing": smoothing, "reduction": reduction}

    def call(self) -> alpha.Tensor:
        x, labels = cuda(self.x), cuda(self.labels)
        _, lse = label_cross_entropy.full(x, labels, **self.how)
        return cross_entropy_grad(cuda(self.g), x, labels, lse, **self.how)

    def plain(self) -> np.ndarray:
        with on_fma_units():
            dx = self.call()
            assert type(dx.data) is Array
            return dx.numpy()

    def exact(self) -> np.ndarray:
        p = np.exp(self.x.astype(np.float64))
        p /= p.sum(1, keepdims=True)
        target = self.how["label_smoothing"] / p.shape[1] + np.zeros_like(p)
        target[np.arange(len(p)), self.labels] += 1 - self.how["label_smoothing"]
        return (p - target) * self.g / (len(p) if self.how["reduction"] == "mean" else 1)


@pytest.mark.parametrize(("smoothing", "reduction"), [(0.0, "mean"), (0.1, "sum")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_get_planes(shape, smoothing, reduction, launches):
    case = Loss(shape, smoothing, reduction)
    dx = case.call()
    assert type(dx.data) is Deferred and launches[-1] == "gradient_bound", "nothing is written yet"
    got, flag = held(planes(dx))
    assert flag == 0 and launches[-2:] == ["gradient_planes", "gradient_stored"]
    assert np.linalg.norm(got - case.exact()) < 1e-6 * np.linalg.norm(case.exact())
    assert dx.numpy().tobytes() == got.astype(np.float32).tobytes(), "float32 is what planes hold"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_everyone_else_gets_float32_bit_for_bit(shape, launches):
    case = Loss(shape, 0.1)
    assert case.call().numpy().tobytes() == case.plain().tobytes()
    assert not {"gradient_planes", "planes_merge"} & set(launches)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_block_takes_one_row_after_the_other(blocks, monkeypatch):
    case, wide = Loss((ROWS, CLASSES)), Loss((ROWS, CLASSES), g=np.inf)
    for name in ("PLANE_WRITERS", "GUARDED"):
        monkeypatch.setattr(loss, name, blocks)
    got, flag = held(planes(case.call()))
    assert flag == 0 and np.linalg.norm(got - case.exact()) < 1e-6 * np.linalg.norm(case.exact())
    dx = wide.call()
    assert flag_of(dx) == 1 and dx.numpy().tobytes() == wide.plain().tobytes()


@pytest.mark.parametrize("g", [np.inf, -np.inf, 2.0 ** 100, 2.0 ** -100, 0.0])
def test_factors_of_any_size(g):
    case = Loss((ROWS, CLASSES), g=g)
    dx = case.call()
    assert flag_of(dx) == np.isinf(g)
    np.testing.assert_allclose(dx.numpy(), case.plain(), rtol=1e-6, atol=2.0 ** -30 * abs(g) if np.isfinite(g) else 0)


def test_what_planes_do_not_hold_stays_float32():
    """Of logits so far apart that most of their softmax is tiny beside the rest."""
    case = Loss((ROWS, CLASSES), spread=60.0)
    dx = case.call()
    assert flag_of(dx) == 1
    raw = memory.download(dx.data.derived.memory.elements, np.float32)
    assert raw.tobytes() == case.plain().tobytes() == dx.numpy().tobytes()


def test_a_label_out_of_range_makes_its_row_nan():
    case = Loss((ROWS, CLASSES))
    case.labels[3] = CLASSES
    dx = case.call()
    planes(dx)
    assert np.isnan(dx.numpy()[3]).all() and np.isfinite(np.delete(dx.numpy(), 3, 0)).all()


@pytest.mark.parametrize(("shape", "reduction"), [((ROWS, 130), "mean"), ((10, CLASSES), "mean"),
                                                  ((ROWS, CLASSES), "none")])
def test_where_nothing_waits(shape, reduction):
    """Classes that are no multiple of 8, a gradient that one launch splits, a factor for each row."""
    case = Loss(shape, reduction=reduction)
    if reduction == "none":
        case.g = normal(shape[0])
    assert type(case.call().data) is Array


def test_a_linear_layer_trains_on_it():
    """As it does where nothing waits, by the parameters after two steps."""
    from alpha import nn, ops, optim
    x, labels = normal(ROWS, 24), Loss((ROWS, CLASSES)).labels

    def steps() -> list[np.ndarray]:
        layer = nn.Linear(24, CLASSES).to("cuda")
        for p, seed in zip(layer.parameters(), (1, 2)):
            p.data = cuda(0.1 * normal(*p.shape, seed=seed)).data
        optimizer = optim.SGD(layer.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            ops.cross_entropy(layer(cuda(x)), cuda(labels)).backward()
            optimizer.step()
        return [p.numpy() for p in layer.parameters()]

    with on_fma_units():
        wanted = steps()
    for got, want in zip(steps(), wanted):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
