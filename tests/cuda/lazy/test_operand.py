"""What tensor cores read for a tensor: values, scales and flags, of one tensor and of many at once."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha.cuda.lazy import operands
from alpha.cuda.lazy.operands import STEP, operand, prepare_weights
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.runtime import memory
from alpha.errors import DTypeError
from tests.cuda.lazy.operand_oracle import (
    SIZES,
    SPECIAL,
    SPLITS,
    check,
    exponent,
    flagged_count,
    item,
    normal,
    planes_of,
    spread,
    value_of,
)

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]


# ---- values ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("reads", SPLITS)
@pytest.mark.parametrize("size", SIZES)
def test_planes_are_those_of_numpy(size, reads):
    x = spread(size, -6, 6, seed=size)
    check(x, reads, operand(memory.upload(x), reads))


@pytest.mark.parametrize("reads", SPLITS)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, reads):
    x = SPECIAL[name]
    assert x.dtype == np.float32
    check(x, reads, operand(memory.upload(x), reads))


def test_flags_are_as_they_should_be():
    """The flags in words, beside the formula that the other tests compare with."""
    raised = {name for name, x in SPECIAL.items() if item(operand(memory.upload(x), "float16x2").flag)}
    assert raised == {"spread", "outlier", "small outlier", "whole range", "denormals", "one denormal", "infinities",
                      "one infinity", "nothing finite"}
    for ones, flag in ((1, 1), (2, 0), (3, 0)):  # of equally many lost and kept elements the planes are good enough
        x = np.array([0.0] * 5 + [1e-9] * 2 + [1.0] * ones, np.float32)
        assert item(operand(memory.upload(x), "float16x2").flag) == flag


@pytest.mark.parametrize("name", [name for name in SPECIAL if np.isfinite(SPECIAL[name]).all()])
def test_errors_keep_their_bounds(name):
    x = SPECIAL[name]
    s = exponent(x)
    wanted, floor = x.astype(np.float64), np.ldexp(1.0, -25 - s)
    error = np.abs(value_of(operand(memory.upload(x), "float16x2")) - wanted)
    assert (error <= np.maximum(2.0 ** -23 * np.abs(wanted), floor)).all()
    assert (error <= 2.0 ** -23 * np.abs(wanted))[np.abs(wanted) >= np.ldexp(1.0, -2 - s)].all()
    single = np.abs(value_of(operand(memory.upload(x), "float16")) - wanted)
    assert (single <= np.maximum(2.0 ** -11 * np.abs(wanted), floor)).all()


def test_negative_zeros_and_infinities_keep_their_signs():
    value = value_of(operand(memory.upload(np.array([-0.0, 0.0, -np.inf, np.inf, np.nan, 1], np.float32)), "float16x2"))
    assert np.signbit(value).tolist()[:4] == [True, False, True, False]
    assert value[2:4].tolist() == [-np.inf, np.inf] and np.isnan(value[4]) and value[5] == 1


@pytest.mark.parametrize("size", [3, 4 * STEP, 40 * STEP + 5])
def test_bfloat16_is_a_cast(size):
    x = memory.upload(spread(size, -140, 120))
    a = operand(x, "bfloat16")
    assert (a.keep.shape, a.dtype, item(a.scale), item(a.flag)) == ((1, size), "bfloat16", 1, 0)
    assert np.array_equal(planes_of(a)[0], memory.download(convert(x, "bfloat16"), "int16"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_arrays_are_read_as_they_are(dtype):
    x = convert(memory.upload(normal(3, 5)), dtype)
    a = operand(x, dtype)
    assert (a.ptr, a.dtype, a.keep) == (x.ptr, dtype, x)
    assert (item(a.scale), item(a.flag)) == (1, 0) and not x.derived
    assert operand(x, dtype).scale is a.scale


@pytest.mark.parametrize("reads", operands.READS)
def test_empty_arrays_have_operands(reads):
    a = operand(memory.empty((0, 8), "float32"), reads)
    assert (a.keep.shape, item(a.scale), item(a.flag)) == ((0, 8), 1, 0)
    prepare_weights([memory.empty((0, 8), "float32")], reads)


@pytest.mark.parametrize("dtype, reads, text", [
    ("bfloat16", "float16", r"an array of bfloat16 is not read as float16 \(shape: \(2,\)\)\nhelp: convert it"),
    ("float16", "float16x2", r"an array of float16 is not read as float16x2"),
    ("int32", "float16", r"an array of int32 is not read as float16"),
])
def test_what_cannot_be_read_is_refused(dtype, reads, text):
    x = memory.empty((2,), dtype)
    for call in (lambda: operand(x, reads), lambda: prepare_weights([x], reads)):
        with pytest.raises(DTypeError, match="^operand: " + text):
            call()


@pytest.mark.long
def test_flags_are_counted():
    before = flagged_count()
    for name in ("outlier", "small outlier", "zeros"):
        operand(memory.upload(SPECIAL[name]), "float16x2")
    prepare_weights([memory.upload(SPECIAL[name]) for name in ("spread", "huge", "outlier")], "float16x2")
    assert flagged_count() == before + 4


# ---- many at once ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("reads", SPLITS)
def test_weights_are_prepared_in_two_launches(reads, launches):
    values = [spread(size, -8, 8, seed=size) * np.float32(2.0 ** (size % 30)) for size in SIZES]
    values += [SPECIAL["one infinity"], SPECIAL["outlier"], SPECIAL["zeros"]]
    weights = [memory.upload(x) for x in values]
    prepare_weights(weights, reads)
    assert len(launches) == 2
    for x, w in zip(values, weights):
        a = operand(w, reads)
        check(x, reads, a)
        assert a is w.derived[reads]
    assert len(launches) == 2, "they were kept"
    prepare_weights(weights, reads)
    assert len(launches) == 2, "what is there is not made again"


def test_bfloat16_weights_take_one_launch(launches):
    weights = [memory.upload(normal(size)) for size in (3, 8, 5000)]
    prepare_weights(weights, "bfloat16")
    assert len(launches) == 1
    for w in weights:
        assert np.array_equal(planes_of(operand(w, "bfloat16"))[0], memory.download(convert(w, "bfloat16"), "int16"))
        assert item(operand(w, "bfloat16").scale) == 1


def test_only_what_lacks_them_is_prepared(launches):
    kept, half, missing = memory.upload(normal(9)), memory.empty((8,), "float16"), memory.upload(normal(7))
    a = operand(kept, "float16")
    launches.clear()
    prepare_weights([kept, half, missing], "float16")
    assert operand(kept, "float16") is a and not half.derived and set(missing.derived) == {"float16"}
    launches.clear()
    prepare_weights([], "float16")
    assert not launches


@pytest.mark.parametrize("reads", SPLITS)
def test_the_largest_element_is_looked_for_once(reads, launches):
    """What is split again and again, as an activation is, keeps its scale; until it changes."""
    values = [spread(4 * STEP + 9, -6, 6, seed=seed) * np.float32(2.0 ** seed) for seed in (0, 9)]
    x = alpha.tensor(values[0], device="cuda")
    for searches in (1, 0, 0):
        launches.clear()
        a = operand(x.array, reads, keep=False)
        assert sum("amax" in entry for entry in launches) == searches and len(launches) == searches + 1
        assert set(x.array.derived) == {f"scale of {reads}"}
        check(values[0], reads, a)
    x.copy_(values[1])
    launches.clear()
    check(values[1].reshape(1, -1), reads, operand(x.array.reshaped((1, x.size)), reads, keep=False))
    assert sum("amax" in entry for entry in launches) == 1 and len(launches) == 2
    x.__dlpack__()
    for _ in range(2):
        launches.clear()
        operand(x.array, reads)
        assert sum("amax" in entry for entry in launches) == 1 and len(launches) == 2 and not x.array.derived


def test_more_weights_than_a_table_holds(launches):
    values = [normal(5 + k, seed=k) for k in range(200)]
    weights = [memory.upload(x) for x in values]
    prepare_weights(weights, "float16x2")
    assert len(launches) == 2 * 3, "two for each table"
    for x, w in zip(values[::40], weights[::40]):
        check(x, "float16x2", operand(w, "float16x2"))
