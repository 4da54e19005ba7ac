"""Batches without samples on the GPU, in float32 and in 16 bits."""

from __future__ import annotations

import pytest

from tests.test_no_samples import LAYERS, check

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("name", ["conv", "conv without bias", "transposed", "max", "avg", "mean", "fused"])
def test_layers(name):
    check(LAYERS[name](), "cuda")


def test_in_16_bits():
    check(LAYERS["max"](), "cuda", "bfloat16")
