"""Ops of a user's own: written again in a notebook or a file, and what is said of names that are none."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.inputs import registry as names
from alpha.core.op import registry
from alpha.errors import AlphaError, ArgumentError, ConfigError, DTypeError, GraphError, NotDefinedError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
TRIPLE = '''
from alpha.core.op import op

@op
class triple:
    """y = {factor} x."""
    args, saves = "x", ""
    def shape(x): return x.shape
    def vjp_x(g, s): return g * {factor}.0

@triple.impl("cpu")
def triple_cpu(x): return x * {factor}
'''


@pytest.fixture(autouse=True)
def ops_of_this_test() -> Iterator[None]:
    before = set(registry)
    yield
    for name in set(registry) - before:
        del registry[name]


def run(code: str, name: str, module: str = "__main__") -> dict:
    scope = {"__name__": module}
    exec(compile(code, name, "exec"), scope)
    return scope


def test_a_notebook_cell_that_runs_again_replaces_its_op() -> None:
    first = run(TRIPLE.format(factor=2), "<ipython-input-1-abc>")["triple"]
    second = run(TRIPLE.format(factor=3), "/tmp/ipykernel_1/27.py")["triple"]
    x = alpha.tensor([1.0, 2.0], requires_grad=True)
    (first(x) + second(x)).sum().backward()
    assert registry["triple"] is second and x.grad.tolist() == [5.0, 5.0]


def test_a_file_that_runs_again_replaces_its_op_and_another_file_does_not(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.py", tmp_path / "other.py"
    for path in (mine, other):
        path.write_text(TRIPLE.format(factor=3))
    run(mine.read_text(), str(mine), "mine")
    again = run(mine.read_text(), str(mine), "__main__")["triple"]
    assert registry["triple"] is again
    with refused(ConfigError, "op: an op called 'triple' is registered already, by ", "mine.py", "choose another name"):
        run(other.read_text(), str(other), "other")
    with refused(ConfigError, "op: an op called 'relu' is registered already, by ", "activation/__init__.py"):
        alpha.op(type("relu", (), dict(args="x", shape=lambda x: x.shape)))


def test_an_implementation_of_the_same_file_replaces_and_of_another_is_refused() -> None:
    triple = run(TRIPLE.format(factor=3), "<cell>")["triple"]
    scope = {"triple": triple, "__name__": "__main__"}
    exec(compile('@triple.impl("cpu")\ndef again(x): return x * 5', "<cell 2>", "exec"), scope)
    assert triple(alpha.tensor([1.0])).item() == 5.0
    with refused(AlphaError, "triple: there is a cpu implementation already, again of __main__"):
        triple.impl("cpu")(lambda x: x)


def test_a_kernel_that_is_declared_again_is_compiled_again(tmp_path: Path) -> None:
    from alpha.cuda.runtime import toolchain
    from alpha.cuda.runtime.kernel import Kernel

    source = tmp_path / "mine.cu"
    unit = Kernel(source, "mine", "ptr x").unit
    toolchain._modules[unit] = toolchain._jobs[unit] = "of the text before"
    Kernel(source, "mine", "ptr x, i64 n")
    assert unit not in toolchain._modules and unit not in toolchain._jobs
    assert toolchain._declared.pop(unit)["mine"] == "Pq"


@pytest.mark.parametrize("body, text", [
    (dict(saves="z"), "faulty: saves has 'z', there is none; its args are x w, its outs y"),
    (dict(saves="x", vjp_v=None), "faulty: vjp_v is for an arg 'v', there is none"),
    (dict(returns="out"), "faulty: returns has 'out'"), (dict(mutates="y"), "faulty: mutates has 'y'"),
    (dict(mixed="label"), "faulty: mixed has 'label'")])
def test_a_name_that_is_none_of_the_op_is_named(body: dict, text: str) -> None:
    with refused(ArgumentError, text):
        alpha.op(type("faulty", (), {"args": "x w", "shape": lambda x, w: x.shape, **body}))
    assert "faulty" not in registry


def test_a_class_without_args_or_shape_is_refused() -> None:
    with refused(ArgumentError, "op: the class faulty has no args", 'args = "x"'):
        alpha.op(type("faulty", (), dict(shape=lambda x: x.shape)))
    with refused(ArgumentError, "op: the class faulty has no shape"):
        alpha.op(type("faulty", (), dict(args="x")))


def test_an_op_without_a_gradient_is_named_by_backward() -> None:
    made = alpha.op(type("floor_of", (), dict(args="x", shape=lambda x: x.shape)))
    made.impl("cpu")(np.floor)
    x = alpha.tensor([1.5], requires_grad=True)
    with refused(GraphError, "backward: floor_of has no gradient with respect to x", "add vjp_x", "x.detach()"):
        (made(x) * 2.0).sum().backward()
    assert not made(x.detach()).requires_grad


def test_the_gradient_of_an_output_that_nothing_uses_is_explained() -> None:
    made = alpha.op(type("halves", (), dict(args="x", outs="low high", shape=lambda x: (x.shape, x.shape),
                                            vjp_x=lambda g, s: g[0] + 2.0 * g[1])))
    made.impl("cpu")(lambda x: (x * 1, x * 2))
    x = alpha.tensor([1.5], requires_grad=True)
    low, high = made(x)
    with refused(GraphError, "backward of halves: the gradient of its output high is None, as nothing has used it",
                 "test for it in the vjp"):
        low.sum().backward()
    low, high = made(x)
    (low + high).sum().backward()
    assert x.grad.item() == 3.0


# ---- alpha.Function --------------------------------------------------------------------------------------------------


class Power(alpha.Function):
    """y = x^n, and x itself beside it."""

    @staticmethod
    def forward(ctx, x, n):
        y = x ** n
        ctx.save_for_backward(x, y, None)
        ctx.n = n
        return y, x

    @staticmethod
    def backward(ctx, g, g_x):
        x, y, none = ctx.saved_tensors
        assert none is None and ctx.needs_input_grad == (True, False)
        return g * float(ctx.n) * y / x + g_x, None


def test_a_function_has_the_gradient_that_it_says_and_a_second_one() -> None:
    x = alpha.tensor([2.0, 3.0], dtype="float64", requires_grad=True)
    y, same = Power.apply(x, 3)
    assert y.tolist() == [8.0, 27.0] and same.tolist() == [2.0, 3.0] and same is not x
    y.sum().backward()                                      # the gradient of the second result comes as zeros
    assert x.grad.tolist() == [12.0, 27.0]
    alpha.gradcheck(lambda x: Power.apply(x, 3)[0], [x], second_order=True)
    with alpha.no_grad():
        assert not Power.apply(x, 3)[0].requires_grad
    assert not Power.apply(x.detach(), 3)[0].requires_grad


def test_a_function_leaves_no_memory_behind() -> None:
    gc.disable()
    try:
        x = alpha.tensor([2.0, 3.0], requires_grad=True)
        y, _ = Power.apply(x, 2)
        node = weakref.ref(y._node[0])
        del y, _
        assert node() is None
    finally:
        gc.enable()


def test_results_without_a_gradient_and_gradients_that_are_none() -> None:
    class Top(alpha.Function):
        @staticmethod
        def forward(ctx, x):
            value, where = x.max(), ops.argmax(x)
            rounded = x * 1.0
            ctx.mark_non_differentiable(rounded)
            ctx.set_materialize_grads(False)
            return value, where, rounded

        @staticmethod
        def backward(ctx, g, g_where, g_rounded):
            assert g_where is None and g_rounded is None
            return ops.ones((3,)) * g

    x = alpha.tensor([1.0, 5.0, 2.0], requires_grad=True)
    value, where, rounded = Top.apply(x)
    assert where.item() == 1 and not where.requires_grad and not rounded.requires_grad
    value.backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_what_a_function_does_wrong_is_named() -> None:
    def function(result=None, grads=None):
        class Wrong(alpha.Function):
            @staticmethod
            def forward(ctx, x, w):
                return x * w if result is None else result

            @staticmethod
            def backward(ctx, g):
                return grads
        return Wrong

    x, w = (alpha.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    with refused(DTypeError, "Wrong: forward returned 3, a Tensor"):
        function(3).apply(x, w)
    for grads, error, text in (
            (x, ShapeError, "backward of Wrong: it returned 1 gradients, forward has 2 arguments"),
            ((x, None), GraphError, "the gradient of argument 1 is None, a Tensor of shape (2,) is needed"),
            ((x, x.sum()), ShapeError, "the gradient of argument 1 is float32 (), the argument float32 (2,)"),
            ((x, x.astype("float64")), DTypeError, "the gradient of argument 1 is float64")):
        with refused(error, text):
            function(grads=grads).apply(x, w).sum().backward()
    with refused(NotDefinedError, "Function: forward is not defined"):
        alpha.Function.apply(x)
    with refused(ArgumentError, "save_for_backward: argument 0 is 3, a Tensor is needed"):
        class Saves(alpha.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(3)
        Saves.apply(x)


def test_saved_tensors_that_were_changed_are_refused_and_freed_ones() -> None:
    x = alpha.tensor([2.0], requires_grad=True)
    y, _ = Power.apply(x, 2)
    with alpha.no_grad():
        x.copy_(np.array([3.0], np.float32))
    with refused(GraphError, "saved tensor 0 of Power was changed in place", "shape: (1,)"):
        y.sum().backward()
    y, _ = Power.apply(x, 2)
    y.sum().backward()
    with refused(GraphError, "the values saved by Power were freed by an earlier backward"):
        y.sum().backward()


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_are_found_and_near_ones_proposed() -> None:
    known: dict = {}
    names.register(known, "register_thing", "a thing", "lion", run, run)
    names.register(known, "register_thing", "a thing", "lion", refused, run)      # the same file
    assert names.find(known, "fit", "thing", "lion") is refused
    with refused(ConfigError, "fit: there is no thing 'lyon'; did you mean 'lion'?", "use one of lion"):
        names.find(known, "fit", "thing", "lyon")
    with refused(ConfigError, "register_thing: 3 is no name"):
        names.register(known, "register_thing", "a thing", 3, run, run)
