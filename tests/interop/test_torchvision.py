"""torchvision's networks with random weights: outputs, and the losses of five training steps, in float64."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

import alpha

torch = pytest.importorskip("torch")
agree = import_module("tests.interop.agree")
pytestmark = [pytest.mark.same_without_kernels("networks of PyTorch are compared with the kernels"),
              pytest.mark.torch, pytest.mark.large,
              pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")]
# one or two of each family, at sizes that take a minute
NAMES = {"alexnet": 64, "vgg11_bn": 32, "resnet18": 64, "resnext50_32x4d": 32, "wide_resnet50_2": 32, "densenet121": 32,
         "googlenet": 64, "inception_v3": 96, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "mnasnet0_5": 64,
         "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "efficientnet_b0": 64, "regnet_y_400mf": 64,
         "convnext_tiny": 64, "swin_t": 64, "vit_b_32": 64}


@pytest.fixture(scope="module")
def get_model() -> Any:
    """torchvision.models.get_model; two operators that it registers gradients for are declared first."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        try:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:     # torchvision's own library has it
            break
    return import_module("torchvision.models").get_model


def without_dropout(model: Any) -> Any:
    """Returns a model in which nothing is drawn."""
    for module in model.modules():
        if type(module).__name__ in ("Dropout", "StochasticDepth"):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "drop_rate"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_torchvision_computes_and_is_trained_as_there(name: str, get_model: Any) -> None:
    size = NAMES[name]
    more: dict[str, Any] = {"image_size": size} if name.startswith("vit") else (
        {"init_weights": False} if name in ("googlenet", "inception_v3") else {})
    torch.manual_seed(0)
    model = without_dropout(get_model(name, weights=None, num_classes=10, **more)).double().eval()
    net = alpha.from_torch(model, agree.inputs(((2, 3, size, size),), 2, 0))
    for n in (3, 2):
        agree.check_outputs(model, net, agree.inputs(((n, 3, size, size),), n, n))
    agree.check_training(model, net, agree.inputs(((4, 3, size, size),), 4, 9), lr=1e-4)
