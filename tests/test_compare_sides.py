"""Both sides of a comparison in the precisions that are not alike: a scaled loss, and float32 beside TF32."""

from __future__ import annotations

import pytest

from benchmarks import checks
from tests.test_compare import twins

torch = pytest.importorskip("torch")
from benchmarks.compare import with_weights_of  # noqa: E402
from benchmarks.sides import LOSS_SCALE, AlphaSide, TorchSide, image_batches  # noqa: E402

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_fp16_has_a_scaled_loss() -> None:
    """And the losses of fp32, as its bounds allow."""
    ours, theirs = twins()
    with_weights_of(ours, theirs)
    batches = image_batches(4, (8, 8, 3), 5)
    side = AlphaSide(ours, batches, "cpu", "fp16")
    peer = TorchSide(theirs, batches, "cpu", "fp32")
    checks.same_values([float(side.step()) for _ in range(3)], [float(peer.step()) for _ in range(3)], "fp16")
    assert side.scaler is not None and (side.scaler.value, side.scaler.skipped) == (LOSS_SCALE, 0)
    assert side.account()["peak"] > 0 and not peer.scaler.is_enabled()


def test_float32_may_be_compared_with_tf32() -> None:
    ours, theirs = twins()
    batches = image_batches(2, (8, 8, 3), 5)
    assert AlphaSide(ours, batches, "cpu", "fp32-tf32").precision == "fp32"
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        assert TorchSide(theirs, batches, "cpu", "fp32-tf32").precision == "tf32"
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        TorchSide(theirs, batches, "cpu", "fp32")
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
