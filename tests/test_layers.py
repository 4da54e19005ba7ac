"""Layers of alpha.nn against PyTorch's of the same name, their errors, and alpha.summary."""

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.checkpoint import from_torch_state_dict
from alpha.errors import ConfigError, ShapeError
from alpha.gradcheck import assert_equal_at


def images(*shape):
    return ops.randn(shape)


def nchw(a):
    return np.moveaxis(a, -1, 1)


CONVS = [dict(kernel_size=3), dict(kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), bias=False),
         dict(kernel_size=3, padding=2, dilation=2, groups=2)]


@pytest.mark.torch
@pytest.mark.parametrize("settings", CONVS)
def test_conv2d_as_torch(settings):
    torch = pytest.importorskip("torch")
    ours, theirs = nn.Conv2d(4, 6, **settings), torch.nn.Conv2d(4, 6, **settings)
    x = images(2, 7, 6, 4)
    from_torch_state_dict(theirs.state_dict(), ours)
    expected = theirs(torch.from_numpy(np.ascontiguousarray(nchw(x.numpy())))).detach().numpy()
    assert_equal_at(nchw(ours(x).numpy()), expected, atol=1e-5)
    assert ours.macs(x.shape)[0] == np.prod(expected.shape) * np.prod(theirs.weight.shape[1:])


@pytest.mark.torch
@pytest.mark.parametrize("settings", [dict(kernel_size=3), dict(kernel_size=3, stride=2, padding=1, output_padding=1),
                                      dict(kernel_size=(2, 3), stride=(2, 1), groups=2, bias=False)])
def test_conv_transpose2d_as_torch(settings):
    torch = pytest.importorskip("torch")
    ours, theirs = nn.ConvTranspose2d(4, 6, **settings), torch.nn.ConvTranspose2d(4, 6, **settings)
    x = images(2, 5, 4, 4)
    from_torch_state_dict(theirs.state_dict(), ours)
    expected = theirs(torch.from_numpy(np.ascontiguousarray(nchw(x.numpy())))).detach().numpy()
    assert_equal_at(nchw(ours(x).numpy()), expected, atol=1e-5)
    assert ours.macs(x.shape)[0] == np.prod(x.shape) * np.prod(theirs.weight.shape[1:])


@pytest.mark.torch
@pytest.mark.parametrize("name, args", [
    ("ReLU", ()), ("LeakyReLU", (0.2,)), ("ELU", (0.5,)), ("GELU", ()), ("SiLU", ()), ("Sigmoid", ()), ("Tanh", ()),
    ("Softplus", ()), ("ReLU6", ()), ("Hardswish", ()), ("Softmax", (1,)), ("LogSoftmax", (1,)), ("Identity", ()),
    ("Flatten", ())])
