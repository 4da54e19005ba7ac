"""Results that wait for their first reader: in which form they are written, and that their values are right in any."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda import BACKEND, memory_summary
from alpha.cuda.lazy.deferred import BOUND, MOST, Deferred
from alpha.cuda.lazy.operands import STEP, operand
from alpha.cuda.runtime import memory, toolchain
from alpha.cuda.runtime.memory import Array
from alpha.ops.activation import relu_grad
from alpha.ops.norm import batch_norm_act, batch_norm_add_act, batch_norm_grad
from tests.cuda.lazy.deferred_oracle import Norm, cuda, error, held, planes, wide, without_tensor_cores
from tests.cuda.lazy.operand_oracle import flagged_count, normal, planes_of
from tests.cuda.process import COUNTS_LIVE

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

SHAPES = [(2, 8), (3, 5, 3, 24), (700, 16), (5, 264), pytest.param((3, 1032), marks=pytest.mark.long), (2100, 8),
          (127, 72)]
BOUND_OF_FP32 = 2e-6  # docs/explanation/numerics.md promises it of a product


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_planes_hold_what_batch_norm_computes(shape, relu):
    norm = Norm(*shape, relu=relu)
    y, dx = norm.call(), norm.grad()
    assert type(y.array) is type(dx.array) is Deferred
    for t, wanted, plain in ((y, norm.y64(), norm.call), (dx, norm.dx64(), norm.grad)):
        got, flag = held(planes(t))
        whole = without_tensor_cores(plain)
        assert flag == 0 and np.abs(got - whole).max() <= 2.0 ** -22 * np.abs(whole).max()
        assert len(shape) < 3 or error(got, wanted) <= max(3e-7, 1.1 * error(whole, wanted))


def test_who_comes_first_decides(launches):
    norm = Norm(60, 8)
    y, dx = norm.call(), norm.grad()
    assert not [entry for entry in launches if "apply" in entry or "gradient" in entry]
    launches.clear()
    y.numpy(), dx.numpy()
    assert len(launches) == 2 and not any("planes" in entry for entry in launches)
    y, dx = norm.call(), norm.grad()
    launches.clear()
    planes(y), planes(dx), planes(y)
    assert sum("planes" in entry for entry in launches) == 2, "those of each are written once"
    assert len(launches) <= 4, "and for each there is one launch that ends at once where no flag is set"
    assert planes(y).ptr == y.array.derived.memory.elements.ptr


def test_gradients_do_not_wait_for_one_another(launches):
    """They hold what they are computed from: the next one comes with the memory of a whole map, too."""
    first, norm = Norm(60, 8).grad(), Norm(60, 8)
    assert "gradient_planes_relu" not in launches
    norm.grad()
    assert launches.count("gradient_planes_relu") == 1 and first.array.derived.in_planes
    assert not first.array.derived.reads


@COUNTS_LIVE
def test_what_nobody_reads_is_never_written(launches):
    norm = Norm(60, 8)
    gc.collect()
    before = BACKEND.memory_stats()["live"]
    y, dx = norm.call(), norm.grad()
    del y, dx
    assert BACKEND.memory_stats()["live"] <= before
    assert not [entry for entry in launches if "apply" in entry or "gradient" in entry]


@pytest.mark.parametrize("affine", ["", "gamma", "beta"])
def test_parameters_may_be_absent(affine):
    norm = Norm(60, 24)
    x, g = cuda(norm.x), cuda(norm.g)
    parts = [cuda(getattr(norm, name)) if affine == name else None for name in ("gamma", "beta")]

    def results():
        y, mean, istd = batch_norm_act.full(x, *parts, activation="relu")
        return y, batch_norm_grad(g, x, *parts, mean, istd, activation="relu")[0]

    got = [held(planes(t)) for t in results()]
    with alpha.config(tensor_cores=False):
        wanted = [t.numpy() for t in results()]
    assert all(flag == 0 and error(a, b) < 1e-7 for (a, flag), b in zip(got, wanted))


@pytest.mark.parametrize("shape", [(3, 5, 3, 24), (2100, 8)], ids=str)
def test_float32_first_is_what_it_is_without_tensor_cores(shape):
    norm = Norm(*shape)
    for call in (norm.call, norm.grad):
        assert call().numpy().tobytes() == without_tensor_cores(call).tobytes()


def test_float32_after_planes_is_what_they_hold(launches):
    norm = Norm(700, 24)
    for t in (norm.call(), norm.grad()):
        got, _ = held(planes(t))
        launches.clear()
        address = t.array.derived.memory.elements.ptr
        assert np.array_equal(t.numpy(), got) and np.array_equal(t.numpy(), got)
        assert len(launches) == 1 and t.array.derived.memory.elements.ptr != address
        launches.clear()
        assert held(planes(t))[1] == 0 and error(held(planes(t))[0], got) < 1e-7
        assert len(launches) == 1, "its bound is still known, and its operand kept"


@pytest.mark.parametrize("reads", ["float16x2", "float16"])
def test_planes_after_float32_need_no_maximum(reads, launches):
    norm = Norm(STEP // 2 + 1, 8)
    for t in (norm.call(), norm.grad()):
        whole = t.numpy()
        launches.clear()
        got, flag = held(operand(t.array, reads, keep=False))
        again, flag_again = held(operand(t.array, reads, keep=False))
        assert len(launches) == 2 and not any("amax" in entry for entry in launches)
        assert flag == flag_again == 0 and np.array_equal(got, again)
        assert np.abs(got - whole).max() <= np.abs(whole).max() * 2.0 ** (-22 if reads == "float16x2" else -11)
        launches.clear()
        other = {"float16x2": "float16", "float16": "float16x2"}[reads]
        operand(t.array, other, keep=False)
        assert len(launches) == 2 and any("amax" in entry for entry in launches), \
            "the header has the flag of the other split"


def test_one_plane_is_the_first_of_two(launches):
    y = Norm(300, 24).call()
    one, both = planes(y, "float16"), planes(y)
    assert launches.count("apply_planes") == 1
    assert (one.ptr, one.keep.shape[0], one.scale.ptr, one.flag.ptr) == (both.ptr, 1, both.scale.ptr, both.flag.ptr)
    assert np.array_equal(planes_of(one)[0], planes_of(both)[0])


@pytest.mark.parametrize("form", ["waiting", "planes", "elements", "planes, then elements"])
def test_a_residual_in_any_form(form, launches):
    first, norm = Norm(60, 24), Norm(60, 24)
    residual = first.call()
    if "planes" in form:
        planes(residual)
    if "elements" in form:
        residual.numpy()
    launches.clear()
    y = norm.call(residual)
    got, flag = held(planes(y))
    entry = f"chain{'_norm_relu' * (form == 'waiting')}_norm_add_relu"
    assert launches[-2:] == [f"{entry}_planes", entry] and "planes_merge" not in launches
    assert residual.array.derived.in_planes == (form == "planes"), "it is read as it is"
    assert flag == 0 and error(got, norm.y64(first.y64())) < 3e-7
    again = norm.call(residual)
    assert np.abs(again.numpy() - got).max() <= 2.0 ** -22 * np.abs(got).max()
    assert launches[-1] == entry


def test_a_residual_is_added_to_elements_where_nothing_can_be_compiled(monkeypatch, launches):
    first, norm = Norm(60, 24), Norm(60, 24)
    wanted = norm.call(first.call()).numpy()
    monkeypatch.setattr(toolchain, "can_compile", lambda: False)
    y = norm.call(first.call())
    assert type(y.array) is Array and y.numpy().tobytes() == wanted.tobytes() and launches[-1] == "apply_add_float32"


def test_a_residual_that_nothing_bounds_is_added_as_ever():
    norm = Norm(60, 24)
    assert type(norm.call(cuda(normal(60, 24))).array) is Array
    residual = Norm(60, 24).call()
    residual.copy_(normal(60, 24) * 1e9)
    assert type(norm.call(residual).array) is Array


def test_the_largest_element_bounds_the_next_residual():
    """So that bounds do not grow from block to block."""
    y = Norm(2100, 8).call()
    planes(y)
    header = memory.download(Array(y.array.block, y.array.derived.memory.scale.ptr, (16,), "int32", 16, 64), np.int32)
    bound, most = header[[BOUND // 4, MOST // 4]].view(np.float32)
    assert y.array.derived.bound.ptr == y.array.derived.memory.scale.ptr + MOST
    assert most == pytest.approx(y.numpy().max(), rel=1e-6) and most < bound / 8


@pytest.mark.parametrize("why", ["channels", "inference", "tensor cores", "float16", "visible", "architecture"])
def test_where_nothing_waits(why, monkeypatch):
    norm = Norm(60, 12 if why == "channels" else 8)
    x, gamma, beta = (cuda(a) for a in (norm.x, norm.gamma, norm.beta))
    zero, one = cuda(np.zeros(8, np.float32)), cuda(np.ones(8, np.float32))
    if why == "architecture":
        monkeypatch.setattr("alpha.cuda.lazy.deferred.SPLITS_PAY", ("sm_100a",))
    if why == "visible":
        x.__dlpack__()
    with alpha.config(tensor_cores=why != "tensor cores"):
        if why == "inference":
            y = batch_norm_act(x, gamma, beta, zero, one, training=False)
        else:
            y = batch_norm_act(x.astype("float16") if why == "float16" else x, gamma, beta)
    assert type(y.array) is Array


# ---- flags -----------------------------------------------------------------------------------------------------------


FLAGGED = {"wide scales": dict(gamma=wide(24)),
           "a huge channel": dict(gamma=np.where(np.arange(24) == 5, 2.0 ** 60, 1))}


@pytest.mark.parametrize("name", FLAGGED)
def test_what_planes_do_not_hold_stays_float32(name, launches):
    norm = Norm(60, 24, **FLAGGED[name])
    before = flagged_count()
    for call in (norm.call, norm.grad):
        t, whole = call(), without_tensor_cores(call)
        a = planes(t)
        assert int(memory.download(a.flag, np.int32)[0]) == 1
        raw = memory.download(t.array.derived.memory.elements, np.float32)
        assert raw.tobytes() == whole.tobytes(), "memory has the elements"
        assert t.numpy().tobytes() == whole.tobytes() and t.reshape(24, 60).numpy().tobytes() == whole.tobytes()
    assert flagged_count() == before + 2
    y, g = norm.call(), cuda(normal(60, 24, seed=3))
    planes(y)
    dx = relu_grad(g, y).numpy()
    assert np.array_equal(dx, np.where(without_tensor_cores(norm.call) > 0, g.numpy(), 0))


@pytest.mark.long
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0 ** 60])
def test_special_values_pass(value):
    """In one channel of the input, whose statistics they spoil; and in a residual, element by element."""
    norm = Norm(60, 24, relu=False)
    norm.x[3, 5] = value
    with np.errstate(invalid="ignore"):
        for call in (norm.call, norm.grad):
            t = call()
            planes(t)
            np.testing.assert_allclose(t.numpy(), without_tensor_cores(call), rtol=1e-6, atol=1e-6)
    first, norm = Norm(60, 24, relu=False), Norm(60, 24, relu=False)
    first.beta[5] = value
    residual, plain = first.call(), without_tensor_cores(first.call)
    planes(residual)
    np.testing.assert_allclose(residual.numpy(), plain, rtol=1e-6, atol=1e-6)
    y = norm.call(first.call())
    planes(y)
    np.testing.assert_allclose(y.numpy(), without_tensor_cores(lambda: norm.call(cuda(plain))), rtol=1e-6, atol=2e-6)


def test_zeros_have_planes():
    norm = Norm(60, 24, gamma=0.0)
    norm.beta[:], norm.g[:] = 0, 0
    for t in (norm.call(), norm.grad()):
        got, flag = held(planes(t))
        assert flag == 0 and not got.any() and not t.numpy().any()


def test_an_element_above_the_bound_is_noticed():
    """Whatever the bound says: nothing overflows without a word."""
    norm = Norm(60, 24)
    for call in (norm.call, norm.grad):
        t = call()
        low = memory.upload(np.array([1e-6], np.float32))
        memory.copy(Array(t.array.block, t.array.derived.memory.scale.ptr + BOUND, (1,), "float32", 1, 4), low)
        assert int(memory.download(planes(t).flag, np.int32)[0]) == 1
        assert t.numpy().tobytes() == without_tensor_cores(call).tobytes()


@pytest.mark.parametrize("wide_map", [False, True])
@pytest.mark.parametrize("wide_filters", [False, True])
def test_convolutions_fall_back_for_either_operand(wide_map, wide_filters, tensor_cores_first, launches):
    """A kernel that reads the one operand as float32 reads the other one so, too."""
    scale = wide(8)
    norm = Norm(5, 4, 4, 8, gamma=scale if wide_map else 1.0)
    w = cuda((normal(16, 3, 3, 8) * scale if wide_filters else normal(16, 3, 3, 8)).astype(np.float32))
    g = Norm(5, 4, 4, 16, gamma=np.tile(scale, 2) if wide_map else 1.0)

    def results(x, dy):
        return [ops.conv2d(x, w, padding=1), ops.conv2d_dgrad(dy, w, hw=4, padding=1),
                ops.conv2d_wgrad(x, dy, f=3, padding=1)]

    got = results(x := norm.call(), dy := g.grad())
    assert {"conv_v2_wgmma", "ks_deconv_wgmma", "sk_dilated_wgmma"} <= set(launches)
    assert {"apply_planes", "gradient_planes_relu"} <= set(launches)
    assert "planes_merge" not in launches
    x, dy = (cuda(t.numpy()) for t in (x, dy))
    with alpha.config(tensor_cores=False):
        wanted = results(x, dy)
    for k, (a, b) in enumerate(zip(got, wanted)):
        assert error(a.numpy(), b.numpy()) <= BOUND_OF_FP32
        if wide_map or (wide_filters and k < 2):  # planes would have lost the small channels
            a, b = a.numpy(), b.numpy()
            assert (np.abs(a - b) <= 1e-4 * np.abs(b).max((1, 2), keepdims=True)).all()


# ---- what happens in the meantime ------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["x", "gamma", "beta", "mean", "residual", "y"])
def test_what_a_pass_reads_may_change(changed):
    norm, first = Norm(60, 24), Norm(60, 24)
    x, gamma, beta = (cuda(a) for a in (norm.x, norm.gamma, norm.beta))
    residual = first.call()
    y, mean, _ = batch_norm_add_act.full(x, gamma, beta, None, None, residual, activation="relu")
    tensors = dict(x=x, gamma=gamma, beta=beta, mean=mean, residual=residual, y=y)
    new = normal(*tensors[changed].shape, seed=9)
    tensors[changed].copy_(new)
    assert np.array_equal(tensors[changed].numpy(), new)
    got, flag = held(planes(y))
    wanted = new if changed == "y" else norm.y64(first.y64())
    assert flag == 0 and error(got, wanted) < 3e-7 and error(y.numpy(), wanted) < 3e-7


def test_an_optimizer_may_step_before_the_gradient_is_read():
    norm = Norm(60, 24)
    x, g = cuda(norm.x), cuda(norm.g)
    gamma, beta = (alpha.nn.Parameter(cuda(a)) for a in (norm.gamma, norm.beta))
    x.requires_grad_()
    ops.batch_norm(x, gamma, beta, activation="relu").backward(g)
    alpha.optim.SGD([gamma, beta], lr=0.5).step()
    assert type(x.grad.array) is Deferred and not np.array_equal(gamma.detach().numpy(), norm.gamma)
    assert error(x.grad.numpy(), norm.dx64()) < 1e-6


def test_views_share_what_was_written(launches):
    y = Norm(60, 24).call()
    view = y.reshape(24, 60)
    a = planes(view)
    assert (a.keep.shape, planes(y).keep.shape, planes(y).ptr) == ((2, 24, 60), (2, 60, 24), a.ptr)
    assert launches.count("apply_planes") == 1
    assert view.numpy().tobytes() == y.numpy().tobytes() and launches.count("planes_merge") == 1
    assert (view.array.ptr, id(view.array.block)) == (y.array.ptr, id(y.array.block)) != (a.ptr, id(a.keep.block))
    y = Norm(60, 24).call()
    view = y.reshape(24, 60)
    assert view.numpy().tobytes() == y.numpy().tobytes() and launches.count("apply_float32") == 2


@pytest.mark.parametrize("before", [False, True])
def test_memory_that_others_see_has_elements(before):
    norm = Norm(60, 24)
    y = norm.call()
    if before:
        planes(y)
    address = y.__cuda_array_interface__["data"][0]
    assert np.abs(memory.download(Array(y.array.block, address, (60, 24), "float32", 1440, 5760), np.float32)
                  - norm.y64()).max() < 1e-5
    memory.copy(Array(y.array.block, address, (60, 24), "float32", 1440, 5760), memory.upload(normal(60, 24)))
    assert np.array_equal(y.numpy(), normal(60, 24)) and not y.array.derived
    assert error(held(planes(y))[0], normal(60, 24)) < 1e-7


def test_ordinary_ops_take_it_for_a_tensor():
    norm = Norm(60, 24)
    wanted = norm.y64()
    y, z = norm.call(), norm.call()
    np.testing.assert_allclose((y + z).numpy(), 2 * wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose((2 - norm.call()).numpy(), 2 - wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.where(norm.call() > 1, norm.call(), 0.0).numpy(), np.where(wanted > 1, wanted, 0),
                               rtol=1e-5, atol=1e-5)
    assert np.isfinite(norm.call().sum().item()) and "Deferred (60, 24)" in repr(norm.call().array)
    with alpha.config(check_nan=True):
        assert norm.call().array.derived.elements()


@COUNTS_LIVE
def test_the_report_of_memory_writes_nothing(launches):
    y = Norm(6000, 24).call()
    launches.clear()
    assert "(6000, 24) float32" in memory_summary() and not launches
    planes(y)
    assert memory_summary().count("(6000, 24)") == 1, "planes in its place are not counted twice"


def test_threads_agree_on_the_form():
    for k in range(4):
        y, found, start = Norm(300, 24).call(), [], threading.Barrier(4)

        def read(form: int, y=y, found=found, start=start) -> None:
            start.wait()
            found.append(held(planes(y))[0] if form % 2 else y.numpy().astype(np.float64))

        threads = [threading.Thread(target=read, args=(form + k,)) for form in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(found) == 4 and max(np.abs(a - found[0]).max() for a in found) <= 2.0 ** -20
