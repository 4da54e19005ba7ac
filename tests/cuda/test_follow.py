"""float32 beside the 16 bits of a precision mode on the GPU, and ConvNeXt in all four precisions."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops, optim
from models.convnext import ConvNeXt
from tests.op_checks import floats

pytestmark = pytest.mark.cuda

HALVES = {"bf16": "bfloat16", "fp16": "float16"}


@pytest.mark.parametrize("mode", list(HALVES))
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "concat", "where"])
def test_results_and_gradients_are_those_of_float32_rounded_once(name: str, mode: str, device) -> None:
    half, found = HALVES[mode], []
    like = (40, 6) if name in ("concat", "where") else (6,)
    for follow in (True, False):
        x = alpha.tensor(np.abs(floats((40, 6), 1)) + 0.1, half, "cuda")
        p = alpha.tensor(np.abs(floats(like, 2)) + 0.1, "float32", "cuda")
        x.requires_grad = p.requires_grad = True
        a = x if follow else x.astype("float32")
        with alpha.precision(mode):
            y = (ops.concat([a, p], 1) if name == "concat" else ops.where(a > 0.7, a, p) if name == "where"
                 else getattr(ops, name)(a, p)).astype(half)
        (y.astype("float32") * 3.0).sum().backward()
        found.append((y.numpy(), x.grad.numpy(), p.grad))
        assert y.dtype == x.grad.dtype == half and p.grad.dtype == "float32"
    (y, dx, dp), (ey, ex, ep) = found
    assert np.array_equal(y, ey)
    bound = 0 if name not in ("div", "pow") else 1e-2 if half == "float16" else 5e-2     # these two read a rounded y
    np.testing.assert_allclose(dx, ex, rtol=bound, atol=bound)
    np.testing.assert_allclose(dp.numpy(), ep.numpy(), rtol=bound, atol=20 * bound)


@pytest.mark.parametrize("mode", ["fp32", "tf32", "bf16", "fp16"])
def test_convnext_trains_in_every_mode(mode: str, device) -> None:
    alpha.manual_seed(0)
    net = ConvNeXt((8, 16), (1, 1), 4, scale=0.5).to("cuda")
    optimizer, scaler = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), optim.LossScaler()

    def gradients(x, labels):
        loss = ops.cross_entropy(net(x), labels)
        scaler.scale(loss).backward()
        return loss.detach()

    step = alpha.capture(gradients, net)
    x, labels, losses = ops.randn((4, 8, 8, 3), device="cuda"), alpha.tensor([0, 1, 2, 3], device="cuda"), []
    for _ in range(5):
        optimizer.zero_grad()
        with alpha.precision(mode):
            losses.append(step(x, labels).item())
        scaler.step(optimizer)
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad.dtype == "float32" for p in net.parameters())
