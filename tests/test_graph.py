"""The graph: gradient mode, freeing, cycles, versions, hooks, grad(), anomaly mode, and ops that users define."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from inspect import currentframe

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.graph import state
from alpha.core.op import registry
from alpha.errors import AnomalyError, DeviceError, GraphError, ShapeError
from tests.op_checks import refused


def leaf(*values: float) -> alpha.Tensor:
    return alpha.tensor(values, requires_grad=True)


# ---- gradient mode ---------------------------------------------------------------------------------------------------


def test_no_grad_as_a_block_and_as_a_decorator() -> None:
    x = leaf(1.0, 2.0)

    @alpha.no_grad()
    def double(t: alpha.Tensor) -> alpha.Tensor:
        return t * 2.0

    with alpha.no_grad():
        assert not alpha.grad_enabled() and not (x * 2.0).requires_grad
        with alpha.enable_grad():
            assert (x * 2.0).requires_grad
        assert not alpha.grad_enabled()
    for _ in range(2):
        assert not double(x).requires_grad and alpha.grad_enabled()
    with pytest.raises(KeyError), alpha.no_grad():
        raise KeyError
    assert (x * 2.0).requires_grad


# ---- what is kept, and for how long ----------------------------------------------------------------------------------


def test_a_second_backward_needs_retain_graph() -> None:
    x = leaf(2.0, 3.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8.0, 12.0]
    with refused(GraphError, "backward: the values saved by sum were freed", "retain_graph=True"):
        y.backward()


def test_backward_through_a_part_that_was_freed_names_the_op() -> None:
    x = leaf(2.0)
    h = ops.exp(x)
    (h * 3.0).sum().backward()
    with refused(GraphError, "the values saved by exp were freed"):
        (h * 2.0).sum().backward()


def test_saved_values_die_during_backward() -> None:
    x = leaf(1.0, 2.0)
    h = ops.exp(x)
    data = weakref.ref(h.array)
    y = ops.tanh(h).sum()
    del h
    assert data() is not None
    seen = []
    x.register_hook(lambda g: seen.append(data()))
    y.backward()
    assert seen == [None] and data() is None  # gone before backward returned, while y still lives


def test_what_no_gradient_reads_is_not_kept() -> None:
    x = leaf(1.0, 2.0)
    h = x + 1.0
    data = weakref.ref(h.array)
    y = h + 2.0
    del h
    assert data() is None and y.requires_grad


def live_tensors() -> int:
    return sum(type(o) is alpha.Tensor for o in gc.get_objects())


def test_the_graph_has_no_reference_cycle() -> None:
    w1, w2 = (alpha.tensor(np.random.randn(*s), requires_grad=True) for s in ((3, 8), (8, 2)))
    x = alpha.tensor(np.random.randn(5, 3))

    def step(create_graph: bool) -> None:
        h = ops.concat([(x @ w1).relu(), x], 1)[:, :8]
        loss = (ops.log_softmax(ops.gelu(h) @ w2) * h[:, :2]).mean()
        w1.grad = w2.grad = None
        if create_graph:
            gradients = alpha.grad(loss, [w1, w2], create_graph=True)
            sum((g * g).sum() for g in gradients).backward()
        else:
            loss.backward()

    gc.collect()
    gc.disable()
    try:
        step(True)
        after_one = live_tensors()
        for k in range(100):
            step(k % 10 == 0)
        assert live_tensors() == after_one
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [o for o in gc.garbage if type(o).__module__.startswith("alpha")]
        assert ours == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_value_changed_in_place_is_noticed() -> None:
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = (x * w).sum()
    w.copy_(np.array([5.0, 6.0]))
    with refused(GraphError, "backward: b of mul was changed in place", "version 0 then, 1 now"):
        y.backward()
    z = (x + w).sum()
    w.copy_(np.array([7.0, 8.0]))  # add saves nothing, so nothing is wrong
    z.backward()
    assert w.grad.tolist() == [1.0, 1.0]


def test_a_deep_graph_needs_no_recursion() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(5000):
        y = y + 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0]
    del y


# ---- accumulation ----------------------------------------------------------------------------------------------------


def test_gradients_add_up_over_paths() -> None:
    x = leaf(3.0)
    h = x * 2.0
    (h * h + h + x).sum().backward()
    assert x.grad.tolist() == [2 * 2 * 6 + 2 + 1]
    y = leaf(2.0)
    (y * y * y).sum().backward()
    assert y.grad.tolist() == [12.0]


# ---- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_see_and_replace_gradients() -> None:
    x = leaf(1.0, 2.0)
    h = x * 3.0
    seen = []
    h.register_hook(lambda g: seen.append(("h", g.tolist())))
    remove = h.register_hook(lambda g: g * 10.0)
    x.register_hook(lambda g: seen.append(("x", g.tolist())))
    x.register_hook(lambda g: g + 1.0)
    y = (h + h).sum()
    y.backward(retain_graph=True)
    assert seen == [("h", [2.0, 2.0]), ("x", [60.0, 60.0])] and x.grad.tolist() == [61.0, 61.0]
    remove()
    remove()
    x.grad = None
    y.backward()
    assert x.grad.tolist() == [7.0, 7.0]


def test_hooks_that_cannot_work_are_refused() -> None:
    x = leaf(1.0, 2.0)
    x.register_hook(lambda g: g.sum())
    with refused(ShapeError, "hook: a hook returned shape () for a gradient of shape (2,)"):
        (x * 2.0).sum().backward()
    with refused(GraphError, "register_hook: this tensor does not require a gradient"):
        alpha.tensor(1.0).register_hook(print)


# ---- grad() ----------------------------------------------------------------------------------------------------------


def test_grad_of_leaves_results_and_unused_inputs() -> None:
    x, unused = leaf(2.0), leaf(1.0)
    h = x * x
    y = (h * 3.0).sum()
    gx, gh, gu = alpha.grad(y, [x, h, unused])
    assert gx.tolist() == [12.0] and gh.tolist() == [3.0] and gu is None
    assert x.grad is None and h.grad is None
    with refused(GraphError, "grad: an input of shape () does not require a gradient"):
        alpha.grad((x * x).sum(), alpha.tensor(1.0))


def test_grad_of_several_outputs_with_their_gradients() -> None:
    x = leaf(1.0, 2.0)
    (g,) = alpha.grad([x * 2.0, x * x], x, [alpha.tensor([1.0, 1.0]), alpha.tensor([10.0, 100.0])])
    assert g.tolist() == [22.0, 402.0]


def test_create_graph_makes_gradients_differentiable() -> None:
    x = leaf(2.0)
    (g,) = alpha.grad((x ** 3).sum(), x, create_graph=True)
    assert g.tolist() == [12.0] and g.requires_grad
    (g * g).sum().backward()
    assert x.grad.tolist() == [2 * 12 * 12.0]
    (g,) = alpha.grad((x ** 3).sum(), x)
    assert not g.requires_grad
    x.grad = None
    (x ** 3).sum().backward(create_graph=True)
    assert x.grad.requires_grad


# ---- anomaly mode ----------------------------------------------------------------------------------------------------


class FakeLayer:
    """What anomaly mode asks of a module."""

    def __init__(self, **children: FakeLayer) -> None:
        self.children = children

    def named_modules(self) -> Iterator[tuple[str, FakeLayer]]:
        yield "", self
        yield from self.children.items()


def test_anomaly_mode_names_op_line_and_layer_of_the_first_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    x = leaf(-1.0)
    conv = FakeLayer()
    model = FakeLayer(conv=conv)
    with alpha.detect_anomaly():
        with pytest.raises(AnomalyError) as caught:
            line = currentframe().f_lineno + 1
            ops.log(x)
        assert str(caught.value).startswith("log: the result of shape (1,) has a NaN")
        assert f"{__file__}:{line}" in str(caught.value) and "layer" not in str(caught.value)
        monkeypatch.setattr(state, "layers", (model, conv))
        with refused(AnomalyError, f"made at layer conv (FakeLayer), {__file__}:"):
            ops.sqrt(x)
    monkeypatch.undo()
    assert np.isnan(ops.log(x).numpy()).all()


def test_anomaly_mode_names_the_forward_line_of_a_nan_in_backward() -> None:
    x = leaf(0.0)
    with alpha.detect_anomaly():
        line = currentframe().f_lineno + 1
        h = ops.sqrt(x)
        with refused(AnomalyError, "backward of sqrt: ", f"{__file__}:{line}"):
            (h * 0.0).sum().backward()


def test_anomaly_mode_lets_infinities_pass() -> None:
    with alpha.detect_anomaly():
        assert ops.log(leaf(0.0)).item() == -np.inf
        assert (alpha.tensor([np.inf, -np.inf]) * 2.0).tolist() == [np.inf, -np.inf]


# ---- ops that users define -------------------------------------------------------------------------------------------


@pytest.fixture
def cube() -> Iterator[alpha.op]:
    """An op that lives whole in one file."""
    @alpha.op
    class cube:
        """y = scale * x^3."""

        args, saves = "x", "x"

        def shape(x, *, scale=1.0):
            return x.shape

        def vjp_x(g, s, *, scale):
            return g * (s.x * s.x) * (3.0 * scale)

    @cube.impl("cpu")
    def cube_cpu(x: np.ndarray, *, scale: float) -> np.ndarray:
        return x ** 3 * scale

    yield cube
    del registry["cube"]


def test_a_new_op_works_to_second_order(cube) -> None:
    x = alpha.tensor([1.0, -2.0], "float64", requires_grad=True)
    assert cube(x, scale=2.0).tolist() == [2.0, -16.0] and cube(x, 2.0).tolist() == [2.0, -16.0]
    assert alpha.gradcheck(cube, [x], second_order=True)
    assert "cube(x, scale=1.0)" in repr(cube) and cube.__doc__ == "y = scale * x^3."


def test_a_wrong_call_of_an_op_is_refused(cube) -> None:
    x = leaf(1.0)
    for f, text in ((lambda: cube(x, size=1.0), "cube: size is unknown, it takes cube(x, scale=1.0)"),
                    (lambda: cube(), "cube: x is missing"),
                    (lambda: cube(x, 1.0, scale=2.0), "cube: scale is given twice"),
                    (lambda: cube(x, 1.0, 2.0), "cube: 3 arguments are given"),
                    (lambda: ops.reshape(x), "reshape: shape is missing")):
        with pytest.raises(TypeError) as caught:
            f()
        assert text in str(caught.value)
    with refused(TypeError, "cube: x is a float64 NumPy array of shape (2,), a Tensor is needed", "alpha.tensor(x"):
        cube(np.ones(2))


def test_tensors_of_two_devices_are_refused() -> None:
    a, far = leaf(1.0, 2.0), alpha.Tensor(None, (2,), "float32", "cuda:1")     # refused before its elements are read
    with refused(DeviceError, "add: the tensors live on cpu and cuda:1 (a: cpu; b: cuda:1)", "x.to(device)"):
        a + far
    with refused(DeviceError, "concat: the tensors live on cpu and cuda:1 (xs[0]: cpu; xs[1]: cuda:1)"):
        ops.concat([a, far])


@pytest.fixture
def faulty() -> Iterator[alpha.op]:
    """An op with a wrong gradient of a, none of b, and no CPU implementation yet."""
    @alpha.op
    class faulty:
        """y = a + b."""

        args = "a b"

        def shape(a, b):
            return a.shape

        def vjp_a(g, s):
            return g.sum()

    yield faulty
    del registry["faulty"]


def test_a_missing_implementation_names_those_there_are(faulty) -> None:
    with refused(DeviceError, "faulty: it has no cpu implementation; it has []", '@faulty.impl("cpu")'):
        faulty(leaf(1.0), leaf(2.0))
    faulty.impl("cuda")(lambda a, b: a)
    with refused(DeviceError, "it has ['cuda']"):
        faulty(leaf(1.0), leaf(2.0))


def test_a_missing_or_wrong_gradient_is_named(faulty) -> None:
    faulty.impl("cpu")(np.add)
    a, b = alpha.tensor([1.0, 2.0]), alpha.tensor([3.0, 4.0])
    with refused(GraphError, "backward: faulty has no gradient with respect to b", "vjp_b"):
        faulty(a, b.requires_grad_()).sum().backward()
    with refused(ShapeError, "backward of faulty: the gradient of a has shape (), a has (2,)", "correct vjp_a"):
        faulty(a.requires_grad_(), b.detach()).sum().backward()
