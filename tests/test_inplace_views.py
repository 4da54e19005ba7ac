"""Views share their elements with the whole, whatever the shapes are: changes beside PyTorch's, and what is refused."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.op import registry
from alpha.errors import GraphError
from tests.op_checks import refused

torch = pytest.importorskip("torch")
fuzz = pytest.importorskip("tests.fuzz.views")

A = np.arange(12, dtype=np.float32).reshape(3, 4)
VIEWS: dict[str, Callable] = {
    "rows": lambda x: x[:2], "row": lambda x: x[1], "columns": lambda x: x[:, :2], "column": lambda x: x[:, 1],
    "steps": lambda x: x[::2, 1::2], "T": lambda x: x.T, "T of columns": lambda x: x[:, :2].T,
    "unsqueezed columns": lambda x: x[:, :2].unsqueeze(0), "squeezed": lambda x: x[:, 1:2].squeeze(1),
    "chunk": lambda x: x.chunk(2, 1)[0], "split": lambda x: x.split(1, 0)[2], "unbind": lambda x: x.unbind(1)[3],
    "narrow": lambda x: x.narrow(1, 1, 2), "unflatten": lambda x: x.T.unflatten(0, (2, 2)),
    "reshape": lambda x: x.reshape(2, 6), "part of reshape": lambda x: x.reshape(2, 6)[:, ::3],
    "movedim": lambda x: x.unsqueeze(0).movedim(0, 2), "diagonal": lambda x: x.diagonal(1),
    "one of expanded": lambda x: x[:, :1].expand(3, 4)[:, 1], "detach": lambda x: x[:, :2].detach(),
    "all": lambda x: x[...], "none": lambda x: x[:0],
}
WRITES: dict[str, Callable] = {
    "copy_": lambda t: t.copy_(t * 2.0 + 1.0), "fill_": lambda t: t.fill_(5.0), "zero_": lambda t: t.zero_(),
    "+=": lambda t: t.__iadd__(1.0), "*=": lambda t: t.__imul__(3.0), "setitem": lambda t: t.__setitem__(..., 7.0)}
OWN: dict[str, Callable] = {
    "flip": lambda x: x.flip(0), "clone": lambda x: x.clone(), "roll by 0": lambda x: x.roll(0, 0),
    "repeat once": lambda x: x.repeat(1, 1), "repeat": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0), "T.contiguous": lambda x: x.T.contiguous(),
    "T.flatten": lambda x: x.T.flatten(), "columns.reshape": lambda x: x[:, :2].reshape(-1),
    "diag": lambda x: x[:3, :3].diag(), "mask": lambda x: x[x > 3], "rows by number": lambda x: x[[0]]}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_a_change_of_a_view_changes_the_whole_and_its_other_views(name: str, write: str, kind: str) -> None:
    x, t = alpha.tensor(A), torch.tensor(A)
    if kind == "parameter":
        x, t = nn.Parameter(x), torch.nn.Parameter(t)
    with alpha.no_grad(), torch.no_grad():
        every = [(f(x), f(t)) for f in VIEWS.values()]
        y, u = VIEWS[name](x), VIEWS[name](t)
        WRITES[write](y)
        WRITES[write](u)
        for ours, theirs in [(x, t), (y, u), *every]:
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        x += 1.0
        t += 1.0
        for ours, theirs in [(y, u), *every]:
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_tensor_of_its_own_is_not_changed_and_changes_nothing(name: str, rows: int) -> None:
    for order in (0, 1):
        pairs = [(x, OWN[name](x)) for x in (alpha.tensor(A[:rows]), torch.tensor(A[:rows]))]
        for x, y in pairs:
            (x, y)[order].fill_(9.0)
        (x, y), (t, u) = pairs
        assert x.tolist() == t.tolist() and y.tolist() == u.tolist()


def test_parts_of_a_whole_that_is_gone_go_on_sharing() -> None:
    x = alpha.tensor(A)
    left, middle, turned = x[:, :2], x[:, 1:3], x.T
    del x
    gc.collect()
    left.fill_(50.0)
    assert middle[:, 0].tolist() == [50.0] * 3 and turned[:3].tolist() == [[50.0] * 3] * 2 + [[2.0, 6.0, 10.0]]


def test_a_view_keeps_no_memory_but_its_own() -> None:
    x = alpha.ones((1000, 1000))
    part = x[:, :2]
    live = alpha.core.device.get_backend("cpu").memory_stats()["live"]
    del x
    assert alpha.core.device.get_backend("cpu").memory_stats()["live"] <= live - 4_000_000
    part += 1.0
    assert part[0].tolist() == [2.0, 2.0]


def test_many_views_of_one_tensor_leave_nothing_behind() -> None:
    x = alpha.ones((4, 4))
    for _ in range(5000):
        x[:, :2].T.unsqueeze(0).fill_(1.0)
    assert len(x._kin.family.members) <= 66


def test_an_optimizers_step_comes_to_views_and_views_come_to_it() -> None:
    layer = nn.Linear(4, 3)
    part, turned = layer.weight[:, :2].detach(), layer.weight.T.detach()
    layer(alpha.tensor(A)).sum().backward()
    optim.SGD(layer.parameters(), lr=0.5).step()
    assert part.tolist() == layer.weight[:, :2].tolist() and turned.tolist() == layer.weight.T.tolist()
    part.zero_()
    assert layer.weight.numpy()[:, :2].tolist() == [[0.0, 0.0]] * 3


def test_running_statistics_come_to_views() -> None:
    norm = nn.BatchNorm1d(4)
    part = norm.running_mean[::2]
    norm(alpha.tensor(A))
    assert part.tolist() == norm.running_mean.tolist()[::2] != [0.0, 0.0]


def test_a_change_through_a_view_is_noticed_by_backward() -> None:
    for view in (lambda w: w[:, :2], lambda w: w.T.unsqueeze(0)):
        w, x = alpha.tensor(A, requires_grad=True), alpha.tensor(A, requires_grad=True)
        y = (w * x).sum()
        with alpha.no_grad():
            view(w).fill_(0.0)
        with refused(GraphError, "a of mul was changed in place after the forward pass"):
            y.backward()


def test_a_view_that_was_saved_is_noticed_when_the_whole_changes() -> None:
    w, x = alpha.tensor(A, requires_grad=True), alpha.tensor(A[:, :2], requires_grad=True)
    y = (w[:, :2] * x).sum()
    with alpha.no_grad():
        w.fill_(0.0)
    with refused(GraphError, "of mul was changed in place after the forward pass"):
        y.backward()


def test_an_expanded_tensor_is_not_changed_as_a_whole() -> None:
    x = alpha.tensor(A[:, :1])
    y = x.expand(3, 4)
    for write in WRITES.values():
        with refused(GraphError, "the tensor of shape (3, 4) was expanded", "y.clone()"):
            write(y)
    assert x.tolist() == A[:, :1].tolist() and x._version == 0
    own = y.clone()
    own += 1.0
    wide = (alpha.tensor(A[:, :1], requires_grad=True) * 2.0).expand(3, 4)
    with refused(GraphError, "+=: the tensor of shape (3, 4) was expanded"):
        wide += 1.0
    x.expand(3, 1).fill_(2.0)
    assert x.tolist() == [[2.0]] * 3 and y.tolist() == [[2.0] * 4] * 3


def test_contiguous_and_is_contiguous_answer_as_pytorch_does() -> None:
    for f in (lambda x: x, lambda x: x.T, lambda x: x[:2], lambda x: x[:, :2], lambda x: x.T.T, lambda x: x[:, 1][None],
              lambda x: x[:1].T, lambda x: x.reshape(2, 6)[1]):
        x, t = alpha.tensor(A), torch.tensor(A)
        assert f(x).is_contiguous() == f(t).is_contiguous()
        f(x).contiguous().fill_(1.0)
        f(t).contiguous().fill_(1.0)
        assert x.tolist() == t.tolist()


def test_the_gradient_of_contiguous_and_of_a_reshape_is_right() -> None:
    x, t = alpha.tensor(A, requires_grad=True), torch.tensor(A, requires_grad=True)
    for w in (x, t):
        y = w.T.contiguous() * 2.0
        (y * y + w.T.reshape(4, 3) * w.T).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), t.grad.numpy())


def test_another_library_gets_no_copy_of_a_part() -> None:
    x = alpha.tensor(A)
    part = x[:, :2]
    with refused(GraphError, "__dlpack__: the view of shape (3, 2) has a copy of its elements", "y.clone()"):
        np.from_dlpack(part)
    assert np.from_dlpack(part.clone()).tolist() == np.asarray(part).tolist() == A[:, :2].tolist()
    np.from_dlpack(x)[...] = 0.0
    assert not x.numpy().any() and not x[:, :2].numpy().any()
    flat = x.T.flatten()
    torch.from_dlpack(flat).fill_(4.0)
    assert flat.tolist() == [4.0] * 12 and not x.numpy().any()


def test_a_copy_of_a_view_is_a_tensor_of_its_own() -> None:
    x = alpha.tensor(A)
    for y in (copy.deepcopy(x[:, :2]), copy.copy(x[:, :2].clone())):
        y += 1.0
        assert x.tolist() == A.tolist()


# ---- ops of one's own ------------------------------------------------------------------------------------------------


@pytest.fixture
def mine() -> Callable:
    """Returns an op of a user whose implementation is a given function."""
    made = []

    def define(f: Callable, **more: object) -> Callable:
        class own_identity:
            """y = x."""

            args = "x"

            def shape(x):
                return x.shape

            def vjp_x(g, s):
                return g

        for name, value in more.items():
            setattr(own_identity, name, value)
        op = alpha.op(own_identity)
        made.append(op)
        op.impl("cpu")(f)
        return op

    yield define
    for op in made:
        registry.pop(op.name, None)


def test_a_result_in_the_memory_of_an_argument_is_copied(mine: Callable) -> None:
    x = alpha.tensor(A)
    for f in (lambda a: a, lambda a: a[:], lambda a: np.asarray(memoryview(a))):
        y = mine(f)(x)
        y += 1.0
        assert x.tolist() == A.tolist() and y.tolist() == (A + 1).tolist()


def test_an_implementation_that_changes_an_argument_is_refused_at_its_first_call(mine: Callable) -> None:
    x = alpha.tensor(A)

    def doubled(a: np.ndarray) -> np.ndarray:
        a *= 2
        return a.copy()

    with refused(GraphError, "own_identity: its cpu implementation changes the elements of x", 'mutates = "x"'):
        mine(doubled)(x)
    assert x.tolist() == A.tolist()


def test_an_implementation_may_change_what_mutates_names(mine: Callable) -> None:
    x = alpha.tensor(A)
    part = x[:, :2]

    def doubled(a: np.ndarray) -> np.ndarray:
        a *= 2
        return a.copy()

    mine(doubled, mutates="x", vjp_x=None)(x)
    assert x.tolist() == (2 * A).tolist() and part.tolist() == (2 * A[:, :2]).tolist()


# ---- random chains ---------------------------------------------------------------------------------------------------


def test_random_chains_of_views_and_changes_are_pytorchs_or_refused(tmp_path: Path) -> None:
    ends = [fuzz.attempt(random.Random(seed), tmp_path) for seed in range(150)]
    assert sum(end.endswith("equal gradients") for end in ends) > 20
    assert sum(int(end.split(", ")[1].split()[0]) for end in ends) > 200


def test_the_random_chains_find_a_view_that_does_not_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alpha.core.inplace.kin, "follow", lambda t, kin: None)
    with pytest.raises(AssertionError, match="PyTorch has"):
        for seed in range(50):
            fuzz.attempt(random.Random(seed), tmp_path)


def test_ops_that_make_views_are_known() -> None:
    from alpha.core.inplace.steps import STEPS
    from alpha.core.views import View
    assert {op.name for op in registry.values() if op.gives is View} <= STEPS.keys() and ops.reshape.name in STEPS
