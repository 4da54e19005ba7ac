"""Every op against PyTorch over drawn shapes, values and gradients of both orders; and that none is left out."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha import ops
from alpha.core.config import config
from alpha.core.op import observers, registry
from alpha.errors import DataError
from alpha.gradcheck import assert_equal_at
from tests.op_orders import orders, torch_orders
from tests.op_twins import drawn
from tests.op_twins_linalg import TWINS

TESTS = Path(__file__).parent

# Ops that no twin calls: what compares them on the CPU with PyTorch or the equation, and the GPU with the CPU, if it
# has the op: inference there has no convolution that pools.
UPDATES = ("test_update.py::test_steps_are_pytorchs", "cuda/ops/test_update.py::test_agrees_with_the_cpu")
ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("adam_step", "adamax_step", "radam_step", "rmsprop_step", "sgd_step"), UPDATES),
    "adamod_step": ("test_update.py::test_adamod_is_the_equation", UPDATES[1]),
    "ema_step": ("test_update.py::test_ema_is_the_equation", UPDATES[1]),
    "loss_scale_step": ("test_loss_scaling.py::test_the_scale_grows_after_some_steps_and_stays_in_its_range",
                        UPDATES[1]),
    "sums_of_squares": ("test_update.py::test_sums_of_squares_name_each_tensor",
                        "cuda/ops/test_update.py::test_sums_of_squares"),
    "augment_images": ("test_augment.py::test_the_op_is_its_parts",
                       "cuda/ops/test_augment.py::test_agrees_with_the_cpu_in_every_bit"),
    "transform_images": ("augmentation/test_steps.py::test_compiled_steps_are_numpys_in_every_bit",
                         "cuda/ops/test_augment_steps.py::test_steps_agree_with_the_cpu_in_every_bit"),
    "mix_images": ("augmentation/test_steps.py::test_mixing_is_its_equation",
                   "cuda/ops/test_augment_steps.py::test_mixing_agrees_with_the_cpu_in_every_bit"),
    "batch_norm_apply": ("test_recompute.py::test_networks_train_with_the_same_bits",
                         "cuda/test_recompute.py::test_networks_train_with_the_same_bits"),
    "linear_grad": ("test_matmul.py::test_gradients_of_linear_in_one_op_have_the_bits_of_several",),
    "conv_relu_pool": ("test_conv_pool.py::test_it_equals_the_two_ops",),
    "transfer": ("test_elementwise.py::test_to_device_copies_and_carries_the_gradient",
                 "cuda/ops/test_elementwise.py::test_transfer_there_and_back"),
}

# Where functions are compared that are made of ops, and have no twin of their own.
COMPARED_IN = ("test_habits_ops.py", "test_habits_nn.py", "test_composed.py", "op_twins_composed.py", "test_create.py",
               "test_shape.py", "test_dropout.py", "test_inplace.py", "test_pool.py", "test_conv_pool.py",
               "op_twins.py", "test_elementwise.py", "test_places.py")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
@settings(max_examples=4)
@pytest.mark.parametrize("name", TWINS)
@given(data=st.data())
def test_values_and_gradients_of_both_orders(name: str, data: Any) -> None:
    pytest.importorskip("torch")
    case = TWINS[name](data.draw)
    expected = torch_orders(case.theirs, case.arrays)
    for second in (True, False):    # gradients that may be differentiated are made by other ops
        for k, (ours, theirs) in enumerate(zip(orders(case.ours, case.arrays, second=second), expected)):
            assert_equal_at(ours, theirs, rtol=1e-9, atol=1e-9, name=f"{name}, result {k}")


@pytest.mark.torch    # some twins are drawn for what PyTorch has
@settings(max_examples=4)
@pytest.mark.same_without_kernels("make test runs it both ways")
@pytest.mark.parametrize("kernels", [True, False], ids=["compiled", "numpy"])
@pytest.mark.parametrize("name", TWINS)
@given(data=st.data())
def test_nothing_warns_of_what_is_not_finite(name: str, kernels: bool, data: Any) -> None:
    """Infinities, NaN and overflow go on as PyTorch lets them, without a warning of NumPy's."""
    pytest.importorskip("torch")
    case = TWINS[name](data.draw)
    arrays = [a.astype(np.float32) for a in case.arrays]
    for values in ([np.inf, -np.inf, 0], [np.nan, 1e38, 1e38], [0, -0.0]):
        for a in arrays:
            a.reshape(-1)[:len(values)] = values[:a.size]
        with config(cpu_kernels=kernels), np.errstate(all="raise"), suppress(DataError):  # some losses refuse them
            orders(case.ours, arrays)


def called_by_twins() -> set[str]:
    """Returns the names of the ops that the twins call, forward and backward."""
    called: set[str] = set()

    def note(found: Any, *rest: Any) -> None:
        called.add(found.name)
    observers.append(note)
    try:
        for name in TWINS:
            drawn(name, 6, lambda case: [orders(case.ours, case.arrays, second=second) for second in (True, False)])
    finally:
        observers.remove(note)
    return called


@pytest.mark.torch
@pytest.mark.same_without_kernels("it calls no compiled kernel")
def test_no_op_is_left_out() -> None:
    pytest.importorskip("torch")
    called = called_by_twins()
    ours = {name for name, found in registry.items() if found.own}
    assert ours - called == set(ELSEWHERE), "give the op a twin in tests/op_twins.py"
    for name, places in ELSEWHERE.items():
        for place in places:
            file, _, test = place.partition("::")
            assert f"def {test}(" in (TESTS / file).read_text(), (name, place)


def test_no_function_is_left_out() -> None:
    texts = "\n".join([(TESTS / name).read_text() for name in COMPARED_IN])
    known = {*registry, *TWINS, *re.findall(r"\w+", texts)}
    assert set(ops.__all__) - known == set(), "give it a twin, or compare it in one of these files"
