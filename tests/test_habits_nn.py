"""Layers, losses and functions that people bring from PyTorch, against it: values, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
import alpha.nn.functional as F
from alpha import checkpoint, nn, ops
from alpha.core.op import observers
from alpha.errors import ArgumentError, ConfigError, DataError, ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from tests.op_checks import floats, integers, leaf, like_torch, refused

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]
TF = torch.nn.functional


def nchw(f: Any) -> Any:
    """A function of PyTorch's maps as one of ours."""
    def run(t: Any, *rest: Any) -> Any:
        y = f(t.movedim(-1, 1), *rest)
        return y.movedim(1, -1)
    return run


def agree(ours: Any, theirs: Any, *shapes: tuple, second: bool = True) -> None:
    like_torch(ours, theirs, [floats(shape, k) for k, shape in enumerate(shapes)], 1e-9, 1e-9)
    if second:
        assert gradcheck(ours, [leaf(shape, k) for k, shape in enumerate(shapes)], second_order=True)


sides = st.integers(1, 6)


@settings(max_examples=30)
@given(h=sides, w=sides, c=st.integers(1, 3), oh=st.integers(1, 9), ow=st.integers(1, 9))
def test_interpolate(h: int, w: int, c: int, oh: int, ow: int) -> None:
    shape = (2, h, w, c)
    for mode in ("nearest", "nearest-exact", "area", "bilinear", "bicubic"):
        agree(lambda x: F.interpolate(x, (oh, ow), mode=mode),  # noqa: B023
              nchw(lambda t: TF.interpolate(t, (oh, ow), mode=mode)), shape, second=False)  # noqa: B023
    for mode in ("bilinear", "bicubic"):
        agree(lambda x: F.interpolate(x, (oh, ow), mode=mode, align_corners=True),  # noqa: B023
              nchw(lambda t: TF.interpolate(t, (oh, ow), mode=mode, align_corners=True)), shape,  # noqa: B023
              second=False)
    agree(lambda x: nn.Upsample(scale_factor=2)(x), nchw(torch.nn.Upsample(scale_factor=2)), shape)
    agree(lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
          nchw(lambda t: TF.interpolate(t, scale_factor=1.5, mode="bilinear")), shape)
    agree(lambda x: F.interpolate(x[0], ow, mode="linear"),
          lambda t: TF.interpolate(t[0].movedim(-1, 1), ow, mode="linear").movedim(1, -1), shape)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape, size", [((3, 9, 7, 70), (20, 5)), ((2, 16, 16, 3), (32, 40)),
                                         ((1, 5, 6, 200), (1, 60))], ids=str)
def test_resized_maps_of_floats(cpu_kernels: str, mode: str, shape: tuple, size: tuple) -> None:
    """float32, which has a kernel, as float64; a map is read once along each axis, and never turned."""
    results = []
    for dtype in ("float64", "float32"):
        called: list[str] = []
        x = alpha.tensor(floats(shape, 1), dtype=dtype, requires_grad=True)
        observers.append(lambda op, *_: called.append(op.name))  # noqa: B023
        try:
            y = F.interpolate(x, size, mode=mode)
        finally:
            observers.pop()
        assert set(called) == {"mix_rows", "reshape"}
        y.backward(alpha.tensor(floats(y.shape, 2), dtype=dtype))
        results.append((y.detach().numpy(), x.grad.numpy()))
    for expected, found in zip(*results):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
def test_resized_maps_keep_what_is_not_a_number(cpu_kernels: str, mode: str, corners: bool) -> None:
    """In neighbours whose weight is 0, too, as in PyTorch; but no term is made up for it in a gradient."""
    a, size = floats((2, 8, 5, 3), 1).astype(np.float32), (15, 9)
    a[0, 3, 2, 1], a[1, 0, 0, 0] = np.nan, np.inf
    x, t = alpha.tensor(a, requires_grad=True), torch.tensor(a.transpose(0, 3, 1, 2).copy(), requires_grad=True)
    y = F.interpolate(x, size, mode=mode, align_corners=corners)
    expected = TF.interpolate(t, size, mode=mode, align_corners=corners)
    g = floats(y.shape, 2).astype(np.float32)
    g[0, 1, 1, 2] = np.nan
    y.backward(alpha.tensor(g)), expected.backward(torch.tensor(g.transpose(0, 3, 1, 2).copy()))
    for found, of in ((y, expected), (x.grad, t.grad)):
        np.testing.assert_allclose(found.detach().numpy(), of.detach().numpy().transpose(0, 2, 3, 1), 1e-4, 1e-5)


