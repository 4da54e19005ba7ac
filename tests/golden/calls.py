"""Wrong calls, as expressions, with the error that each raises and its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import nn, ops, optim
from alpha.core.op import op
from alpha.data import DataLoader
from alpha.training import fit

ROOT = str(Path(__file__).resolve().parent.parent.parent)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")

WRONG = """
alpha.tensor([[1.0], [1.0, 2.0]])
alpha.tensor([1.0], dtype="float8")
alpha.tensor([300], dtype="uint8")
alpha.tensor([1.0], device="tpu")
alpha.tensor([1.0], device="cuda:x")
alpha.tensor()
alpha.tensor([1], requires_grad=True)
alpha.Tensor([1.0])
alpha.zeros((2, -1))
alpha.zeros(2.5)
alpha.full((2,), "a")
alpha.arange("a")
alpha.randint(5, 2, (3,))
alpha.eye(-1)
alpha.config(debugg=1).__enter__()
alpha.config(debug="many").__enter__()
alpha.config(nothing=1).__enter__()
alpha.precision("fp8").__enter__()
alpha.manual_seed(-1)
x.reshape(5)
x.reshape(-1, -1)
x.permute(0, 0)
x.sum(axis=5)
x.sum(axis=(0, 0))
x.astype("float8")
x.to("tpu")
x.item()
x.backward()
x.sum().backward()
w.sum().backward(x)
w.backward()
w.backward(1.0)
x.grad_fn
x.cuda_
x[5]
x[0, 0, 0]
x["a"]
x.squeeze(0)
x.expand(3, 4, 5)
x.flatten(3)
x.copy_(n)
x.copy_("a")
x.register_hook(print)
w.__iadd__(x)
n.requires_grad_()
bool(x)
float(x)
len(alpha.tensor(1.0))
int(x)
ops.add(x, h)
ops.add(x, "a")
ops.add(x)
ops.add(x, x, x)
ops.add(1.0, 2.0)
ops.add(n, 1.5)
ops.add(x, alpha.ones((4, 5)))
ops.add(x, y=x)
ops.add(x, None)
ops.mul(x, np.ones(3, np.float32))
ops.relu(n)
ops.relu(x, x)
ops.relu()
ops.matmul(x, x)
ops.matmul(x, h)
ops.softmax(x, axis=2)
ops.softmax(x, axis=1.5)
ops.softmax(x, 0, 1)
ops.softmax(x, ax=0)
ops.clip(x, "a")
ops.where(x, x, x)
ops.concat([])
ops.concat(x)
ops.concat([x, h])
ops.concat([x, 1.0])
ops.stack([x, alpha.ones((5,))])
ops.split(x, 0)
ops.take(x, x)
ops.one_hot(n, 0)
ops.gather(x, 0, x)
ops.conv2d(x, x)
ops.conv2d(img, flt, stride=0)
ops.conv2d(img, flt, padding=-1)
ops.conv2d(img, flt, groups=2)
ops.conv2d(img, flt, algorithm="best")
ops.conv2d(img, alpha.ones((4, 3, 3, 5)))
ops.conv2d(img, flt, stride=(1, 2, 3))
ops.conv2d(img, flt, activation="gelu")
ops.conv2d(img, flt, kernel=3)
ops.max_pool2d(img, 0)
ops.max_pool2d(img, 9)
ops.avg_pool2d(img, 2, padding=5)
ops.batch_norm(img, flt, flt)
ops.layer_norm(x, alpha.ones((5,)), alpha.ones((4,)))
ops.cross_entropy(x, img)
ops.cross_entropy(n, n)
ops.dropout(x, 1.5)
ops.einsum("ij,jk", x)
ops.nothing
nn.Linear(0, 3)
nn.Linear(3)
nn.Linear(3, 4, 5, 6, 7)
nn.Linear(4, 2)(n)
nn.Linear(5, 2)(x)
nn.Conv2d(3, 4, 0)
nn.Conv2d(3, 4, 3, padding="full")
nn.Conv2d(3, 4, 3, groups=2)
nn.Conv2d(3, 4, 3)(x)
nn.Sequential(3)
nn.Sequential(nn.ReLU())[1]
nn.Dropout(2.0)
nn.BatchNorm2d("a")
nn.ReLU()(1.0)
nn.Liner
nn.Module().forward(x)
optim.SGD([], lr=0.1)
optim.SGD([w], lr=-1.0)
optim.SGD([w], lr=0.1, momentum=2)
optim.SGD([n], lr=0.1)
optim.Adam([w], betas=(1.0, 2.0))
optim.SGD([w], lr=0.1, nesterov=True)
DataLoader((np.ones((2, 3)), np.ones(3)))
DataLoader((np.ones((2, 3)), np.ones(2)), batch_size=0)
fit(nn.ReLU(), 3)
models.create("resnet19")
models.create("lenet5", num_classes=0)
alpha.grad(x.sum(), [w])
alpha.grad((w * 1.0).sum(), [3])
alpha.load("/nowhere/model.safetensors")
alpha.save({"a": 1}, 3)
op(3)
op(type("nothing", (), {}))
op(type("noshape", (), {"args": "x"}))
op(type("badkey", (), {"__module__": "here", "args": "x", "save": "x", "shape": staticmethod(lambda x: x.shape)}))
op(type("badsaves", (), {"__module__": "here", "args": "x", "saves": "q", "shape": staticmethod(lambda x: x.shape)}))
"""


def expressions() -> list[str]:
    """Returns the wrong calls."""
    return [line for line in WRONG.splitlines() if line]


def answer(expression: str) -> str:
    """Returns the name of the error that a call raises, and its text; the value's type where it raises none."""
    names: dict[str, Any] = {
        "alpha": alpha, "nn": nn, "ops": ops, "optim": optim, "models": models, "np": np, "op": op, "fit": fit,
        "DataLoader": DataLoader, "x": alpha.ones((3, 4)), "w": alpha.ones((3, 4), requires_grad=True),
        "h": alpha.ones((3, 4), dtype="float16"), "n": alpha.ones((3,), dtype="int64"),
        "img": alpha.ones((2, 8, 8, 3)), "flt": alpha.ones((4, 3, 3, 3))}
    try:
        value = eval(expression, names)
    except Exception as error:
        text = str(error).replace(ROOT, "<root>")
        return f"{type(error).__name__}: {ADDRESS.sub('', text)}"
    return f"returned {type(value).__name__}"


def text() -> str:
    """Returns the record."""
    return "\n".join(f"{e}\n    " + answer(e).replace("\n", "\n    ") for e in expressions()) + "\n"
