"""alpha.inference: what it computes, what it folds, what it says of itself, and what it refuses."""

from __future__ import annotations

import os
import threading
from contextvars import copy_context

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.core.config import config
from alpha.ops.shape import take

pytestmark = pytest.mark.same_without_kernels("make test runs it both ways")


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"], autouse=True)
def kernels(request):
    with config(cpu_kernels=request.param):
        yield request.param


def trained(model):
    """A model in training mode whose norms have statistics of their own."""
    rng = np.random.default_rng(1)
    for name, b in model.named_buffers():
        drawn = rng.uniform(0.5, 2, b.shape) if name.endswith("var") else rng.standard_normal(b.shape) / 4
        b.copy_(drawn.astype(np.float32))
    for name, p in model.named_parameters():
        if "bn" in name or "norm" in name:
            p.copy_(rng.uniform(0.5, 1.5, p.shape).astype(np.float32))
    return model


def image(*shape, seed=0):
    return alpha.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def plain(model, x):
    training, model = model.training, model.eval()
    with alpha.no_grad():
        y = model(x)
    model.train(training)
    return y


def assert_close(y, expected, tolerance=1e-5):
    a, b = y.numpy().astype(np.float64), expected.numpy().astype(np.float64)
    assert a.shape == b.shape and y.dtype == expected.dtype and not y.requires_grad
    assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 1e-30)


NETWORKS = {"lenet5": 0, "vgg11": 8, "resnet20": 11, "googlenet": 57, "alexnet": 0, "coresnet18": 12}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_gives_what_its_forward_pass_gives(name, batch, kernels):
    if not kernels and name not in ("lenet5", "resnet20"):
        pytest.skip("slow in NumPy")
    alpha.manual_seed(0)
    model = trained(models.create(name))
    run = alpha.inference(model, image(batch, 32, 32, 3))
    for seed in (1, 2):
        x = image(batch, 32, 32, 3, seed=seed)
        assert_close(run(x), plain(model, x))
    if kernels:
        assert run.report().count("folded into") >= NETWORKS[name]
        assert NETWORKS[name] == 0 or not any("norm" in what for _, what in run.report().launches)


@pytest.mark.parametrize("relu", [True, False])
def test_groups_of_a_convolution_by_winograd(relu, kernels):
    if not kernels:
        pytest.skip("NumPy's Winograd has no groups")
    model = nn.Sequential(nn.Conv2d(3, 96, 3, padding=1),
                          nn.Conv2d(96, 64, 3, padding=1, groups=2, algorithm="winograd"),
                          nn.ReLU() if relu else nn.Identity(), nn.Conv2d(64, 5, 1))
    run = alpha.inference(model.eval(), image(2, 12, 12, 3))
    x = image(2, 12, 12, 3, seed=1)
    assert_close(run(x), plain(model, x))
    assert "winograd_run" in str(run.report().launches)


class Block(nn.Module):
    """conv, norm, relu written out, and a residual by +."""

    def __init__(self):
        self.first, self.a = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.b = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = ops.relu(self.a(self.first(x)))
        x = ops.relu(self.b(self.second(x)) + x)
        return self.head(ops.adaptive_avg_pool2d(x, 1).flatten(1))


def test_it_follows_the_calls_and_not_the_names(kernels):
    model = trained(Block())
    x = image(2, 7, 5, 3)
    run = alpha.inference(model, x)
    assert_close(run(x), plain(model, x))
    assert [what for _, what in run.report().notes][:2] == ["folded into first", "folded into second"]
    convolution = [what for _, what in run.report().launches if what.startswith("conv2d")]
    if kernels:
        assert convolution == ["conv2d_bias_act + relu (conv_run)",
                               "conv2d_bias_act + addition + relu (copy_box, conv_run)"]
        assert len(run.report().launches) == 4


class Dense(nn.Module):
    """DenseNet's: norm, relu, convolution, and what came before beside the result."""

    def __init__(self):
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.n1, self.c1 = nn.BatchNorm2d(8), nn.Conv2d(8, 16, 1, bias=False)
        self.n2, self.c2 = nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3, padding=1, bias=False)

    def forward(self, x):
        x = self.stem(x)
        y = self.c2(ops.relu(self.n2(self.c1(ops.relu(self.n1(x))))))
        return ops.concat([x, y], axis=-1)


