"""alpha.from_torch: networks of all families compute, and are trained, as in PyTorch."""

from __future__ import annotations

from importlib import import_module

import pytest

from alpha.interop.pytorch import from_torch

torch = pytest.importorskip("torch")
import_module("tests.interop.nets_attention")
NETS = import_module("tests.interop.nets").NETS
agree = import_module("tests.interop.agree")
pytestmark = [pytest.mark.torch,
              pytest.mark.same_without_kernels("networks of PyTorch are compared with the kernels")]


@pytest.mark.parametrize("name", NETS)
def test_a_network_computes_and_is_trained_as_in_pytorch(name: str) -> None:
    make, shapes = NETS[name]
    torch.manual_seed(0)
    model = make().double().eval()
    net = from_torch(model, agree.inputs(shapes, 2, 0))
    assert not model.training and not net.training
    assert {k for k in model.state_dict() if not k.endswith("num_batches_tracked")} == set(net.state_dict())
    for n in (3, 2):
        agree.check_outputs(model, net, agree.inputs(shapes, n, n))
    agree.check_training(model, net, agree.inputs(shapes, 4, 9))
