"""What people do with modules, files and notebooks as in PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.errors import ArgumentError, CheckpointError, ConfigError, ShapeError
from alpha.nn import init
from tests.op_checks import refused


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_files_of_models_and_of_any_state(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "state.safetensors"
    optimizer = optim.Adam(model.named_parameters())
    alpha.save(model, path)
    other = small()
    other.load_state_dict(alpha.load(path))
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(model.state_dict().values(),
                                                                    other.state_dict().values()))
    model(alpha.ones((2, 3))).sum().backward()
    optimizer.step()
    state = {"model": model, "optimizer": optimizer, "epoch": 3, "best": 0.5, "names": ["a", None, True],
             "tensor:x": "text:y", "array": np.arange(3), "one": np.float32(2.0)}
    alpha.save(state, str(path))
    found = alpha.load(path)
    assert found["epoch"] == 3 and found["names"] == ["a", None, True] and found["tensor:x"] == "text:y"
    assert found["array"].tolist() == [0, 1, 2] and found["one"] == 2.0
    again = optim.Adam(model.named_parameters())
    again.load_state_dict(found["optimizer"])
    assert again.step_count == 1
    alpha.save(alpha.ones((2,)), path)
    assert alpha.load(path).tolist() == [1, 1]
    with refused(ArgumentError, 'call alpha.save(model, "model.safetensors")'):
        alpha.save(path, model)
    with refused(ArgumentError, "save: a key of the state is 3, a str is needed"):
        alpha.save({3: 1}, path)
    with refused(ArgumentError, "save: f is <", "which no file of tensors holds"):
        alpha.save({"f": object()}, path)
    alpha.checkpoint.save(path, {"a": alpha.ones((1,))}, {"b": 1})
    with refused(CheckpointError, "is no file of alpha.save"):
        alpha.load(path)
    alpha.checkpoint.save(path, {"a": alpha.ones((1,))}, {"state": {"b": "tensor:c"}})
    with refused(CheckpointError, 'the file names a tensor "tensor:c" (str) that it does not have'):
        alpha.load(path)


def test_habits_of_modules() -> None:
    model = small()
    assert len(model[1:]) == 2 and len(list(model.children())) == 3
    seen: list = []
    handle = model[0].register_forward_hook(lambda module, args, y: seen.append(y.shape))
    model(alpha.ones((2, 3))).sum().backward()
    handle.remove()
    model(alpha.ones((2, 3)))
    assert seen == [(2, 4)]
    model.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert model.half()[0].weight.dtype == "float16" and model.float()[0].weight.dtype == "float32"
    assert model.double()[0].weight.dtype == "float64" and "<pre>Sequential(" in model._repr_html_()
    for name, twin in (("register_full_backward_hook", "register_backward_hook"), ("paramters", "parameters"),
                       ("zzz", "assign it first")):
        with refused(AttributeError, f"Sequential: there is no {name}", twin):
            getattr(model, name)
    x = alpha.ones((2,), requires_grad=True)
    grads: list = []
    handle = x.register_hook(grads.append)
    (x * 2).sum().backward()
    handle.remove()
    (x * 2).sum().backward()
    assert len(grads) == 1
    with alpha.inference_mode():
        assert not (x * 2).requires_grad


def test_tensors_say_what_they_are() -> None:
    x = alpha.tensor([[1.0, 2.0]], requires_grad=True)
    assert f"{x.sum():.2f}" == "3.00" and f"{x}" == str(x) and f"{x.sum().item():>6}" == "   3.0"
    assert "<td>1</td><td>2</td>" in x._repr_html_() and "<pre>" in alpha.ones((1, 1, 1))._repr_html_()
    assert x.size() == (1, 2) and x.size(1) == x.size(dim=-1) == 2 and x.size == x.numel() == x.nelement() == 2
    assert x.dim() == x.ndimension() == 2 and x.nbytes == 8 and x.element_size() == x.itemsize == 4 and not x.is_cuda
    assert x.contiguous() is x and x.is_contiguous() and x.cpu() is x and x.type() == "float32"
    assert x.to("float64").dtype == x.to(dtype="float64").dtype == x.double().dtype == "float64"
    assert x.to(np.float16).dtype == x.half().dtype == "float16" and x.to("cpu", "int64").dtype == "int64"
    assert x.to(alpha.tensor([1])).dtype == x.long().dtype == x.type("int64").dtype == "int64"
    assert x.int().dtype == "int32" and x.bool().dtype == "bool" and x.byte().dtype == "uint8"
    assert x.type_as(alpha.tensor([True])).dtype == "bool" and x.float() is x and (+x) is x
    y = x.clone()
    y.sum().backward()
    assert y.array is not x.array and x.grad.tolist() == [[1, 1]]
    assert alpha.ones((2,)).zero_().tolist() == [0, 0] and alpha.ones((2,)).fill_(3).tolist() == [3, 3]
    assert x.view(-1).view_as(x).expand_as(alpha.ones((3, 2))).shape == (3, 2) and x.t().shape == x.mT.shape == (2, 1)
    with refused(ArgumentError, "Tensor.to: device is 3, a str is needed"):
        x.to(3)


def test_unknown_names_have_answers() -> None:
    x = alpha.ones((2,))
    for where, names in ((x, ("add_", "retain_grad", "sumn", "foo_", "grad_fn")),
                         (alpha, ("dtype", "compile", "empty", "autocast", "heaviside", "onse")),
                         (nn, ("Bilinear", "FractionalMaxPool2d", "Transformer", "RelU")),
                         (alpha.ops, ("histc", "convolve"))):
        for name in names:
            assert not hasattr(where, name)
            with refused(AttributeError, f"there is no {name}"):
                getattr(where, name)
    assert not hasattr(x, "__array_interface__") and alpha.cuda.is_available() not in (None,)
    with pytest.raises(AttributeError, match="did you mean sum"):
        _ = x.summ


def test_initial_values() -> None:
    alpha.manual_seed(1)
    t = init.trunc_normal_(alpha.zeros((50, 40)), std=1.0, a=-1.0, b=0.5).numpy()
    assert t.min() >= -1 and t.max() <= 0.5 and t.std() > 0.3
    for shape in ((6, 4), (4, 6), (3, 2, 2, 5)):
        q = init.orthogonal_(alpha.zeros(shape), 2.0).numpy().reshape(shape[0], -1)
        gram = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)
    assert init.eye_(alpha.zeros((2, 3))).tolist() == [[1, 0, 0], [0, 1, 0]]
    with refused(ConfigError, "init: a=1.0 is not below b=0.0"):
        init.trunc_normal_(alpha.zeros((2,)), a=1.0, b=0.0)
    with refused(ConfigError, "init: next to nothing of N(0.0, 1.0^2) is in [50.0, 51.0]"):
        init.trunc_normal_(alpha.zeros((2,)), a=50.0, b=51.0)
    with refused(ShapeError, "init: a tensor of shape (2,) has no diagonal"):
        init.eye_(alpha.zeros((2,)))
    with refused(ShapeError, "init: a tensor of shape (2,) is no matrix"):
        init.orthogonal_(alpha.zeros((2,)))
