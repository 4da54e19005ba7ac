"""alpha.optim: each optimizer against PyTorch's, groups, schedules, state, clipping, averaging, errors."""

import json
import math

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.errors import AnomalyError, CheckpointError, ConfigError
from alpha.gradcheck import assert_equal_at

SHAPES = ((3, 4), (5,), ())


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    return [nn.Parameter(alpha.tensor(rng.standard_normal(s).astype(np.float32))) for s in SHAPES]


def give_gradients(params, step, skip=()):
    """Sets a gradient that depends on the step, on alpha's or torch's parameters; none for the positions in `skip`."""
    rng = np.random.default_rng(100 + step)
    for k, (p, s) in enumerate(zip(params, SHAPES)):
        g = rng.standard_normal(s).astype(np.float32)
        if isinstance(p, alpha.Tensor):
            p.grad = None if k in skip else alpha.tensor(g)
        else:
            import torch
            p.grad = None if k in skip else torch.from_numpy(np.asarray(g))


CASES = [
    ("SGD", dict(lr=0.1)), ("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3)), ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True)),
    ("Adam", dict(lr=0.1)), ("Adam", dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, amsgrad=True)),
    ("AdamW", dict(lr=0.1)), ("AdamW", dict(lr=0.1, weight_decay=0.3, amsgrad=True)),
    ("RMSprop", dict(lr=0.1)), ("RMSprop", dict(lr=0.1, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1)),
    ("RMSprop", dict(lr=0.1, centered=True)), ("RMSprop", dict(lr=0.1, momentum=0.5)),
    ("Adamax", dict(lr=0.1, weight_decay=0.1)), ("RAdam", dict(lr=0.1, weight_decay=0.1, betas=(0.9, 0.95))),
]


@pytest.mark.torch
@pytest.mark.parametrize("name, settings", CASES, ids=[f"{n}-{k}" for k, (n, _) in enumerate(CASES)])
def test_as_torch_with_a_parameter_that_misses_a_step(name, settings):
    torch = pytest.importorskip("torch")
    ours = parameters()
    theirs = [torch.nn.Parameter(torch.from_numpy(p.numpy())) for p in ours]
    mine, other = getattr(optim, name)(ours, **settings), getattr(torch.optim, name)(theirs, **settings)
    for step in range(8):
        skip = (1,) if step in (0, 4) else ()
        for params, optimizer in ((ours, mine), (theirs, other)):
            give_gradients(params, step, skip)
            optimizer.step()
        for p, t in zip(ours, theirs):
            assert_equal_at(p.numpy(), t.detach().numpy(), rtol=1e-5, atol=1e-6, name=f"{name} after step {step}")


def test_defaults_are_those_of_torch():
    torch = pytest.importorskip("torch")
    for name in ("Adam", "AdamW", "RMSprop", "Adamax", "RAdam"):
        ours = getattr(optim, name)(parameters()).param_groups[0]
        theirs = getattr(torch.optim, name)([torch.zeros(1)]).param_groups[0]
        assert {k: v for k, v in ours.items() if k not in ("params", "names")}.items() <= theirs.items()


def test_adamod_by_hand():
    p = nn.Parameter(alpha.tensor([1.0], "float64"))
    optimizer = optim.AdaMod([p], lr=0.1, betas=(0.5, 0.75), beta3=0.5, eps=0.0, weight_decay=0.25)
    w, m, v, s = 1.0, 0.0, 0.0, 0.0
    for t, g in enumerate((2.0, -4.0, 1.0), 1):
        p.grad = alpha.tensor([g], "float64")
        optimizer.step()
        w -= 0.1 * 0.25 * w
        m, v = 0.5 * m + 0.5 * g, 0.75 * v + 0.25 * g * g
        rate = 0.1 / math.sqrt(v / (1 - 0.75 ** t))
        s = 0.5 * s + 0.5 * rate
        w -= min(rate, s) * m / (1 - 0.5 ** t)
        assert p.item() == pytest.approx(w, rel=1e-12)


# ---- groups and learning rates ---------------------------------------------------------------------------------------

