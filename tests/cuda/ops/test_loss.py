"""Losses on the GPU: widths of a row, both kinds of labels, extreme logits, and data that the CPU would refuse."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops import loss
from alpha.cuda.runtime.kernel import FLOAT_DTYPES
from alpha.errors import DataError
from alpha.gradcheck import assert_equal_at
from alpha.ops.loss import cross_entropy_grad, label_cross_entropy
from tests.cuda.agree import Case, agree, floats

pytestmark = pytest.mark.cuda

# One class, rows that do and do not fill 16 bytes, more rows than one block, a row for a whole block.
SHAPES = [(1, 1), (3, 2), (9, 10), (5, 8), (300, 4), (2, 1000), (2, 1030), (3, 1025)]
EXTREME = np.array([[1000, 0, -1000, 0], [-1e30, -1e30, 0, -1e30], [0, -np.inf, 0, 1], [np.nan, 0, 0, 0]], np.float32)


def labels(rows: int, classes: int, dtype: str = "int64") -> np.ndarray:
    return np.random.default_rng(7).integers(0, classes, rows).astype(dtype)


def forward(shape: tuple[int, int], smoothing: float, reduction: str, dtype: str = "int64", **options) -> Case:
    return Case("label_cross_entropy", 3 * floats(*shape), labels(*shape, dtype), label_smoothing=smoothing,
                reduction=reduction, rtol=2e-6, atol=2e-6, **options)


def backward(shape: tuple[int, int], smoothing: float, reduction: str, dtype: str = "int64", **options) -> Case:
    x = 3 * floats(*shape)
    target, e = labels(*shape, dtype), np.exp(x.astype(np.float64))
    rest = 1 - e[range(len(x)), target] / e.sum(1)
    stats = np.stack([x.max(1), np.log(e.sum(1)) - x.max(1), rest]).astype(np.float32)
    g = floats(*shape[:1], seed=1) if reduction == "none" else np.full((), 1.5, np.float32)
    count = np.full((), len(x), np.float32)
    return Case("cross_entropy_grad", g, x, target, stats, count, label_smoothing=smoothing, reduction=reduction,
                rtol=2e-6, atol=1e-6, **options)


CASES = [
    *[make(shape, smoothing, reduction) for make in (forward, backward) for shape in SHAPES
      for smoothing, reduction in ((0.0, "mean"), (0.1, "none"), (1.0, "sum"))],
    *[make((6, classes), 0.1, reduction, dtype, dtypes=FLOAT_DTYPES) for make in (forward, backward)
      for classes, reduction, dtype in ((16, "none", "int32"), (5, "mean", "int64"))],
    *[Case("label_cross_entropy", np.zeros((0, 3), np.float32), np.zeros(0, np.int64), reduction=reduction)
      for reduction in ("mean", "sum", "none")],
    *[Case("label_cross_entropy", 3 * floats(300, 4), np.where(np.arange(300) % 3, 2, -100).astype(dtype), rtol=2e-6,
           atol=2e-6, label_smoothing=0.1, reduction=reduction)
      for reduction in ("mean", "sum", "none") for dtype in ("int32", "int64")],
    Case("label_cross_entropy", EXTREME, np.array([1, 2, -100, -100]), reduction="mean"),
    Case("cross_entropy_grad", np.zeros((), np.float32), np.zeros((0, 3), np.float32), np.zeros(0, np.int64),
         np.zeros((3, 0), np.float32), np.zeros((), np.float32), label_smoothing=0.0, reduction="mean"),
    *[Case("label_cross_entropy", EXTREME, np.array([1, 2, 0, 1]), label_smoothing=smoothing, reduction="none")
      for smoothing in (0.0, 0.3)],
    *[Case("label_mask", labels(rows, classes, dtype), classes=classes)
      for rows, classes in ((1, 1), (20, 3), (3, 70), (0, 2)) for dtype in ("int32", "int64")],
    Case("label_mask", labels(12, 5).reshape(3, 4), classes=5),
    *[Case("binary_cross_entropy", floats(*shape, low=0, high=1), floats(*shape, seed=1, low=0, high=1), rtol=1e-5,
           atol=1e-6) for shape in ((), (7,), (3, 700), (0,))],
    Case("binary_cross_entropy", np.array([0, 1, 0, 1, 0.5, np.nan, 1e-40], np.float32),
         np.array([0, 1, 1, 0, 0.5, 0.5, 1], np.float32), rtol=1e-5),
    Case("binary_cross_entropy", floats(40, low=0.1, high=0.9), floats(40, seed=1, low=0, high=1), dtypes=FLOAT_DTYPES,
         rtol=1e-5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case):
    agree(case)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("shape", [(300, 24), (700, 3), (9, 1032), (5, 2055), (4, 16400)])
def test_a_block_takes_one_row_after_the_other(shape, blocks, monkeypatch):
    """As where there are more rows than a device takes at once; short and long ones, held or read again."""
    monkeypatch.setattr(loss, "BLOCKS", blocks)
    for reduction in ("mean", "none"):
        agree(forward(shape, 0.1, reduction, dtypes=FLOAT_DTYPES))


@pytest.mark.parametrize("bad", [-1, 4, 2 ** 40])
def test_a_label_out_of_range_makes_its_row_nan(bad):
    x = alpha.tensor(floats(3, 4), device="cuda")
    target = alpha.tensor(np.array([1, bad, 3]), device="cuda")
    losses, stats, count = label_cross_entropy.full(x, target, reduction="none")
    assert (np.isnan(losses.numpy()) == [False, True, False]).all() and np.isfinite(stats.numpy()).all()
    assert np.isnan(label_cross_entropy(x, target).item())
    g = alpha.tensor(np.ones(3, np.float32), device="cuda")
    dx = cross_entropy_grad(g, x, target, stats, count, label_smoothing=0.0, reduction="none").numpy()
    assert (np.isnan(dx).all(1) == [False, True, False]).all() and np.isfinite(dx[[0, 2]]).all()


@pytest.mark.parametrize("labels, problem", [
    ([0, 2, 3, -1, 1], "label 3 at position 2"), ([0, 2, 0, -1, 4], "label -1 at position 3")])
def test_a_mask_refuses_labels_out_of_range_as_the_cpu_does(labels, problem):
    said = []
    for device in ("cpu", "cuda"):
        x, target = (alpha.tensor(a, device=device) for a in (floats(5, 3), np.array(labels)))
        with pytest.raises(DataError) as error:
            ops.nll_loss(x, target)
        said.append(str(error.value))
    assert f"nll_loss: {problem} is outside [0, 3)" in said[0] and "\nhelp: " in said[0]
    assert said[0] == said[1]


def test_a_probability_out_of_range_gives_nan():
    p, target = np.array([-0.1, 0.5, 1.1], np.float32), np.array([0, 1, 1], np.float32)
    y = ops.bce_loss(alpha.tensor(p, device="cuda"), alpha.tensor(target, device="cuda"), reduction="none")
    assert_equal_at(y, [np.nan, np.log(2), np.nan], rtol=1e-6)


@pytest.mark.long
def test_two_runs_give_the_same_bits():
    x, target = alpha.tensor(floats(2000, 3), device="cuda"), alpha.tensor(labels(2000, 3), device="cuda")
    assert label_cross_entropy(x, target).item() == label_cross_entropy(x, target).item()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_labels_leave_no_trace(reduction: str) -> None:
    values, target = 3 * floats(7, 5), np.array([0, -100, 2, 4, -100, 1, -100])
    values[6] = np.nan
    found = []
    for device in ("cpu", "cuda"):
        x = alpha.tensor(values, device=device, requires_grad=True)
        loss = ops.cross_entropy(x, alpha.tensor(target, device=device), reduction=reduction)
        loss.sum().backward()
        found.append((loss.detach().numpy(), x.grad.numpy()))
    for ours, expected in zip(found[1], found[0]):
        np.testing.assert_allclose(ours, expected, rtol=2e-6, atol=1e-6)
    assert not found[1][1][target < 0].any() and np.isfinite(found[1][1]).all()