def test_gradients_of_taken_rows_of_floats(cpu_kernels: str) -> None:
    for rows, columns in ((7, 3), (2000, 40), (5, 100)):
        index, g = np.random.default_rng(rows).integers(0, rows, 3000), floats((3000, columns), 1).astype(np.float32)
        w = alpha.zeros((rows, columns), requires_grad=True)
        F.embedding(alpha.tensor(index), w).backward(alpha.tensor(g))
        expected = np.zeros((rows, columns))
        np.add.at(expected, index, g)
        np.testing.assert_allclose(w.grad.numpy(), expected, 1e-6, 1e-6)


@given(h=st.integers(3, 6), w=st.integers(3, 6), widths=st.tuples(*[st.integers(0, 2)] * 4))
def test_borders(h: int, w: int, widths: tuple) -> None:
    for mode in ("reflect", "replicate", "circular"):
        agree(lambda x: F.pad(x, widths, mode=mode), nchw(lambda t: TF.pad(t, widths, mode=mode)),  # noqa: B023
              (2, h, w, 2), second=False)
    agree(lambda x: F.pad(x, widths, "constant", 1.5), nchw(lambda t: TF.pad(t, widths, "constant", 1.5)), (2, h, w, 2))
    agree(lambda x: F.pad(x, widths[:2]), lambda t: TF.pad(t, widths[:2]), (5,))
    for ours, theirs in ((nn.ReflectionPad2d, torch.nn.ReflectionPad2d), (nn.ZeroPad2d, torch.nn.ZeroPad2d),
                         (nn.ReplicationPad2d, torch.nn.ReplicationPad2d), (nn.CircularPad2d, torch.nn.CircularPad2d)):
        agree(ours(widths), nchw(theirs(widths)), (2, h, w, 2), second=False)
    agree(nn.ConstantPad2d(1, 2.0), nchw(torch.nn.ConstantPad2d(1, 2.0)), (1, h, w, 1))


@pytest.mark.parametrize("kernel_size", [1, 2, 3, (4, 3)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_same_padding(kernel_size: Any, dilation: int, mode: str) -> None:
    ours = nn.Conv2d(2, 3, kernel_size, padding="same", dilation=dilation, padding_mode=mode)
    theirs = torch.nn.Conv2d(2, 3, kernel_size, padding="same", dilation=dilation, padding_mode=mode)
    checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
    x = floats((2, 8, 9, 2)).astype(np.float32)
    y = ours(alpha.tensor(x))
    assert y.shape == (2, 8, 9, 3)
    expected = theirs(torch.tensor(x).movedim(-1, 1)).movedim(1, -1).detach().numpy()
    assert_equal_at(y.detach(), expected, rtol=1e-4, atol=1e-5)
    assert alpha.summary(ours, (8, 9, 2)) and ("padding_mode" in repr(ours)) == (mode != "zeros")
    border = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode)
    assert border(alpha.tensor(x)).shape == (2, 8, 9, 3)


LAYERS = [
    (nn.PReLU(), torch.nn.PReLU(), (2, 3, 3, 4)), (nn.PReLU(4), torch.nn.PReLU(4), (2, 3, 3, 4)),
    (nn.InstanceNorm2d(4), torch.nn.InstanceNorm2d(4), (2, 3, 3, 4)),
    (nn.InstanceNorm2d(4, affine=True), torch.nn.InstanceNorm2d(4, affine=True), (2, 3, 3, 4)),
    (nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), (5, 4)), (nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), (5, 3, 4)),
    (nn.BatchNorm2d(4, affine=False), torch.nn.BatchNorm2d(4, affine=False), (2, 3, 3, 4)),
    (nn.BatchNorm2d(4, track_running_stats=False).eval(), torch.nn.BatchNorm2d(4, track_running_stats=False).eval(),
     (2, 3, 3, 4)),
    (nn.LayerNorm(4, elementwise_affine=False), torch.nn.LayerNorm(4, elementwise_affine=False), (2, 4)),
    (nn.LocalResponseNorm(3, 0.1), torch.nn.LocalResponseNorm(3, 0.1), (2, 3, 2, 7)),
    (nn.LocalResponseNorm(4, 0.1), torch.nn.LocalResponseNorm(4, 0.1), (2, 3, 2, 7)),
    (nn.Conv1d(3, 4, 3, padding=1), torch.nn.Conv1d(3, 4, 3, padding=1), (2, 7, 3)),
    (nn.Conv1d(4, 4, 2, 2, padding=1, dilation=2, groups=2), torch.nn.Conv1d(4, 4, 2, 2, 1, 2, 2), (2, 9, 4)),
    (nn.Conv1d(3, 4, 4, padding="same", bias=False), torch.nn.Conv1d(3, 4, 4, padding="same", bias=False), (2, 7, 3)),
    (nn.MaxPool1d(2), torch.nn.MaxPool1d(2), (2, 7, 3)),
    (nn.AvgPool1d(3, 2, 1), torch.nn.AvgPool1d(3, 2, 1), (2, 7, 3)),
    (nn.MaxPool1d(3, 2, 1, 2, ceil_mode=True), torch.nn.MaxPool1d(3, 2, 1, 2, ceil_mode=True), (2, 9, 3)),
    (nn.AdaptiveAvgPool1d(3), torch.nn.AdaptiveAvgPool1d(3), (2, 7, 3)),
    (nn.AdaptiveMaxPool1d(3), torch.nn.AdaptiveMaxPool1d(3), (2, 7, 3)),
    (nn.AdaptiveMaxPool2d(3), torch.nn.AdaptiveMaxPool2d(3), (2, 7, 5, 3)),
    (nn.Hardtanh(), torch.nn.Hardtanh(), (3, 4)), (nn.Hardsigmoid(), torch.nn.Hardsigmoid(), (3, 4)),
    (nn.Mish(), torch.nn.Mish(), (3, 4)), (nn.LogSigmoid(), torch.nn.LogSigmoid(), (3, 4)),
    (nn.GELU("tanh"), torch.nn.GELU("tanh"), (3, 4)), (nn.ReLU(inplace=True), torch.nn.ReLU(), (3, 4)),
    (nn.GLU(-1), torch.nn.GLU(1), (3, 4)),
]


