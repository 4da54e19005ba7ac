"""When the operand of a tensor is kept, when it is dropped, and where its memory is counted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import alpha
from alpha.cuda import BACKEND, memory_summary
from alpha.cuda.lazy.operands import KEEP, operand, prepare_weights
from alpha.cuda.runtime import memory
from alpha.ops import norm, update
from tests.cuda.lazy.operand_oracle import check, normal, planes_of
from tests.cuda.process import COUNTS_LIVE

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]


# ---- kept, and dropped -----------------------------------------------------------------------------------------------

def tensor(values: np.ndarray, **options: bool) -> alpha.Tensor:
    return alpha.tensor(values, device="cuda", **options)


def test_an_operand_is_made_once():
    x = memory.upload(normal(6, 8))
    before, later = x.reshaped((48,)), operand(x, "float16x2")
    assert operand(x, "float16x2") is later
    for view in (before, x.reshaped((8, 6))):
        assert operand(view, "float16x2") is later
    assert operand(x, "float16").ptr != later.ptr
    assert set(x.derived) == {"float16x2", "float16", "scale of float16x2", "scale of float16"}


def test_it_is_kept_only_where_that_is_asked_for():
    x = memory.upload(normal(6, 8))
    a = operand(x, "float16x2", keep=KEEP["activation"])
    assert set(x.derived) == {"scale of float16x2"}
    b = operand(x, "float16x2", keep=KEEP["weight"])
    assert b is not a and operand(x, "float16x2", keep=False) is b
    assert KEEP == {"weight": True, "gradient": True, "activation": False}


def sgd(w: alpha.Tensor) -> None:
    update.sgd_step([w], [tensor(normal(*w.shape, seed=3))], [], lr=0.5)


def ema(w: alpha.Tensor) -> None:
    update.ema_step([w], [tensor(normal(*w.shape, seed=3))], decay=0.5)


def momentum(w: alpha.Tensor) -> None:
    """Here w is a state of the optimizer, in another list than the first."""
    p, g = tensor(normal(*w.shape)), tensor(normal(*w.shape, seed=3))
    update.sgd_step([p], [g], [w], lr=0.5, momentum=0.5)


def running_mean(w: alpha.Tensor) -> None:
    norm.batch_norm_act(tensor(normal(4, w.size)), None, None, w, tensor(np.ones(w.size, np.float32)))


CHANGES: dict[str, Callable[[alpha.Tensor], object]] = {
    "optimizer": sgd, "average": ema, "momentum": momentum, "running mean": running_mean,
    "copy from the host": lambda w: w.copy_(normal(*w.shape, seed=4)),
    "copy of a tensor": lambda w: w.copy_(tensor(normal(*w.shape, seed=4))),
}


@pytest.mark.parametrize("through", ["itself", "detached", "reshaped before", "reshaped after"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_drops_it(change, through):
    w = tensor(normal(48))
    if through == "reshaped before":
        other = w.reshape(6, 8).reshape(48)
        a = operand(w.array, "float16x2")
    else:
        a = operand(w.array, "float16x2")
        other = {"itself": w, "detached": w.detach(), "reshaped after": w.reshape(6, 8).reshape(48)}[through]
    old = w.numpy()
    CHANGES[change](other)
    assert not np.array_equal(w.numpy(), old)
    b = operand(w.array, "float16x2")
    assert b.ptr != a.ptr and operand(w.array, "float16x2") is b
    check(w.numpy(), "float16x2", b)


def test_every_mutating_op_drops_before_it_writes(monkeypatch):
    """So that an implementation may leave what it derives from the new elements."""
    w = tensor(normal(48))
    a = operand(w.array, "float16x2")

    def implementation(params, *others, **attrs):
        assert not params[0].derived
        params[0].derive()["float16x2"] = a

    monkeypatch.setitem(update.sgd_step.impls, "cuda", implementation)
    sgd(w)
    assert operand(w.array, "float16x2") is a and w._version == 1


def test_reading_drops_nothing():
    w = tensor(normal(48), requires_grad=True)
    a = operand(w.array, "float16x2")
    g = tensor(normal(48))
    ((w * g).relu().sum() + w.sum()).backward()
    update.sgd_step([g], [w], [], lr=0.5)
    w.numpy(), w.tolist(), repr(w)
    assert operand(w.array, "float16x2") is a


def test_memory_that_others_see_has_no_operand_kept():
    w = tensor(normal(48))
    view = w.reshape(6, 8)
    operand(w.array, "float16x2")
    w.__dlpack__()
    for x in (w.array, view.array, w.reshape(2, 24).array):
        assert operand(x, "float16x2", keep=True) is not operand(x, "float16x2", keep=True)
    prepare_weights([w.array, view.array], "float16x2")
    assert not w.array.derived and not view.array.derived
    v = tensor(normal(48))
    assert v.__cuda_array_interface__ and v.array.derived.visible
    operand(v.array, "float16x2")
    assert not v.array.derived


def test_a_copy_that_is_handed_over_leaves_the_tensor_alone():
    w = tensor(normal(48))
    a = operand(w.array, "float16x2")
    w.__dlpack__(copy=True)
    assert operand(w.array, "float16x2") is a


def test_memory_of_others_has_no_operand_kept():
    owner = memory.upload(normal(48))
    interface = {"shape": (48,), "typestr": "<f4", "data": (owner.ptr, False), "version": 3}
    t = alpha.from_dlpack(SimpleNamespace(__cuda_array_interface__=interface, owner=owner))
    a = operand(t.array, "float16x2")
    memory.copy(owner, memory.upload(normal(48, seed=9)))  # as the other library would
    b = operand(t.array, "float16x2")
    assert not t.array.derived and not np.array_equal(planes_of(a), planes_of(b))
    check(t.numpy(), "float16x2", b)


# ---- memory ----------------------------------------------------------------------------------------------------------

@COUNTS_LIVE
def test_operands_are_live_memory_and_go_with_the_tensor():
    size = 100_000
    w = tensor(normal(size))
    operand(memory.upload(np.ones(1, np.float32)), "float16x2")  # the constants are there
    gc.collect()
    gc.disable()
    try:
        before = BACKEND.memory_stats()["live"]
        a = operand(w.array, "float16x2")
        assert 4 * size <= BACKEND.memory_stats()["live"] - before <= 4 * size + 4096 and a.nbytes == 4 * size
        del a
        assert BACKEND.memory_stats()["live"] >= before + 4 * size, "it is kept"
        operand(w.array, "float16x2", keep=False)
        sgd(w)
        assert BACKEND.memory_stats()["live"] == before, "the step has dropped it"
        operand(w.array, "float16")
        del w
        assert BACKEND.memory_stats()["live"] == before - 4 * size
    finally:
        gc.enable()


def test_the_report_names_them():
    w = alpha.nn.Parameter(tensor(normal(3000, 1000)))
    operand(w.array, "float16x2"), operand(w.array, "float16")
    report = memory_summary()
    assert "(3000, 1000) float32, a leaf, or without a graph" in report
    for reads, mib in (("float16x2", "11.4 MiB"), ("float16", "5.7 MiB")):
        line = f"(3000, 1000) {reads}, derived from the tensor a leaf, or without a graph"
        assert [row for row in report.splitlines() if line in row and row.endswith(mib)], report


# ---- made anew -------------------------------------------------------------------------------------------------------

def test_the_weights_of_a_network_are_made_anew_together():
    weights = [tensor(normal(6, 8, seed=k)) for k in range(3)]
    for w in weights[:2]:
        operand(w.array, "float16x2")
    update.sgd_step(weights, [tensor(normal(6, 8, seed=7)) for _ in weights], [], lr=0.5)
    assert not any(w.array.derived for w in weights)
    check(weights[1].numpy(), "float16x2", operand(weights[1].array, "float16x2"))
    assert [bool(w.array.derived) for w in weights] == [True, True, False]  # the third was never asked for
    check(weights[0].numpy(), "float16x2", weights[0].array.derived["float16x2"])
