"""Ops that move elements: bit for bit against NumPy, gradients, contiguity, messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.core.device import get_backend
from alpha.core.op import observers
from alpha.errors import DTypeError, ShapeError, shown
from alpha.gradcheck import adjoint_check, assert_equal_at, gradcheck
from alpha.ops.shape import slice_axes_grad, slice_axes_grad_add
from tests.op_checks import floats, integers, is_contiguous, leaf, like_torch, refused, shapes

DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")


def numbered(shape: tuple, dtype: str = "float64") -> np.ndarray:
    """Every element different, as far as the dtype allows."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def check(f, like, *arrays: np.ndarray) -> None:
    """Asserts that f equals its NumPy form, is contiguous, and has the right gradients."""
    y, expected = f(*[alpha.tensor(a) for a in arrays]), like(*arrays)
    assert is_contiguous(y) and y.dtype == expected.dtype
    assert_equal_at(y, expected)
    assert gradcheck(f, [leaf(a.shape, k) for k, a in enumerate(arrays)], second_order=True)


@given(data=st.data(), shape=shapes)
def test_permute_transpose_flip(data, shape: tuple) -> None:
    a = numbered(shape)
    order = data.draw(st.permutations(range(len(shape))))
    signed = [k - len(shape) if data.draw(st.booleans()) else k for k in order]
    check(lambda x: x.permute(*signed), lambda a: a.transpose(order), a)
    check(lambda x: x.T, lambda a: a.T, a)
    axes = sorted(data.draw(st.sets(st.sampled_from(range(len(shape)))))) if shape else []
    for axis in (None, tuple(axes), list(axes)):
        check(lambda x: x.flip(axis), lambda a: np.flip(a, axis if axis is None else tuple(axis)), a)  # noqa: B023
    if len(shape) >= 2:
        check(lambda x: x.transpose(), lambda a: a.swapaxes(-2, -1), a)
        check(lambda x: x.transpose(0, -1), lambda a: a.swapaxes(0, -1), a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_moves(dtype: str) -> None:
    a = numbered((2, 3, 4), dtype)
    x = alpha.tensor(a)
    for y, expected in ((x.permute(2, 0, 1), a.transpose(2, 0, 1)), (x.reshape(4, 6), a.reshape(4, 6)),
                        (x[1, ::2], a[1, ::2]), (x[[1, 1, 0]], a[[1, 1, 0]]), (x.flip(1), a[:, ::-1]),
                        (ops.concat([x, x], -1), np.concatenate([a, a], -1)), (x.expand(2, 2, 3, 4), np.stack([a, a])),
                        (ops.pad(x, ((0, 0), (1, 0), (0, 2)), 1),
                         np.pad(a, ((0, 0), (1, 0), (0, 2)), constant_values=1))):
        assert y.dtype == dtype and is_contiguous(y)
        assert_equal_at(y, expected)


def test_reshape() -> None:
    for shape, new in (((2, 6), (3, 4)), ((2, 6), (-1,)), ((2, 6), (4, -1)), ((), (1, 1)), ((1,), ()), ((0, 3), (3, 0)),
                       ((0, 3), (-1, 3))):
        check(lambda x: x.reshape(new), lambda a: a.reshape(new), numbered(shape))  # noqa: B023
    x = alpha.tensor(numbered((2, 6)))
    assert x.reshape(12).array.base is not None and np.shares_memory(x.reshape([3, 4]).array, x.array)
    check(lambda x: x.flatten(), lambda a: a.reshape(-1), numbered((2, 3, 4)))
    check(lambda x: x.flatten(1), lambda a: a.reshape(2, 12), numbered((2, 3, 4)))
    check(lambda x: ops.flatten(x, 0, 1), lambda a: a.reshape(6, 4), numbered((2, 3, 4)))
    assert alpha.tensor(1.0).flatten().shape == (1,)


def test_squeeze_and_unsqueeze() -> None:
    a = numbered((1, 3, 1, 2))
    for axis in (None, 0, -2, (0, 2), [0, 2]):
        check(lambda x: ops.squeeze(x, axis),  # noqa: B023
              lambda a: np.squeeze(a, tuple(axis) if isinstance(axis, list) else axis), a)  # noqa: B023
    for axis in (0, 2, 4, -1, -5):
        check(lambda x: ops.unsqueeze(x, axis), lambda a: np.expand_dims(a, axis), a)  # noqa: B023
    with refused(ShapeError, "squeeze: axis 1 of shape (1, 3, 1, 2) is not of length 1"):
        ops.squeeze(alpha.tensor(a), 1)
    with refused(ShapeError, "unsqueeze: axis 5 does not exist in a tensor of 5 axes"):
        ops.unsqueeze(alpha.tensor(a), 5)


def test_expand() -> None:
    check(lambda x: x.expand(2, 3, 4), lambda a: np.broadcast_to(a, (2, 3, 4)), numbered((3, 1)))
    check(lambda x: x.expand((5, -1, 4)), lambda a: np.broadcast_to(a, (5, 3, 4)), numbered((3, 1)))
    check(lambda x: x.expand(2), lambda a: np.broadcast_to(a, (2,)), numbered(()))
    for shape, new in (((3, 2), (3, 4)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (-1, 3))):
        with refused(ShapeError, f"expand: shape {shape} cannot be repeated to {new}"):
            alpha.tensor(numbered(shape)).expand(new)


@given(data=st.data(), shape=shapes.filter(len))
def test_concat_stack_split(data, shape: tuple) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    parts = []
    for k, n in enumerate(lengths):
        part = list(shape)
        part[axis] = n
        parts.append(floats(part, k))
    check(lambda *xs: ops.concat(xs, axis), lambda *arrays: np.concatenate(arrays, axis), *parts)
    whole = np.concatenate(parts, axis)
    pieces = ops.split(alpha.tensor(whole), lengths, axis)
    assert is_contiguous(*pieces)
    for piece, part in zip(pieces, parts, strict=True):
        assert_equal_at(piece, part)
    check(lambda *xs: ops.stack(xs, axis), lambda *arrays: np.stack(arrays, axis), whole, whole + 1)


def test_split_by_a_size() -> None:
    x = alpha.tensor(numbered((3, 7)))
    assert [y.shape for y in ops.split(x, 3, 1)] == [(3, 3), (3, 3), (3, 1)]
    assert [y.shape for y in ops.split(x, 3)] == [(3, 7)]
    assert gradcheck(lambda x: ops.split(x, 3, 1), [leaf((3, 7))], second_order=True)
    with refused(ShapeError, "split: the sizes [3, 3] add up to 6, axis 1 has 7"):
        ops.split(x, [3, 3], -1)
    with refused(ShapeError, "split: size is 0, an int of at least 1 or a list of ints of at least 0 is needed"):
        ops.split(x, 0)


def test_concat_gives_a_gradient_only_where_one_is_wanted() -> None:
    x, y = alpha.tensor([1.0, 2.0], requires_grad=True), alpha.tensor([3.0])
    (ops.concat([y, x, y]) * alpha.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [2.0, 3.0] and y.grad is None


def test_tensors_that_cannot_be_joined_are_refused() -> None:
    x, y = alpha.tensor(np.ones((2, 3))), alpha.tensor(np.ones((4, 3)))
    with refused(ShapeError, "concat: tensor 0 has shape (2, 3), tensor 1 has (4, 3)", "axis 1"):
        ops.concat([x, y], 1)
    with refused(ShapeError, "concat: tensor 0 has shape (2, 3), tensor 1 has (3,)"):
        ops.concat([x, y[0]], 0)
    with refused(ShapeError, "stack: the tensors have shapes "):
        ops.stack([x, y])
    with refused(DTypeError, "concat: the tensors have dtypes float32 and float64"):
        ops.concat([x, x.astype("float32")])
    with refused(TypeError, "concat: one argument at least must be a Tensor"):
        ops.concat([])
    with refused(ShapeError, "stack: there is no tensor"):
        ops.stack([])


@given(data=st.data(), shape=shapes)
def test_pad(data, shape: tuple) -> None:
    widths = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape]
    check(lambda x: ops.pad(x, widths, 2.5), lambda a: np.pad(a, widths, constant_values=2.5) if shape else a,
          numbered(shape))


def test_widths_that_do_not_fit_are_refused() -> None:
    x = alpha.tensor(np.ones((2, 3)))
    with refused(ShapeError, "pad: widths ((1, 1),) do not fit 2 axes", "x: (2, 3)"):
        ops.pad(x, ((1, 1),))
    assert ops.pad(x, ((1, 1), (0, -1))).shape == (4, 2)    # a negative width cuts


KEYS = [0, -1, slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2), slice(2, 2),
        slice(-2, None), slice(10, 20), None, Ellipsis, (), (0, 1), (slice(None), 1), (slice(None), slice(None), -1),
        (Ellipsis, 1), (0, Ellipsis, -1), (None, 1, None, slice(0, 2)), (Ellipsis, None), (1, 2, 3),
        (1, 2, 3, Ellipsis), (slice(None), slice(None, None, -1), slice(1, None, 2)),
        (slice(0), 1), np.int64(2), (np.int32(1), slice(1, 2))]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_getitem(key) -> None:
    check(lambda x: x[key], lambda a: a[key], numbered((4, 3, 5)))