@pytest.mark.parametrize("ours, theirs, shape", LAYERS, ids=lambda v: type(v).__name__ if callable(v) else str(v))
def test_layers(ours: nn.Module, theirs: Any, shape: tuple) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn(p.shape) * 0.5 + 0.3)
    checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
    back = checkpoint.to_torch_state_dict(ours)
    assert set(back) == set(theirs.state_dict())
    assert all(np.array_equal(np.asarray(v), theirs.state_dict()[k].numpy()) for k, v in back.items())
    x = floats(shape).astype(np.float32)
    a, t = alpha.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, expected = ours(a), nchw(theirs)(t)
    assert_equal_at(y.detach(), expected.detach().numpy(), rtol=2e-4, atol=2e-5, name="y")
    g = floats(y.shape, 7).astype(np.float32)
    y.backward(alpha.tensor(g))
    expected.backward(torch.tensor(g))
    assert_equal_at(a.grad, t.grad.numpy(), rtol=2e-4, atol=2e-5, name="dx")
    grads = {k: p.grad for k, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        got = grads[name].numpy()
        got = got if got.ndim < 3 else np.moveaxis(got, -1, 1)
        assert_equal_at(got, p.grad.numpy(), rtol=2e-4, atol=2e-4, name=name)
    assert repr(ours) and alpha.Tensor.numel(a)


@settings(max_examples=40)
@given(data=st.data(), h=st.integers(3, 8), w=st.integers(3, 8), k=st.integers(1, 3), s=st.integers(1, 3),
       ceil=st.booleans())
def test_pools(data, h: int, w: int, k: int, s: int, ceil: bool) -> None:
    p = data.draw(st.integers(0, k // 2))
    d = data.draw(st.integers(1, 2))
    include = data.draw(st.booleans())
    shape = (2, h, w, 2)
    if d * (k - 1) < min(h, w) + 2 * p:
        agree(nn.MaxPool2d(k, s, p, d, ceil_mode=ceil), nchw(torch.nn.MaxPool2d(k, s, p, d, ceil_mode=ceil)), shape)
        _, index = nn.MaxPool2d(k, s, p, d, True, ceil)(alpha.tensor(floats(shape)))
        expected = TF.max_pool2d(torch.tensor(floats(shape)).movedim(-1, 1), k, s, p, d, ceil, True)[1].movedim(1, -1)
        assert (index.numpy() == expected.numpy()).all() and index.dtype == "int32"
    agree(nn.AvgPool2d(k, s, p, ceil, include), nchw(torch.nn.AvgPool2d(k, s, p, ceil, include)), shape)
    agree(lambda x: F.avg_pool2d(x, k, s, p, ceil, divisor_override=3),
          nchw(lambda t: TF.avg_pool2d(t, k, s, p, ceil, divisor_override=3)), shape)


@pytest.mark.parametrize("groups, dilation, extra", [(1, 1, 0), (2, (1, 2), 1)])
def test_conv_transpose2d_takes_a_bias(groups: int, dilation: Any, extra: int) -> None:
    shapes = (2, 4, 3, 4), (4, 3, 2, 6 // groups), (6,)
    agree(lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, extra, groups, dilation),
          lambda x, w, b: TF.conv_transpose2d(x.movedim(-1, 1), w.movedim(-1, 1), b, 2, 1, extra, groups,
                                              dilation).movedim(1, -1), *shapes)
    x, w = alpha.ones((1, 2, 2, 4)), alpha.ones((4, 3, 2, 6))
    y = ops.conv_transpose2d(x, w, stride=2, dilation=2)
    assert alpha.equal(F.conv_transpose2d(x, w, stride=2, dilation=2), y)


def test_unpooling_and_shuffles() -> None:
    x = alpha.tensor(floats((2, 4, 6, 3)))
    y, index = nn.MaxPool2d(2, return_indices=True)(x)
    t, places = torch.nn.MaxPool2d(2, return_indices=True)(torch.tensor(x.numpy()).movedim(-1, 1))
    back = torch.nn.MaxUnpool2d(2)(t, places).movedim(1, -1).numpy()
    assert_equal_at(nn.MaxUnpool2d(2)(y, index), back)
    agree(nn.PixelShuffle(2), nchw(torch.nn.PixelShuffle(2)), (2, 3, 2, 8))
    agree(nn.PixelUnshuffle(2), nchw(torch.nn.PixelUnshuffle(2)), (2, 4, 6, 3))
    agree(nn.ChannelShuffle(3), nchw(torch.nn.ChannelShuffle(3)), (2, 2, 2, 6))


def test_embedding() -> None:
    index = integers((3, 5), 1, 0, 7)
    for padding_idx in (None, 2, -1):
        like_torch(lambda w: F.embedding(alpha.tensor(index), w, padding_idx),  # noqa: B023
                   lambda w: TF.embedding(torch.tensor(index), w, padding_idx), [floats((7, 4))])  # noqa: B023
    table = nn.Embedding(7, 4, padding_idx=3)
    assert table(alpha.tensor([[3, 1]])).shape == (1, 2, 4) and not table.weight.numpy()[3].any()
    with refused(ShapeError, "Embedding: padding_idx is 9, there are 7 rows"):
        nn.Embedding(7, 4, 9)
    with refused(ArgumentError, "embedding: index has dtype float32"):
        table(alpha.ones((2,)))


def test_dropout_of_channels() -> None:
    x = alpha.ones((50, 4, 4, 40), requires_grad=True)
    y = nn.Dropout2d(0.25)(x)
    whole = y.detach().numpy().reshape(50, 16, 40)
    assert (whole == whole[:, :1]).all() and np.unique(whole).tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.2 < (whole == 0).mean() < 0.3 and nn.Dropout2d(0.5).eval()(x) is x
    assert nn.Dropout1d(0.5)(alpha.ones((2, 3, 4))).shape == (2, 3, 4)


@settings(max_examples=40)
@given(data=st.data(), rows=st.integers(1, 5), classes=st.integers(2, 5), space=st.sampled_from([(), (2,), (2, 3)]),
       smoothing=st.sampled_from([0.0, 0.1]), weighted=st.booleans(),
       reduction=st.sampled_from(["mean", "sum", "none"]))
def test_cross_entropy(data, rows: int, classes: int, space: tuple, smoothing: float, weighted: bool, reduction: str
                       ) -> None:
    labels = integers((rows, *space), 1, 0, classes)
    ignore = data.draw(st.sampled_from([None, -100, 1]))
    if ignore == -100:
        labels.reshape(-1)[::2] = -100
        labels.reshape(-1)[-1] = 0
    elif ignore == 1:
        labels.reshape(-1)[-1] = 0
    weight = np.linspace(0.5, 2.0, classes) if weighted else None
    named = {"label_smoothing": smoothing, "reduction": reduction}

    def both(f: Any, theirs: Any, **more: Any) -> None:
        agree(lambda x: f(x, alpha.tensor(labels), None if weight is None else alpha.tensor(weight),
                          ignore_index=ignore, **more),
              lambda t: theirs(t.movedim(-1, 1).contiguous(), torch.tensor(labels),
                               None if weight is None else torch.tensor(weight),
                               ignore_index=-100 if ignore is None else ignore, **more), (rows, *space, classes))
    both(F.cross_entropy, TF.cross_entropy, **named)
    both(F.nll_loss, TF.nll_loss, reduction=reduction)
    ours, theirs = (None, None) if weight is None else (alpha.tensor(weight), torch.tensor(weight))
    agree(lambda x: F.cross_entropy(x, x.detach().softmax(-1), ours, **named),
          lambda t: TF.cross_entropy(t.movedim(-1, 1), t.detach().softmax(-1).movedim(-1, 1), theirs, **named),
          (rows, *space, classes), second=False)


def test_losses_as_layers() -> None:
    x, labels = alpha.tensor(floats((3, 4)).astype(np.float32)), alpha.tensor([0, -100, 3])
    weight = alpha.tensor([1.0, 2.0, 3.0, 4.0])
    loss = nn.CrossEntropyLoss(weight=weight)(x, labels)
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(weight.numpy()))
    expected = theirs(torch.tensor(x.numpy()), torch.tensor(labels.numpy()))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert nn.NLLLoss(weight=weight)(x, labels).shape == ()
    with refused(DataError, "label -100 at position 1 is outside [0, 4)", "pass ignore_index=-100"):
        nn.CrossEntropyLoss(ignore_index=None)(x, labels)
    with refused(DataError, "label -1 at position 1 is outside [0, 4)"):
        F.cross_entropy(x, alpha.tensor([0, -1, 3]))
    with refused(ShapeError, "weight has shape (4,), there are 3 classes"):
        F.cross_entropy(x[:, :3], alpha.tensor([0, 1, 2]), weight)
    with refused(ShapeError, "the input has shape (2, 3, 4), the labels (2, 4)", "channels come last here: x.permute"):
        F.cross_entropy(alpha.ones((2, 3, 4)), alpha.tensor(integers((2, 4), 0, 0, 3)))
    agree(lambda x, y: nn.HuberLoss(delta=0.5)(x, y), lambda x, y: torch.nn.HuberLoss(delta=0.5)(x, y), (3, 4), (3, 4))
    for reduction in ("batchmean", "mean", "sum", "none"):
        agree(lambda x, y: nn.KLDivLoss(reduction=reduction)(x, y.softmax(1)),  # noqa: B023
              lambda x, y: torch.nn.KLDivLoss(reduction=reduction)(x, y.softmax(1)), (3, 4), (3, 4))  # noqa: B023
        agree(lambda x, y: F.kl_div(x, y, log_target=True, reduction=reduction),  # noqa: B023
              lambda x, y: TF.kl_div(x, y, log_target=True, reduction=reduction), (3, 4), (3, 4))  # noqa: B023
    agree(lambda x: F.normalize(x), lambda t: TF.normalize(t), (3, 4))


@pytest.mark.parametrize("call, error, text", [
    (lambda: nn.Conv2d(1, 1, 3, 2, padding="same"), ConfigError, 'Conv2d: padding="same" with stride (2, 2)'),
    (lambda: nn.Conv1d(1, 1, 3)(alpha.ones((2, 3, 4, 1))), ShapeError,
     "Conv1d: x is a float32 tensor of shape (2, 3, 4, 1), 3 axes"),
    (lambda: nn.Upsample(), ShapeError, "Upsample: size is None, scale_factor None"),
    (lambda: F.interpolate(alpha.ones((2, 2)), 3), ShapeError, "interpolate: x has 2 axes, size is 3"),
    (lambda: F.interpolate(alpha.ones((1, 2, 2, 1)), "a"), ShapeError, 'interpolate: size is "a" (str)'),
    (lambda: F.interpolate(alpha.ones((1, 2, 2, 1)), scale_factor=0.1), ShapeError,
     "a map of (2, 2) times 0.1 is empty"),
    (lambda: F.interpolate(alpha.ones((1, 2, 0, 1)), 2), ShapeError, "a map of shape (1, 2, 0, 1) is empty"),
    (lambda: F.pad(alpha.ones((1, 2, 2, 1)), (1, -3, 0, 0)), ShapeError, "cut more than x of shape (1, 2, 2, 1) has"),
    (lambda: F.pad(alpha.ones((2,)), (1, 1, 1, 1)), ShapeError, "pad: widths (1, 1, 1, 1) do not fit 1 axes"),
    (lambda: F.pad(alpha.ones((1, 2, 2, 1)), (2, 0, 0, 0), "reflect"), ShapeError,
     "pad: a reflect border of (2, 0) is wider than axis 2 of length 2"),
    (lambda: F.pad(alpha.ones((2,)), (1, 1), "mirror"), ConfigError, 'pad: mode is "mirror" (str)'),
    (lambda: nn.ZeroPad2d((1, 2)), ShapeError, "ZeroPad2d: padding is (1, 2), an int of at least 0 or four"),
    (lambda: nn.PixelShuffle(2)(alpha.ones((1, 2, 2, 3))), ShapeError, "pixel_shuffle: 3 channels are no multiple"),
    (lambda: nn.PixelUnshuffle(2)(alpha.ones((1, 3, 2, 3))), ShapeError, "pixel_unshuffle: a map of 3 x 2"),
    (lambda: nn.PixelShuffle(2)(alpha.ones((2, 2, 4))), ShapeError, "pixel_shuffle: x has 3 axes, 4 are needed"),
    (lambda: nn.ChannelShuffle(2)(alpha.ones((1, 3))), ShapeError, "channel_shuffle: 2 groups do not divide 3"),
    (lambda: nn.LocalResponseNorm(2)(alpha.ones((3,))), ShapeError, "local_response_norm: x has 1 axes"),
    (lambda: nn.MaxPool2d(2, dilation=4)(alpha.ones((1, 3, 3, 1))), ShapeError, "a window of (2, 2), dilation (4, 4)"),
    (lambda: ops.max_pool_windows(alpha.ones((1, 3, 3, 1)), 2, padding=2, dilation=2), ShapeError, "padding (2, 2)"),
    (lambda: nn.GLU()(alpha.ones((2, 3))), ShapeError, "glu: axis -1 has 3 elements, an even number is needed"),
    (lambda: nn.FractionalMaxPool2d(1), AttributeError, "alpha.nn: there is no FractionalMaxPool2d"),
    (lambda: F.scaled_dot, AttributeError, "alpha.nn.functional: there is no scaled_dot"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_messages(call: Any, error: type, text: str) -> None:
    with refused(error, text):
        call()


@pytest.mark.same_without_kernels("make test runs it both ways")
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "numpy"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_labels_of_minus_100_count_for_nothing_without_being_named(kept: int, reduction: str, native: bool) -> None:
    values, labels = floats((5, 4)).astype("float32" if native else "float64"), np.array([1, 0, 3, 2, 1])
    labels[kept:] = -100
    values[4] = np.nan      # nobody looks at that row
    ours, theirs = alpha.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    loss = F.cross_entropy(ours, alpha.tensor(labels), label_smoothing=0.1, reduction=reduction)
    expected = TF.cross_entropy(theirs, torch.tensor(labels), label_smoothing=0.1, reduction=reduction)
    np.testing.assert_allclose(loss.detach().numpy(), expected.detach().numpy(), rtol=1e-5)
    loss.sum().backward()
    expected.sum().backward()
    np.testing.assert_allclose(ours.grad.numpy()[:kept], theirs.grad.numpy()[:kept], rtol=1e-5, atol=1e-7)
    assert not ours.grad.numpy()[kept:].any()
    rows = alpha.tensor(floats((5, 4)), requires_grad=True)
    assert gradcheck(lambda x: F.cross_entropy(x, alpha.tensor(labels), reduction=reduction).sum(), [rows],
                     second_order=True) if kept else True
    nll = F.nll_loss(ours.detach(), alpha.tensor(labels), reduction=reduction).numpy()
    np.testing.assert_allclose(nll, TF.nll_loss(theirs.detach(), torch.tensor(labels), reduction=reduction), rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 3, 4), (0, 4), (2, 0, 3, 4)])
def test_batch_norm_trains_on_no_sample(shape: tuple) -> None:
    layer, x = nn.BatchNorm2d(4), alpha.zeros(shape, requires_grad=True)
    theirs, t = torch.nn.BatchNorm2d(4), torch.zeros((shape[0], 4, *shape[1:-1]))
    y = layer(x, activation="relu")
    y.sum().backward()
    (theirs(t) if t.ndim == 4 else torch.nn.BatchNorm1d(4)(t)).sum().backward()
    assert y.shape == shape and x.grad.shape == shape
    assert layer.weight.grad.tolist() == layer.bias.grad.tolist() == [0] * 4
    assert layer.running_mean.tolist() == theirs.running_mean.tolist()
    assert layer.running_var.tolist() == theirs.running_var.tolist()
