"""NaN, infinities, zeros and breakpoints in CUDA: the CPU's answers, which are PyTorch's; fused and in planes too."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import ops
from alpha.cuda.runtime import memory
from alpha.gradcheck import assert_equal_at
from alpha.ops.activation import relu_grad
from alpha.ops.norm import batch_norm_act
from alpha.ops.pool import adaptive_max_pool2d
from tests.cuda.lazy.deferred_oracle import cuda, planes
from tests.cuda.lazy.operand_oracle import normal
from tests.test_loss_tails import exact_cross_entropy
from tests.test_special_values import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    PAIRS,
    TABLE,
    assert_alike,
    assert_close_pairs,
    of_pairs,
    scaled,
    tiled,
    value_and_gradient,
)

pytestmark = pytest.mark.cuda

SIZES = (1, 35, 2 * 4096 + 5)  # one block in packets, and one that goes element by element


@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_the_cpus_at_every_size(name: str) -> None:
    ours, _, rtol = FUNCTIONS[name]
    for size in SIZES:
        x = tiled(size)
        here, there = (value_and_gradient(ours, x, device) for device in ("cpu", "cuda"))
        for what, got, expected in zip(("value", "gradient"), there, here):
            assert_alike(got, expected, x, f"{what} of {name}, {size} elements", rtol and max(rtol, 5e-6), 1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", TABLE)
def test_the_table_holds_in_16_bits(name: str, dtype: str) -> None:
    for x, expected in TABLE[name].items():
        for size in (1, 4100):
            found = value_and_gradient(FUNCTIONS[name][0], np.full(size, x, np.float32), "cuda", dtype)
            for got, wanted in zip(found, expected):
                assert_equal_at(got, np.full(size, wanted, np.float32), rtol=1e-2, name=f"{name} at {x}")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_pairs_are_the_cpus(name: str) -> None:
    assert_close_pairs(name, *(of_pairs(getattr(ops, name), device) for device in ("cuda", "cpu")))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_the_cpus(name: str) -> None:
    here, there = (getattr(ops, name)(*(alpha.tensor(p, device=device) for p in PAIRS)) for device in ("cpu", "cuda"))
    assert (here.numpy() == there.numpy()).all()


@pytest.mark.parametrize("form", ["linear", "conv2d", "depthwise", "batch_norm"])
def test_a_fused_relu_is_relu(form: str) -> None:
    for rows, channels in ((3, 8), (40, 35)):
        x = tiled(rows * channels).reshape(rows, channels)
        fused = value_and_gradient(lambda x: scaled(x, "relu", form).reshape(rows, channels), x, "cuda")  # noqa: B023
        apart = value_and_gradient(lambda x: scaled(x, None, form).relu().reshape(rows, channels), x,  # noqa: B023
                                   "cuda")
        for what, a, b in zip(("value", "gradient"), apart, fused):
            assert_equal_at(b, a, name=f"{what} of {form} at {(rows, channels)}")
        assert (np.isnan(fused[0]) == np.isnan(x)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_of_a_relu_in_planes_pass_where_it_has_nan(value: float) -> None:
    x = normal(60, 24)
    x[7, 3] = value
    gamma, beta, g = (cuda(a) for a in (np.ones(24, np.float32), np.zeros(24, np.float32), normal(60, 24, seed=3)))
    y = batch_norm_act(cuda(x), gamma, beta)
    planes(y)
    dx = relu_grad(g, y).numpy()
    assert np.isnan(y.numpy()[:, 3]).all() and (dx[:, 3] == g.numpy()[:, 3]).all()
    assert_equal_at(dx, np.where(y.numpy() <= 0, 0, g.numpy()))


def test_losses_keep_their_digits() -> None:
    """As on the CPU (tests/test_loss_tails.py), whose results are the measure."""
    logits = np.linspace(-80, 80, 641, dtype=np.float32)
    for target in (0.0, 1.0, 0.25):
        def loss(x: alpha.Tensor, target: float = target) -> alpha.Tensor:
            return ops.bce_with_logits_loss(x, ops.full(x.shape, target, device=x.device), reduction="none")

        here, there = (value_and_gradient(loss, logits, device) for device in ("cpu", "cuda"))
        for got, expected in zip(there, here):
            assert_equal_at(got, expected, rtol=4e-6)    # expf there errs by 2 ulp


@pytest.mark.parametrize("classes", [2, 10, 1000, 1028, 16400])
@pytest.mark.parametrize("offset", [0, 1e6])
def test_cross_entropy_keeps_its_digits(classes: int, offset: float) -> None:
    """Rows held and read again, in packets and one by one; half of the labels are the largest logit."""
    rng = np.random.default_rng(0)
    logits = (rng.uniform(-8, 8, (12, classes)) + offset).astype(np.float32)
    labels = rng.integers(0, classes, 12)
    labels[:6] = logits[:6].argmax(1)
    logits[range(3), labels[:3]] += 20
    x = alpha.tensor(logits, device="cuda", requires_grad=True)
    y = ops.cross_entropy(x, alpha.tensor(labels, device="cuda"), reduction="none")
    y.sum().backward()
    for got, exact in zip((y.detach().numpy(), x.grad.numpy()), exact_cross_entropy(logits, labels)):
        assert_equal_at(got, exact, rtol=5e-6)


@pytest.mark.parametrize("size", [1e8, 1e30])
def test_the_gradient_of_large_equal_logits_is_even(size: float) -> None:
    x = alpha.tensor(np.full((1, 2), size, np.float32), device="cuda", requires_grad=True)
    ops.cross_entropy(x, alpha.tensor([1], device="cuda")).backward()
    assert_equal_at(x.grad, [[0.5, -0.5]], rtol=1e-6)


def test_labels_that_changed_before_backward_touch_no_other_memory() -> None:
    """Their rows are NaN. The emulator and memcheck see it where something else is written."""
    for dtype, bad in (("int32", -7), ("int32", 2 ** 31 - 1), ("int64", 2 ** 62)):
        x = alpha.tensor(normal(5, 8), device="cuda", requires_grad=True)
        labels = alpha.tensor(np.arange(5), dtype, device="cuda")
        loss = ops.cross_entropy(x, labels, reduction="sum")
        changed = alpha.tensor(np.array([0, 1, bad, 3, 4]), dtype, device="cuda")
        memory.copy(labels.array, changed.array)
        loss.backward()
        assert (np.isnan(x.grad.numpy()).all(1) == [False, False, True, False, False]).all()
        assert np.isfinite(x.grad.numpy()[[0, 1, 3, 4]]).all()


@pytest.mark.parametrize("shape", [(3, 4, 40), (2, 300, 5), (2, 20000)])
def test_sample_norms_of_huge_values_are_the_cpus(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    ordinary, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    for scale in (1e19, 1e30, 1e37):
        x = ordinary * np.float32(scale)
        for norm in (ops.layer_norm, lambda t: ops.group_norm(t, groups=1), ops.rms_norm, lambda t: ops.std(t, -1)):
            here, there = (norm(alpha.tensor(x, device=device)).numpy() for device in ("cpu", "cuda"))
            assert_equal_at(there, here, rtol=1e-5, atol=1e-6)
        for norm in (ops.layer_norm, lambda t: ops.group_norm(t, groups=1), ops.rms_norm):
            found = []
            for device in ("cpu", "cuda"):
                leaf = alpha.tensor(x, device=device, requires_grad=True)
                norm(leaf).backward(alpha.tensor(g, device=device))
                found.append(leaf.grad.numpy() * np.float32(scale))
            assert_equal_at(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 8])
def test_instance_norm_of_equal_pixels_has_no_gradient(channels: int) -> None:
    """A rest of rounding would come back a hundred thousand times as large from two such norms."""
    x, g = (np.broadcast_to(normal(2, 1, 1, channels), (2, 4, 4, channels)).copy() for _ in range(2))
    for dtype in ("float32", "bfloat16"):
        leaf = alpha.tensor(x, device="cuda").astype(dtype).detach().requires_grad_()
        F.instance_norm(leaf, weight=alpha.tensor(normal(channels), device="cuda")).backward(
            alpha.tensor(g, device="cuda").astype(dtype))
        assert not leaf.grad.numpy().astype("float32").any()


def test_pools_of_infinity_and_nan_name_the_elements_that_the_cpu_names() -> None:
    x = np.random.default_rng(0).choice([-np.inf, -np.inf, np.nan, 1.0], (2, 7, 9, 5)).astype(np.float32)
    for dtype in ("float32", "bfloat16"):
        for pool in (lambda t: F.max_pool2d(t, 3, 2, 1, 2, True, return_indices=True),
                     lambda t: F.max_pool2d(t, 2, 2, 1, 1, True, return_indices=True),
                     lambda t: adaptive_max_pool2d.full(t, output_size=(2, 3))):
            (y, index), (here, place) = (pool(alpha.tensor(x, device="cuda").astype(dtype)), pool(alpha.tensor(x)))
            assert np.array_equal(y.astype("float32").numpy(), here.numpy(), equal_nan=True)
            assert np.array_equal(index.numpy(), place.numpy())
