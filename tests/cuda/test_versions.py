"""Changes in place on the GPU: every name of the memory counts, in captured steps too; what implementations return."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.op import registry
from alpha.cuda.lazy.deferred import Deferred
from alpha.cuda.runtime.memory import empty
from alpha.errors import DeviceError, DTypeError, GraphError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.cuda

A = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def cuda(a: object = A, requires_grad: bool = False) -> alpha.Tensor:
    return alpha.tensor(np.asarray(a, np.float32), device="cuda", requires_grad=requires_grad)


VIEWS = {"itself": lambda w: w, "reshape": lambda w: w.reshape(6), "all of it": lambda w: w[:],
         "detach": lambda w: w.detach(), "parameter": lambda w: nn.Parameter(w),
         "dlpack": lambda w: alpha.from_dlpack(w.detach())}


@pytest.mark.parametrize("first", VIEWS)
@pytest.mark.parametrize("second", ["itself", "reshape", "detach", "dlpack"])
def test_a_change_by_any_name_is_noticed_by_all(first: str, second: str) -> None:
    w, x = cuda(requires_grad=True), cuda([2.0], requires_grad=True)
    used, other = VIEWS[first](w), VIEWS[second](w)
    y = (x * used).sum()
    other.copy_(np.zeros(other.shape))
    with refused(GraphError, "backward: b of mul was changed in place after the forward pass (version 0 then, 1 now)"):
        y.backward()
    assert x.grad is None and w._version == used._version == other._version == 1


def test_an_optimizers_step_is_noticed_through_a_view() -> None:
    w, x = cuda(requires_grad=True), cuda(requires_grad=True)
    y = (x @ w.reshape(3, 2)).sum()
    w.grad = cuda(np.ones((2, 3)))
    optim.SGD([w], lr=10.0).step()
    with refused(GraphError, "backward: b of matmul was changed in place"):
        y.backward()


@pytest.mark.parametrize("f", [ops.exp, ops.relu, ops.sigmoid, ops.tanh, ops.sqrt, ops.softmax, ops.log_softmax])
def test_a_saved_result_that_was_changed_is_noticed(f: alpha.op) -> None:
    x = cuda(requires_grad=True)
    y = f(x)
    z = (y + 1.0).sum()
    y.detach().copy_(np.zeros((2, 3)))
    with refused(GraphError, f"backward: y of {f.name} was changed in place after the forward pass"):
        z.backward()
    assert x.grad is None


def test_a_deferred_result_that_was_changed_is_noticed() -> None:
    x = alpha.tensor(np.random.randn(64, 8, 8, 16).astype(np.float32), device="cuda", requires_grad=True)
    norm = nn.BatchNorm2d(16).to("cuda")
    y = norm(x)
    if type(y.array) is not Deferred:
        pytest.skip("batch norm does not wait here")
    view, w = y.reshape(64, -1), cuda([2.0], requires_grad=True)
    z = (w * y).sum()
    view.detach().copy_(np.zeros(view.shape))
    assert y._version == view._version == 1 and not y.numpy().any()
    with refused(GraphError, "b of mul was changed in place"):
        z.backward()


def test_in_place_arithmetic() -> None:
    t = cuda()
    view, ptr = t.reshape(6), t.array.ptr
    t *= 2.0
    t -= cuda([1.0, 2.0, 3.0])
    assert t.array.ptr == ptr and t.tolist() == view.reshape(2, 3).tolist() == (A * 2 - [1, 2, 3]).tolist()
    p = cuda(requires_grad=True)
    (p * p).sum().backward()
    with alpha.no_grad():
        p -= 0.5 * p.grad
    assert p.tolist() == np.zeros((2, 3)).tolist() and p._version == 1
    with refused(GraphError, "+=: a leaf of shape (2, 3) that requires a gradient"):
        p += 1.0
    before = t.numpy()
    t[0] += 1.0
    assert t.tolist() == (before + [[1.0], [0.0]]).tolist()
    h = p * 3.0
    h *= h
    h += 1.0
    h.sum().backward()
    assert h.tolist() == np.ones((2, 3)).tolist()


def test_views_follow_the_whole_and_the_whole_follows_views() -> None:
    t = cuda()
    host = alpha.tensor(A)
    parts, same = ([x[:1], x[:, :2], x.T, x[:, 1].unsqueeze(0), x.reshape(3, 2)[:, 1], x.diagonal(),
                    x[:, :1].expand(2, 3)[:, 1]] for x in (t, host))
    for k in range(len(parts)):
        for every, whole in ((parts, t), (same, host)):
            every[k].fill_(float(10 + k))
            whole += 1.0
        assert [p.tolist() for p in (t, *parts)] == [p.tolist() for p in (host, *same)]


def test_parts_of_a_whole_that_is_gone_go_on_sharing() -> None:
    t = cuda()
    left, middle = t[:, :2], t[:, 1:]
    del t
    left.fill_(9.0)
    assert middle.tolist() == [[9.0, A[0, 2]], [9.0, A[1, 2]]]


@pytest.mark.parametrize("seeds", [range(12)])
def test_random_chains_of_views_and_changes_are_pytorchs_or_refused(seeds: range, tmp_path: object) -> None:
    views = pytest.importorskip("tests.fuzz.views")
    for seed in seeds:
        views.attempt(random.Random(seed), tmp_path, "cuda")


def test_a_recorded_function_that_changes_the_whole_of_a_view_is_called_plainly() -> None:
    t, x = cuda(), cuda()
    part = t[:, :2]

    def step(x: alpha.Tensor) -> alpha.Tensor:
        t.copy_(t + x)
        return t * 1.0

    captured = alpha.capture(step, t)
    with pytest.warns(UserWarning, match="changed in place, of which there is a view"):
        for _ in range(4):
            captured(x)
    assert t.tolist() == (5 * A).tolist() and part.tolist() == (5 * A[:, :2]).tolist()


@pytest.mark.long
def test_a_view_made_after_a_recording_follows_its_repetitions() -> None:
    t, x = cuda(), cuda()

    def step(x: alpha.Tensor) -> alpha.Tensor:
        t.copy_(t + x)
        return t * 1.0

    captured = alpha.capture(step, t)
    for _ in range(4):
        captured(x)
    part = t[:, :2]
    captured(x)
    assert t.tolist() == (6 * A).tolist() and part.tolist() == (6 * A[:, :2]).tolist()


def test_in_place_arithmetic_drops_what_was_derived_of_the_elements() -> None:
    x, w = (alpha.tensor(np.random.randn(256, 256).astype(np.float32), device="cuda") for _ in range(2))
    before = (x @ w).numpy()
    w *= 2.0
    np.testing.assert_allclose((x @ w).numpy(), 2 * before, rtol=1e-4, atol=1e-4)


def test_gradients_of_leaves_share_no_memory() -> None:
    a, b, c, seed = (*(cuda(v, True) for v in (A, A, A.reshape(6))), cuda(np.ones((2, 3))))
    (a + b + c.reshape(2, 3)).backward(seed)
    assert len({t.array.ptr for t in (a.grad, b.grad, c.grad, seed)}) == 4
    a.grad.copy_(np.zeros((2, 3)))
    assert b.grad.tolist() == seed.tolist() == np.ones((2, 3)).tolist()


@pytest.mark.long
def test_a_captured_step_counts_as_changes_of_what_it_writes() -> None:
    net = nn.Linear(3, 4)
    x, w = cuda(), cuda([1.0], requires_grad=True)

    def losses(x: alpha.Tensor) -> alpha.Tensor:
        loss = net(x).sum()
        loss.backward()
        return loss.detach()

    net.to("cuda")
    compute = alpha.capture(losses, net)
    for _ in range(4):
        net.zero_grad()
        compute(x)
    p = next(iter(net.parameters()))
    y = (w * p.grad).sum()
    net.zero_grad()
    compute(x)
    with refused(GraphError, "b of mul was changed in place"):
        y.backward()
    y = (w * p.detach()).sum()
    optim.SGD(net.parameters(), lr=0.1).step()
    with refused(GraphError, "b of mul was changed in place"):
        y.backward()


@pytest.fixture
def foreign() -> Iterator[alpha.op]:
    """An op whose implementation is still to come."""
    @alpha.op
    class foreign:
        """y = x."""

        args = "x"

        def shape(x):
            return x.shape

    yield foreign
    del registry["foreign"]


@pytest.mark.parametrize(("f", "error", "text"), [
    (lambda x: A, DeviceError, "foreign: its cuda implementation returned a numpy.ndarray for y, arrays of cuda are "
     "alpha.cuda.Array"),
    (lambda x: empty((3, 2), "float32"), ShapeError, "returned y with shape (3, 2), its shape rule says (2, 3)"),
    (lambda x: empty((2, 3), "float16"), DTypeError, "returned y with dtype float16, its shape rule says float32"),
    (lambda x: None, DeviceError, "foreign: its cuda implementation returned a NoneType for y"),
])
def test_a_wrong_result_is_refused(foreign: alpha.op, f: object, error: type[Exception], text: str) -> None:
    foreign.impl("cuda")(f)
    with refused(error, text):
        foreign(cuda())