def test_layers_without_parameters_as_torch(name, args):
    torch = pytest.importorskip("torch")
    x = images(3, 5, 4) * 4.0
    expected = getattr(torch.nn, name)(*args)(torch.from_numpy(x.numpy())).numpy()
    assert_equal_at(getattr(nn, name)(*args)(x).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("name, kwargs", [
    ("MaxPool2d", dict(kernel_size=3, stride=2, padding=1)), ("MaxPool2d", dict(kernel_size=2)),
    ("AvgPool2d", dict(kernel_size=3, stride=2, padding=1)),
    ("AvgPool2d", dict(kernel_size=3, padding=1, count_include_pad=False)),
    ("AdaptiveAvgPool2d", dict(output_size=(3, 2))), ("AdaptiveMaxPool2d", dict(output_size=2))])
def test_pools_as_torch(name, kwargs):
    torch = pytest.importorskip("torch")
    x = images(2, 7, 5, 3)
    expected = getattr(torch.nn, name)(**kwargs)(torch.from_numpy(np.ascontiguousarray(nchw(x.numpy())))).numpy()
    assert_equal_at(nchw(getattr(nn, name)(**kwargs)(x).numpy()), expected, atol=1e-6)


@pytest.mark.torch
def test_batch_norm_as_torch_in_training_and_inference():
    torch = pytest.importorskip("torch")
    ours, theirs = nn.BatchNorm2d(3, momentum=0.3), torch.nn.BatchNorm2d(3, momentum=0.3)
    x = images(4, 5, 5, 3) * 2.0 + 1.0
    tx = torch.from_numpy(np.ascontiguousarray(nchw(x.numpy())))
    for _ in range(2):
        assert_equal_at(nchw(ours(x).numpy()), theirs(tx).detach().numpy(), atol=1e-5)
    assert_equal_at(ours.running_var.numpy(), theirs.running_var.numpy(), rtol=1e-5)
    assert_equal_at(nchw(ours.eval()(x).numpy()), theirs.eval()(tx).detach().numpy(), atol=1e-5)


@pytest.mark.torch
def test_layer_and_group_norm_as_torch():
    torch = pytest.importorskip("torch")
    x = images(2, 3, 5, 4)
    layer = nn.LayerNorm((5, 4))
    expected = torch.nn.LayerNorm((5, 4))(torch.from_numpy(x.numpy())).detach().numpy()
    assert_equal_at(layer(x).numpy(), expected, atol=1e-5)
    tx = torch.from_numpy(np.ascontiguousarray(nchw(x.numpy())))
    for affine in (True, False):
        expected = torch.nn.GroupNorm(2, 4, affine=affine)(tx).detach().numpy()
        assert_equal_at(nchw(nn.GroupNorm(2, 4, affine=affine)(x).numpy()), expected, atol=1e-5)
    assert nn.LayerNorm(4, affine=False).num_parameters() == 0


def test_batch_norm_residual_and_activation():
    bn, x, r = nn.BatchNorm2d(3).eval(), images(2, 4, 4, 3), images(2, 4, 4, 3)
    assert_equal_at(bn(x, residual=r, activation="relu").numpy(), ops.relu(bn(x) + r).numpy(), atol=1e-6)


def test_dropout_follows_the_mode():
    x, layer = ops.ones((1000,)), nn.Dropout(0.25)
    assert layer.eval()(x).tolist() == [1.0] * 1000
    kept = layer.train()(x).numpy()
    assert set(np.unique(kept)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert 0.70 < np.mean(kept > 0) < 0.80


@pytest.mark.torch
@pytest.mark.parametrize("name, kwargs", [
    ("MSELoss", {}), ("L1Loss", {"reduction": "sum"}), ("SmoothL1Loss", {"beta": 0.5}),
    ("BCELoss", {"reduction": "none"}), ("BCEWithLogitsLoss", {}), ("NLLLoss", {}),
    ("CrossEntropyLoss", {"label_smoothing": 0.1})])
def test_losses_as_torch(name, kwargs):
    torch = pytest.importorskip("torch")
    x, target = np.random.rand(4, 5).astype(np.float32), np.random.rand(4, 5).astype(np.float32)
    if name in ("NLLLoss", "CrossEntropyLoss"):
        target = np.array([0, 4, 2, 1])
    expected = getattr(torch.nn, name)(**kwargs)(torch.from_numpy(x), torch.from_numpy(target)).numpy()
    got = getattr(nn, name)(**kwargs)(alpha.tensor(x), alpha.tensor(target))
    assert_equal_at(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_pos_weight_is_a_buffer():
    loss = nn.BCEWithLogitsLoss(pos_weight=ops.full((2,), 3.0))
    assert [name for name, _ in loss.named_buffers()] == ["pos_weight"]
    expected = 3.0 * np.log1p(np.exp(-1.0))
    assert loss(ops.ones((1, 2)), ops.ones((1, 2))).item() == pytest.approx(expected, rel=1e-6)
    assert list(nn.BCEWithLogitsLoss().named_buffers()) == []


@pytest.mark.parametrize("make, text", [
    (lambda: nn.Conv2d(3, 4, 3, groups=2), "conv2d: groups=2 does not divide 3 input and 4 output channels"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, groups=2), "groups=2 does not divide 4 input and 3 output channels"),
    (lambda: nn.Conv2d(3, 4, 3, groups=0), "Conv2d: groups is 0, an int of at least 1 is needed"),
    (lambda: nn.Conv2d(3, 4, 3, stride=0), "stride is 0, an int or a pair of ints of at least 1 is needed"),
    (lambda: nn.Conv2d(3, 4, 3, dilation=(1, 0)), "dilation is (1, 0), an int or a pair of ints of at least 1"),
    (lambda: nn.Conv2d(3, 4, (3, 0)), "Conv2d: kernel_size is (3, 0), an int or a pair of ints of at least 1"),
    (lambda: nn.Conv2d(0, 4, 3), "Conv2d: in_channels is 0, an int of at least 1 is needed"),
    (lambda: nn.ConvTranspose2d(3, 0, 3), "ConvTranspose2d: out_channels is 0, an int of at least 1 is needed"),
    (lambda: nn.Conv2d(3, 4, "same"), 'Conv2d: kernel_size is "same" (str), an int or a pair of ints of at least 1'),
    (lambda: nn.ConvTranspose2d(3, 4, 3, padding=-1), "padding is -1, an int or a pair of ints of at least 0"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, stride=(2, 1), output_padding=1),
     "ConvTranspose2d: output_padding (1, 1) is below neither stride (2, 1) nor dilation (1, 1)"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, output_padding=-1), "ConvTranspose2d: output_padding is -1, an int"),
    (lambda: nn.Linear(0, 4), "Linear: in_features is 0, an int of at least 1 is needed"),
    (lambda: nn.Linear(12, 4, flattened=(2, 2, 4)), "in_features=12, but flattened=(2, 2, 4) has 16 elements"),
    (lambda: nn.BatchNorm2d(3, eps=0.0), "BatchNorm2d: eps is 0.0, a finite number above 0 is needed"),
    (lambda: nn.GroupNorm(2, 3), "GroupNorm: num_groups=2 does not divide num_channels=3"),
    (lambda: nn.GroupNorm(1, 3, eps=0.0), "GroupNorm: eps is 0.0, a finite number above 0 is needed"),
    (lambda: nn.LayerNorm((3, 0)), "LayerNorm: normalized_shape=(3, 0): there must be at least one size"),
    (lambda: nn.LayerNorm(3, eps=-1.0), "LayerNorm: eps is -1.0, a finite number above 0 is needed"),
    (lambda: nn.Dropout(1.5), "Dropout: p is 1.5, a number in [0, 1] is needed"),
    (lambda: nn.MSELoss(reduction="avg")(images(1), images(1)), 'MSELoss: reduction is "avg" (str), "mean"'),
])
def test_errors(make, text):
    with pytest.raises((ConfigError, ShapeError)) as error:
        make()
    assert text in str(error.value) and "\nhelp: " in str(error.value)