@given(data=st.data(), n=st.integers(0, 6))
def test_slices_of_every_kind(data, n: int) -> None:
    bounds = st.none() | st.integers(-8, 8)
    key = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, 3, -1, -2, -3])))
    a = numbered((n, 2))
    x = alpha.tensor(a)
    assert_equal_at(x[key], a[key])
    g = alpha.tensor(integers(a[key].shape).astype(np.float64))
    ranges = [(*key.indices(n)[:1], len(range(*key.indices(n))), key.indices(n)[2]), (0, 2, 1)]
    assert adjoint_check(lambda x: x[key], lambda g: slice_axes_grad(g, ranges, x.shape), x, g)


@pytest.fixture
def called():
    """The names of the ops that are called."""
    names: list[str] = []

    def observe(op, args, attrs, outs) -> None:
        names.append(op.name)

    observers.append(observe)
    yield names
    observers.remove(observe)


def in_parts(x: alpha.Tensor) -> alpha.Tensor:
    """Parts that overlap, that are views and that are copies, and one axis less."""
    h = x * 2.0
    return (h[:, :2] * h[:, 1:3]).sum() + (h[1:3] * 3.0).sum() + (h[::-2, -1] * h[0, 0]).sum()


def test_gradients_of_parts_are_added_where_the_others_are(called) -> None:
    x = alpha.tensor(integers((4, 3)).astype(np.float64), requires_grad=True)
    a, one = x.numpy() * 2, np.zeros((4, 3))
    in_parts(x).backward()
    one[:, :2] += a[:, 1:3]
    one[:, 1:3] += a[:, :2]
    one[1:3] += 3
    one[::-2, -1] += a[0, 0]
    one[0, 0] += a[::-2, -1].sum()
    assert_equal_at(x.grad, 2 * one)
    assert called.count("slice_axes_grad") == 1 and called.count("slice_axes_grad_add") == 4
    assert gradcheck(in_parts, [leaf((4, 3), 1)], second_order=True)