def test_groups_have_their_own_settings():
    a, b = nn.Parameter(ops.ones((1,))), nn.Parameter(ops.ones((1,)))
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.5, "weight_decay": 1.0}], lr=0.25)
    a.grad = b.grad = ops.ones((1,))
    optimizer.step()
    assert a.item() == 0.75 and b.item() == 0.0
    optimizer.param_groups[0]["lr"] = 0.75
    optimizer.step()
    assert a.item() == 0.0


def test_a_schedule_is_asked_with_the_number_of_steps_taken():
    p, asked = nn.Parameter(ops.ones((1,))), []
    optimizer = optim.SGD([p], lr=lambda step: asked.append(step) or 2.0 ** -(step + 1))
    for _ in range(3):
        p.grad = ops.ones((1,))
        optimizer.step()
    assert asked == [0, 1, 2] and p.item() == 1.0 - 0.5 - 0.25 - 0.125
    assert optimizer.step_count == 3 and optimizer.lr == 0.0625


def test_a_setting_that_needs_more_state_can_be_switched_on_later():
    p = nn.Parameter(alpha.tensor([1.0], "float64"))
    optimizer = optim.RMSprop([p], lr=1.0, alpha=0.5, eps=0.0)
    p.grad = alpha.tensor([2.0], "float64")
    optimizer.step()                                        # v = 2, w = 1 - 2 / sqrt(2)
    optimizer.param_groups[0]["centered"] = True
    optimizer.step()                                        # v = 3, a = 1, w = w - 2 / sqrt(3 - 1)
    assert p.item() == pytest.approx(1.0 - 4.0 / math.sqrt(2.0), rel=1e-12)


def test_zero_grad_and_no_graph():
    net = nn.Linear(2, 2)
    optimizer = optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9)
    net(ops.ones((1, 2))).sum().backward()
    optimizer.step()
    assert all(p.is_leaf and p.requires_grad for p in net.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in net.parameters())


# ---- state -----------------------------------------------------------------------------------------------------------

MAKERS = {"sgd": lambda p: optim.SGD(p, lr=optim.schedule.exponential(0.1, 0.9), momentum=0.9),
          "adamw": lambda p: optim.AdamW(p, lr=0.1, amsgrad=True), "rmsprop": lambda p: optim.RMSprop(p, centered=True),
          "adamax": optim.Adamax, "radam": optim.RAdam, "adamod": optim.AdaMod}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(kind):
    straight, resumed = parameters(), parameters()
    a, b = MAKERS[kind](straight), MAKERS[kind](resumed)
    for step in range(6):
        if step == 3:
            saved = b.state_dict()
            tensors = {key: t.numpy() for key, t in saved["tensors"].items()}
            b = MAKERS[kind](resumed)
            b.load_state_dict({"tensors": tensors, "scalars": json.loads(json.dumps(saved["scalars"]))})
        for params, optimizer in ((straight, a), (resumed, b)):
            give_gradients(params, step, skip=(2,) if step == 1 else ())
            optimizer.step()
    for p, q in zip(straight, resumed):
        assert np.array_equal(p.numpy(), q.numpy())


def test_state_is_keyed_by_name():
    net = nn.Linear(2, 1)
    optimizer = optim.Adam(net.named_parameters())
    net(ops.ones((1, 2))).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert sorted(state["tensors"]) == ["bias/m", "bias/v", "weight/m", "weight/v"]
    assert state["scalars"] == {"optimizer": "Adam", "step_count": 1, "names": ["weight", "bias"],
                                "counts": {"weight": 1, "bias": 1}}


