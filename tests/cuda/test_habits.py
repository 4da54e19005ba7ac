"""The lines of tests/test_habits.py on the GPU, in float32 and 16 bits: each does there what it does on the CPU."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, optim
from alpha.errors import AlphaError
from tests.test_habits import WORK

pytestmark = pytest.mark.cuda

CREATE = {"randn", "ones", "zeros", "tensor", "randint", "eye", "linspace", "randperm", "from_numpy"}
# lines that ask for what the devices do not share -> what the error says to write
REFUSED = {("x.float().long().to(\"float32\").to(alpha.float64)", "any"): "choose one of those",
           ("alpha.from_numpy(np.ones(3))", "any"): "x.astype(\"float32\")",
           ("x.detach().cpu().numpy()", "bfloat16"): "x.astype(\"float32\")",
           ("model.register_forward_pre_hook(lambda m, a: None).remove(), x.clone().detach().requires_grad_(True), "
            "x.cpu().numpy()", "bfloat16"): "x.astype(\"float32\")"}


class Placed:
    """A namespace whose layers and new tensors are on a device and in a dtype."""

    def __init__(self, inner: Any, device: str, dtype: str) -> None:
        self.inner, self.device, self.dtype = inner, device, dtype

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if inspect.isclass(found) and issubclass(found, nn.Module):
            return lambda *args, **options: found(*args, **options).to(self.device, self.dtype)
        if self.inner is alpha and name in CREATE:
            return partial(placed, found, self.device, self.dtype)
        return found


def placed(create: Any, device: str, dtype: str, *args: Any, **options: Any) -> Any:
    made = create(*args, **options).to(device)
    return made.astype(dtype) if made.is_floating_point and "dtype" not in options else made


def names(device: str, dtype: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    given = Placed(alpha, device, dtype)
    layers = Placed(nn, device, dtype)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(device, dtype)
    return {"alpha": given, "nn": layers, "F": F, "np": np, "optim": optim, "model": model, "copy": copy,
            "OrderedDict": OrderedDict,
            "x": given.tensor(rng.standard_normal((2, 3, 4)).astype(np.float32)),
            "maps": given.tensor(rng.standard_normal((2, 4, 4, 3)).astype(np.float32)),
            "labels": given.tensor(rng.integers(0, 3, (2, 4, 4))), "optimizer": optim.SGD(model.parameters(), lr=0.1)}


def value(line: str, device: str, dtype: str) -> Any:
    """Returns what the line's expression gives, or None of a statement."""
    space = names(device, dtype)
    try:
        code = compile(line, line, "eval")
    except SyntaxError:
        exec(line, space)
        return None
    return eval(code, space)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("line", WORK)
def test_works_on_the_gpu(line: str, dtype: str) -> None:
    twin = REFUSED.get((line, "any")) or REFUSED.get((line, dtype))
    if twin:
        with pytest.raises(AlphaError) as caught:
            value(line, "cuda", dtype)
        assert twin in str(caught.value)
        return
    found = value(line, "cuda", dtype)
    if not isinstance(found, alpha.Tensor) or any(word in line for word in ("rand", "nn.")):
        return
    assert found.device == "cuda" or "cpu" in line
    expected = value(line, "cpu", "float32").detach().numpy().astype(np.float64)
    near = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    ours = found.detach().astype("float32").numpy().astype(np.float64)
    assert ours.shape == expected.shape
    if found.is_floating_point:
        np.testing.assert_allclose(ours, expected, rtol=near, atol=near * max(1.0, float(np.abs(
            expected[np.isfinite(expected)]).max(initial=0))))
