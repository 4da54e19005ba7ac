"""What was changed in place after the graph had taken note of it: every name of the memory counts."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.op import registry
from alpha.errors import GraphError
from tests.op_checks import refused

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def leaf(values: object = X) -> alpha.Tensor:
    return alpha.tensor(np.array(values, np.float32), requires_grad=True)


def changed(what: str = "", then: int = 0, now: int = 1) -> object:
    return refused(GraphError, f"backward: {what}", f"(version {then} then, {now} now)")


# ---- names of one piece of memory ------------------------------------------------------------------------------------


VIEWS = {
    "reshape": lambda w: w.reshape(-1),
    "reshape twice": lambda w: w.reshape(-1).reshape(2, -1),
    "all of it": lambda w: w[:],
    "rows": lambda w: w[1:],
    "flatten": lambda w: w.flatten(),
    "unsqueeze": lambda w: ops.unsqueeze(w, 0),
    "detach": lambda w: w.detach(),
    "parameter": lambda w: nn.Parameter(w),
    "dlpack": lambda w: alpha.from_dlpack(w.detach()),
    "numpy": lambda w: alpha.from_dlpack(np.from_dlpack(w.detach())),
    "itself": lambda w: w,
}


@pytest.mark.parametrize("first", VIEWS)
@pytest.mark.parametrize("second", ["itself", "reshape", "detach", "parameter", "dlpack", "numpy"])
@pytest.mark.parametrize("size", [3, 10_000])  # an array of NumPy's own, and one of the pool
def test_a_change_by_any_name_is_noticed_by_all(first: str, second: str, size: int) -> None:
    w, x = leaf(np.ones((2, size))), leaf(np.ones(1))
    used, other = VIEWS[first](w), VIEWS[second](w)
    y = (x * used).sum()
    other.copy_(np.zeros(other.shape))
    with changed("b of mul was changed in place after the forward pass "):
        y.backward()
    assert x.grad is None and w._version == used._version == other._version == 1
    (x * VIEWS[first](w)).sum().backward()
    assert x.grad.tolist() == [0.0]


def test_an_optimizers_step_is_noticed_through_a_view() -> None:
    w, x = leaf(X), leaf(np.ones((2, 3)))
    y = (x @ w.reshape(3, 2)).sum()
    w.grad = alpha.tensor(np.ones((2, 3), np.float32))
    optim.SGD([w], lr=10.0).step()
    with changed("b of matmul was changed in place after the forward pass "):
        y.backward()
    assert x.grad is None


def test_what_a_state_dict_returns_is_the_parameter() -> None:
    net, x = nn.Linear(3, 2), leaf(X)
    y = net(x).sum()
    net.state_dict()["weight"].copy_(np.zeros((2, 3)))
    with changed("w of linear was changed in place", 1, 2):
        y.backward()


def test_parameters_may_be_loaded() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    a.load_state_dict(dict(b.named_parameters()))
    assert a.weight.tolist() == b.weight.tolist() and a.weight._version == 2
    average = optim.ExponentialMovingAverage(a)
    average.load_state_dict(dict(nn.Linear(3, 2).named_parameters()))
    assert average.state_dict()["weight"].tolist() != a.weight.tolist()


def test_a_change_between_two_libraries() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.ones(4)
    whole, part, apart = (alpha.from_dlpack(t) for t in (theirs, theirs[1:3], theirs[3:]))
    again = alpha.from_dlpack(torch.from_dlpack(whole)[2:])
    x = leaf(np.ones(1))
    y, z = (x * whole).sum(), (x * apart).sum()
    part.copy_(np.zeros(2))
    assert (whole._version, part._version, apart._version, again._version) == (1, 1, 0, 1)
    z.backward()
    with changed("b of mul was changed in place"):
        y.backward()


def test_memory_that_is_used_again_has_no_history() -> None:
    for _ in range(3):
        t = alpha.ones((100, 100))
        assert t._version == 0
        assert t.copy_(np.zeros((100, 100)))._version == 1
        del t
        gc.collect()


def test_many_changes() -> None:
    w, x = leaf(), leaf()
    for _ in range(3):
        w.copy_(X)
    y = (x * w).sum()
    for _ in range(100):
        w.copy_(X)
    with refused(GraphError, "(version at most 101 then, 103 now)"):
        y.backward()


# ---- results that backward reads -------------------------------------------------------------------------------------

SAVED = {"exp": ops.exp, "sqrt": ops.sqrt, "relu": ops.relu, "relu6": ops.relu6, "sigmoid": ops.sigmoid,
         "tanh": ops.tanh, "softmax": ops.softmax, "log_softmax": ops.log_softmax,
         "max": lambda x: ops.max(x, 1), "div": lambda x: 1.0 / x, "pow": lambda x: x ** 2.5,
         "linear": lambda x: ops.linear(x, alpha.ones((4, 3)), None, activation="relu")}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("view", [lambda y: y, lambda y: y.detach(), lambda y: y.reshape(-1)])
def test_a_saved_result_that_was_changed_is_noticed(name: str, view: object, cpu_kernels: str) -> None:
    x = leaf(np.abs(X))
    y = SAVED[name](x)
    view(y).copy_(np.zeros(view(y).shape))
    with changed():
        y.sum().backward()
    assert x.grad is None
    y = SAVED[name](x)
    z = (y + 1.0).sum()
    view(y).copy_(np.zeros(view(y).shape))
    with changed(f"y of {name} was changed in place"):
        z.backward()


# ---- results that are not what their op made any more ----------------------------------------------------------------


def test_the_gradient_of_a_result_that_was_overwritten_is_refused() -> None:
    x = leaf()
    y = x * 2.0
    before = y.sum()
    y.copy_(np.zeros((2, 3)))
    for use in (y.sum, lambda: y[0].sum(), lambda: ops.concat([y, y]).sum(), lambda: y.reshape(6).sum()):
        with changed("the result of mul of shape (2, 3) was changed in place after mul had made it, and then used"):
            use().backward()
    with refused(GraphError, "the result of mul"):
        y.backward(alpha.ones((2, 3)))
    with refused(GraphError, "the result of mul"):
        alpha.grad(y.sum(), y)
    assert x.grad is None
    before.backward()  # reads nothing of y
    assert (x.grad.numpy() == 2.0).all()


def test_a_view_of_a_result_that_was_overwritten_is_refused() -> None:
    x = leaf()
    y = x * 2.0
    view = y.reshape(6)
    y.detach().copy_(np.zeros((2, 3)))
    with changed("the result of reshape of shape (6,) was changed in place"):
        view.sum().backward()


def test_a_parameter_whose_elements_were_replaced_is_noticed() -> None:
    net, x = nn.Linear(3, 2), leaf()
    average = optim.ExponentialMovingAverage(net)
    y = net(x).sum()
    with average.applied(), refused(GraphError, "w of linear got other elements"):
        y.backward()
    y = net(x.astype("float64").astype("float32")).sum()
    net.to(dtype="float64")
    with refused(GraphError, "w of linear got other elements after the forward pass (it was moved, swapped"):
        y.backward()


# ---- ops of one's own ------------------------------------------------------------------------------------------------


@pytest.fixture
def firsts() -> object:
    """An op whose result is a view."""
    @alpha.op
    class firsts:
        """y = x[:1]."""

        args = "x"

        def shape(x):
            return (1, *x.shape[1:])

        def vjp_x(g, s):
            return ops.pad(g, [(0, s.x_shape[0] - 1), (0, 0)])

    firsts.impl("cpu")(lambda x: np.asarray(memoryview(x))[:1])
    yield firsts
    del registry["firsts"]


def test_what_an_op_of_ones_own_returns_is_a_tensor_of_its_own(firsts: alpha.op) -> None:
    w, x = leaf(), leaf([1.0])
    first = firsts(w)
    y = (x * first).sum()
    w.copy_(np.zeros((2, 3)))
    y.backward()
    assert first.tolist() == X[:1].tolist() and x.grad.tolist() == [X[0].sum()]


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_of_leaves_share_no_memory() -> None:
    a, b, c = leaf(), leaf(), leaf(X.reshape(-1))
    seed = alpha.ones((2, 3))
    (a + b + c.reshape(2, 3)).backward(seed)
    grads = [t.grad.array for t in (a, b, c)] + [seed.array]
    assert not any(np.shares_memory(p, q) for k, p in enumerate(grads) for q in grads[:k])
    a.grad.copy_(np.zeros((2, 3)))
    assert b.grad.tolist() == seed.tolist() == np.ones((2, 3)).tolist()


def test_a_hook_that_changes_its_gradient_in_place_is_refused() -> None:
    a, b = leaf(), leaf()
    a.register_hook(lambda g: g.copy_(np.zeros((2, 3))))
    with refused(GraphError, "hook: a hook changed the gradient of shape (2, 3) in place", "lambda g: g * 2.0"):
        (a + b).backward(alpha.ones((2, 3)))
    assert a.grad is None and b.grad is None
