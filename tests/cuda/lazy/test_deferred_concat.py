"""Arrays that wait and are joined, and what convolutions read of them and of pools."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.cuda.runtime import memory
from alpha.ops.pool import avg_pool2d, max_pool2d
from tests.cuda.lazy.deferred_oracle import FORMS, Norm, cuda, flag_of, held, like, planes
from tests.cuda.lazy.operand_oracle import normal

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

SHAPE = (3, 5, 6, 24)


@pytest.mark.parametrize("reads", ["float16x2", "float16"])
def test_parts_of_different_scales(reads):
    """The scale is that of the largest; the digits of the smaller ones reach down to 2^-16 of it."""
    norms = [Norm(3, 4, 4, 8 * k, gamma=2.0 ** (3 * k), beta=2.0 ** (3 * k)) for k in (1, 2, 3)]
    parts = [norm.call() for norm in norms]
    planes(parts[1])
    parts[2].numpy()
    y = ops.concat(parts, axis=-1)
    a = planes(y, reads)
    assert a.keep.shape[0] == (2 if reads == "float16x2" else 1)
    got, flag = held(a)
    wanted = np.concatenate([norm.y64() for norm in norms], -1)
    assert flag == 0
    assert np.abs(got - wanted).max() <= 2.0 ** (-21 if reads == "float16x2" else -11) * np.abs(wanted).max()
    small, its = got[..., :8], wanted[..., :8]
    assert np.abs(small - its).max() <= 2.0 ** (-20 if reads == "float16x2" else -10) * its.max()


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
    written = [entry for entry in launches if "planes" in entry]
    assert len(written) == len(norms) and not any("split" in entry or "merge" in entry for entry in written), \
        "each part once"
    assert len(launches) - len(written) <= 6, "what a flag would ask for"
    launches.clear()
    assert np.abs(parts[0].numpy() - norms[0].y64()).max() < 1e-5 and len(launches) == 1
    assert not held(planes(parts[3]))[1] and len(launches) <= 3


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
        raw = memory.download(y.array.derived.memory.elements, np.float32)
        assert np.array_equal(raw, y.numpy())
        for got, wanted, part in zip(np.split(raw, 3, -1), whole, parts):
            assert np.abs(got - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max()
            assert "planes" in form or got.tobytes() == wanted.tobytes()
            assert np.abs(part.numpy() - wanted).max() <= 2.0 ** -22 * np.abs(wanted).max()


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
        assert len(products) >= 3 and x.array.derived.in_planes == (between != "join")
        extra = [entry for entry in launches if "split" in entry or "amax" in entry]
        assert extra == ["planes_amax", "planes_split_float16"] * (precision == "tf32"), "of the filters"
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
    model(cuda(normal(2, 4, 4, 8))).numpy()     # the last layer waits for its reader
    assert [entry for entry in launches if "pool" in entry] == [
        "max_pool_planes", "max_pool_stored", "avg_pool_planes", "avg_pool_stored"]
    assert "planes_merge" not in launches or launches.index("planes_merge") > launches.index("avg_pool_stored")