def test_a_gradient_that_somebody_holds_is_not_added_to(called) -> None:
    x, g = leaf((4, 3), 1), alpha.tensor(numbered((4, 3)))
    for seed in (g, g.detach(), g[:], g.reshape(4, 3), g + 0.0):
        called.clear()
        h = x * 2.0
        x.grad = None
        (h + ops.pad(h[:2] * 3.0, ((0, 2), (0, 0)))).backward(seed)
        assert called.count("slice_axes_grad_add") == 0
        assert_equal_at(seed, numbered((4, 3)))
        assert_equal_at(x.grad, 2 * numbered((4, 3)) * np.array([4, 4, 1, 1])[:, None])


def test_slice_axes_grad_add() -> None:
    ranges = [(1, 2, 1), (2, 2, -2)]

    def f(g, onto):
        return slice_axes_grad_add(g, onto, ranges)

    assert gradcheck(f, [leaf((2, 2), 1), leaf((3, 3), 2)], second_order=True)
    g, onto = alpha.tensor(numbered((2, 2))), alpha.tensor(numbered((3, 3)))
    expected = numbered((3, 3))
    expected[1:3, 2::-2] += numbered((2, 2))
    assert_equal_at(f(g, onto), expected)
    assert_equal_at(onto, numbered((3, 3)))
    assert slice_axes_grad_add(g, onto, ranges, in_place=True).array is onto.array
    assert_equal_at(onto, expected)
    refused(lambda: f(alpha.zeros((3, 2), dtype="float64"), onto), ShapeError, "slice_axes_grad_add")


