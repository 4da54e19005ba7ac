"""Lines of somebody's first day with a training script of PyTorch's: each works, or its error says what to write."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, optim
from alpha.core.names import DType, Shape
from alpha.errors import AlphaError, DeviceError, MissingError, shown
from tests.op_checks import refused

WORK = """
assert x.device.type == "cpu" and x.device.index is None and isinstance(x.device, alpha.device)
assert x.dtype.is_floating_point and x.dtype.itemsize == 4 and not x.dtype.is_complex and x.dtype.is_signed
assert x.shape.numel() == x.size().numel() == 24 and model[0].weight.shape.numel() == 16
assert (x > 0).dtype.itemsize == 1 and not x.argmax(1).dtype.is_floating_point and not alpha.uint8.is_signed
assert alpha.zeros((3, 3), device=x.device, dtype=x.dtype).dtype == alpha.float32 == "float32"
device = alpha.device("cuda" if alpha.cuda.is_available() else "cpu"); x.to(device).sum(); model.to(device)
assert F.interpolate(maps, scale_factor=2, mode="nearest", align_corners=None).shape == (2, 8, 8, 3)
x.to(device=alpha.device("cpu"), dtype=alpha.float64, non_blocking=True)
assert alpha.device("cuda", 1) == alpha.device("cuda:1") == "cuda:1" and alpha.device("cuda:1").index == 1
alpha.manual_seed(42); np.random.seed(42); random.seed(42)
for m in model.modules(): nn.init.orthogonal_(m.weight) if isinstance(m, nn.Linear) else None
for m in model.modules(): nn.init.constant_(m.bias, 0) if isinstance(m, nn.Linear) and m.bias is not None else None
nn.init.kaiming_normal_(model[0].weight, mode="fan_out", nonlinearity="relu")
nn.init.xavier_normal_(model[0].weight, gain=nn.init.calculate_gain("relu"))
assert sum(p.numel() * p.element_size() for p in model.parameters()) == 4 * 30
assert [k for k in model.state_dict() if k.startswith("0")] == ["0.weight", "0.bias"]
model.load_state_dict({k.replace("module.", ""): v for k, v in model.state_dict().items()})
model.load_state_dict({**model.state_dict(), "0.weight": alpha.zeros((4, 4))}, strict=True)
alpha.save(model.state_dict(), tmp / "m.pt"); model.load_state_dict(alpha.load(tmp / "m.pt", map_location="cpu"))
alpha.save({"epoch": 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp / "c.pt")
alpha.save(optimizer.state_dict(), tmp / "o.pt"); optimizer.load_state_dict(alpha.load(tmp / "o.pt"))
optimizer.param_groups[0]["lr"] = 1e-3; assert optimizer.param_groups[0]["params"][0].shape == (4, 4)
optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
optim.AdamW([{"params": [p for n, p in model.named_parameters() if "bias" in n]}], betas=(0.9, 0.9))
optimizer.zero_grad(); F.cross_entropy(model(x).view(6, 2), alpha.ones(6).long()).backward(); optimizer.step()
assert (logits.argmax(dim=1, keepdim=True).eq(target.view(-1, 1))).sum().item() <= 4
assert 0 <= (logits.argmax(1) == target).float().mean().item() <= 1
assert (logits.argmax(1) == target).type(alpha.float32).sum().item() <= 4
assert logits.topk(2, 1, True, True)[1].t().eq(target.view(1, -1).expand(2, 4)).reshape(-1).float().sum() <= 4
assert F.softmax(logits, dim=1).max(dim=1).shape == (4,)
alpha.no_grad()(lambda: model(x))(), alpha.inference_mode()(lambda: model(x))(), alpha.enable_grad()(lambda: model(x))()
assert not alpha.no_grad()(lambda: model(x))().requires_grad
assert round(x.sum().item(), 3) == pytest.approx(x.sum().item(), abs=1e-3) and round(alpha.tensor(2.6)) == 3
assert round(alpha.tensor(1.2345), 2).item() == pytest.approx(1.23)
f"{x.mean():>8.3f} {x.mean().item():.4f}", "%.4f" % x.mean(), "{:.3f}".format(x.mean())
assert np.mean([x.sum().item(), x.sum().detach()]) == pytest.approx(x.sum().item())
assert F.conv2d(maps, alpha.ones((2, 2, 3, 3)), padding="same", dilation=2).shape == (2, 4, 4, 2)
assert F.conv2d(maps, alpha.ones((2, 2, 3, 3)), padding="valid").shape == (2, 3, 2, 2)
model[0].weight.data.fill_(0); model[0].bias.data.zero_(); assert model[0].weight.abs().sum().item() == 0
nn.init.normal_(model[0].weight.data, 0, 0.02); assert 0 < model[0].weight.abs().sum().item() < 2
model(x).sum().backward(); p = model[0].weight; p.data -= 0.1 * p.grad.data; assert p.requires_grad and p.grad.sum()
p = model[0].weight; p.data = p.data * 0.5; p.data = p * 2.0; p.data *= 0.9; p.data.copy_(alpha.ones((4, 4)))
assert x.sum().data.item() == x.data.sum().item() and x.data.device.type == "cpu" and x.data.norm().item() > 0
assert logits.data.argmax(1).eq(target.data).sum().item() <= 4 and not logits.data.requires_grad
for a, b in zip(model.parameters(), copy.deepcopy(model).parameters()): a.data.copy_(b.data)
assert len(alpha.data.DataLoader(items, batch_size=3, shuffle=True, num_workers=0, drop_last=True)) == 1
x0, y0 = next(iter(alpha.data.DataLoader(items, batch_size=2))); assert y0.size(0) == 2 and x0.to("cpu") is x0
for i, (a, b) in enumerate(alpha.data.DataLoader(items, batch_size=2)): assert a.shape[0] == b.size(0) == 2
model.register_buffer("seen", alpha.zeros((1,))); assert "seen" in dict(model.named_buffers())
assert model[-1].out_features == 2 and model[0].in_features == 4 and len(model) == 3
del model[2]; model.append(nn.Identity()); assert model(x).shape == x.shape
conv = nn.Conv2d(3, 4, 3); assert conv.kernel_size == (3, 3) and conv.stride == (1, 1) and conv.in_channels == 3
assert nn.BatchNorm2d(3).running_mean.shape == (3,) and nn.Dropout(p=0.2).p == 0.2
nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")(logits, target).mean().backward()
nn.Sequential(*list(model.children())[:-1])(x), nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)])(x)
assert x.shape[1:] == (3, 4) and x.shape + (1,) == (2, 3, 4, 1) and [*x.shape] == [2, 3, 4] and x.shape == (2, 3, 4)
copy.deepcopy(x).shape.numel(), pickle.loads(pickle.dumps((x.shape, x.dtype, x.device)))[1].itemsize
assert json.loads(json.dumps([x.shape, x.dtype, x.device])) == [[2, 3, 4], "float32", "cpu"]
assert np.zeros(x.shape, x.dtype).shape == x.shape and {x.dtype: 1}["float32"] == 1 and repr(x.shape) == "(2, 3, 4)"
""".strip().splitlines()

# line -> what its error says to write
TWINS = {
    "model[0].weight.data.mul_(0.9)": "write t *= y", "optimizer.state_dict()['param_groups']":
    "optimizer.param_groups",
    "x.dtype.to_complex()": "np.finfo", "x.device.foo": "with type and index", "x.shape.numels": "numel()",
    "alpha.backends.cudnn.benchmark": "alpha.config", "alpha.backends.mps.is_available()": "alpha.config",
    "alpha.set_num_threads(4)": "ALPHA_NUM_THREADS", "alpha.amp.autocast('cuda')": "alpha.precision",
    "alpha.autocast(device_type='cuda', dtype=alpha.float16)": "alpha.precision", "alpha.amp.GradScaler()":
    "alpha.optim.LossScaler", "alpha.cuda.amp.GradScaler()": "alpha.optim.LossScaler", "alpha.cuda.manual_seed_all(1)":
    "alpha.manual_seed", "alpha.set_grad_enabled(False)": "alpha.no_grad", "alpha.autograd.grad(x, x)": "alpha.grad",
    "alpha.grad(x, [x], allow_unused=True)": "has None", "nn.utils.parameters_to_vector(model.parameters())":
    "alpha.concat", "nn.init.sparse_(model[0].weight, 0.1)": "rand_like", "nn.init.dirac_(model[0].weight)": "copy_",
    "nn.init.kaiming_normel_": "did you mean kaiming_normal_", "x.numpy(force=True)": "copies from any device",
    "x.clone(memory_format=None)": "channels are last", "x.contiguous(memory_format=None)": "channels are last",
    "x.float(1)": "it takes ()", "x.reshape(shap=(6, 4))": "reshape", "x.type(dtype='float32', non_blocking=True)":
    "it takes (dtype)", "model[0].register_forward_hook(print, with_kwargs=True)": "by position",
    "model.state_dict(keep_vars=True)": "named_parameters", "model.named_parameters(prefix='a')": "names begin",
    "model.parameters(recurse=False)": "walked over", "optimizer.zero_grad(True, 1)": "it takes (set_to_none)",
    "alpha.data.DataLoader(items, 2, persistent_workers=True)": "leave it out", "alpha.data.DataLoader(items, 2, "
    "prefetch_factor=2)": "prefetch=", "alpha.data.DataLoader(items, batch_sampler=[[0]])": "Subset",
    "alpha.checkpoint.checkpoint(model, x)": "alpha.recompute",
    "alpha.onnx.dynamo_export(model)": "onnx.export",
    "alpha.training.EarlyStopping()": "patience is missing", "alpha.training.fitt": "did you mean fit",
    "alpha.device('gpu')": "cuda:<index>", "alpha.device('cuda', 'x')": "cuda:<index>",
    "alpha.device(0)": "cuda:<index>",
    "F.conv2d(maps, alpha.ones((2, 3, 3, 3)), padding='same', stride=2)": "kernel_size // 2",
    "F.conv2d(maps, alpha.ones((2, 3, 3, 3)), padding='some')": '"same"',
}


def names(tmp: Path | None = None) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return {"alpha": alpha, "nn": nn, "F": F, "np": np, "optim": optim, "x": alpha.randn((2, 3, 4)), "model": model,
            "maps": alpha.randn((2, 4, 4, 3)), "logits": alpha.randn((4, 3), requires_grad=True), "random": random,
            "target": alpha.tensor([0, 1, 2, 1]), "optimizer": optim.Adam(model.parameters()), "tmp": tmp, "json": json,
            "items": alpha.data.TensorDataset(np.zeros((4, 3), np.float32), np.arange(4)), "copy": copy,
            "pickle": pickle, "pytest": pytest}


@pytest.mark.parametrize("line", WORK)
def test_works(line: str, tmp_path: Path) -> None:
    exec(line, names(tmp_path))


@pytest.mark.parametrize("line", TWINS)
def test_names_its_twin(line: str) -> None:
    with refused(AlphaError, TWINS[line]):
        exec(line, names())


def test_names_are_strings_and_stay_so() -> None:
    x = alpha.ones((2, 3), requires_grad=True)
    for t in (x, x + 1, x > 0, x.argmax(), x.half(), x.detach(), x[0], nn.Parameter(x.detach()), alpha.tensor([1]),
              alpha.grad((x * x).sum(), x)[0]):
        assert (t.dtype.__class__, t.shape.__class__) == (DType, Shape) and isinstance(t.device, alpha.device)
        assert t.shape.numel() == t.numel() and t.dtype.itemsize == t.itemsize and hash(t.shape) == hash(tuple(t.shape))
    assert [shown(v) for v in (x.shape, x.dtype)] == ["(2, 3)", '"float32" (str)']
    assert not hasattr(x.dtype, "__array__") and not hasattr(x.shape, "__fspath__")
    with pytest.raises(MissingError, match="is its name"):
        x.device.startwith("c")  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="is not a device"):
        alpha.device("cpu", 1)


@pytest.mark.parametrize("decimals, expected", [
    (1, [1.2, -37.5]), (-1, [0.0, -40.0]), (40, [1.25, -37.5]), (-40, [0.0, 0.0]), (2**62, [1.25, -37.5]),
    (-2**62, [0.0, 0.0])])
def test_rounding_to_any_number_of_digits(decimals: int, expected: list[float]) -> None:
    x = alpha.tensor([1.25, -37.5, float("inf"), 0.0], requires_grad=True)
    y = x.round(decimals=decimals)
    assert y.tolist() == pytest.approx([*expected, float("inf"), 0.0], rel=1e-6)
    y[:2].sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_methods_refuse_what_they_do_not_take() -> None:
    """All public methods that a tensor, a module and an optimizer have of alpha's, but for those that ops call."""
    left_out = {"numel", "nelement", "dim", "element_size", "detach", "edge", "seed", "with_data", "forward", "macs",
                "extra_repr", "slots", "start", "update", "check", "values", "former",
                "is_floating_point", "ndimension", "shared", "numbers", "form", "slot_shape"}
    for thing in (alpha.ones((2, 2)), nn.Linear(2, 2), optim.Adam([nn.Parameter(alpha.ones((2,)))])):
        for name, f in inspect.getmembers(thing, callable):
            if not name.startswith("_") and name not in left_out:
                with pytest.raises(AlphaError):
                    f(no_such_option=1)
