"""Learning rates as pure functions of the global step.

A schedule is a function of the number of steps taken so far (0 at first) that returns the learning rate of the next
one. It has no state, so a resumed run needs the step alone::

    optimizer = optim.SGD(model.parameters(), lr=optim.schedule.cosine(0.1, total_steps=1000, warmup_steps=50))
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from alpha.errors import ConfigError, message

Schedule = Callable[[int], float]


def _check(where: str, **above_zero: float) -> None:
    for name, value in above_zero.items():
        if not value > 0:
            raise ConfigError(message(where, f"{name}={value} is not above 0", f"pass a positive {name}"))


def constant(lr: float) -> Schedule:
    """lr(t) = lr."""
    _check("constant", lr=lr)
    return lambda t: lr


def step(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """lr(t) = lr * gamma^floor(t / step_size)."""
    _check("step", lr=lr, step_size=step_size, gamma=gamma)
    return lambda t: lr * gamma ** (t // step_size)


def multistep(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """lr(t) = lr * gamma^(number of milestones <= t).  Raises ConfigError unless the milestones rise."""
    _check("multistep", lr=lr, gamma=gamma)
    if any(a >= b for a, b in pairwise(milestones)):
        raise ConfigError(message("multistep", f"milestones {list(milestones)} do not rise", "sort them, each once"))
    return lambda t: lr * gamma ** bisect_right(milestones, t)


def exponential(lr: float, gamma: float) -> Schedule:
    """lr(t) = lr * gamma^t."""
    _check("exponential", lr=lr, gamma=gamma)
    return lambda t: lr * gamma ** t


def cosine(lr: float, total_steps: int, warmup_steps: int = 0, final_lr: float = 0.0) -> Schedule:
    """Half a cosine from lr down to final_lr, after a linear rise.

        lr(t) = lr * (t + 1) / W                                                     for t < W = warmup_steps
        lr(t) = final_lr + (lr - final_lr) * (1 + cos(pi * (t - W) / (T - W))) / 2   for W <= t < T = total_steps
        lr(t) = final_lr                                                             from T on
    Source: Loshchilov and Hutter, arXiv 1608.03983; warm-up: Goyal et al., arXiv 1706.02677.
    """
    _check("cosine", lr=lr, total_steps=total_steps)
    if not 0 <= warmup_steps < total_steps:
        raise ConfigError(message("cosine", f"warmup_steps={warmup_steps} is not in [0, total_steps={total_steps})",
                                  "warm up for fewer steps than there are"))

    def lr_at(t: int) -> float:
        if t < warmup_steps:
            return lr * (t + 1) / warmup_steps
        return _anneal(lr, final_lr, (t - warmup_steps) / (total_steps - warmup_steps))
    return lr_at


def one_cycle(max_lr: float, total_steps: int, pct_start: float = 0.3, div_factor: float = 25.0,
              final_div_factor: float = 1e4) -> Schedule:
    """Half a cosine up from max_lr / div_factor to max_lr, and one down to max_lr / (div_factor * final_div_factor).

    The top is at step pct_start * total_steps - 1, the end at step total_steps - 1.
    Source: Smith and Topin, arXiv 1708.07120; two phases, as PyTorch's OneCycleLR.
    """
    _check("one_cycle", max_lr=max_lr, total_steps=total_steps, div_factor=div_factor,
           final_div_factor=final_div_factor)
    top, last = pct_start * total_steps - 1.0, total_steps - 1.0
    if not 0.0 < top < last:
        raise ConfigError(message("one_cycle", f"pct_start={pct_start} of total_steps={total_steps} leaves no step for "
                                  "one of the two phases", "choose pct_start between 0 and 1, and more steps"))
    low = max_lr / div_factor

    def lr_at(t: int) -> float:
        if t <= top:
            return _anneal(low, max_lr, t / top)
        return _anneal(max_lr, low / final_div_factor, (t - top) / (last - top))
    return lr_at


def triangular(base_lr: float, max_lr: float, step_size: int) -> Schedule:
    """Straight up from base_lr to max_lr in step_size steps, straight down in as many, and again.

        lr(t) = base_lr + (max_lr - base_lr) * (1 - |(t / step_size) mod 2 - 1|)
    Source: Smith, arXiv 1506.01186.
    """
    _check("triangular", base_lr=base_lr, max_lr=max_lr, step_size=step_size)

    def lr_at(t: int) -> float:
        phase = t % (2 * step_size) / step_size
        return base_lr + (max_lr - base_lr) * (phase if phase <= 1.0 else 2.0 - phase)
    return lr_at


def _anneal(start: float, end: float, share: float) -> float:
    """Half a cosine from start (share 0) to end (share 1 and above)."""
    return end + (start - end) * (1.0 + math.cos(math.pi * min(share, 1.0))) / 2.0
