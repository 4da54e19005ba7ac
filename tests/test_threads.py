"""The compiled CPU kernels give the same bits with any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops, optim
from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native
from alpha.ops.conv_desc import ConvDesc

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]

THREADS = (1, 2, 3, 4, 7)


def bits(tensors) -> bytes:
    return b"".join(t.numpy().tobytes() for t in tensors)


def at_every_number_of_threads(run) -> None:
    found = []
    for threads in THREADS:
        with config(num_threads=threads, cpu_kernels=True):
            assert native.library() is not None
            alpha.manual_seed(0)
            found.append(run())
    differ = [threads for threads, result in zip(THREADS, found) if result != found[0]]
    assert not differ, f"1 thread and {differ} threads give different results"


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
                                  nn.BatchNorm2d(channels))

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        return ops.relu(self.body(x) + x)


def residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), Block(24),
                         nn.MaxPool2d(3, 2, 1), nn.Conv2d(24, 40, 3, stride=2, padding=1), nn.GroupNorm(4, 40),
                         Block(40), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2),
                         nn.Linear(40, 10))


@pytest.mark.parametrize("make, image, adam", [(lambda: models.create("lenet5"), (32, 32, 3), False),
                                               (residual, (32, 32, 3), True)], ids=["lenet5", "residual"])
def test_training_steps(make, image: tuple, adam: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((48, *image), dtype=np.float32), rng.integers(0, 10, 48)

    def train() -> bytes:
        model = make()
        optimizer = optim.Adam(model.parameters()) if adam else optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for _ in range(3):
            loss = ops.cross_entropy(model(alpha.tensor(x)), alpha.tensor(y), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm(list(model.parameters()), 1.0)
            optimizer.step()
            losses.append(loss)
        return bits([*losses, *model.state_dict().values()])

    at_every_number_of_threads(train)


# n, (ih, iw), ic, oc, (fh, fw), stride, padding, groups
CONVOLUTIONS = [(9, (40, 40), 64, 64, (3, 3), 1, 1, 1), (9, (40, 40), 3, 16, (3, 3), 1, 1, 1),
                (2, (9, 9), 96, 600, (3, 3), 1, 1, 1),
                (9, (40, 40), 48, 48, (3, 3), 2, 1, 48), (5, (31, 33), 64, 32, (3, 3), 1, 1, 4),
                (4, (30, 30), 24, 24, (5, 1), 1, 2, 8), (9, (32, 32), 130, 200, (1, 1), 1, 0, 1),
                (5, (16, 16), 300, 24, (1, 1), 1, 0, 1),
                (5000, (1, 1), 100, 130, (1, 1), 1, 0, 1), (3, (1, 1), 4000, 70, (1, 1), 1, 0, 1)]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions(case: tuple) -> None:
    n, hw, ic, oc, f, stride, padding, groups = case
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in ((n, *hw, ic), (oc, *f, ic // groups)))
    geometry = dict(stride=(stride,) * 2, padding=(padding,) * 2, dilation=(1, 1), groups=groups)
    desc = ConvDesc.fprop(x.shape, w.shape, **geometry)
    g = rng.standard_normal(desc.y_shape, dtype=np.float32)

    def run() -> bytes:
        y, dx, dw = np.empty(desc.y_shape, np.float32), np.empty_like(x), np.empty_like(w)
        native.conv_fprop(desc, x, w, y)
        native.conv_dgrad(desc, g, w, dx)
        native.conv_wgrad(desc, x, g, dw)
        return y.tobytes() + dx.tobytes() + dw.tobytes()

    at_every_number_of_threads(run)


@pytest.mark.parametrize("shape", [(70_000, 3), (3000, 700), (1, 999_999), (40, 100, 37)])
def test_reductions_and_norms(shape: tuple) -> None:
    a = np.random.default_rng(0).random(shape, dtype=np.float32)

    def run() -> bytes:
        x = alpha.tensor(a, requires_grad=True)
        y = ops.batch_norm(x.reshape(-1, shape[-1]), running_mean=alpha.zeros(shape[-1:]),
                           running_var=alpha.zeros(shape[-1:])) if shape[0] > 1 else x
        y.backward(alpha.tensor(a.reshape(y.shape)))
        return bits([x.grad, y, x.sum(), x.sum(0), x.mean(-1), x.var(0), ops.softmax(x, axis=-1)])

    at_every_number_of_threads(run)


@pytest.mark.parametrize("a, b, transpose", [
    ((300, 200), (200, 100), ""), ((200, 300), (200, 100), "a"), ((300, 200), (100, 200), "b"),
    ((200, 300), (100, 200), "ab"), ((4, 128, 128), (4, 128, 128), "b"), ((2, 1, 90, 70), (3, 70, 80), ""),
    ((3, 70, 90), (80, 70), "ab"), ((20_000,), (20_000,), ""), ((700, 300), (300,), ""), ((300,), (300, 700), ""),
    ((300,), (2, 300, 70), ""), ((5, 100, 300), (300,), ""), ((300, 700), (300,), "a")])
def test_products(a: tuple, b: tuple, transpose: str) -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(s, dtype=np.float32) for s in (a, b))
    flags = dict(transpose_a="a" in transpose, transpose_b="b" in transpose)
    exact = np.matmul(left.swapaxes(-1, -2) if flags["transpose_a"] else left,
                      right.swapaxes(-1, -2) if flags["transpose_b"] else right, dtype=np.float64)

    def run() -> bytes:
        y = ops.matmul(alpha.tensor(left), alpha.tensor(right), **flags)
        assert y.shape == exact.shape
        assert np.linalg.norm(y.numpy() - exact) <= 2e-6 * np.linalg.norm(exact)
        return bits([y])

    at_every_number_of_threads(run)


def test_blas_gets_no_product_that_it_would_share_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(a: np.ndarray, b: np.ndarray) -> None:
        raise AssertionError(f"BLAS multiplies {a.shape} by {b.shape}")
    monkeypatch.setattr(np, "matmul", refuse)
    with config(cpu_kernels=True):
        for a, b in (((64, 64), (64, 64)), ((9216,), (9216,)), ((96, 96), (96,)), ((2, 64, 64), (64, 64))):
            ops.matmul(alpha.ones(a), alpha.ones(b))
        with pytest.raises(AssertionError, match="BLAS multiplies"):
            ops.matmul(alpha.ones((63, 64)), alpha.ones((64, 64)))


def test_more_threads_than_the_system_would_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 threads 64 are started, or one per core where there are more."""
    with config(cpu_kernels=True):
        library, counts = native.library(), []
        monkeypatch.setattr(native, "_lib", type("Library", (), {"set_threads": staticmethod(counts.append)}))
        for threads in (100_000, 10 ** 30, 3):
            with config(num_threads=threads):
                assert native.library() is not library
        assert counts[0] == counts[1] >= 64 and counts[1] <= 4096 and counts[2] == 3
        monkeypatch.undo()
        with config(num_threads=100_000):
            assert alpha.full((1000, 300), 0.5).sum().item() == 150_000
        native.library()
