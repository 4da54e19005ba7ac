"""alpha.optim.schedule: values worked out by hand, agreement with PyTorch's schedulers, errors."""

import math

import pytest

from alpha.errors import ConfigError
from alpha.optim import schedule

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def values(s, steps):
    return [s(t) for t in steps]


def test_constant_step_multistep_exponential():
    assert values(schedule.constant(0.5), (0, 7)) == [0.5, 0.5]
    assert values(schedule.step(8.0, 3, gamma=0.5), range(8)) == [8, 8, 8, 4, 4, 4, 2, 2]
    assert values(schedule.multistep(8.0, [2, 5], gamma=0.5), range(7)) == [8, 8, 4, 4, 4, 2, 2]
    assert values(schedule.exponential(8.0, 0.5), range(4)) == [8, 4, 2, 1]


def test_cosine_warms_up_falls_and_stays():
    s = schedule.cosine(1.0, total_steps=12, warmup_steps=4, final_lr=0.2)
    assert values(s, range(4)) == [0.25, 0.5, 0.75, 1.0]
    assert s(4) == 1.0
    assert s(8) == pytest.approx(0.6)
    assert values(s, (12, 13, 1000)) == pytest.approx([0.2] * 3)
    assert all(s(t) > s(t + 1) for t in range(4, 12))


def test_triangular_rises_and_falls_for_ever():
    s = schedule.triangular(1.0, 3.0, step_size=2)
    assert values(s, range(9)) == [1, 2, 3, 2, 1, 2, 3, 2, 1]


def test_one_cycle_ends():
    s = schedule.one_cycle(1.0, total_steps=100, pct_start=0.3, div_factor=10.0, final_div_factor=100.0)
    assert s(0) == pytest.approx(0.1)
    assert s(29) == pytest.approx(1.0)
    assert s(99) == pytest.approx(0.001)
    assert s(500) == pytest.approx(0.001)
    assert max(values(s, range(100))) == s(29)


def test_schedules_are_pure():
    s = schedule.one_cycle(1.0, total_steps=50)
    forward = values(s, range(50))
    assert values(s, reversed(range(50))) == forward[::-1]


@pytest.mark.torch
@pytest.mark.parametrize("ours, make", [
    (schedule.step(0.1, 7, 0.3), lambda lr, o: lr.StepLR(o, 7, 0.3)),
    (schedule.multistep(0.1, [5, 20, 21], 0.2), lambda lr, o: lr.MultiStepLR(o, [5, 20, 21], 0.2)),
    (schedule.exponential(0.1, 0.9), lambda lr, o: lr.ExponentialLR(o, 0.9)),
    (schedule.cosine(0.1, 40, final_lr=0.01), lambda lr, o: lr.CosineAnnealingLR(o, 40, 0.01)),
    (schedule.one_cycle(0.1, 40, 0.25), lambda lr, o: lr.OneCycleLR(o, 0.1, 40, pct_start=0.25)),
    (schedule.triangular(0.1, 0.7, 6), lambda lr, o: lr.CyclicLR(o, 0.1, 0.7, 6, cycle_momentum=False)),
], ids=["step", "multistep", "exponential", "cosine", "one_cycle", "triangular"])
def test_as_torch(ours, make):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    theirs = make(torch.optim.lr_scheduler, optimizer)
    for t in range(40):
        assert ours(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), f"step {t}"
        optimizer.step()
        if t < 39:
            theirs.step()


@pytest.mark.parametrize("make, text", [
    (lambda: schedule.constant(0.0), "constant: lr is 0.0, a finite number above 0 is needed"),
    (lambda: schedule.step(0.1, 0), "step: step_size is 0, an int of at least 1 is needed"),
    (lambda: schedule.multistep(0.1, [5, 5]), "milestones [5, 5] do not rise\nhelp: sort them"),
    (lambda: schedule.exponential(math.nan, 0.9), "exponential: lr is nan, a finite number above 0 is needed"),
    (lambda: schedule.cosine(0.1, 10, warmup_steps=10), "warmup_steps=10 is not in [0, total_steps=10)"),
    (lambda: schedule.one_cycle(0.1, 3), "pct_start=0.3 of total_steps=3 leaves no step for one of the two phases"),
    (lambda: schedule.triangular(0.1, 0.0, 5), "triangular: max_lr is 0.0, a finite number above 0 is needed"),
])
def test_errors(make, text):
    with pytest.raises(ConfigError) as error:
        make()
    assert text in str(error.value) and "\nhelp: " in str(error.value)
