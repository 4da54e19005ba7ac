"""Pools and joined arrays of what waits for its reader: written once, as they are read, and rightly."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.cuda import BACKEND, memory, memory_summary
from alpha.cuda.bounded import MOST_OPERANDS
from alpha.cuda.deferred import BOUND
from alpha.cuda.memory import Array, Beside, Deferred
from alpha.cuda.operand import lost_range_count
from alpha.ops.norm import batch_norm_act
from alpha.ops.pool import adaptive_max_pool2d, avg_pool2d, max_pool2d, max_pool2d_backward
from tests.cuda.deferred_oracle import Norm, cuda, held, planes, wide
from tests.cuda.operand_oracle import normal

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
FORMS = ["waiting", "planes", "elements", "planes, then elements"]


def like(norm: Norm, form: str) -> tuple[alpha.Tensor, np.ndarray]:
    """Returns a result of batch norm in a form, and what it is when it is read."""
    x, other = norm.call(), norm.call()
    if "planes" in form or form == "waiting":  # whoever waits is written as planes by those who are read so
        planes(other)
    if "planes" in form:
        planes(x)
    if "elements" in form:
        x.numpy()
    return x, other.numpy()


def plain(f: Callable[[alpha.Tensor], alpha.Tensor], x: np.ndarray) -> np.ndarray:
    y = f(cuda(x))
    assert type(y.data) is Array
    return y.numpy()


def flag_of(t: alpha.Tensor) -> int:
    return int(memory.download(planes(t).flag, np.int32)[0])


# ---- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BOTH)
def test_planes_of_planes(name, form, launches):
    """Those of the result merge to the bits that float32 would have, but where a mean has more of them."""
    x, whole = like(Norm(*SHAPE), form)
    wanted = plain(BOTH[name], whole)
    launches.clear()
    y = BOTH[name](x)
    assert type(y.data) is Deferred and set(launches) == {"planes_bound"}, "nothing is written yet"
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
    assert y.numpy().tobytes() == wanted.tobytes() and not y.data.derived.in_planes
    assert "planes_merge" not in launches and x.data.derived.in_planes == (form == "planes")
    assert ("apply_float32" in launches) == (form == "waiting") and "apply_planes" not in launches


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pool", [max_pool2d, adaptive_max_pool2d], ids=["windows", "adaptive"])
def test_the_index_waits_too(pool, form):
    window = WINDOW if pool is max_pool2d else dict(output_size=(2, 4))
    x, whole = like(Norm(*SHAPE), form)
    wanted = pool.full(cuda(whole), **window)[1].numpy()
    for first in ("index", "y", "planes of y"):
        y, index = pool.full(x, **window)
        assert type(index.data) is Beside and index.data.contents is y.data.derived
        if first != "index":
            planes(y) if "planes" in first else y.numpy()
            assert index.data.contents is None
        assert np.array_equal(index.numpy(), wanted) and index.data.contents is None
        assert y.data.derived.in_planes == ("planes" in first)


def test_an_index_does_not_hold_what_it_waited_with():
    x, live = Norm(*SHAPE).call(), lambda: BACKEND.memory_stats()["live"]
    planes(x)
    gc.collect()
    before = live()
    y, index = max_pool2d.full(x, **WINDOW)
    planes(y)
    del y
    assert live() - before <= index.data.nbytes + 256
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
def test_what_nobody_reads_is_never_written(name, launches):
    x = Norm(*SHAPE).call()
    gc.collect()
    before = BACKEND.memory_stats()["live"]
    y = BOTH[name](x)
    del y
    assert BACKEND.memory_stats()["live"] == before and set(launches) <= {"planes_bound", "statistics_float32",
                                                                          "finalize_statistics_float32"}


@pytest.mark.parametrize("reads", ["float16x2", "float16"])
def test_parts_of_different_scales(reads):
    """The scale is that of the largest; the digits of the smaller ones reach down to 2^-16 of it."""
    norms = [Norm(3, 4, 4, 8 * k, gamma=2.0 ** (3 * k), beta=2.0 ** (3 * k)) for k in (1, 2, 3)]
    parts = [norm.call() for norm in norms]
    planes(parts[1])
    parts[2].numpy()
    y = ops.concat(parts, axis=-1)
    a = planes(y, reads)
    assert a.planes == (2 if reads == "float16x2" else 1)
    got, flag = held(a)
    wanted = np.concatenate([norm.y64() for norm in norms], -1)
    assert flag == 0
    assert np.abs(got - wanted).max() <= 2.0 ** (-21 if a.planes == 2 else -11) * np.abs(wanted).max()
    small, its = got[..., :8], wanted[..., :8]
    assert np.abs(small - its).max() <= 2.0 ** (-20 if a.planes == 2 else -10) * its.max()


def test_what_waits_is_written_into_the_whole(launches):
    """By its own pass, and once more where somebody reads it alone; what is written already is copied."""
    norms = [Norm(3, 4, 4, 8 * k, beta=k) for k in (1, 2, 3, 4)]
    parts = [norm.call() for norm in norms]
    planes(parts[1])
    parts[2].numpy()
    y = ops.concat([parts[0].reshape(3, 4, 4, 8), *parts[1:3], parts[3].reshape(3, 4, 8, 16).reshape(3, 4, 4, 32)], -1)
    wanted = np.concatenate([norm.y64() for norm in norms], -1)
    launches.clear()
    got, flag = held(planes(y))
    assert flag == 0 and np.abs(got - wanted).max() <= 2e-6 * np.abs(wanted).max()
    assert launches == ["apply_planes", "concat_planes", "concat_planes", "apply_planes"] + [
        "apply_float32", "concat_stored", "concat_stored", "concat_stored", "apply_float32", "concat_stored"], \
        "nothing but planes, and what a flag would ask for"
    launches.clear()
    assert np.abs(parts[0].numpy() - norms[0].y64()).max() < 1e-5 and launches == ["apply_float32"]
    assert not held(planes(parts[3]))[1] and launches[1:] == ["apply_planes", "apply_float32"]


def test_rows_that_are_not_those_of_batch_norm_are_copied(launches):
    norm = Norm(6, 4, 4, 8)
    x = norm.call()
    y = ops.concat([x.reshape(6, 4, 2, 16), x.reshape(6, 4, 2, 16)], axis=-1)
    launches.clear()
    got, flag = held(planes(y))
    wanted = norm.y64().reshape(6, 4, 2, 16)
    assert flag == 0 and np.abs(got - np.concatenate([wanted, wanted], -1)).max() < 1e-5
    assert launches.count("concat_planes") == 2 and launches.count("apply_planes") == 1


def test_a_whole_that_planes_do_not_hold_has_the_elements_of_its_parts():
    """Where each of the parts alone would be held: one is far above the others."""
    norms = [Norm(*SHAPE), Norm(*SHAPE, gamma=2.0 ** 40, beta=2.0 ** 40), Norm(*SHAPE)]
    whole = [norm.call().numpy() for norm in norms]
    for form in FORMS:
        parts = [norm.call() for norm in norms]
        if form != "waiting":
            parts = [like(norm, form)[0] for norm in norms]
        y = ops.concat(parts, axis=-1)
        assert flag_of(y) == 1
        raw = memory.download(y.data.derived.memory.elements, np.float32)
        assert np.array_equal(raw, y.numpy())
        for got, wanted, part in zip(np.split(raw, 3, -1), whole, parts):
            assert np.abs(got - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max()
            assert "planes" in form or got.tobytes() == wanted.tobytes()
            assert np.abs(part.numpy() - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max()


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
    assert type(y.data) is Array


def test_a_pool_bounds_what_reads_it():
    """As a residual, and as the operand of another pool."""
    first, norm = Norm(3, 4, 4, 24), Norm(3, 2, 2, 24)
    y = norm.call(max_pool2d(first.call(), 2))
    assert type(y.data) is Deferred
    got, flag = held(planes(y))
    pooled = first.y64().reshape(3, 2, 2, 2, 2, 24).max((2, 4))
    assert flag == 0 and np.abs(got - norm.y64(pooled)).max() < 1e-5
    z = max_pool2d(avg_pool2d(first.call(), 2), 2)
    planes(z)
    mean = first.y64().reshape(3, 2, 2, 2, 2, 24).mean((2, 4)).max((1, 2), keepdims=True)
    assert np.abs(z.numpy() - mean).max() < 1e-5


@pytest.mark.parametrize("name", BOTH)
def test_blocks_of_every_number(name, monkeypatch):
    """As on maps of many blocks, of which each thread takes several images or rows."""
    x, whole = like(Norm(40, 5, 6, 24), "planes")
    wanted = plain(BOTH[name], whole)
    for limits in ({"alpha.cuda.pool.PLANE_WRITERS": 1, "alpha.cuda.pool.GUARDED": 1, "alpha.cuda.concat.BLOCKS": 1},
                   {"alpha.cuda.pool.PLANE_WRITERS": 7, "alpha.cuda.pool.GUARDED": 3, "alpha.cuda.concat.BLOCKS": 40}):
        for target, value in limits.items():
            monkeypatch.setattr(target, value)
        rows_cache_clear()
        got, flag = held(planes(BOTH[name](x)))
        assert flag == 0 and np.abs(got - wanted).max() <= (2.0 ** -22 * np.abs(wanted).max() if "ave" in name else 0)
    monkeypatch.undo()
    rows_cache_clear()


def rows_cache_clear() -> None:
    from alpha.cuda import concat
    concat._rows.cache_clear()


# ---- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_what_planes_do_not_hold_stays_float32(name):
    """Of a map that they do not hold either, and has elements itself."""
    x, whole = like(Norm(*SHAPE, gamma=wide(24), beta=wide(24), relu=False), "planes")
    y, before = BOTH[name](x), lost_range_count()
    assert flag_of(x) == flag_of(y) == 1 and lost_range_count() > before
    wanted = plain(BOTH[name], whole)
    raw = memory.download(y.data.derived.memory.elements, np.float32)
    assert raw.tobytes() == wanted.tobytes() == y.numpy().tobytes()


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
        memory.copy(Array(y.data.block, y.data.derived.memory.scale.ptr + BOUND, (1,), "float32", 1, 4), low)
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
    got = memory.download(Array(index.data.block, seen, shape, "int32", index.data.size, index.data.nbytes), np.int32)
    assert np.array_equal(got, where.numpy())
    assert np.abs(y.numpy() - wanted.numpy()).max() < 1e-5 and y.__cuda_array_interface__["data"][0] == y.data.ptr


def test_the_report_of_memory_writes_nothing(launches):
    norm = Norm(200, 6, 6, 24).call()
    pooled = max_pool2d.full(norm, 2)
    index = pooled[1]
    launches.clear()
    report = memory_summary()
    assert "(200, 3, 3, 24) float32" in report and "(200, 3, 3, 24) int32" in report and not launches
    assert type(index.data) is Beside and index.reshape(-1).shape == (index.size,) and launches


def test_gradients_read_the_index(launches):
    x = Norm(*SHAPE).call()
    y, index = max_pool2d.full(x, **WINDOW)
    g = cuda(normal(*y.shape, seed=4))
    got = max_pool2d_backward(g, index, hw=SHAPE[1:3], **WINDOW).numpy()
    assert launches.index("max_pool_float32") < launches.index("max_pool_backward_float32")
    planes(x)
    _, where = max_pool2d.full(cuda(x.numpy()), **WINDOW)
    assert np.array_equal(got, max_pool2d_backward(g, where, hw=SHAPE[1:3], **WINDOW).numpy())


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


# ---- between batch norm and convolutions -----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("between", ["pool", "join", "both"])
def test_no_form_but_planes_between_norm_and_convolution(between, precision, tensor_cores_first, launches):
    """Forward and for the gradient of the filters, in that order: no maximum, no split, no merge."""
    f = {"pool": lambda x: max_pool2d(x, 3, stride=1, padding=1), "join": lambda x: ops.concat([x, x], axis=-1),
         "both": lambda x: ops.concat([avg_pool2d(x, 3, stride=1, padding=1), max_pool2d(x, 1)], axis=-1)}[between]
    x = Norm(4, 4, 4, 16).call()
    y = f(x)
    w, g = cuda(normal(16, 1, 1, y.shape[-1])), Norm(4, 4, 4, 16).grad()
    planes(g), planes(w)
    launches.clear()
    with alpha.precision(precision):
        got = [ops.conv2d(y, w), ops.conv2d(y, w), ops.conv2d_wgrad(y, g, f=1)]
        products = [entry for entry in launches if "wgmma" in entry]
        assert len(products) >= 3 and x.data.derived.in_planes == (between != "join")
        extra = [entry for entry in launches if "split" in entry or "amax" in entry or "small" in entry]
        assert len(extra) == (precision == "tf32"), "of the filters"
    with alpha.config(tensor_cores=False):
        whole = f(cuda(Norm(4, 4, 4, 16).call().numpy()))
        wanted = [ops.conv2d(whole, w), ops.conv2d(whole, w), ops.conv2d_wgrad(whole, cuda(g.numpy()), f=1)]
    for a, b in zip(got, wanted):
        error = np.linalg.norm(a.numpy() - b.numpy()) / np.linalg.norm(b.numpy())
        assert error <= (2e-6 if precision == "fp32" else 2e-3)


def test_layers_hand_their_results_on(tensor_cores_first, launches):
    """The modules that networks are made of do it, with no help."""
    model = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                          nn.AvgPool2d(2), nn.Conv2d(8, 8, 1)).to("cuda")
    model(cuda(normal(2, 4, 4, 8)))
    assert [entry for entry in launches if "pool" in entry] == [
        "max_pool_planes", "max_pool_stored", "avg_pool_planes", "avg_pool_stored"]
    assert "planes_merge" not in launches or launches.index("planes_merge") > launches.index("avg_pool_stored")
