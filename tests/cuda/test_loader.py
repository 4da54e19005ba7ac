"""DataLoader and fit on a GPU: the batches of the CPU, resident or on their way, and the same training."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.data import DataLoader
from alpha.training import fit
from tests.loader_sets import IMAGES, LABELS, Items

pytestmark = pytest.mark.cuda

SETTINGS = dict(shuffle=True, seed=3, augment="crop=2,flip,cutout=4", mean=0.5, std=0.25)


@pytest.mark.parametrize("source, more", [
    ((IMAGES, LABELS), {}), ((IMAGES, LABELS), {"resident": False, "workers": 2}), (Items(), {"workers": 1}),
    (Items(), {"batch_size": 48})], ids=["resident", "streamed", "items", "page-locked"])
def test_batches_are_those_of_the_cpu(source: object, more: dict) -> None:
    settings = {"batch_size": 16, **SETTINGS, **more}
    here, there = (DataLoader(source, device=device, **settings) for device in ("cpu", "cuda"))
    assert (there._images is not None) == (isinstance(source, tuple) and not more)
    for _ in range(2):
        for a, b in zip(here, there, strict=True):
            assert [t.device for t in b] == ["cuda", "cuda"]
            for x, y in zip(a, b):
                assert np.array_equal(x.numpy(), y.numpy())


def test_fit_on_the_gpu_is_that_on_the_cpu() -> None:
    rows = []
    for device in ("cpu", "cuda"):
        alpha.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12 * 10 * 3, 5))
        rows.append(fit(model, (IMAGES, LABELS), (IMAGES[:20], LABELS[:20]), epochs=2, batch_size=16, lr=0.01,
                        device=device, progress=False))
    for name in ("train_loss", "val_loss", "train_accuracy"):
        assert rows[1][name] == pytest.approx(rows[0][name], rel=1e-4)


def test_a_function_with_its_own_gradient() -> None:
    class Square(alpha.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * 2.0 * y / x

    x = alpha.tensor([2.0, 3.0], device="cuda", requires_grad=True)
    (Square.apply(x) * ops.ones((2,), device="cuda")).sum().backward()
    assert x.grad.tolist() == [4.0, 6.0]
