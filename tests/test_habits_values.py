"""What PyTorch's own samples (torch.testing's op_db and module_db) found: values, gradients and calls, against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops, optim
from alpha.errors import (
    ArgumentError,
    CheckpointError,
    ConfigError,
    DataError,
    DTypeError,
    MissingError,
    NotDefinedError,
    ShapeError,
)
from alpha.gradcheck import assert_equal_at
from tests.op_checks import refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
inf, nan = float("inf"), float("nan")


def says(error: type[Exception], call: Callable[[], Any], *parts: str) -> None:
    with refused(error, *parts):
        call()


def like_torch(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray, rtol: float = 1e-6) -> None:
    """Compares a value and its gradients; NaN is like NaN."""
    xs, ts = [[make(a, requires_grad=True) for a in arrays] for make in (alpha.tensor, torch.tensor)]
    y, t = ours(*xs), theirs(*ts)
    assert_equal_at(y.detach(), t.detach().numpy(), rtol=rtol, atol=1e-7)
    y.sum().backward()
    t.sum().backward()
    for x, leaf in zip(xs, ts):
        assert_equal_at(x.grad, leaf.grad.numpy(), rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(dtype: str) -> None:
    """However often the divisor goes into the number: nothing is left of a - floor(a / b) * b in float32 there."""
    a = np.array([1e7, -1e7, 1e6, 5.3, -5.3, 5.3, 7.0, -6.0, 0.0, 1.0, -1.0, 5.0, inf, 3.0, nan], dtype)
    b = np.array([7.3, 7.3, -3.7, 0.1, 0.1, -0.1, 7.0, 3.0, 4.0, inf, inf, -inf, 2.0, 0.0, 1.0], dtype)
    like_torch(lambda x, y: x % y, lambda x, y: x % y, a, b)
    like_torch(lambda x: x % 0.3, lambda x: x % 0.3, a)
    like_torch(lambda x: 1e7 % x, lambda x: torch.tensor(1e7, dtype=x.dtype) % x, b)
    left = (alpha.tensor(a) % alpha.tensor(b)).numpy()
    assert (np.signbit(left) == np.signbit(b))[~np.isnan(left)].all()


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_remainders_of_integers(dtype: str) -> None:
    a, b = np.array([7, 8, 0, 200, 5], dtype), np.array([3, 2, 5, 255, 0], dtype)
    x, y = alpha.tensor(a), alpha.tensor(b)
    assert (x % y).dtype == dtype and (x % y).tolist() == [1, 0, 0, 200, 5]
    assert (x // y * y + x % y).tolist() == a.tolist()
    if dtype != "uint8":
        least = np.iinfo(dtype).min
        left = alpha.tensor(np.array([-7, 7, least, least], dtype)) % alpha.tensor(np.array([3, -3, -1, 3], dtype))
        assert left.tolist() == [2, -2, 0, int(least) % 3]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "area"])
def test_weights_of_neighbours_are_no_integers(mode: str, dtype: str) -> None:
    """They were cut off to 0, and the map was black."""
    maps = alpha.ones((1, 4, 4, 1), dtype=dtype)
    says(DTypeError, lambda: F.interpolate(maps, (3, 3), mode=mode), f'interpolate: x has dtype {dtype}, a float '
            f'dtype is needed for mode "{mode}"\nhelp: convert it: x.astype("float32")')
    assert F.interpolate(maps, (8, 8)).dtype == dtype


def test_take_along_axis_repeats_what_is_shorter() -> None:
    x, rows, columns = np.arange(12.0).reshape(3, 4), np.array([[2], [0]]), np.array([[1, 3]])
    for a, index, axis in ((x, rows, 0), (x, columns, 1), (x[:, :1], np.array([[0, 2, 1]]), 0), (x, rows - 3, 0)):
        y = alpha.tensor(a).take_along_axis(alpha.tensor(index), axis)
        assert_equal_at(y, np.take_along_axis(a, index, axis))
    leaf = alpha.tensor(x, requires_grad=True)
    leaf.take_along_axis(alpha.tensor(rows), 0).sum().backward()
    assert_equal_at(leaf.grad, np.array([[1.0] * 4, [0.0] * 4, [1.0] * 4]))
    says(ShapeError, lambda: leaf.take_along_axis(alpha.tensor([[0, 1, 2]]), 0), "take_along_axis: index has shape "
            "(1, 3), x has (3, 4)")
    says(ShapeError, lambda: leaf.take_along_axis(alpha.tensor([0, 1]), 0), "take_along_axis: index has shape (2,), "
            "x has (3, 4)")


def test_t_is_of_matrices() -> None:
    assert alpha.ones((2, 3)).t().shape == (3, 2) and alpha.ones((2,)).t().shape == (2,)
    says(ShapeError, lambda: alpha.ones((2, 3, 4)).t(), "t: x has 3 axes, at most 2 are swapped\nhelp: x.transpose(0,"
            " 1), or x.mT for the last two")


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, inf])
def test_norms_of_lines_with_zeros_have_pytorchs_gradients(p: float) -> None:
    x = np.array([[0.0, 0.0, 0.0], [3.0, -4.0, 1.0], [2.0, 0.0, -1.0]])
    if p == inf:
        x = x[1:]   # all of equal elements share the gradient here
    like_torch(lambda t: t.norm(p, dim=1), lambda t: t.norm(p, dim=1), x)


def test_norms_of_zeros_can_be_differentiated_twice() -> None:
    x = alpha.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, -3.0]], dtype="float64", requires_grad=True)
    for p in (0.5, 1.5, 3):
        g, = alpha.grad(x.norm(p, dim=1).sum(), [x], create_graph=True)
        h, = alpha.grad((g * g).sum(), [x])
        assert np.isfinite(h.numpy()).all()


@pytest.mark.parametrize("p", [1.5, 2, 3, 6])
def test_norms_of_16_bits_add_up_in_32(p: float) -> None:
    x = np.array([300, -40, 7], np.float16)
    assert_equal_at(alpha.tensor(x).norm(p), torch.tensor(x).norm(p).numpy(), rtol=2e-3)
    assert alpha.tensor(x).norm(p).dtype == "float16"


@pytest.mark.parametrize("correction", [0, 1])
def test_std_of_what_is_constant_has_a_gradient_of_zero(correction: int) -> None:
    x = np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]])
    like_torch(lambda t: t.std(dim=1, correction=correction), lambda t: t.std(dim=1, correction=correction), x)


def test_kl_div_of_logarithms_that_are_called_probabilities_is_nan() -> None:
    """It was 0, so that a target without log_target=True looked like a perfect fit."""
    logs = np.log(np.array([[0.2, 0.8]]))
    assert np.isnan(F.kl_div(alpha.tensor(logs), alpha.tensor(logs)).item())
    like_torch(lambda x, t: F.kl_div(x, t, reduction="sum"),
               lambda x, t: torch.nn.functional.kl_div(x, t, reduction="sum"), logs, np.exp(logs))
    zero = F.kl_div(alpha.tensor(logs), alpha.tensor([[0.0, 1.0]], dtype="float64"), reduction="none").tolist()
    assert zero[0][0] == 0.0


def test_bce_refuses_targets_that_are_no_probabilities() -> None:
    p = alpha.tensor([0.5, 0.25])
    for bad in (2.0, -1.0):
        says(DataError, lambda: F.binary_cross_entropy(p, alpha.tensor([1.0, bad])), f"bce_loss: target has an "  # noqa: B023
                f"element {bad}, outside [0, 1]")


def test_hardtanh_is_flat_at_its_ends() -> None:
    x = np.array([-2.0, -1.0, -0.5, 0.0, 1.0, 3.0, nan])
    like_torch(nn.Hardtanh(), torch.nn.Hardtanh(), x)
    like_torch(nn.Hardtanh(-0.5, 1.0), torch.nn.Hardtanh(-0.5, 1.0), x)


def test_a_layer_takes_its_input_by_pytorchs_name() -> None:
    x = alpha.ones((2, 3))
    layer = nn.Linear(3, 2)
    assert alpha.equal(layer(input=x), layer(x)) and alpha.equal(nn.Sequential(layer)(input=x), layer(x))
    calls: list[str] = []
    layer.register_forward_pre_hook(lambda module, args: calls.append("before"))
    layer.register_forward_hook(lambda module, args, y: calls.append("after"))
    layer(input=x)
    assert calls == ["before", "after"]
    loss = nn.CrossEntropyLoss()(input=x, target=alpha.tensor([0, 2]))
    assert loss.item() == pytest.approx(np.log(3), rel=1e-6)


class Failing(nn.Module):
    """Its forward raises TypeErrors of its own."""

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return len(3) if scale == 2 else dict(**{1: x}) if scale == 3 else x  # type: ignore[arg-type]


@pytest.mark.parametrize(("call", "text"), [
    (lambda x: nn.Linear(3, 2)(), "Linear: missing a required argument: 'x'\nhelp: it takes (x, "
                                  "activation)"),
    (lambda x: nn.Sequential(nn.ReLU())(x, x), "Sequential: too many positional arguments\nhelp: it takes (x)"),
    (lambda x: nn.ReLU()(x, size=3), "ReLU: got an unexpected keyword argument 'size'\nhelp: it takes (x)"),
    (lambda x: nn.ReLU()(x, input=x), "ReLU: got an unexpected keyword argument 'input'\nhelp: it takes (x)"),
    (lambda x: nn.CrossEntropyLoss()(x), "CrossEntropyLoss: missing a required argument: 'target'"),
    (lambda x: nn.CrossEntropyLoss()(input=x), "CrossEntropyLoss: missing a required argument: 'target'"),
    (lambda x: Failing()(x, size=3), "Failing: got an unexpected keyword argument 'size'\nhelp: it takes (x, scale)"),
])
def test_calls_of_layers_that_do_not_fit_are_refused(call: Callable[..., Any], text: str) -> None:
    says(ArgumentError, lambda: call(alpha.ones((2, 3))), text)


def test_errors_inside_of_a_layer_are_its_own() -> None:
    for scale, text in ((2, "object of type 'int' has no len()"), (3, "keywords must be strings")):
        with pytest.raises(TypeError, match=text.replace("(", r"\(").replace(")", r"\)")) as caught:
            Failing()(alpha.ones((1,)), scale)
        assert type(caught.value) is TypeError


def test_masks_and_tensors_of_masked_select_repeat() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for a, mask in ((x, [True, False, True]), (x, True), (x, [[True], [False]]), (x[:1], [[True, True, False]] * 2),
                    (x[:, :1], [[True, False]] * 2)):
        like_torch(lambda t: alpha.masked_select(t, alpha.tensor(mask)),  # noqa: B023
                   lambda t: torch.masked_select(t, torch.tensor(mask)), a)  # noqa: B023
    says(ShapeError, lambda: alpha.masked_select(alpha.tensor(x), alpha.tensor([True, False])), "masked_select: the "
            "mask has shape (2,), x has (2, 3)")


def test_words_of_pytorchs_mixed_precision_have_answers() -> None:
    scaler = optim.LossScaler()
    says(MissingError, lambda: scaler.unscale_(None), "LossScaler: there is no unscale_\nhelp: scaler.step(optimizer, "
            "max_norm=1.0) clips the true gradients")
    says(MissingError, lambda: scaler.update(), "LossScaler: there is no update\nhelp: leave it out: step moves the "
            "scale")
    says(ArgumentError, lambda: alpha.grad(alpha.ones((1,), requires_grad=True) * 2, [], only_inputs=True),
            "leave it out: gradients go to the inputs alone")


def test_modes_of_quotients_have_operators() -> None:
    x = alpha.ones((2,))
    says(ArgumentError, lambda: ops.div(x, x, rounding_mode="floor"), "x // y rounds down, (x / y).trunc() towards 0")


@pytest.mark.parametrize("key", [(0, slice(None), [1, 0]), (slice(None), 1, slice(None), [0, 1]), (0, [1, 0]),
                                 (..., 0, slice(1, None), [1, 1]), (0, None, [1, 0]), ([1, 0], slice(None), 1),
                                 ([1, 0], slice(None), [0, 1]), (-1, slice(None), [[0, 1], [1, 0]], 1)])
def test_numbers_beside_arrays_in_a_key_come_first(key: tuple) -> None:
    """In NumPy a number is an array like the others there, which moves the axes of the result."""
    x = np.arange(3.0 * 4 * 2 * 2).reshape(3, 4, 2, 2)
    like_torch(lambda t: t[key], lambda t: t[key], x)
    if isinstance(key[0], int):
        like_torch(lambda t: t[(alpha.tensor(key[0]), *key[1:])], lambda t: t[(torch.tensor(key[0]), *key[1:])], x)
    ours, theirs = alpha.tensor(x), torch.tensor(x)
    ours[key] = ours[key].numpy() * -1.0 - 1.0
    theirs[key] = theirs[key] * -1.0 - 1.0
    assert_equal_at(ours, theirs.numpy())
    says(ShapeError, lambda: ours[(9, slice(None), [0])], "getitem: the key does not fit: index 9 is out of bounds")


def test_chunks_of_nothing_are_as_many() -> None:
    for n in (0, 1, 2, 5, 6):
        ours, theirs = alpha.zeros((2, n)).chunk(3, dim=1), torch.zeros(2, n).chunk(3, dim=1)
        assert [c.shape for c in ours] == [tuple(c.shape) for c in theirs]


def test_tensors_of_pytorch_are_copied_in_their_dtype() -> None:
    for dtype in ("float64", "float32", "float16", "int64", "int32", "uint8", "bool"):
        t = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)).T
        assert alpha.tensor(t).dtype == dtype and alpha.tensor(t).tolist() == t.tolist()
    assert alpha.tensor([1.5]).dtype == "float32" and alpha.tensor(t.double(), dtype="float32").dtype == "float32"
    for bad in (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, 2).to_sparse(),
                [torch.ones(1, requires_grad=True)]):
        says(ArgumentError, lambda: alpha.tensor(bad), "tensor: the elements are not handed over: ", "pass a NumPy "  # noqa: B023
             "array, of PyTorch x.detach().float().numpy(), say")


def test_windows_that_meet_no_element_are_refused_by_their_own_name() -> None:
    """PyTorch makes -inf of them."""
    pool = nn.MaxPool2d(2, padding=1, dilation=2, ceil_mode=True)
    assert pool(alpha.ones((1, 3, 3, 1))).shape == (1, 2, 2, 1)
    says(ShapeError, lambda: pool(alpha.ones((1, 5, 1, 1))), "max_pool2d: a window of kernel_size (2, 2), dilation "
         "(2, 2) lies in the padding alone", "use less padding, or less dilation")


def test_filters_of_pytorch_are_not_taken_for_ours() -> None:
    """Those of 3 channels and 3x3 taps have the shape of ours, and were loaded unturned."""
    layer, theirs = nn.Sequential(nn.Conv2d(3, 3, 3)), torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3))
    says(CheckpointError, lambda: layer.load_state_dict(theirs.state_dict()), "Sequential.load_state_dict: 0.weight "
         "comes from PyTorch, which has channels first", "alpha.checkpoint.from_torch_state_dict(values, model)")
    alpha.checkpoint.from_torch_state_dict(theirs.state_dict(), layer)
    assert_equal_at(layer[0].weight.detach(), theirs[0].weight.detach().permute(0, 2, 3, 1).numpy())
    linear = torch.nn.Linear(3, 2)
    ours = nn.Linear(3, 2)
    ours.load_state_dict(linear.state_dict())
    assert_equal_at(ours.weight.detach(), linear.weight.detach().numpy())


@pytest.mark.parametrize("old", [False, True])
def test_files_of_pytorch_are_known_by_their_first_bytes(old: bool, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "w.pt", _use_new_zipfile_serialization=not old)
    says(CheckpointError, lambda: alpha.load(tmp_path / "w.pt"), "alpha.checkpoint.load_torch(path, model) reads what "
         "torch.save wrote")


@pytest.mark.parametrize(("call", "text"), [
    (lambda: alpha.recompute(nn.Linear(2, 2), alpha.ones((1, 2))), "recompute: takes 1 positional argument but 2 were "
                                                                   "given\nhelp: it takes (function)"),
    (lambda: alpha.recompute_summary(clear=True), "recompute_summary: got an unexpected keyword argument 'clear'"),
    (lambda: alpha.einsum(alpha.ones((2,)), equation="i->"), "einsum: got multiple values for argument 'equation'"),
    (lambda: nn.init.calculate_gain(), "calculate_gain: missing 1 required positional argument: 'nonlinearity'"),
    (lambda: alpha.data.Subset([1, 2]), "Subset: missing 1 required positional argument: 'indices'"),
])
def test_calls_of_functions_that_do_not_fit_are_refused(call: Callable[[], Any], text: str) -> None:
    says(ArgumentError, call, text)


def test_the_twin_of_torch_checkpoint_is_called_twice() -> None:
    says(MissingError, lambda: alpha.checkpoint.checkpoint, "alpha.recompute(f)(*args)")
    x, block = alpha.ones((1, 2), requires_grad=True), nn.Linear(2, 2)
    assert alpha.equal(alpha.recompute(block)(x), block(x))


def test_a_hardtanh_without_a_graph_is_one_op() -> None:
    """Which ONNX and alpha.inference know."""
    x = alpha.tensor([-3.0, -1.0, 0.25, 1.0, 5.0, nan])
    run = alpha.inference(nn.Hardtanh(), x)
    assert_equal_at(run(x), nn.Hardtanh()(x))
    assert len(run.report().launches) == 1


def test_squares_and_cubes_of_16_bits_stay_in_range() -> None:
    """Those of what lies between have 32 bits: a standard deviation of 300, the slope of gelu at 300."""
    x = np.array([[300, -310, 270, -290], [1, 2, 3, 5]], np.float16)
    for ours, theirs in ((lambda t: t.std(dim=1), lambda t: t.std(dim=1)),
                         (lambda t: F.gelu(t, approximate="tanh"),
                          lambda t: torch.nn.functional.gelu(t, approximate="tanh"))):
        leaf, wide = alpha.tensor(x, requires_grad=True), torch.tensor(x.astype(np.float32), requires_grad=True)
        y, t = ours(leaf), theirs(wide)
        assert y.dtype == "float16"
        assert_equal_at(y.detach(), t.detach().numpy(), rtol=2e-3, atol=1e-3)
        y.sum().backward()
        t.sum().backward()
        assert leaf.grad.dtype == "float16"
        assert_equal_at(leaf.grad, wide.grad.numpy(), rtol=4e-3, atol=1e-3)


def test_a_hardtanh_of_no_tensor_is_refused() -> None:
    says(ArgumentError, lambda: nn.Hardtanh()("x"), 'hardtanh: x is "x" (str), a Tensor is needed')


class Unfinished(optim.Optimizer):
    """Hands on its settings, and defines nothing."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)