@pytest.mark.parametrize("shape", [(4, 3), (300, 200)])  # NumPy's memory, and the pool's
def test_who_may_be_added_to_is_the_only_one_with_its_memory(shape: tuple) -> None:
    sole = get_backend("cpu").is_sole
    for x in (alpha.ones(shape), alpha.ones((2, *shape)).reshape(*shape, 2), alpha.ones((2, *shape))[1]):
        assert sole(x)
    for hold in (lambda x: x.detach(), lambda x: x.reshape(-1), lambda x: x[1:], lambda x: x.array,
                 lambda x: x.array.base, lambda x: memoryview(x.array), lambda x: x.array[1:]):
        x = alpha.ones(shape)
        held = hold(x)
        assert held is None or not sole(x)
        y = x.reshape(-1)
        assert not sole(y)
        del x
        assert held is None or not sole(y)
        del held
        assert sole(y)
    assert not sole(y.with_data(np.broadcast_to(np.float32(1), shape)))


def test_rows_are_views_and_columns_are_not() -> None:
    x = alpha.tensor(numbered((4, 3)))
    assert np.shares_memory(x[1:3].array, x.array) and np.shares_memory(x[2].array, x.array)
    assert not np.shares_memory(x[:, 1].array, x.array)


@pytest.mark.parametrize("index", [[2, 0, 2, 2], [-1, -4], [], [[0, 1], [3, 3]]], ids=str)
def test_first_axis_integer_indexing(index: list) -> None:
    a = numbered((4, 3))
    expected = a[np.array(index, int)]
    for key in (index, np.array(index, np.int32), alpha.tensor(np.array(index, np.int64))):
        check(lambda x: x[key], lambda a: expected, a)  # noqa: B023


def test_repeated_indices_add_their_gradients() -> None:
    x = alpha.tensor(np.zeros((3, 2)), requires_grad=True)
    x[[1, 1, 0, 1]].backward(alpha.tensor(np.array([[1.0, 2.0], [10.0, 20.0], [3.0, 4.0], [100.0, 200.0]])))
    assert x.grad.tolist() == [[3.0, 4.0], [111.0, 222.0], [0.0, 0.0]]


def test_the_caller_may_change_the_index_afterwards() -> None:
    index = np.array([0, 1])
    x = alpha.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x[index]
    index[:] = 2
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0]


