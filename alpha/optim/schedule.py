"""Learning rates as pure functions of the global step.

A schedule is a function of the number of steps taken so far (0 at first) that returns the learning rate of the next
one. It has no state, so a resumed run needs the step alone::

    optimizer = optim.SGD(model.parameters(), lr=optim.schedule.cosine(0.1, total_steps=1000, warmup_steps=50))
"""

from __future__ import annotations

import functools
import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ParamSpec

from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, NonNegative, Positive, Share, Size, Sizes
from alpha.interop import twins

P = ParamSpec("P")
Schedule = Callable[[int], float]


class _Made:
    """A schedule that pickle keeps as the call that made it."""

    __slots__ = ("args", "builder", "f", "named")

    def __init__(self, f: Schedule, builder: Callable[..., Schedule], args: tuple[Any, ...], named: dict[str, Any]
                 ) -> None:
        self.f, self.builder, self.args, self.named = f, builder, args, named

    def __call__(self, *args: Any, **named: Any) -> float:
        return self.f(*args, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(self.builder, **self.named), self.args


def _remembered(build: Callable[P, Schedule]) -> Callable[P, Schedule]:
    """Makes a function that builds a schedule look at its arguments, and the schedule know them."""
    looks = checked(build)

    @functools.wraps(looks)
    def builder(*args: P.args, **named: P.kwargs) -> Schedule:
        return _Made(looks(*args, **named), builder, args, named)
    return builder


@_remembered
def constant(lr: Positive) -> Schedule:
    """lr(t) = lr."""
    return _of_step(lambda t: lr)


@_remembered
def step(lr: Positive, step_size: Count, gamma: Positive = 0.1) -> Schedule:
    """lr(t) = lr * gamma^floor(t / step_size)."""
    return _of_step(lambda t: lr * _power(gamma, t // step_size))


@_remembered
def multistep(lr: Positive, milestones: Sizes, gamma: Positive = 0.1) -> Schedule:
    """lr(t) = lr * gamma^(number of milestones <= t).  Raises ConfigError unless there are milestones, which rise."""
    if not milestones:
        raise ConfigError(message("multistep", f"milestones is empty, so gamma={gamma} has no effect",
                                  "pass the steps at which the lr changes, or use schedule.constant(lr)"))
    if any(a >= b for a, b in pairwise(milestones)):
        raise ConfigError(message("multistep", f"milestones {list(milestones)} do not rise", "sort them, each once"))
    return _of_step(lambda t: lr * _power(gamma, bisect_right(milestones, t)))


@_remembered
def exponential(lr: Positive, gamma: Positive) -> Schedule:
    """lr(t) = lr * gamma^t."""
    return _of_step(lambda t: lr * _power(gamma, t))


@_remembered
def cosine(lr: Positive, total_steps: Count, warmup_steps: Size = 0, final_lr: NonNegative = 0.0) -> Schedule:
    """Half a cosine from lr down to final_lr, after a linear rise.

        lr(t) = lr * (t + 1) / W                                                     for t < W = warmup_steps
        lr(t) = final_lr + (lr - final_lr) * (1 + cos(pi * (t - W) / (T - W))) / 2   for W <= t < T = total_steps
        lr(t) = final_lr                                                             from T on
    Source: Loshchilov and Hutter, arXiv 1608.03983; warm-up: Goyal et al., arXiv 1706.02677.
    """
    _check_warmup("cosine", warmup_steps, total_steps)

    def lr_at(t: int) -> float:
        if t < warmup_steps:
            return lr * (t + 1) / warmup_steps
        return _anneal(lr, final_lr, (t - warmup_steps) / (total_steps - warmup_steps))
    return _of_step(lr_at)


@_remembered
def one_cycle(max_lr: Positive, total_steps: Count, pct_start: Share = 0.3, div_factor: Positive = 25.0,
              final_div_factor: Positive = 1e4) -> Schedule:
    """Half a cosine up from max_lr / div_factor to max_lr, and one down to max_lr / (div_factor * final_div_factor).

    The top is at step pct_start * total_steps - 1, the end at step total_steps - 1.
    Source: Smith and Topin, arXiv 1708.07120; two phases, as PyTorch's OneCycleLR.
    """
    top, last = pct_start * total_steps - 1.0, total_steps - 1.0
    if not 0.0 < top < last:
        raise ConfigError(message("one_cycle", f"pct_start={pct_start} of total_steps={total_steps} leaves no step for "
                                  "one of the two phases", "choose pct_start between 0 and 1, and more steps"))
    low = max_lr / div_factor
    if low == math.inf:
        raise ConfigError(message("one_cycle", f"max_lr={max_lr} / div_factor={div_factor} is too large for a float",
                                  "choose a div_factor of at least 1"))

    def lr_at(t: int) -> float:
        if t <= top:
            return _anneal(low, max_lr, t / top)
        return _anneal(max_lr, low / final_div_factor, (t - top) / (last - top))
    return _of_step(lr_at)


@_remembered
def triangular(base_lr: Positive, max_lr: Positive, step_size: Count) -> Schedule:
    """Straight up from base_lr to max_lr in step_size steps, straight down in as many, and again.

        lr(t) = base_lr + (max_lr - base_lr) * (1 - |(t / step_size) mod 2 - 1|)
    Source: Smith, arXiv 1506.01186.
    """

    def lr_at(t: int) -> float:
        phase = t % (2 * step_size) / step_size
        return base_lr + (max_lr - base_lr) * (phase if phase <= 1.0 else 2.0 - phase)
    return _of_step(lr_at)


@_remembered
def linear(lr: Positive, total_steps: Count, final_lr: NonNegative = 0.0, warmup_steps: Size = 0) -> Schedule:
    """Straight from lr down, or up, to final_lr at total_steps, after a linear rise.  See cosine."""
    _check_warmup("linear", warmup_steps, total_steps)
    return polynomial(lr, total_steps, 1.0, final_lr, warmup_steps)


@_remembered
def polynomial(lr: Positive, total_steps: Count, power: Positive = 1.0, final_lr: NonNegative = 0.0,
               warmup_steps: Size = 0) -> Schedule:
    """lr(t) = final_lr + (lr - final_lr) * (1 - (t - W) / (T - W))^power, after a linear rise.

    W = warmup_steps, T = total_steps; final_lr from T on; lr * (t + 1) / W for t < W.
    """
    _check_warmup("polynomial", warmup_steps, total_steps)

    def lr_at(t: int) -> float:
        if t < warmup_steps:
            return lr * (t + 1) / warmup_steps
        share = min((t - warmup_steps) / (total_steps - warmup_steps), 1.0)
        return final_lr + (lr - final_lr) * (1.0 - share) ** power
    return _of_step(lr_at)


@_remembered
def warm_restarts(lr: Positive, first: Count, factor: Count = 1, final_lr: NonNegative = 0.0) -> Schedule:
    """Half a cosine from lr down to final_lr in `first` steps, and again, each time `factor` times as long.

    Source: Loshchilov and Hutter, arXiv 1608.03983, section 3.
    """
    def lr_at(t: int) -> float:
        length = first
        if factor == 1:
            t %= length
        while t >= length:
            t, length = t - length, length * factor
        return _anneal(lr, final_lr, t / length)
    return _of_step(lr_at)


def _check_warmup(where: str, warmup_steps: int, total_steps: int) -> None:
    if not warmup_steps < total_steps:
        raise ConfigError(message(where, f"warmup_steps={warmup_steps} is not in [0, total_steps={total_steps})",
                                  "warm up for fewer steps than there are"))


def _of_step(f: Schedule) -> Schedule:
    """Returns a schedule that looks at the step that it is asked about."""
    @checked
    def schedule(t: Size) -> float:
        return f(t)
    return schedule


def _power(gamma: float, n: float) -> float:
    """gamma^n; infinite, which the optimizer refuses, where that is too large for a float."""
    try:
        return gamma ** n
    except OverflowError:
        return math.inf


def _anneal(start: float, end: float, share: float) -> float:
    """Half a cosine from start (share 0) to end (share 1 and above)."""
    return end + (start - end) * ((1.0 + math.cos(math.pi * min(share, 1.0))) / 2.0)


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.optim.schedule", name, twins.SCHEDULE, sys.modules[__name__])