def test_optimizers_that_lack_something_say_what() -> None:
    p = nn.Parameter(alpha.ones((2,)))
    p.grad = alpha.ones((2,))
    says(ConfigError, lambda: Unfinished([p]), "Unfinished: it has no setting lr\nhelp: hand it on: super().__init__("
         "params, lr=lr)")
    says(NotDefinedError, lambda: Unfinished([p], lr=0.1).step(), "Unfinished: it has no method slots\nhelp: define it")
    for base, method in ((Unfinished, "update"), (optim.Composed, "formula")):
        half = type("Half", (base,), {"slots": lambda self, group: ()})
        says(NotDefinedError, lambda: half([p], lr=0.1).step(), f"Half: it has no method {method}")  # noqa: B023


@pytest.mark.parametrize(("a", "b"), [((3,), (0, 3, 5)), ((3,), (0, 0, 3, 5)), ((0, 4, 3), (3,)), ((0,), (0, 2)),
                                      ((0,), (0,)), ((2, 0), (0,)), ((3,), (2, 3, 0))])
def test_products_of_lines_and_nothing_have_gradients(a: tuple, b: tuple) -> None:
    like_torch(lambda x, y: x @ y, lambda x, y: x @ y, np.ones(a), np.ones(b))


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "bce_loss",
                                  "bce_with_logits_loss"])
def test_losses_name_themselves_where_a_target_has_integers(name: str) -> None:
    says(DTypeError, lambda: getattr(ops, name)(alpha.ones((2,)), alpha.tensor([0, 1])), f"{name}: the target has "
         "dtype int64, the input float32\nhelp: convert it: target.astype(x.dtype)")


def test_apply_comes_to_a_module_after_those_in_it() -> None:
    """What a block sets in its layers stays: a last batch norm of zeros, say."""
    order: list[list[str]] = [[], []]
    for kinds, found in zip((nn, torch.nn), order):
        inner = kinds.Sequential(kinds.Linear(2, 2), kinds.ReLU())
        net = kinds.Sequential(inner, kinds.ModuleList([kinds.Tanh()]), inner)
        assert net.apply(lambda m: found.append(type(m).__name__)) is net  # noqa: B023
    assert order[0] == order[1]
    assert order[0][:3] == ["Linear", "ReLU", "Sequential"] and order[0][-1] == "Sequential"


def test_a_forward_that_has_no_signature_raises_its_own_error() -> None:
    layer = nn.Module()
    layer.forward = max     # of C, and nothing says what it takes
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        layer(3)
