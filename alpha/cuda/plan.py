"""Choice of the kernel that computes a convolution pass: candidates, what each would cost, and which one is taken.

A module of alpha.cuda.conv registers its candidates when it is imported, each of them one kernel with one tile:

    class Slab(NamedTuple):                     # any immutable object with these members is a candidate
        pass_name = "dgrad"                     # "fprop", "dgrad" or "wgrad"
        name: str                               # shown to people and stored by the tuner: "ks_deconv 128x64"
        def fits(self, desc) -> str: ...        # "" if it computes desc, else the reason why not
        def cost(self, desc, sm_count) -> float: ...       # estimate in microseconds; may be rough, must rank
        def prepare(self, desc) -> Launch: ...  # makes and uploads the tables, once; returns the function to call

    register(Slab("ks_deconv 128x128"), Slab("ks_deconv 128x64"))

`Launch` takes device arrays, outputs allocated already, and only launches:

    fprop   launch(x, w, b, y, relu)            b: Array or None; relu: bool
    dgrad   launch(g, w, dx)
    wgrad   launch(x, g, dw)                    workspaces are taken from the pool at every launch

Of the candidates that fit, the cheapest by estimate is taken, or with ALPHA_TUNE=1 the fastest by the clock: those are
timed once per device and description and remembered in the cache directory. A plan is made once per description.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from alpha.build import cache_dir
from alpha.config import config
from alpha.cuda.context import context
from alpha.cuda.memory import empty
from alpha.errors import AlphaError, message
from alpha.ops.conv_desc import ConvDesc

Launch = Callable[..., None]

PASSES = ("fprop", "dgrad", "wgrad")
TUNING_LAUNCHES, TUNING_ROUNDS = 5, 5


class Candidate(Protocol):
    """A kernel with its tile; see the head of this file."""

    @property
    def pass_name(self) -> str: ...

    @property
    def name(self) -> str: ...

    def fits(self, desc: ConvDesc) -> str: ...

    def cost(self, desc: ConvDesc, sm_count: int) -> float: ...

    def prepare(self, desc: ConvDesc) -> Launch: ...


class Option(NamedTuple):
    """What became of a candidate: the reason why it cannot be used, or its time in microseconds."""

    candidate: Candidate
    reason: str
    time_us: float


class Plan(NamedTuple):
    """How a pass of a convolution is computed."""

    pass_name: str
    desc: ConvDesc
    options: tuple[Option, ...]
    chosen: Candidate
    launch: Launch
    measured: bool

    def __str__(self) -> str:
        d = self.desc
        axes = ", ".join(f"{a.i}->{a.o} f{a.f} s{a.s} p{a.p} d{a.d}" for a in (d.h, d.w))
        lines = [f"plan of {self.pass_name} {d.n} x ({axes}) {d.ic}->{d.oc} groups {d.groups}, "
                 f"{'measured' if self.measured else 'estimated'}:"]
        for candidate, reason, time_us in self.options:
            mark = "*" if candidate is self.chosen else " "
            lines.append(f"{mark} {candidate.name:28} {reason or f'{time_us:10.1f} us'}")
        return "\n".join(lines)


_candidates: dict[str, list[Candidate]] = {name: [] for name in PASSES}
_plans: dict[tuple[str, ConvDesc], Plan] = {}


def register(*candidates: Candidate) -> None:
    """Adds candidates to those of their pass."""
    for candidate in candidates:
        _candidates[candidate.pass_name].append(candidate)


def candidates(pass_name: str) -> tuple[Candidate, ...]:
    """Returns every candidate of a pass, in the order of registration."""
    return tuple(_candidates[pass_name])


def plan(pass_name: str, desc: ConvDesc) -> Plan:
    """Returns the plan of a pass, made at the first call for this description.

    Raises:
        AlphaError: no candidate fits.
    """
    found = _plans.get((pass_name, desc))
    if found is None:
        found = _plans[pass_name, desc] = _make(pass_name, desc)
        if config.debug > 2:
            print(found, file=sys.stderr)
    return found


def rank(pass_name: str, desc: ConvDesc, sm_count: int) -> list[Option]:
    """Returns all candidates of a pass with their estimated cost: those that fit first, cheapest first."""
    options = []
    for candidate in _candidates[pass_name]:
        reason = candidate.fits(desc)
        options.append(Option(candidate, reason, float("inf") if reason else candidate.cost(desc, sm_count)))
    return sorted(options, key=lambda option: option.time_us)


def _make(pass_name: str, desc: ConvDesc) -> Plan:
    options = rank(pass_name, desc, context.sm_count)
    fitting = [option for option in options if not option.reason]
    if not fitting:
        reasons = {option.candidate.name: option.reason for option in options}
        raise AlphaError(message(f"conv2d {pass_name}", f"none of its {len(options)} CUDA kernels fits the convolution",
                                 'compute it on the CPU: .to("cpu")', desc=desc, **reasons))
    if config.tune and len(fitting) > 1:
        fitting = _measured(pass_name, desc, fitting)
        options = fitting + [option for option in options if option.reason]
    chosen = fitting[0].candidate
    return Plan(pass_name, desc, tuple(options), chosen, chosen.prepare(desc), config.tune)


# ---- tuning ----------------------------------------------------------------------------------------------------------


def _measured(pass_name: str, desc: ConvDesc, options: list[Option]) -> list[Option]:
    """Returns the options with their measured times, fastest first, from the store where it has them all."""
    path = cache_dir() / f"tuning-{context.arch}-{context.name.replace(' ', '_')}.json"
    store = _read(path)
    key = f"{pass_name} {desc}"
    times = store.get(key, {})
    if any(option.candidate.name not in times for option in options):
        times = {option.candidate.name: _time(pass_name, desc, option.candidate) for option in options}
        _write(path, {**_read(path), key: times})
    measured = [option._replace(time_us=times[option.candidate.name]) for option in options]
    return sorted(measured, key=lambda option: option.time_us)


def _time(pass_name: str, desc: ConvDesc, candidate: Candidate) -> float:
    """Returns the median time of a launch in microseconds."""
    launch = candidate.prepare(desc)
    x, w, y = (empty(shape, "float32") for shape in (desc.x_shape, desc.w_shape, desc.y_shape))
    arguments: tuple[Any, ...] = {"fprop": (x, w, None, y, False), "dgrad": (y, w, x), "wgrad": (x, y, w)}[pass_name]
    event = context.driver.Event
    launch(*arguments)  # compiles, and warms the caches
    times = []
    for _ in range(TUNING_ROUNDS):
        begin = event().record(context.stream)
        for _ in range(TUNING_LAUNCHES):
            launch(*arguments)
        end = event().record(context.stream)
        end.synchronize()
        times.append(end.time_since(begin) * 1e3 / TUNING_LAUNCHES)
    return statistics.median(times)


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):  # not there yet, or damaged: measured again
        return {}


def _write(path: Path, store: dict[str, dict[str, float]]) -> None:
    """Replaces the file in one step; where the directory is read-only the choice lasts for this process."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(store, indent=1))
        temporary.replace(path)
    except OSError:
        pass