def test_foreign_states_are_refused():
    def state(optimizer):
        params = [p for g in optimizer.param_groups for p in g["params"]]
        give_gradients(params, 0)
        optimizer.step()
        return optimizer.state_dict()

    good = state(optim.SGD(parameters(), lr=0.1, momentum=0.9))
    with pytest.raises(CheckpointError, match="Adam: the state is that of SGD\nhelp: resume with the optimizer"):
        optim.Adam(parameters()).load_state_dict(good)
    with pytest.raises(CheckpointError, match="SGD: the state has 3 parameters, the optimizer 2; not in both: 2\nhelp"):
        optim.SGD(parameters()[:2], lr=0.1, momentum=0.9).load_state_dict(good)
    with pytest.raises(CheckpointError, match="the same in another order"):
        named = list(zip("210", parameters()))
        optim.SGD(named, lr=0.1, momentum=0.9).load_state_dict(good)
    with pytest.raises(CheckpointError, match="tensors of the state do not fit: 0/v, 1/v, 2/v"):
        optim.SGD(parameters(), lr=0.1).load_state_dict(good)
    good["tensors"]["1/v"] = np.zeros((6,), np.float32)
    with pytest.raises(CheckpointError, match=r"do not fit: 1/v \(state: \(6,\); optimizer: \(5,\)\)"):
        optim.SGD(parameters(), lr=0.1, momentum=0.9).load_state_dict(good)


# ---- clipping --------------------------------------------------------------------------------------------------------

def test_clip_grad_norm_scales_and_reports():
    a, b = nn.Parameter(ops.zeros((2,))), nn.Parameter(ops.zeros((1,)))
    unused = nn.Parameter(ops.zeros((1,)))
    a.grad, b.grad = alpha.tensor([3.0, 0.0]), alpha.tensor([4.0])
    assert optim.clip_grad_norm([a, b, unused], math.inf) == 5.0
    assert optim.clip_grad_norm([a, b, unused], 5.0) == 5.0
    assert a.grad.tolist() == [3.0, 0.0] and b.grad.tolist() == [4.0]
    assert optim.clip_grad_norm([a, b, unused], 2.5) == 5.0
    assert a.grad.tolist() == [1.5, 0.0] and b.grad.tolist() == [2.0] and unused.grad is None
    assert optim.clip_grad_norm([unused], 1.0) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clip_grad_norm_names_the_first_bad_parameter(bad):
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    for p in net.parameters():
        p.grad = ops.ones(p.shape)
    net[0].bias.grad = alpha.tensor([bad])
    net[1].bias.grad = alpha.tensor([bad])
    with pytest.raises(AnomalyError, match=r"gradient of parameter 0.bias, shape \(1,\), has a NaN or an inf.*\nhelp"):
        optim.clip_grad_norm(net.named_parameters(), 0.5)
    assert net[0].weight.grad.tolist() == [[1.0]]
    with pytest.raises(AnomalyError, match="gradient of parameter number 1, shape"):
        optim.clip_grad_norm(net.parameters(), 0.5)


def test_clip_grad_value():
    p, unused = nn.Parameter(ops.zeros((3,))), nn.Parameter(ops.zeros((1,)))
    p.grad = alpha.tensor([-5.0, 0.5, 2.0])
    optim.clip_grad_value([p, unused], 1.0)
    assert p.grad.tolist() == [-1.0, 0.5, 1.0]


# ---- averaging -------------------------------------------------------------------------------------------------------

def test_average_follows_and_can_be_applied():
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm2d(1))
    weight = net[0].weight
    weight.copy_(np.array([[0.0]]))
    ema = optim.ExponentialMovingAverage(net, decay=0.75)
    weight.copy_(np.array([[8.0]]))
    net[1].running_mean.copy_(np.array([3.0]))
    ema.update()
    ema.update()
    assert ema.state_dict()["0.weight"].item() == 8.0 * (1 - 0.75 ** 2)
    assert ema.state_dict()["1.running_mean"].item() == 3.0
    net[1].running_mean.copy_(np.array([5.0]))
    with pytest.raises(RuntimeError), ema.applied():
        assert weight.item() == 3.5 and net[1].running_mean.item() == 3.0
        raise RuntimeError
    assert weight.item() == 8.0 and net[1].running_mean.item() == 5.0