# ---- summary ---------------------------------------------------------------------------------------------------------

def test_summary_counts_parameters_macs_and_bytes():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 10))
    net[1].eval()
    s = alpha.summary(net, (4, 4, 3), batch_size=2)
    assert [(r.path, r.kind, r.output_shape) for r in s.rows] == [
        ("0", "Conv2d", (2, 4, 4, 4)), ("1", "ReLU", (2, 4, 4, 4)), ("2", "Flatten", (2, 64)), ("3", "Linear", (2, 10))]
    conv = s.rows[0]
    assert conv.nominal_macs == 2 * 16 * 4 * 9 * 3
    assert conv.useful_macs == 2 * (4 * 3 - 2) ** 2 * 4 * 3      # 3 taps at each of 4 positions, less 2 on the border
    assert s.rows[3].nominal_macs == s.rows[3].useful_macs == 2 * 64 * 10
    assert s.parameters == 4 * 27 + 4 + 640 + 10 == s.total("parameters")
    assert conv.activation_nbytes == 2 * 4 * 4 * 4 * 4
    assert net.training and not net[1].training and not net[0].hooked
    text = str(s)
    assert "MACs nominal" in text and "Conv2d" in text
    assert text.splitlines()[-2].split()[:3] == ["total", "Sequential", "762"]
    assert text.splitlines()[-1].startswith("precision fp32: float32 activations")


@pytest.mark.parametrize("input_shape, said", [
    (32, "summary: input_shape is 32, a tuple is needed: the shape of one sample"),
    (None, "summary: input_shape is None, a tuple is needed"), (("a",), 'shape is (1, "a"), an int')])
def test_summary_of_no_shape_is_refused(input_shape, said):
    net = nn.Linear(32, 2)
    with pytest.raises(ShapeError) as error:
        alpha.summary(net, input_shape)
    assert said in str(error.value) and "\nhelp: " in str(error.value)
    assert not net.hooked


def test_summary_counts_zeros_that_layers_read():
    net = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU())
    x = np.ones((3, 2, 4), np.float32)
    x[:, 0] = 0
    s = alpha.summary(net, (2, 4), zeros=alpha.tensor(x))
    assert [r.input_zeros for r in s.rows] == [0.5, 0.5, 0.0] and s.rows[1].output_shape == (3, 5)
    assert "zeros read" in str(s) and "50.0%" in str(s)
    assert "zeros read" not in str(alpha.summary(net, (2, 4)))
    with pytest.raises(ShapeError, match=r"zeros has samples of shape \(2, 4\), input_shape is \(8,\)"):
        alpha.summary(net, (8,), zeros=alpha.tensor(x))