def test_what_others_read_is_not_folded_and_is_said():
    model = trained(Dense())
    x = image(2, 6, 6, 3)
    run = alpha.inference(model, x)
    assert_close(run(x), plain(model, x))
    notes = dict(run.report().notes)
    assert notes["n1"] in ("stays a norm: others read the result of stem, too", "relu fused")
    assert notes["n2"] == "folded into c1"
    assert "stays a norm: others read the result of stem, too" in str(run)
    norms = [what for _, what in run.report().launches if "norm" in what]
    assert len(norms) == 1 and "+ relu" in norms[0]


def test_a_linear_layer_takes_a_norm():
    model = trained(nn.Sequential(nn.Linear(6, 9), nn.BatchNorm2d(9), nn.ReLU(), nn.Linear(9, 2)))
    x = image(4, 6)
    run = alpha.inference(model, x)
    assert_close(run(x), plain(model, x))
    assert run.report().count("folded into") == 1


@pytest.mark.parametrize("channels, groups", [(12, 12), (12, 3), (1, 1)])
def test_groups_strides_and_additions(channels, groups):
    class Net(nn.Module):
        def __init__(self):
            self.conv = nn.Conv2d(channels, channels, 3, stride=1, padding=1, groups=groups, bias=False)
            self.norm = nn.BatchNorm2d(channels)
            self.down = nn.Conv2d(channels, 70, 3, stride=2, padding=1, dilation=2)

        def forward(self, x):
            return self.down(self.norm(self.conv(x), residual=x, activation="relu"))

    model = trained(Net())
    x = image(2, 9, 8, channels)
    before = x.numpy()
    run = alpha.inference(model, x)
    assert_close(run(x), plain(model, x))
    assert (x.numpy() == before).all(), "the input is the caller's"


def test_a_map_that_is_read_again_is_not_overwritten_by_a_sum():
    class Net(nn.Module):
        def __init__(self):
            self.a, self.b = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

        def forward(self, x):
            y = self.a(x)
            z = self.b(x) + y
            return z, y, y.reshape(-1), x

    model = Net()
    x = image(1, 5, 5, 4)
    run = alpha.inference(model, x)
    found, expected = run(x), plain(model, x)
    assert isinstance(found, tuple)
    for y, e in zip(found, expected):
        assert_close(y, e)


def test_results_are_the_callers():
    model = trained(models.create("lenet5"))
    run = alpha.inference(model, image(1, 32, 32, 3))
    first = run(image(1, 32, 32, 3, seed=1))
    kept = first.numpy()
    run(image(1, 32, 32, 3, seed=2))
    assert (first.numpy() == kept).all()


def test_buffers_are_shared_by_what_does_not_live_at_once(kernels):
    model = trained(nn.Sequential(*[nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)]))
    run = alpha.inference(model, image(1, 16, 16, 8))
    each = 16 * 16 * 8 * 4
    recording = run._captured.found.recording
    assert recording.nbytes <= 3 * each + 4096 * 64 < recording.unshared_nbytes + 4096 * 64     # the input, too
    assert "if none were shared" in str(run)


def test_changed_weights_and_statistics_are_folded_again():
    model = trained(Block())
    x = image(2, 6, 6, 3)
    run = alpha.inference(model, x)
    for change in (lambda: model.a.running_mean.copy_(np.full(8, -0.5, np.float32)),
                   lambda: model.second.weight.copy_(model.second.weight.numpy() * 2),
                   lambda: setattr(model, "head", nn.Linear(8, 5)),
                   lambda: model.load_state_dict(trained(Block()).state_dict())):
        before = run(x).numpy()
        change()
        assert_close(run(x), plain(model, x))
        assert (run(x).numpy() != before).any()


def test_a_tensor_that_is_given_another_array_is_seen():
    """By `+=` of what has a graph, and by an average that takes its place."""
    model, x = trained(Block()), image(2, 6, 5, 3)
    run, average = alpha.inference(model, x), alpha.optim.ExponentialMovingAverage(model, 0.5)
    run(x)
    mean = model.a.running_mean
    before = mean.array
    mean += model.a.weight
    assert mean.array is not before
    assert_close(run(x), plain(model, x))
    with average.applied():
        assert_close(run(x), plain(model, x))
    assert_close(run(x), plain(model, x))