def test_keys_that_do_not_fit_are_refused() -> None:
    x = alpha.tensor(np.ones((2, 3)))
    with refused(ShapeError, "getitem: index 2 is out of range for axis 0 of length 2", "from -2 to 1", "x: (2, 3)"):
        x[2]
    with refused(ShapeError, "getitem: index -4 is out of range for axis 1 of length 3"):
        x[0, -4]
    with refused(ShapeError, "getitem: index 0 is out of range for axis 0 of length 0", "an axis with elements"):
        alpha.tensor(np.ones((0, 3)))[0]
    with refused(ShapeError, "getitem: index 5 is out of range for axis 0 of length 2"):
        x[[0, 5]]
    with refused(ShapeError, "getitem: index 0 is out of range for axis 0 of length 0"):
        alpha.tensor(1.0)[[0]]
    with refused(ShapeError, "getitem: 3 indices for a tensor of 2 axes"):
        x[0, 0, 0]
    with refused(ShapeError, "getitem: 0 indices for a tensor of 2 axes", "... once"):
        x[..., ...]
    with refused(ShapeError, "getitem: the key does not fit: index 3 is out of bounds for axis 1 with size 3"):
        x[:, [0, 3]]
    with refused(DTypeError, "getitem: the key has dtype float64, integers or bool are needed"):
        x[0, [0.5]]
    with refused(DTypeError, "getitem: the key \"a\" (str) is no index"):
        x["a", [0]]
    with refused(ShapeError, "getitem: the mask has shape (3,), x has (2, 3)"):
        x[np.ones(3, bool)]
    with refused(DTypeError, "getitem: the key is dtype float64, integers or bool are needed"):
        x[[0.5]]
    for key in (True, 1.0, "a"):
        with refused(DTypeError, f"getitem: the key {shown(key)} is no index"):
            x[key]


@pytest.mark.torch
def test_values_and_gradients_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b = floats((2, 3, 4)), floats((2, 1, 4), seed=1)
    for ours, theirs in (
            (lambda x, y: ops.concat([x, y], 1), lambda x, y: torch.cat([x, y], 1)),
            (lambda x, y: ops.stack([x, x], -1) * y.reshape(2, 1, 4, 1),
             lambda x, y: torch.stack([x, x], -1) * y.reshape(2, 1, 4, 1)),
            (lambda x, y: ops.split(x, [1, 2], 1)[1] * y, lambda x, y: x.split([1, 2], 1)[1] * y),
            (lambda x, y: ops.unsqueeze(ops.squeeze(y, 1), 1) + x.flip(2),
             lambda x, y: y.squeeze(1)[:, None] + x.flip(2)),
            (lambda x, y: y.expand(2, 3, 4).permute(2, 0, 1) * x.permute(2, 0, 1),
             lambda x, y: y.expand(2, 3, 4).permute(2, 0, 1) * x.permute(2, 0, 1)),
            (lambda x, y: x[:, 1:, ::2] * y[..., :2], lambda x, y: x[:, 1:, ::2] * y[..., :2]),
            (lambda x, y: x[[1, 0, 1]].flatten(1) + y[0].flatten()[0],
             lambda x, y: x[[1, 0, 1]].flatten(1) + y[0].flatten()[0]),
            (lambda x, y: ops.pad(x, ((0, 1), (2, 0), (1, 1))).transpose(0, 2) + y[0, 0, 0],
             lambda x, y: torch.nn.functional.pad(x, (1, 1, 2, 0, 0, 1)).transpose(0, 2) + y[0, 0, 0])):
        like_torch(ours, theirs, (a, b))


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = alpha.tensor(np.ones((2, 3)))
    for shape in ((4,), (-1, 4), (-1, -1), (0, -1)):
        with refused(ShapeError, f"reshape: 6 elements of shape (2, 3) do not fit into shape {shape}"):
            x.reshape(shape)
    with refused(ShapeError, "permute: 1 axes are named, x has 2", "x: (2, 3)"):
        x.permute(0)
    with refused(ShapeError, "permute: axis (0, 0) names an axis of 2 twice"):
        x.permute(0, 0)
    with refused(ShapeError, "transpose: axis 2 does not exist in a tensor of 2 axes"):
        x.transpose(0, 2)
    with refused(ShapeError, "flip: axis 2 does not exist"):
        x.flip(2)
