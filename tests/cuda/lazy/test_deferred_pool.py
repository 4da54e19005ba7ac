"""Pools and joined arrays of what waits for its reader: written once, as they are read, and rightly."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda import BACKEND, memory_summary
from alpha.cuda.lazy.deferred import BOUND, MOST_OPERANDS, CompanionOutput, Deferred
from alpha.cuda.lazy.forms import Packed
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.memory import Array
from alpha.ops.norm import batch_norm_act
from alpha.ops.pool import adaptive_max_pool2d, avg_pool2d, max_pool2d, max_pool2d_backward
from tests.cuda.lazy.deferred_oracle import FORMS, Norm, cuda, flag_of, held, like, plain, planes, wide
from tests.cuda.lazy.operand_oracle import flagged_count, normal
from tests.cuda.process import COUNTS_LIVE

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

SHAPE = (3, 5, 6, 24)
WINDOW = dict(kernel_size=3, stride=2, padding=1)
POOLS: dict[str, Callable[[alpha.Tensor], alpha.Tensor]] = {
    "max": lambda x: max_pool2d(x, **WINDOW),
    "max of all": lambda x: max_pool2d(x, (5, 6)),
    "adaptive max": lambda x: adaptive_max_pool2d(x, (2, 4)),
    "average": lambda x: avg_pool2d(x, **WINDOW),
    "average without padding": lambda x: avg_pool2d(x, count_include_pad=False, **WINDOW),
    "adaptive average": lambda x: ops.adaptive_avg_pool2d(x, (2, 4)),
}
JOINS: dict[str, Callable[[alpha.Tensor], alpha.Tensor]] = {
    "itself": lambda x: ops.concat([x, x], axis=-1),
    "rows": lambda x: ops.concat([x, x, x], axis=1),
    "batches": lambda x: ops.concat([x], axis=0),
    "before a pool": lambda x: ops.concat([x, max_pool2d(x, 3, stride=1, padding=1)], axis=-1),
    "a pool": lambda x: ops.concat([max_pool2d(x, 3, stride=1, padding=1), x], axis=3),
}
BOTH = POOLS | JOINS


# ---- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BOTH)
def test_planes_of_planes(name, form, launches):
    """Those of the result merge to the bits that float32 would have, but where a mean has more of them."""
    x, whole = like(Norm(*SHAPE), form)
    wanted = plain(BOTH[name], whole)
    launches.clear()
    y = BOTH[name](x)
    assert type(y.array) is Deferred and set(launches) == {"planes_bound"}, "nothing is written yet"
    got, flag = held(planes(y))
    assert flag == 0 and not {"planes_merge", "planes_amax"} & set(launches)
    assert not [entry for entry in launches if "split" in entry]
    mean = "average" in name or "elements" in form
    assert np.abs(got - wanted).max() <= (2.0 ** -22 * np.abs(wanted).max() if mean else 0)
    assert y.numpy().tobytes() == got.astype(np.float32).tobytes(), "float32 is what planes hold"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BOTH)
def test_float32_first(name, form, launches):
    """It has the bits of what is computed from float32; what waits is not written as planes."""
    norm = Norm(*SHAPE)
    x, whole = like(norm, form)
    whole = norm.call().numpy() if form in ("waiting", "elements") else whole
    wanted = plain(BOTH[name], whole)
    launches.clear()
    y = BOTH[name](x)
    assert y.numpy().tobytes() == wanted.tobytes() and not y.array.derived.in_planes
    assert "planes_merge" not in launches and x.array.derived.in_planes == (form == "planes")
    assert ("apply_float32" in launches) == (form == "waiting") and "apply_planes" not in launches


def kept_of(index):
    """Returns the array that an index is kept as."""
    return index.array._kept if type(index.array) is Packed else index.array


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pool", [max_pool2d, adaptive_max_pool2d], ids=["windows", "adaptive"])
def test_the_index_waits_too(pool, form):
    window = WINDOW if pool is max_pool2d else dict(output_size=(2, 4))
    x, whole = like(Norm(*SHAPE), form)
    wanted = pool.full(cuda(whole), **window)[1].numpy()
    for first in ("index", "y", "planes of y"):
        y, index = pool.full(x, **window)
        kept = kept_of(index)
        assert type(kept) is CompanionOutput and kept.contents is y.array.derived
        if first != "index":
            planes(y) if "planes" in first else y.numpy()
            assert kept.contents is None
        assert np.array_equal(index.numpy(), wanted) and kept.contents is None
        assert y.array.derived.in_planes == ("planes" in first)


@COUNTS_LIVE
def test_an_index_does_not_hold_what_it_waited_with():
    x, live = Norm(*SHAPE).call(), lambda: BACKEND.memory_stats()["live"]
    planes(x)
    gc.collect()
    before = live()
    y, index = max_pool2d.full(x, **WINDOW)
    planes(y)
    del y
    assert live() - before <= index.array.nbytes + 256
    y, index = max_pool2d.full(x, **WINDOW)
    del y
    wanted = max_pool2d.full(cuda(x.numpy()), **WINDOW)[1].numpy()
    assert np.array_equal(index.numpy(), wanted), "its pass has run though nobody reads what it is for"
    del index
    y, index = max_pool2d.full(x, **WINDOW)
    del index
    assert np.array_equal(held(planes(y))[0], plain(POOLS["max"], x.numpy()))
    del y
    assert live() == before


@pytest.mark.parametrize("name", BOTH)
@COUNTS_LIVE
def test_what_nobody_reads_is_never_written(name, launches):
    x = Norm(*SHAPE).call()
    gc.collect()
    before = BACKEND.memory_stats()["live"]
    y = BOTH[name](x)
    del y
    assert BACKEND.memory_stats()["live"] <= before and set(launches) <= {"planes_bound", "statistics_float32",
                                                                          "finalize_statistics_float32"}


@pytest.mark.parametrize("why", ["channels", "unbounded", "one is plain", "many", "visible", "tensor cores", "global"])
def test_where_nothing_waits(why):
    x = Norm(3, 4, 4, 8).call() if why != "channels" else cuda(normal(3, 4, 4, 12))
    others = []
    if why == "unbounded":
        x.copy_(normal(3, 4, 4, 8))
    if why == "one is plain":
        others = [cuda(normal(3, 4, 4, 8))]
    if why == "many":
        others = [x] * MOST_OPERANDS
    if why == "visible":
        x.__dlpack__()
    with alpha.config(tensor_cores=why != "tensor cores"):
        if why in ("one is plain", "many"):
            y = ops.concat([x, *others], axis=-1)
            assert np.array_equal(y.numpy(), np.concatenate([t.numpy() for t in (x, *others)], -1))
        else:
            y = ops.adaptive_avg_pool2d(x, 1) if why == "global" else max_pool2d(x, 2)
    assert type(y.array) is Array


def test_a_pool_bounds_what_reads_it():
    """As a residual, and as the operand of another pool."""
    first, norm = Norm(3, 4, 4, 24), Norm(3, 2, 2, 24)
    y = norm.call(max_pool2d(first.call(), 2))
    assert type(y.array) is Deferred
    got, flag = held(planes(y))
    pooled = first.y64().reshape(3, 2, 2, 2, 2, 24).max((2, 4))
    assert flag == 0 and np.abs(got - norm.y64(pooled)).max() < 1e-5
    z = max_pool2d(avg_pool2d(first.call(), 2), 2)
    planes(z)
    mean = first.y64().reshape(3, 2, 2, 2, 2, 24).mean((2, 4)).max((1, 2), keepdims=True)
    assert np.abs(z.numpy() - mean).max() < 1e-5


@pytest.mark.parametrize("limits", [(1, 1, 1), (7, 3, 40)], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_blocks_of_every_number(name, limits, monkeypatch):
    """As on maps of many blocks, of which each thread takes several images or rows."""
    x, whole = like(Norm(40, 5, 6, 24), "planes")
    for target, value in zip(("lazy.PLANE_WRITERS", "lazy.GUARDED", "ops.shape.concat.BLOCKS"), limits):
        monkeypatch.setattr(f"alpha.cuda.{target}", value)
    wanted = plain(BOTH[name], whole)
    got, flag = held(planes(BOTH[name](x)))
    assert flag == 0 and np.abs(got - wanted).max() <= (2.0 ** -22 * np.abs(wanted).max() if "average" in name else 0)


# ---- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_what_planes_do_not_hold_stays_float32(name):
    """Of a map that they do not hold either, and has elements itself."""
    x, whole = like(Norm(*SHAPE, gamma=wide(24), beta=wide(24), relu=False), "planes")
    y, before = BOTH[name](x), flagged_count()
    assert flag_of(x) == flag_of(y) == 1 and flagged_count() > before
    wanted = plain(BOTH[name], whole)
    raw = memory.download(y.array.derived.memory.elements, np.float32)
    assert raw.tobytes() == wanted.tobytes() == y.numpy().tobytes()


@pytest.mark.long
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0 ** 60])
def test_special_values_pass(value, form, name):
    norm = Norm(*SHAPE, relu=False)
    norm.beta[5] = value
    x, whole = like(norm, form)
    y = BOTH[name](x)
    planes(y)
    wanted = plain(BOTH[name], whole)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-6, atol=1e-6)
    assert np.isnan(wanted).any() == (value != value)


def test_nan_has_the_index_that_it_has_in_float32():
    norm = Norm(2, 4, 4, 8, relu=False)
    norm.beta[3] = np.nan
    x = norm.call()
    planes(x)
    y, index = max_pool2d.full(x, **WINDOW)
    planes(y)
    assert np.array_equal(index.numpy(), max_pool2d.full(cuda(norm.call().numpy()), **WINDOW)[1].numpy())


def test_an_element_above_the_bound_is_noticed():
    for f in (POOLS["max"], JOINS["itself"]):
        x = Norm(*SHAPE).call()
        whole, y = x.numpy(), f(x)
        low = memory.upload(np.array([1e-6], np.float32))
        memory.copy(Array(y.array.block, y.array.derived.memory.scale.ptr + BOUND, (1,), "float32", 1, 4), low)
        assert flag_of(y) == 1 and y.numpy().tobytes() == plain(f, whole).tobytes()


# ---- what happens in the meantime ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changed"), [(name, changed) for name in ("max", "a pool")
                                               for changed in ("input of x", "x", "y")] + [("max", "index")])
def test_what_a_pass_reads_may_change(name, changed):
    norm = Norm(*SHAPE)
    inputs, gamma, beta = (cuda(a) for a in (norm.x, norm.gamma, norm.beta))
    x = batch_norm_act(inputs, gamma, beta, activation="relu")
    wanted = plain(BOTH[name], norm.call().numpy())
    if name == "max":
        y, index = max_pool2d.full(x, **WINDOW)
    else:
        y, index = BOTH[name](x), None
    target = {"input of x": inputs, "x": x, "y": y, "index": index}[changed]
    new = normal(*target.shape, seed=9).astype(target.numpy().dtype if changed == "index" else np.float32)
    target.copy_(new)
    assert np.array_equal(target.numpy(), new)
    got, flag = held(planes(y))
    assert flag == 0 and np.abs(got - (new if changed == "y" else wanted)).max() < 1e-5


def test_memory_that_others_see_has_elements():
    x = Norm(*SHAPE).call()
    y, index = max_pool2d.full(x, **WINDOW)
    wanted, where = max_pool2d.full(cuda(Norm(*SHAPE).call().numpy()), **WINDOW)
    seen = index.__cuda_array_interface__["data"][0]
    shape = index.shape
    there = index.array
    got = memory.download(Array(there.block, seen, shape, "int32", there.size, there.nbytes), np.int32)
    assert np.array_equal(got, where.numpy())
    assert np.abs(y.numpy() - wanted.numpy()).max() < 1e-5 and y.__cuda_array_interface__["data"][0] == y.array.ptr


@COUNTS_LIVE
def test_the_report_of_memory_writes_nothing(launches):
    norm = Norm(200, 6, 6, 24).call()
    pooled = max_pool2d.full(norm, 2)
    index = pooled[1]
    launches.clear()
    report = memory_summary()
    assert "(200, 3, 3, 24) float32" in report and "(200, 3, 3, 24) int32" in report and not launches
    assert type(index.array) is Packed and type(kept_of(index)) is CompanionOutput
    assert index.reshape(-1).shape == (index.size,) and launches


def test_gradients_read_the_index(launches):
    x = Norm(*SHAPE).call()
    y, index = max_pool2d.full(x, **WINDOW)
    g = cuda(normal(*y.shape, seed=4))
    got = max_pool2d_backward(g, index, hw=SHAPE[1:3], **WINDOW).numpy()
    assert launches.index("max_pool_rows_float32") < launches.index("max_pool_backward_float32")
    planes(x)
    _, where = max_pool2d.full(cuda(x.numpy()), **WINDOW)
    assert np.array_equal(got, max_pool2d_backward(g, where, hw=SHAPE[1:3], **WINDOW).numpy())


@pytest.mark.long
def test_capture_repeats_passes():
    """Of a pool, a joined array, and an index, of which some have no reader within the recording."""
    norm = Norm(*SHAPE)
    gamma, beta = cuda(norm.gamma), cuda(norm.beta)

    def function(x):
        y = batch_norm_act(x, gamma, beta, activation="relu")
        pooled, index = max_pool2d.full(y, 2)
        planes(joined := ops.concat([y, y], axis=-1))
        return joined, index, avg_pool2d(joined, 2), pooled

    inputs = [cuda(normal(*SHAPE, seed=k)) for k in range(5)]
    with alpha.no_grad():
        expected = [[t.numpy() for t in function(x)] for x in inputs]
        captured = alpha.capture(function)
        for x, wanted in zip(inputs, expected):
            for a, b in zip(captured(x), wanted):
                assert a.numpy().tobytes() == b.tobytes()
