"""Functions that people know from PyTorch, at unusual input or none that fits: a value, or an error with a fix."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.errors import AlphaError, ArgumentError, DTypeError, OutOfMemoryError, ShapeError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def test_nonzero_of_a_scalar_is_as_in_pytorch() -> None:
    assert ops.nonzero(alpha.tensor(3.0)).shape == (1, 0)
    assert ops.nonzero(alpha.tensor(0.0)).shape == (0, 0)
    assert [t.tolist() for t in ops.nonzero(alpha.tensor(3.0), as_tuple=True)] == [[0]]


def test_sorting_nothing_has_a_gradient() -> None:
    for shape in ((0,), (2, 0), (0, 3)):
        x = alpha.ones(shape, requires_grad=True)
        values, index = x.sort()
        assert values.requires_grad and values.shape == index.shape == shape
        values.sum().backward()
        assert x.grad is not None and x.grad.shape == shape
    x = alpha.ones((2, 3), requires_grad=True)
    x.gather(1, alpha.zeros((2, 0), dtype="int64")).sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_nadam_without_a_first_moment_is_finite() -> None:
    w = nn.Parameter(alpha.tensor([1.0, -2.0]))
    optimizer = optim.NAdam([w], betas=(0.0, 0.9))
    for _ in range(3):
        (w * w).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.isfinite(w.numpy()).all() and abs(w.numpy()[0]) < 1


def test_a_list_of_several_lengths_is_no_index() -> None:
    with pytest.raises(DTypeError, match="int32 or int64 is needed"):
        ops.index_select(ops.zeros((2, 3)), 0, [[0, 1], [0]])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_a_border_past_memory_is_refused_by_its_size(mode: str) -> None:
    with pytest.raises((OutOfMemoryError, ShapeError), match="pad"):
        ops.pad(ops.zeros((1, 4, 4, 1)), [(0, 0), (2**31, 2**31), (0, 0), (0, 0)], mode=mode)


def test_eye_past_memory_is_refused_by_its_size() -> None:
    with pytest.raises(OutOfMemoryError, match="eye"):
        ops.eye(2**24)
    assert ops.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_labels_of_one_hot_are_integers() -> None:
    with pytest.raises(DTypeError, match="labels are float32"):
        ops.one_hot(alpha.tensor([[1.0, float("inf")]]))


def test_strict_is_a_truth_value() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match="strict"):
        model.load_state_dict(model.state_dict(), np.zeros(0))  # type: ignore[arg-type]


def test_truncated_normal_fills_a_scalar() -> None:
    t = ops.zeros(())
    assert -1 <= float(nn.init.trunc_normal_(t, a=-1.0, b=1.0).item()) <= 1


def test_a_key_with_a_step_of_no_use_is_refused() -> None:
    x = ops.zeros((1, 3))
    with alpha.no_grad(), pytest.raises(DTypeError, match="step"):
        x[slice(None, "x", 0)] = 1.0


def test_a_value_of_several_lengths_is_refused() -> None:
    x = ops.zeros((2, 1))
    with alpha.no_grad(), pytest.raises(AlphaError):
        x[0] = (alpha.zeros((2,)), alpha.zeros(()))


def test_create_graph_is_a_truth_value() -> None:
    with pytest.raises(ArgumentError, match="create_graph"):
        alpha.ones((1,), requires_grad=True).backward(create_graph=np.zeros((2, 3)))


def test_a_key_of_several_lengths_is_refused() -> None:
    x = ops.zeros((2, 3))
    key = [alpha.tensor(np.zeros((2, 3), np.uint8)), alpha.tensor(np.zeros(0, np.int32))]
    with pytest.raises(DTypeError, match="parts differ in shape"):
        x[key] = 1.0


def test_linspace_takes_integers_of_any_size() -> None:
    assert ops.linspace(0, 2**70, 3).tolist() == [0.0, 2.0**69, 2.0**70]
    with pytest.raises(AlphaError, match="linspace: start -1e\\+308 and stop 1e\\+308 are too far apart"):
        ops.linspace(-1e308, 1e308, 3)


def test_linspace_past_memory_is_refused_by_its_size() -> None:
    with pytest.raises(OutOfMemoryError, match="linspace"):
        ops.linspace(0, 1, 2**45)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_maps_of_interpolate_past_memory_are_refused(mode: str) -> None:
    with pytest.raises((OutOfMemoryError, ShapeError), match="interpolate"):
        ops.interpolate(ops.zeros((1, 4, 4, 1)), size=2**45, mode=mode)
    with pytest.raises(ShapeError, match=r"interpolate: .*scale_factor inf"):
        ops.interpolate(ops.zeros((1, 4, 4, 1)), scale_factor=float("inf"), mode=mode)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("index", [[[5], [0]], [[0], [-1]]])
def test_gather_takes_no_element_of_another_line(dtype: str, index: list[list[int]]) -> None:
    with pytest.raises(ShapeError, match=r"gather: index (5|-1) .*is out(side| of range)"):
        ops.gather(alpha.tensor([[1, 0, 3], [4, 5, 6]]).astype(dtype), 1, alpha.tensor(index))