def test_average_of_16_bits_moves_by_less_than_16_bits_hold() -> None:
    dtype = "float16"
    net = nn.Linear(4, 1, bias=False).to(dtype)
    net.weight.copy_(np.ones((1, 4)))
    ema = optim.ExponentialMovingAverage(net, 0.9999)
    net.weight.copy_(np.full((1, 4), 2.0))
    for _ in range(100):
        ema.update()
    average = ema.state_dict()["weight"]
    assert average.dtype == "float32" and np.allclose(average.numpy(), 2 - 0.9999 ** 100, rtol=1e-5)
    with ema.applied():
        assert net.weight.dtype == dtype and (net.weight.numpy() == average.astype(dtype).numpy()).all()
    assert (net.weight.numpy() == 2).all()


def test_average_state_round_trip():
    net = nn.Linear(2, 1)
    ema = optim.ExponentialMovingAverage(net, 0.5)
    values = {name: t.numpy() + 1 for name, t in ema.state_dict().items()}
    ema.load_state_dict(values)
    assert_equal_at(ema.state_dict()["weight"].numpy(), values["weight"])
    assert not np.array_equal(net.weight.numpy(), values["weight"])
    del values["bias"]
    with pytest.raises(CheckpointError, match="ExponentialMovingAverage: names or shapes differ: bias\nhelp"):
        ema.load_state_dict(values)


# ---- errors ----------------------------------------------------------------------------------------------------------

P = nn.Parameter(ops.ones((1,)))


@pytest.mark.parametrize("make, text", [
    (lambda: optim.SGD([], lr=0.1), "SGD: there are no parameters"),
    (lambda: optim.SGD([P, P], lr=0.1), "SGD: parameter 1 was given before, as 0"),
    (lambda: optim.SGD([("a", P), ("a", nn.Parameter(ops.ones((1,))))], lr=0.1), "SGD: two parameters are called 'a'"),
    (lambda: optim.SGD([{"params": []}], lr=0.1), "SGD: a group has no parameters"),
    (lambda: optim.SGD([{"params": [P], "momentun": 0.9}], lr=0.1), "'momentun', which is unknown\nhelp: did you mean"),
    (lambda: optim.SGD([{"params": [P], "zzz": 0.9}], lr=0.1), "'zzz', which is unknown\nhelp: use one of ['damp"),
    (lambda: optim.SGD([3.0], lr=0.1), "SGD: parameter 0 is not a floating leaf tensor but 3.0"),
    (lambda: optim.SGD([P * 2.0], lr=0.1), "SGD: parameter 0 is not a floating leaf tensor but a float32"),
    (lambda: optim.SGD([P], lr=0.0), "SGD: lr is 0.0, a finite number above 0, or a schedule, is needed"),
    (lambda: optim.SGD([P], lr=math.nan), "SGD: lr is nan, a finite number above 0, or a schedule, is needed"),
    (lambda: optim.SGD([P], lr=0.1, momentum=1.0), "SGD: momentum is 1.0, a number in [0, 1) is needed"),
    (lambda: optim.SGD([P], lr=0.1, nesterov=True), "SGD: nesterov with momentum=0.0, dampening=0.0"),
    (lambda: optim.Adam([P], betas=(0.9, 1.0)), "Adam: betas is (0.9, 1.0), a pair of numbers in [0, 1) is needed"),
    (lambda: optim.AdamW([P], weight_decay=-0.1), "AdamW: weight_decay is -0.1, a finite number of at least 0"),
    (lambda: optim.RMSprop([P], alpha=1.5), "RMSprop: alpha is 1.5, a number in [0, 1) is needed"),
    (lambda: optim.AdaMod([P], beta3=-1.0), "AdaMod: beta3 is -1.0, a number in [0, 1) is needed"),
    (lambda: optim.ExponentialMovingAverage(nn.Linear(1, 1), 1.0), "decay is 1.0, a number in [0, 1) is needed"),
    (lambda: optim.clip_grad_norm([P], 0.0), "clip_grad_norm: max_norm is 0.0, a number above 0 is needed"),
    (lambda: optim.clip_grad_value([P], -1.0), "clip_grad_value: max_value is -1.0, a number above 0 is needed"),
])
def test_errors(make, text):
    with pytest.raises(ConfigError) as error:
        make()
    assert text in str(error.value) and "\nhelp: " in str(error.value)
