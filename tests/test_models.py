"""models: the registry, parameter counts, shapes, and equality with PyTorch twins after their weights are loaded."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.checkpoint import from_torch_state_dict, to_torch_state_dict
from alpha.errors import AlphaError, ConfigError
from alpha.gradcheck import assert_equal_at
from alpha.training import register_optimizer

COUNTS = {"lenet5": 62_006, "alexnet": 23_272_266, "vgg11": 9_231_114, "vgg13": 9_416_010, "vgg16": 14_728_266,
          "vgg19": 20_040_522, "vgg11_plain": 9_225_610, "vgg13_plain": 9_410_122, "vgg16_plain": 14_719_818,
          "vgg19_plain": 20_029_514, "resnet18": 11_173_962, "resnet34": 21_282_122, "resnet50": 23_520_842,
          "resnet101": 42_512_970, "resnet152": 58_156_618, "coresnet18": 11_173_962, "coresnet50": 23_520_842,
          "coresnet101": 42_512_970, "coresnet152": 58_156_618, "resnet20": 269_722, "resnet56": 853_018,
          "googlenet": 6_166_250, "wrn28_10": 36_479_194, "resnext29_8x64d": 34_426_698, "densenet100_12": 769_162,
          "densenet121": 6_956_298, "mobilenetv2": 2_236_682, "convnext_tiny": 27_824_362, "airbench94": 1_972_792,
          "preact_resnet18": 11_171_146, "senet18": 11_260_354, "mobilenet": 3_217_226, "shufflenet_g2": 887_582,
          "dpn26": 11_574_842, "dla": 16_291_386, "resnext29_32x4d": 4_774_218, "unet": 31_038_218}


SHIPPED = [name for name in models.list() if models._registry[name].__module__.startswith("models.")]


def test_the_known_ones_are_there():
    assert set(COUNTS) <= set(SHIPPED)  # a new file in models/ has its models in SHIPPED, and is not named here


@pytest.mark.parametrize("name", SHIPPED)
def test_parameter_count_is_the_one_in_the_docstring(name, monkeypatch):
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda t, **_: t)  # values do not count, and take seconds
    count = models.create(name).num_parameters()
    assert count == COUNTS.get(name, count)
    text = models.description(name)
    assert f"{count:,} parameters with 10 classes" in text
    assert re.search(r"arXiv \d{4}\.\d{4,5}|\d{4}\)", text), "the docstring names no paper"


@pytest.mark.parametrize("name", ["lenet5", "alexnet", "resnet20", "vgg11_plain"])
def test_logits_have_one_column_per_class_and_every_parameter_learns(name):
    net = models.create(name, num_classes=7)
    y = net(ops.randn((2, 32, 32, 3)))
    assert y.shape == (2, 7) and np.isfinite(y.numpy()).all()
    (y * y).sum().backward()
    assert [path for path, p in net.named_parameters() if p.grad is None] == []


def test_the_seed_decides_the_parameters():
    nets = []
    for seed in (1, 1, 2):
        alpha.manual_seed(seed)
        nets.append(models.create("lenet5").fc3.weight.numpy())
    assert np.array_equal(nets[0], nets[1]) and not np.array_equal(nets[0], nets[2])


def test_option_a_shortcut_subsamples_and_pads():
    shortcut = models.resnet.PadShortcut(2, 5, stride=2)
    x = np.arange(32.0, dtype=np.float32).reshape(1, 4, 4, 2)
    y = shortcut(alpha.tensor(x)).numpy()
    assert y.shape == (1, 2, 2, 5)
    assert np.array_equal(y[..., 1:3], x[:, ::2, ::2]) and not y[..., [0, 3, 4]].any()


@pytest.mark.torch
@pytest.mark.parametrize("name", ["lenet5", "vgg11", "vgg16", "resnet18", "googlenet", "resnet20", "densenet100_12",
                                  "mobilenetv2", "convnext_tiny", "airbench94", "preact_resnet18", "senet18",
                                  "mobilenet", "shufflenet_g2", "dpn26", "dla", "resnext29_32x4d", "unet",
                                  *[pytest.param(name, marks=pytest.mark.slow)
                                    for name in ("resnet50", "resnext29_8x64d", "wrn28_10")]])
def test_logits_equal_those_of_the_torch_twin(name, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda t, **_: t)  # other values are loaded
    from benchmarks.torch_models import TWINS

    torch.manual_seed(0)
    theirs, ours = TWINS[name](), models.create(name)
    assert sum(p.numel() for p in theirs.parameters()) == COUNTS[name]
    assert {n for n, _ in theirs.named_parameters()} == {n for n, _ in ours.named_parameters()}
    for name_, p in theirs.named_parameters():
        if name_.endswith("layer_scale"):       # 1e-6 at first, which would hide the blocks
            torch.nn.init.uniform_(p, -1, 1)
    from_torch_state_dict(theirs.state_dict(), ours)
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype(np.float32)
    tx = torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))
    with torch.no_grad(), alpha.no_grad():
        for mode in (True, False):
            expected = theirs.train(mode)(tx).numpy()
            expected = np.moveaxis(expected, 1, -1) if expected.ndim == 4 else expected
            assert_equal_at(ours.train(mode)(alpha.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4, name=f"{mode=}")
    for path, buffer in ours.named_buffers():
        assert_equal_at(buffer.numpy(), theirs.get_buffer(path).numpy(), rtol=1e-4, atol=1e-5, name=path)


def test_unknown_names_and_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match=r"no model is called 'resnet81'\nhelp: did you mean 'resnet18'\?"):
        models.create("resnet81")
    with pytest.raises(ConfigError, match=r"no model is called 'vgg16_bn'\nhelp: did you mean 'vgg16'\?"):
        models.create("vgg16_bn")
    with pytest.raises(ConfigError, match="no model is called 'zzz'\nhelp: use one of airbench94, alexnet, "):
        models.create("zzz")
    with pytest.raises(ConfigError, match=r"models.create: num_classes=0 is below 1\nhelp: pass the number of classes"):
        models.create("lenet5", num_classes=0)
    with pytest.raises(AlphaError, match=r'create: num_classes is "ten" \(str\), an int is needed'):
        models.create("lenet5", num_classes="ten")


@pytest.mark.parametrize("make, said", [
    (lambda num_classes: None, "net returned None, a Module is needed\nhelp: return what was made"),
    (lambda: nn.ReLU(), "net does not take the number of classes: too many positional arguments\nhelp: write def net("),
])
def test_a_function_that_makes_no_model_is_named(make, said, monkeypatch):
    monkeypatch.setitem(models._registry, "net", make)
    with pytest.raises(ConfigError) as caught:
        models.create("net")
    assert said in str(caught.value)


def test_a_name_is_registered_once():
    def lenet5(num_classes):
        return nn.Linear(1, num_classes)

    with pytest.raises(ConfigError, match="register_model: a model called 'lenet5' is registered already, by "):
        models.register_model(lenet5)
    with pytest.raises(ConfigError, match=r"an optimizer called 'sgd' is registered already, by \S*optim/sgd.py"):
        register_optimizer("sgd")(lambda params, lr: None)


@pytest.mark.parametrize("name, count", [("resnet18", 11_689_512), ("vgg16", 138_365_992), ("densenet121", 7_978_856),
                                         ("mobilenetv2", 3_504_872), ("convnext_tiny", 28_589_128),
                                         ("shufflenetv2", 2_278_604), ("regnet_x_400mf", 5_495_976),
                                         ("regnet_y_400mf", 4_344_144), ("efficientnet_b0", 5_288_548)])
def test_networks_for_large_images_have_the_parameters_of_the_papers(name, count, monkeypatch):
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda t, **_: t)     # drawing 138 million numbers takes seconds
    net = models.create(name, num_classes=1000, stem="imagenet")
    assert net.num_parameters() == count and f"{count:,} parameters with 1,000" in " ".join(
        models.description(name).split())


@pytest.fixture(scope="module")
def torchvision():
    """torchvision. Beside a PyTorch that it was not built for it has no operators, and does not start without two."""
    torch = pytest.importorskip("torch")
    try:
        return pytest.importorskip("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
    torchvision.operators = library  # they are there as long as it is
    return torchvision


def test_resnet18_for_large_images_is_torchvisions(torchvision):
    torch = pytest.importorskip("torch")
    twin = torchvision.models.resnet18(num_classes=5).eval()
    net = models.create("resnet18", num_classes=5, stem="imagenet")
    from_torch_state_dict(twin.state_dict(), net)
    x = np.random.default_rng(0).standard_normal((1, 64, 64, 3)).astype(np.float32)
    with torch.no_grad(), alpha.no_grad():
        expected = twin(torch.from_numpy(x.transpose(0, 3, 1, 2))).numpy()
        y = net.eval()(alpha.tensor(x)).numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


TORCHVISION = {   # names and shapes of its models, a few of each
    "mobilenetv2": {"features.0.0.weight": (32, 3, 3, 3), "features.1.conv.0.0.weight": (32, 1, 3, 3),
                    "features.1.conv.1.weight": (16, 32, 1, 1), "features.2.conv.1.0.weight": (96, 1, 3, 3),
                    "features.17.conv.3.running_var": (320,), "features.18.0.weight": (1280, 320, 1, 1),
                    "classifier.1.weight": (1000, 1280)},
    "convnext_tiny": {"features.0.0.weight": (96, 3, 4, 4), "features.0.1.bias": (96,),
                      "features.1.0.layer_scale": (96, 1, 1), "features.1.0.block.0.weight": (96, 1, 7, 7),
                      "features.1.0.block.2.weight": (96,), "features.5.8.block.3.weight": (1536, 384),
                      "features.5.8.block.5.bias": (384,), "features.6.1.weight": (768, 384, 2, 2),
                      "classifier.0.weight": (768,), "classifier.2.weight": (1000, 768)},
    "densenet121": {"features.conv0.weight": (64, 3, 7, 7), "features.norm0.weight": (64,),
                    "features.denseblock3.denselayer24.norm1.running_mean": (992,),
                    "features.denseblock4.denselayer16.conv2.weight": (32, 128, 3, 3),
                    "features.transition2.conv.weight": (256, 512, 1, 1), "features.norm5.bias": (1024,),
                    "classifier.weight": (1000, 1024)}}


@pytest.mark.parametrize("name", list(TORCHVISION))
def test_names_and_shapes_are_torchvisions(name, monkeypatch):
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda t, **_: t)
    state = to_torch_state_dict(models.create(name, num_classes=1000, stem="imagenet"))
    assert {key: state[key].shape for key in TORCHVISION[name]} == TORCHVISION[name]


@pytest.mark.parametrize("name, theirs", [("mobilenetv2", "mobilenet_v2"), ("convnext_tiny", "convnext_tiny"),
                                          ("densenet121", "densenet121"), ("shufflenetv2", "shufflenet_v2_x1_0"),
                                          ("regnet_x_400mf", "regnet_x_400mf"), ("regnet_y_400mf", "regnet_y_400mf"),
                                          ("efficientnet_b0", "efficientnet_b0")])
def test_weights_of_torchvision_load(name, theirs, torchvision, monkeypatch):
    import torch
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda t, **_: t)
    torch.manual_seed(0)
    twin = getattr(torchvision.models, theirs)(num_classes=5).eval()
    for path, buffer in twin.named_buffers():
        if "running" in path:
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    net = models.create(name, num_classes=5, stem="imagenet").eval()
    from_torch_state_dict(twin.state_dict(), net)
    x = np.random.default_rng(0).standard_normal((1, 64, 64, 3)).astype(np.float32)
    with torch.no_grad(), alpha.no_grad():
        expected = twin(torch.from_numpy(x.transpose(0, 3, 1, 2))).numpy()
        np.testing.assert_allclose(net(alpha.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_vision_transformer_is_torchvisions(torchvision):
    import torch
    torch.manual_seed(0)
    twin = torchvision.models.VisionTransformer(image_size=32, patch_size=4, num_layers=12, num_heads=3, hidden_dim=192,
                                                mlp_dim=768, num_classes=10).eval()
    for p in (twin.class_token, twin.heads.head.weight):    # zeros at first
        torch.nn.init.normal_(p, std=0.05)
    net = models.create("vit_tiny_4").eval()
    assert {n for n, _ in twin.named_parameters()} == {n for n, _ in net.named_parameters()}
    from_torch_state_dict(twin.state_dict(), net)
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype(np.float32)
    with torch.no_grad(), alpha.no_grad():
        expected = twin(torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))).numpy()
        np.testing.assert_allclose(net(alpha.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("image_size, patch_size", [(30, 4), (4, 8), (32, 0)])
def test_images_of_a_broken_number_of_patches_are_refused(image_size, patch_size):
    with pytest.raises(ConfigError, match=f"images of {image_size} pixels a side hold no whole number of patches of "
                                          f"{patch_size}\nhelp: pass an image_size that patch_size divides"):
        models.create("vit_tiny_4", image_size=image_size, patch_size=patch_size)


def test_unet_takes_maps_that_pools_cut():
    net = models.create("unet", num_classes=3, in_channels=1, channels=4)
    y = net(ops.randn((2, 37, 50, 1)))
    assert y.shape == (2, 37, 50, 3)
    ops.cross_entropy(y, alpha.tensor(np.arange(2 * 37 * 50).reshape(2, 37, 50) % 3)).backward()
    assert [path for path, p in net.named_parameters() if p.grad is None] == []


def test_width_of_mobilenet_scales_its_channels():
    narrow = models.create("mobilenet", width=0.25)
    assert narrow.conv1.weight.shape == (8, 3, 3, 3) and narrow.linear.weight.shape == (10, 256)


def test_vgg_for_large_images_takes_a_map_of_7x7(monkeypatch):
    monkeypatch.setattr(models.vgg, "WIDTH", 16)
    net = models.vgg.VGG(11, 4, batch_norm=True, stem="imagenet").eval()
    y = net(ops.randn((1, 64, 64, 3)))
    assert y.shape == (1, 4) and net.classifier[0].weight.shape == (16, 7 * 7 * 512)
    assert [name for name in net.state_dict() if name.startswith("classifier")][::2] == [
        "classifier.0.weight", "classifier.3.weight", "classifier.6.weight"]


@pytest.mark.parametrize("name", ["vgg16", "vgg19", "resnet18", "densenet121", "mobilenetv2", "convnext_tiny",
                                  "shufflenetv2", "regnet_y_400mf", "efficientnet_b0"])
def test_an_unknown_stem_is_refused(name):
    with pytest.raises(ConfigError, match=r"stem is 'big', it can be 'small' or 'imagenet'\nhelp: pass one of these"):
        models.create(name, stem="big")


def test_a_new_file_in_the_folder_is_found(tmp_path):
    shutil.copytree(Path(models.__file__).parent, tmp_path / "models")
    (tmp_path / "models" / "mine.py").write_text(
        "from alpha import nn\nfrom models import register_model\n\n\n@register_model\ndef of_mine(num_classes):\n"
        "    return nn.Linear(1, num_classes)\n")
    root = str(Path(alpha.__file__).parent.parent)
    code = f"import sys; sys.path.append({root!r}); import models; print(models.create('of_mine', 3).weight.shape)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "(3, 1)\n", done.stderr
