"""Lines of somebody's first hour who comes from PyTorch or NumPy: each works, or its error says what to write."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, optim
from alpha.errors import AlphaError, DTypeError, MissingError, MissingModuleError
from tests.op_checks import refused

WORK = """
x.is_floating_point() is True and labels.is_floating_point() is False and bool(x.is_floating_point)
repr(x.is_floating_point) == "True" and not labels.is_floating_point
np.sin(x).tolist() == x.sin().tolist() and np.exp(x).requires_grad
np.add(x, 1).shape == np.multiply(2.0, x).shape == np.matmul(x, x.T).shape[:1] + (3,)
np.float32(2) * x, np.float64(2) + x, x / np.float32(3), np.int64(2) - labels, np.float32(2) ** x, np.float32(1) < x
(np.float64(0) < x).dtype == "bool" and np.maximum(x, 0.0).tolist() == x.clamp(min=0).tolist()
(np.bool_(True) & (x > 0)).tolist() == (x > 0).tolist() == np.invert(x <= 0).tolist()
np.sum(x).item() == x.sum().item() and np.sum(x, axis=0).shape == (3,) and np.mean(x, axis=1).shape == (2,)
np.max(x, axis=1).shape == (2,) and np.argmax(x, axis=1).tolist() == x.argmax(1).tolist() and np.std(x).shape == ()
np.clip(x, 0, 1).tolist() == x.clip(0, 1).tolist() and np.isnan(x).any().item() is False
np.allclose(x.detach(), x.detach()) and np.concatenate([x, x]).shape == (4, 3)
["cat", "dog", "bird"][labels[1]] == "bird" and list(range(labels[1])) == [0, 1]
alpha.zeros((labels[1], 3)).shape == (2, 3) and x[:labels[1]].shape == (2, 3) and math.factorial(labels[1]) == 2
len(alpha.data.DataLoader(items, batch_size=2, shuffle=True, num_workers=2, pin_memory=True)) == 2
len(alpha.data.DataLoader(dataset=items, batch_size=2, num_workers=0)) == 2
x.argmax(1).tolist() == x.max(1)[..., 0].tolist() or True
alpha.profiler.profile().__class__ is alpha.profiler().__class__
""".strip().splitlines()

# line -> what its error says
TWINS = {
    "import alpha.utils.data": "alpha.data.DataLoader", "from alpha.utils.data import Dataset": "alpha.data.DataLoader",
    "from alpha.optim import lr_scheduler": "alpha.optim.schedule", "from alpha.optim.lr_scheduler import StepLR":
    "alpha.optim.schedule", "from alpha.cuda.amp import autocast": "alpha.precision", "from alpha.cuda import amp":
    "alpha.precision", "from alpha.amp import autocast": "alpha.precision", "from alpha.autograd import Variable":
    "alpha.Function", "import alpha.distributed as dist": "alpha.dist",
    "from alpha.nn.utils import clip_grad_norm_": "clip_grad_norm", "import alpha.backends.cudnn": "alpha.config",
    "from alpha.utils.tensorboard import SummaryWriter": "--tensorboard", "from alpha.nn.parallel import DataParallel":
    "alpha.dist", "from alpha.utils.checkpoint import checkpoint": "alpha.recompute", "import alpha.optimm":
    "did you mean optim", "from alpha.testing import assert_close": "assert_equal_at",
    "alpha.testing.assert_close(x, x)": "assert_equal_at(actual", "optimizer.state": "optimizer.state_dict()",
    "optimizer.state[model[0].weight]": "by the names", "optimizer.defaults": "optimizer.param_groups",
    "optimizer.step(lambda: 1.0)": "loss = closure()", "optimizer.steps()": "did you mean step",
    "x.max(1)[1]": "x.argmax(axis)", "x.max(1, keepdim=True)[1]": "x.argmax(axis)", "alpha.max(x, 1)[0]": "y[k, ...]",
    "np.sin(x, out=np.zeros(3))": "np.sin(x.numpy())", "np.add.reduce(x)": "np.add(x.numpy())",
    "np.arctan(x)": "np.arctan(x.numpy())", "np.ones(3) * x": "alpha.tensor(a", "np.ones(3) == x": "alpha.tensor(",
    "alpha.Tensor([1.0, 2.0])": "alpha.tensor(values)", "alpha.Tensor(2, 3)": "alpha.zeros(shape)",
    "range(x[0, 0])": "t.long()", "[1, 2][labels]": "t.argmax()", "[1, 2][x[0, 0] > 9]": "is no int",
    "class Mine(alpha.data.Dataset): pass": "__len__ and __getitem__",
    "alpha.data.DataLoader(items, 2, collate_fn=list)": "transform=f", "alpha.data.DataLoader(items).dataset":
    "loader.data", "alpha.data.DataLoader(items, sampler=[0])": "Subset(data, order)",
    "nn.Linear(3, 2, device='cpu')": ".to(device)", "nn.Conv2d(3, 2, 3, dtype='float16')": ".to(dtype=",
    "optim.AdamW(model.parameters(), fused=True)": "leave it out", "x.add(x, alpha=2)": "x + 2 * y",
    "alpha.load('a.pt', weights_only=True)": "nothing is ever unpickled", "model[0].reset_parameters()": "nn.init",
    "alpha.save(model)": "it takes (state, path)", "x.is_complex()": "complex", "alpha.finfo('float32')": "np.finfo",
    "alpha.channels_last": "always last", "alpha.numel(x)": "x.numel()", "alpha.use_deterministic_algorithms(True)":
    "always the same", "alpha.set_float32_matmul_precision('high')": 'alpha.precision("tf32")', "x.new(3)":
    "alpha.zeros", "model.module": "the model itself", "alpha.version.cuda": "alpha.__version__",
    "alpha.leaky_relu(x)": "x.leaky_relu(...)", "alpha.view(x, 2)": "x.view(...)", "x.hstack(x)":
    "alpha.hstack(x, ...)", "alpha.log_softmax(x, 1)": "x.log_softmax(dim)",
    "F.upsample(x)": "alpha.nn.Upsample(...)(x)", "F.channel_shuffle(x)": "alpha.nn.ChannelShuffle(...)(x)",
    "x.det()": "alpha.linalg.det(x)", "x.ravel()": "x.flatten()", "alpha.asinh(x)": "NumPy's",
    "alpha.sparse": "alpha.ops", "x.frac()": "x - x.trunc()", "alpha.device('cpu').__enter__()":
    'pass device="cpu"', "with alpha.device('cpu'): alpha.ones(2)": 'pass device="cpu"',
    "alpha.profiler.profile(activities=[])": "activities",
}


def names() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    return {"alpha": alpha, "nn": nn, "F": F, "np": np, "optim": optim, "model": model, "math": math,
            "x": alpha.tensor([[0.5, 1.5, -1.0], [3.0, 0.25, 2.0]], requires_grad=True),
            "labels": alpha.tensor([0, 2]), "optimizer": optim.Adam(model.parameters()),
            "items": alpha.data.TensorDataset(np.zeros((4, 3), np.float32), np.arange(4))}


@pytest.mark.parametrize("line", WORK)
def test_works(line: str) -> None:
    assert eval(line, names())


@pytest.mark.parametrize("line", TWINS)
def test_names_its_twin(line: str) -> None:
    with refused(AlphaError, TWINS[line]):
        exec(line, names())


def test_an_import_that_fails_is_an_import_error() -> None:
    with pytest.raises(MissingModuleError) as caught:
        import alpha.utils.data
    assert isinstance(caught.value, ImportError) and caught.value.name == "alpha.utils"
    assert importlib.util.find_spec("alpha.data") and importlib.util.find_spec("no_such_package") is None
    with pytest.raises(ModuleNotFoundError):
        import alpha.fuse.nothing  # type: ignore[import-not-found]  # noqa: F401


def test_protocols_find_nothing_where_there_is_nothing() -> None:
    """Python, NumPy and copies ask optimizers and loaders for names of protocols, and go on."""
    for thing in (names()["optimizer"], alpha.data.DataLoader(names()["items"]), alpha.testing):
        assert not hasattr(thing, "__no_such_protocol__")
        with pytest.raises(MissingError):
            thing.nothing_like_this  # noqa: B018


@pytest.mark.parametrize("wrong", [1.5, True, [1], [[0]]])
def test_only_one_integer_is_an_index(wrong: Any) -> None:
    t = alpha.tensor(wrong)
    if isinstance(wrong, list):
        assert range(t).stop == np.asarray(wrong).item()
        t = alpha.tensor([*wrong, *wrong])
    with pytest.raises(DTypeError, match="is no int"):
        range(t)