def test_an_optimizers_step_is_seen():
    model = trained(Block())
    x = image(2, 6, 6, 3)
    run = alpha.inference(model, x)
    model.train()
    optimizer = alpha.optim.SGD(model.named_parameters(), lr=0.1)
    model(x).sum().backward()
    optimizer.step()
    assert_close(run(x), plain(model, x))


def test_the_mode_of_the_model_is_left_and_a_plain_call_changes_nothing():
    model = trained(Block())
    model.train()
    model.b.eval()
    x = image(2, 6, 6, 3)
    run = alpha.inference(model, x)
    assert model.training and model.a.training and not model.b.training
    program = run.program
    plain(model, x)
    run(x)
    assert run.program is program, "a norm in inference changes nothing, so that nothing is folded again"


def test_other_settings_of_the_cpu_are_seen():
    model = trained(Block())
    x = image(2, 6, 6, 3)
    run = alpha.inference(model, x)
    for changes in ({"num_threads": 1}, {"cpu_kernels": False}, {"num_threads": 2}):
        with config(**changes):
            assert_close(run(x), plain(model, x))


def test_a_forked_process_may_go_on(kernels):
    model = trained(models.create("resnet20"))
    x = image(2, 32, 32, 3)
    run = alpha.inference(model, x)
    expected = run(x).numpy()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if np.allclose(run(x).numpy(), expected, rtol=1e-4, atol=1e-4) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_threads_take_turns(kernels):
    model = trained(Block())
    xs = [image(2, 6, 6, 3, seed=k) for k in range(4)]
    run = alpha.inference(model, xs[0])
    expected = [run(x).numpy() for x in xs]
    wrong = []

    def work(k):
        for _ in range(30):
            if (run(xs[k]).numpy() != expected[k]).any():
                wrong.append(k)

    threads = [threading.Thread(target=copy_context().run, args=(work, k)) for k in range(4)]  # with these settings
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_precision_is_that_of_the_making():
    model = trained(Block())
    x = image(2, 6, 6, 3)
    with alpha.precision("fp16"):
        run = alpha.inference(model, x)
        expected = plain(model, x)
    assert "fp16" in str(run)
    y = run(x)
    assert y.dtype == "float16"
    assert_close(y, expected, 5e-3)


def test_what_depends_on_weights_alone_is_computed_once(kernels):
    class Scaled(nn.Module):
        def __init__(self):
            self.weight, self.scale = nn.Parameter(ops.ones((4, 3, 3, 2))), nn.Parameter(ops.full((4, 1, 1, 1), 2.0))

        def forward(self, x):
            return ops.conv2d(x, self.weight * self.scale)

    model = Scaled()
    x = image(1, 5, 5, 2)
    run = alpha.inference(model, x)
    assert len(run.report().launches) == 1 and ("mul", "computed once") in run.report().notes
    assert_close(run(x), plain(model, x))
    model.scale.copy_(np.full((4, 1, 1, 1), 3, np.float32))
    assert_close(run(x), plain(model, x))


def test_kernels_in_a_row_are_one_call(kernels):
    """What NumPy does stays between them; inputs lie elsewhere in each call, and null pointers stay null."""
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 4, 1)
            self.linear = nn.Linear(24, 5)

        def forward(self, x):
            y = ops.max_pool2d(ops.relu(self.second(ops.relu(self.first(x)))), 2)
            z = ops.concat([y, ops.exp(y), y], 3)
            return self.linear(ops.relu(ops.adaptive_avg_pool2d(z, (1, 2)).reshape((-1, 24))))
    model = Parts()
    run = alpha.inference(model, image(2, 6, 8, 3))
    recording = run._captured.found.recording
    assert (len(recording._steps) < len(recording.steps)) is kernels
    for seed in (1, 2):
        x = image(2, 6, 8, 3, seed=seed)
        together = run(x).numpy()
        with alpha.no_grad():
            assert np.allclose(model(x).numpy(), together, atol=1e-5)


def test_integers_go_in_and_come_out():
    class Words(nn.Module):
        def __init__(self):
            self.table, self.linear = nn.Parameter(image(7, 4)), nn.Linear(4, 3)

        def forward(self, x):
            return ops.argmax(self.linear(take(self.table, x)), axis=1)

    model = Words()
    x = alpha.tensor(np.array([0, 3, 6, 1]))
    run = alpha.inference(model, x)
    assert (run(x).numpy() == plain(model, x).numpy()).all() and run(x).dtype == "int64"
