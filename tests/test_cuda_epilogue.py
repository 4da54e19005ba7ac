"""Epilogues: what is added, and whether relu follows."""

from __future__ import annotations

import pytest

from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.memory import Array

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
BIAS = Array(None, 256, (8,), "float32", 8, 32)


@pytest.mark.parametrize(("add", "activation", "known"), [
    (None, None, NOTHING), (BIAS, None, (BIAS, False)), (None, "relu", (None, True)), (BIAS, "relu", (BIAS, True))])
def test_an_epilogue_adds_and_then_goes_through_relu(add, activation, known):
    added, relu = Epilogue.of(add, activation)
    assert (added, relu) == known and (added is add) and relu is (activation == "relu")
