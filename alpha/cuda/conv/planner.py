"""Choice of the kernel that computes a convolution pass: candidates, what each would cost, and which one is taken.

A module of alpha.cuda.conv has a tuple CANDIDATES, each of them one kernel with one tile, and conv/__init__.py
registers them all; docs/how_to/add_a_conv_kernel.md writes one. `Launch` takes device arrays, outputs allocated
already, and only launches:

    fprop   launch(x, w, y, epilogue)       what is done to each element: alpha.cuda.ops.pointwise.epilogue
    dgrad   launch(g, w, dx)
    wgrad   launch(x, g, dw)                workspaces are taken from the pool at every launch

A plan is made once per description and precision. Of the candidates that fit both, the cheapest by estimate is taken,
conversions included; with ALPHA_TUNE=1 the fastest by the clock, each timed once per device and remembered in the cache
directory. A kernel that reads planes looks at the flags of its operands, and reads float32 where one is set: the result
is right in any case, and nobody waits to know.

A candidate computes by one algorithm of alpha.ops.algorithms, most directly. alpha.plan chooses among those that are
offered here.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Container
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from alpha import plan as chooser
from alpha.build import cache_dir
from alpha.core.config import config
from alpha.core.errors import AlphaError, message
from alpha.core.precision import PRECISIONS
from alpha.cuda.conv.costs import device
from alpha.cuda.lazy import is_inferring
from alpha.cuda.ops.pointwise import convert, convert_into, filled
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty
from alpha.ops.algorithms.family import refuse
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import AUTO, Choice, Cost, Offer, Option, Request, Stage, by_time, explain

Launch = Callable[..., Any]
OUTPUT = 2  # which argument of a launch is written
PASSES = ("fprop", "dgrad", "wgrad")
TUNING_LAUNCHES, TUNING_ROUNDS = 5, 5
ABSENT = "has no CUDA kernels"
MOST_REASONS = 10  # that the error names where no candidate fits


def precision_of(dtype: str) -> str:
    """Returns the precision in which arrays of a dtype are convolved: of float32 ones that is configured."""
    if dtype == "float32":
        return "fma" if not config.tensor_cores else "tf32" if config.precision == "tf32" else "fp32"
    return "bf16" if dtype == "bfloat16" else "fp16"


class Candidate(chooser.Candidate):
    """A kernel with its tile."""

    reads: str = "float32"     # what the kernel reads (lazy/operands.py)
    writes: str = "float32"    # its output's dtype
    adds = False               # whether launch(g, w, dx, adds=True) of a dgrad adds to what dx holds
    joins = False              # whether launch(x, w, y, epilogue, residual=r) of fprop adds r to y, before relu
    # Those that it serves, and no others: a float32 that it rounds; None: by what it reads and writes.
    precisions: tuple[str, ...] | None = None

    def prepare(self, desc: ConvDesc) -> Launch:
        raise NotImplementedError

    def result_of(self, desc: ConvDesc) -> Shape:
        """Returns the shape that a launch of dgrad writes at no cost: dx, and channels behind its own perhaps."""
        return desc.x_shape


class Plan(NamedTuple):
    """How a pass of a convolution is computed."""

    pass_name: str
    desc: ConvDesc
    precision: str
    options: tuple[Option, ...]
    chosen: Candidate
    launch: Launch
    measured: bool

    def __str__(self) -> str:
        made = "measured" if self.measured else "estimated"
        return (f"plan of {self.pass_name} {self.desc.brief} in {self.precision}, {made}:\n"
                f"{explain(self.options, self.chosen)}")


_candidates: dict[tuple[type, str], list[Candidate]] = {}  # by what describes the operation, and the pass
_plans: dict[tuple[str, ConvDesc, str, Request, int, bool], Plan] = {}
PLANS = 2048    # kept at most: a step of the deepest networks has some hundreds of passes; the oldest one makes room


def register(*candidates: Candidate, of: type = ConvDesc) -> None:
    """Adds candidates to those of their pass, of the operation that `of` describes.  Plans are made anew, with them.

    A user's candidate replaces the one of the same class and name: a notebook cell may run again.
    """
    for candidate in candidates:
        kind, known = type(candidate), _candidates.setdefault((of, candidate.pass_name), [])
        if not kind.__module__.startswith("alpha."):
            known[:] = [c for c in known if (c.name, type(c).__module__, type(c).__qualname__)
                        != (candidate.name, kind.__module__, kind.__qualname__)]
        known.append(candidate)
    _plans.clear()


def candidates(pass_name: str, precision: str | None = None, algorithms: Container[str] = ("direct",),
               of: type = ConvDesc) -> tuple[Candidate, ...]:
    """Returns the candidates of a pass by some algorithms, in the order of registration; of one precision, or all."""
    return tuple(candidate for candidate in _candidates[of, pass_name] if candidate.algorithm in algorithms
                 and (precision is None or serves(candidate, precision)))


def serves(candidate: Candidate, precision: str) -> bool:
    """Tells whether a candidate computes in a precision: float32 kernels serve all, behind conversions.

    One that names its `precisions` serves these, and no others.
    """
    if candidate.precisions is not None:
        return precision in candidate.precisions
    one = PRECISIONS[precision]
    return candidate.reads == "float32" or (
        candidate.reads in one.reads and (candidate.writes == one.dtype or candidate.pass_name == "wgrad"))


def plan(pass_name: str, desc: ConvDesc, precision: str = "fp32", request: Request = AUTO) -> Plan:
    """Returns the plan of a pass, made at the first call for this description, precision and request.

    Raises:
        AlphaError: no candidate fits.
        ConfigError: a strict request cannot be served.
    """
    key = pass_name, desc, precision, request, config.conv_workspace_mib, is_inferring()
    found = _plans.get(key)
    if found is None:
        found = _plans[key] = _make(pass_name, desc, precision, request)
        if len(_plans) > PLANS:
            _plans.pop(next(iter(_plans)), None)
        if config.debug > 2:
            print(found, file=sys.stderr)
    return found


def offer_of(pass_name: str, desc: ConvDesc, precision: str, request: Request = AUTO) -> Offer:
    """Returns what there is for a pass in a precision on the device of this process."""
    kind, one = type(desc), PRECISIONS[precision]
    promise = PRECISIONS[request.precision].promise if one.dtype == "float32" else one.promise
    others = dict.fromkeys(c.algorithm for c in _candidates[kind, pass_name] if c.algorithm != chooser.DIRECT)

    def by(algorithm: str) -> tuple[Candidate, ...]:
        return candidates(pass_name, precision, (algorithm,), of=kind)
    return Offer(desc, device().rates, promise, by, others, lambda candidate: conversion(candidate, desc, precision))


def rank(pass_name: str, desc: ConvDesc, precision: str = "fp32", *, every: bool = True) -> list[Option]:
    """Returns all direct candidates of a pass, the fastest first.  every: as of alpha.plan.rank."""
    return chooser.rank(offer_of(pass_name, desc, precision), every=every)


def _make(pass_name: str, desc: ConvDesc, precision: str, request: Request) -> Plan:
    options = weighed(pass_name, desc, precision, request)
    fitting = [option for option in options if not option.reason]
    if config.tune and len(fitting) > 1:
        fitting = measured(pass_name, desc, precision, fitting)
        options = fitting + [option for option in options if option.reason]
    chosen = fitting[0].candidate
    return Plan(pass_name, desc, precision, tuple(options), chosen, launch_of(chosen, desc, precision), config.tune)


def weighed(pass_name: str, desc: ConvDesc, precision: str, request: Request = AUTO) -> list[Option]:
    """Returns what is weighed for a pass, what is taken first.  Raises what `plan` does."""
    choice: Choice = chooser.choose(offer_of(pass_name, desc, precision, request), request, every=config.tune)
    if choice.taken is None and request.strict and request.name != chooser.DIRECT:
        reasons = [option.reason or "" for option in choice.options] or [ABSENT]
        refuse(pass_name, desc, request, min(reasons, key=lambda reason: reason.startswith("tiles of")))  # says least
    if choice.taken is None:
        options = [option for option in choice.options if option.candidate.algorithm == chooser.DIRECT]
        raise AlphaError(message(f"conv2d {pass_name}", f"none of its {len(options)} CUDA kernels fits {desc}:"
                                 + _reasons(options), 'compute it on the CPU: .to("cpu")'))
    return sorted(choice.options, key=lambda option: (by_time(option), option.candidate.algorithm == chooser.DIRECT))


def _reasons(options: list[Option]) -> str:
    """Returns a line for each of the most frequent reasons: how many candidates it rules out, and one of them."""
    names: dict[str, list[str]] = {}
    for option in options:
        names.setdefault(option.reason or "", []).append(option.candidate.name)
    lines = [f"\n  {reason} ({len(found)}, {found[0]})" for reason, found in
             sorted(names.items(), key=lambda item: -len(item[1]))]
    more = [f"\n  and {len(lines) - MOST_REASONS} more reasons"] if len(lines) > MOST_REASONS else []
    return "".join(lines[:MOST_REASONS] + more)


# ---- launches on arrays ----------------------------------------------------------------------------------------------
def launch_of(candidate: Candidate, desc: ConvDesc, precision: str) -> Launch:
    """Returns the launch of a candidate on arrays as a precision stores them, with conversions where it needs them."""
    launch = candidate.prepare(desc)
    if PRECISIONS[precision].dtype == "float32" or candidate.reads != "float32":
        return launch

    def run(*arguments: Any) -> None:
        given = list(arguments)
        for k, value in enumerate(given):
            if isinstance(value, Array) and value.dtype != "float32":
                given[k] = empty(value.shape, "float32") if k == OUTPUT else convert(value, "float32")
        launch(*given)
        if given[OUTPUT] is not arguments[OUTPUT]:
            convert_into(given[OUTPUT], arguments[OUTPUT])
    return run


def conversion(candidate: Candidate, desc: ConvDesc, precision: str) -> Cost:
    """Returns what the conversions around a launch cost: of 16-bit arrays to float32, and of the output back.

    Planes of float32 cost but launches: batch norm writes activations and gradients so, weights are split once a step.
    """
    stores, one = PRECISIONS[precision].dtype, device().table.conversion
    if candidate.reads == stores:
        return Cost(())
    nbytes = sum(map(prod, (desc.x_shape, desc.y_shape))) * (4 + ITEMSIZE[stores]) if stores != "float32" else 0
    count = 2 if candidate.pass_name == "wgrad" else 3  # a gradient of filters is float32
    return Cost((Stage(nbytes=nbytes, depth=count * one.depth, launches=count * one.launches),))


# ---- tuning ----------------------------------------------------------------------------------------------------------
def measured(pass_name: str, desc: ConvDesc, precision: str, options: list[Option]) -> list[Option]:
    """Returns the options with their measured times, fastest first, from the store where it has them all."""
    path = cache_dir() / f"tuning-{context.arch}-{context.name.replace(' ', '_')}.json"
    store = _read(path)
    key = f"{pass_name} {precision} {desc}"
    times = store.get(key, {})
    if any(option.candidate.name not in times for option in options):
        times = {option.candidate.name: _time(pass_name, desc, precision, option.candidate) for option in options}
        _write(path, {**_read(path), key: times})
    measured = [option._replace(time_us=times[option.candidate.name]) for option in options]
    return sorted(measured, key=by_time)


def _time(pass_name: str, desc: ConvDesc, precision: str, candidate: Candidate) -> float:
    """Returns the median time of a launch in microseconds."""
    launch, stores = launch_of(candidate, desc, precision), PRECISIONS[precision].dtype
    x, w, y = (filled(shape, 1.0, dtype) for shape, dtype in
               ((desc.x_shape, stores), (desc.w_shape, "float32"), (desc.y_shape, stores)))
    arguments = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (x, y, w)}[pass_name]
    event = context.driver.Event
    times = []
    launch(*arguments)  # compiles, and warms the caches
    context.synchronize()
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
        temporary.write_text(json.dumps(store, indent=1))
        temporary.replace(path)
    except OSError:
        pass
