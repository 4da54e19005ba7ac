"""Arguments by position mean what PyTorch's mean, or are refused: the orders of all names that both have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops, optim
from alpha.core.inputs.aliases import NAMES
from alpha.core.methods import CALLS
from alpha.core.op import Op
from alpha.errors import AlphaError
from alpha.optim import schedule

torch = pytest.importorskip("torch")
TF = torch.nn.functional
pytestmark = pytest.mark.torch

# PyTorch's name -> alpha's, of arguments with one meaning, beside the names that calls by name take (inputs/aliases.py)
SAME = {
    "input": "index labels", "self": "x a index labels", "tensor": "t b", "data": "source", "mat2": "b", "vec": "b",
    "vec2": "b", "bias": "b beta", "weight": "gamma", "dims": "counts", "indices": "index indices_or_sections",
    "src": "source", "source": "src", "a": "low", "b": "high", "val": "value", "modules": "entries",
    "parameters": "entries", "values": "parameters", "ext_tensor": "x", "f": "path", "obj": "state", "ord": "p",
    "train": "training", "other": "y", "axis0": "a", "axis1": "b",
}
# Names whose order differs for a reason. A call in PyTorch's order is refused: see below.
OTHERWISE = {
    "alpha.tensor": "the first argument has the values", "alpha.Tensor": "is not called by users",
    "alpha.arange": "one argument alone is the end, as in PyTorch",
    "alpha.randint": "two arguments are high and shape, as in PyTorch",
    "alpha.device": "a name and an index",
    "ops.conv2d": "no bias: its place has the stride, which is no tensor", "ops.conv_transpose2d": "as conv2d",
    "ops.batch_norm": "of torch.batch_norm; residual stands where training does, which is no tensor",
    "ops.layer_norm": "gamma stands second, which is no shape", "ops.rms_norm": "as layer_norm",
    "ops.group_norm": "gamma stands second, which is no number",
    "Tensor.where": "the condition of x.where is the second argument, as in PyTorch",
}


def positional(f: Any) -> list[str]:
    """Returns the names of what alpha's function takes by position."""
    if isinstance(f, Op):
        return [arg.name for arg in f.args] + list(f.by_position)
    return [p.name for p in inspect.signature(f).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def orders(name: str, f: Any) -> list[list[str]]:
    """Returns the names that PyTorch's function takes by position: one list for each of its forms."""
    try:
        signature = inspect.signature(f)
    except (ValueError, TypeError):
        signature = None
    found = []
    if signature and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        found = [[p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]]
    elif hasattr(TF, f"{name}_with_indices"):
        found = orders(name, getattr(TF, f"{name}_with_indices"))
    if not found:
        schemas = torch._C._jit_get_schemas_for_operator
        space = "aten::linalg_" if name == "vector_norm" else "aten::"
        found = [[a.name for a in s.arguments if not a.kwarg_only] for s in schemas(f"{space}{name}")]
    return found


def one_meaning(own: str, theirs: str) -> bool:
    return own == theirs or own in NAMES.get(theirs, ()) or own in SAME.get(theirs, "").split()


def difference(own: list[str], forms: list[list[str]]) -> str:
    """Returns what differs first, position by position; "" where PyTorch has the same order, as far as it goes."""
    left = forms
    for k, name in enumerate(own):
        left = [form for form in left if k < len(form)]
        if not left:
            return ""           # PyTorch takes no more by position
        agreeing = [form for form in left if one_meaning(name, form[k])]
        if not agreeing:
            return f"argument {k} is {name}, in PyTorch {' or '.join(sorted({form[k] for form in left}))}"
        left = agreeing
    return ""


def shared() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Yields the names that both have, with alpha's object and PyTorch's."""
    homes = [TF, torch, torch.linalg]
    for label, space, others in (("alpha", alpha, [torch]), ("ops", ops, homes), ("F", F, [TF]), ("nn", nn, [torch.nn]),
                                 ("init", nn.init, [torch.nn.init]),
                                 ("optim", optim, [torch.optim, torch.optim.lr_scheduler]),
                                 ("schedule", schedule, [torch.optim.lr_scheduler])):
        for name in dir(space):
            own = getattr(space, name)
            if name.startswith("_") or not callable(own) or inspect.ismodule(own) or getattr(own, "__module__", "") in (
                    "typing", "collections.abc"):
                continue
            theirs = next((getattr(home, name) for home in others if hasattr(home, name)), None)
            if callable(theirs) and not (inspect.isclass(own) and issubclass(own, BaseException)):
                yield f"{label}.{name}", own, theirs
    for name in dir(alpha.Tensor):
        if not name.startswith("_") and callable(getattr(torch.Tensor, name, None)):
            own = getattr(ops, CALLS[name]) if name in CALLS else getattr(alpha.Tensor, name)
            if callable(own):
                yield f"Tensor.{name}", own, getattr(torch.Tensor, name)


PAIRS = {label: pair for label, *pair in shared()}


def test_there_is_much_to_compare() -> None:
    assert len(PAIRS) > 350
    assert {label.partition(".")[0] for label in PAIRS} >= {"alpha", "ops", "F", "nn", "init", "optim", "Tensor"}
    assert set(OTHERWISE) <= set(PAIRS)


@pytest.mark.parametrize("label", sorted(set(PAIRS) - set(OTHERWISE)))
def test_positional_arguments_are_those_of_pytorch(label: str) -> None:
    own, theirs = PAIRS[label]
    name = label.partition(".")[2]
    name = {"norm": "vector_norm"}.get(name, name) if label == "Tensor.norm" else name
    try:
        mine = positional(own)
    except (ValueError, TypeError):
        return                  # a class of Python's, or a constant that may be called
    assert not (found := difference(mine, orders(name, theirs))), f"{label}{tuple(mine)}: {found}"


IMAGES = np.random.default_rng(0).random((1, 4, 4, 2), np.float32)
X, T, W = (np.random.default_rng(k).random((2, 2), np.float32) for k in (1, 2, 3))
MAPS, A, B, WEIGHT = (alpha.tensor(v) for v in (IMAGES, X, T, W[0]))
ONES = alpha.ones((2,))


@pytest.mark.parametrize("call", [
    lambda: ops.conv2d(MAPS, alpha.ones((2, 1, 1, 2)), None, 1),
    lambda: ops.conv2d(MAPS, alpha.ones((2, 1, 1, 2)), ONES),
    lambda: ops.conv_transpose2d(MAPS, alpha.ones((2, 1, 1, 2)), None, 1),
    lambda: ops.layer_norm(A, (2,)), lambda: ops.rms_norm(A, (2,)), lambda: ops.group_norm(MAPS, 2),
    lambda: ops.batch_norm(MAPS, ONES, ONES, ONES, ONES, True), lambda: alpha.Tensor(2, 3),
    lambda: nn.BCEWithLogitsLoss(WEIGHT, WEIGHT), lambda: F.binary_cross_entropy_with_logits(A, B, WEIGHT, WEIGHT),
    lambda: nn.BCELoss(WEIGHT, "sum"), lambda: nn.MSELoss("sum"), lambda: nn.KLDivLoss("sum"),
    lambda: nn.SmoothL1Loss(0.5), lambda: nn.HuberLoss(0.5), lambda: nn.CrossEntropyLoss(0.1),
    lambda: nn.NLLLoss("sum"), lambda: nn.GaussianNLLLoss(True), lambda: nn.PoissonNLLLoss(True, True, 0.1),
    lambda: nn.MultiMarginLoss(1, 1.0, None, "sum"),
    lambda: A.std(0, True), lambda: A.std(0, False), lambda: alpha.std(A, 0, True), lambda: A.var(0, True),
    lambda: alpha.var(A, 0, False), lambda: ops.avg_pool2d(MAPS, 2, 2, 0, True),
    lambda: ops.max_unpool2d(MAPS, MAPS, 2),
    lambda: F.gumbel_softmax(A, 1.0, False, 1), lambda: F.poisson_nll_loss(A, B, True, False, 0.1),
    lambda: alpha.addmm(A, A, B, 2), lambda: nn.Linear(2, 2, True, (1, 1, 2)),
    lambda: nn.Conv2d(2, 2, 1, 1, 0, 1, 1, True, None),
    lambda: ops.pad(A, (1, 1), 2.0, 3.0),
])
def test_what_would_mean_something_else_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(AlphaError):
        call()


@pytest.mark.parametrize("own, theirs", [
    (lambda: F.pad(A, (1, 0), "constant", 3), lambda t: TF.pad(t, (1, 0), "constant", 3)),
    (lambda: ops.pad(A, (1, 0), 3), lambda t: TF.pad(t, (1, 0), "constant", 3)),
    (lambda: nn.CrossEntropyLoss(WEIGHT)(A, alpha.tensor([0, 1])),
     lambda t: TF.cross_entropy(t, torch.tensor([0, 1]), torch.from_numpy(W[0]))),
    (lambda: nn.NLLLoss(WEIGHT)(A, alpha.tensor([0, 1])),
     lambda t: TF.nll_loss(t, torch.tensor([0, 1]), torch.from_numpy(W[0]))),
    (lambda: nn.BCELoss(WEIGHT)(A, B),
     lambda t: TF.binary_cross_entropy(t, torch.from_numpy(T), torch.from_numpy(W[0]))),
    (lambda: F.binary_cross_entropy_with_logits(A, B, WEIGHT),
     lambda t: TF.binary_cross_entropy_with_logits(t, torch.from_numpy(T), torch.from_numpy(W[0]))),
    (lambda: nn.HuberLoss("sum", 0.1)(A, B), lambda t: torch.nn.HuberLoss("sum", 0.1)(t, torch.from_numpy(T))),
    (lambda: A.std(0, keepdim=True), lambda t: t.std(0, keepdim=True)),
    (lambda: A.std(0, unbiased=False), lambda t: t.std(0, False)),
])
def test_the_value_is_that_of_pytorch(own: Callable[[], Any], theirs: Callable[[Any], Any]) -> None:
    assert np.allclose(own().numpy(), theirs(torch.from_numpy(X)).numpy(), rtol=1e-5)


def test_transposed_convolution_has_groups_before_dilation() -> None:
    settings = 8, 8, 3, 2, 1, 1, 2, False, 2
    layer, same = nn.ConvTranspose2d(*settings), torch.nn.ConvTranspose2d(*settings)
    assert (layer.groups, layer.dilation, layer.bias) == (same.groups, same.dilation, None)
    assert nn.Conv2d(2, 2, 3, 1, 1, 1, 1, True, "reflect").padding_mode == "reflect"


def test_a_pool_of_lines_returns_indices() -> None:
    line = np.random.default_rng(4).random((1, 6, 3), np.float32)
    y, index = nn.MaxPool1d(2, 2, 0, 1, True)(alpha.tensor(line))
    t = torch.from_numpy(line.transpose(0, 2, 1).copy())
    want, places = torch.nn.MaxPool1d(2, 2, 0, 1, True)(t)
    assert np.array_equal(y.numpy(), want.numpy().transpose(0, 2, 1))
    assert np.array_equal(index.numpy(), places.numpy().transpose(0, 2, 1))


def test_unpooling_takes_the_window() -> None:
    y, index = F.max_pool2d(MAPS, 2, return_indices=True)
    want, places = TF.max_pool2d(torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy()), 2, return_indices=True)
    assert np.array_equal(F.max_unpool2d(y, index, 2, 2).numpy(),
                          TF.max_unpool2d(want, places, 2, 2).numpy().transpose(0, 2, 3, 1))
    assert F.max_unpool2d(y, index, 2, 2, 0, (5, 4)).shape == (1, 5, 4, 2)
