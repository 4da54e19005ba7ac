"""Classes of machines by their rates, and the candidates that a CPU offers the chooser: algorithms with their tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from alpha.core.precision import PRECISIONS
from alpha.ops.algorithms.family import Way, cost_of, limits, mismatch, refuse, too_small, ways
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Candidate, Choice, Cost, Offer, Rates, Request, explain
from alpha.plan import choose as choose_from

NAME_WIDTH = 14     # of a choice's text


class Machine(NamedTuple):
    """What the choice is made for.

    Attributes:
        rates: what it does in a microsecond, with one thread.
        auto: the names that a free choice may take beside direct; all that it has may be named.
        grouped: the names that compute the groups of a convolution one after the other.
        least_channels, least_tiles: what a transformed algorithm needs to be taken where the choice is free.
    """

    rates: Rates
    auto: tuple[str, ...]
    grouped: tuple[str, ...] = ()
    least_channels: int = 32
    least_tiles: int = 64


def _machine(direct: float, product: float, spectral: float, transform: float, fft: float, l2: float, dram: float,
             winograd_filters: float = 1, fft_filters: float = 3, auto: tuple[str, ...] = ("winograd", "fft")
             ) -> Machine:
    """Returns a class of machines, in GFLOP/s and GB/s of one thread: the choice must not depend on their number.

    Args:
        winograd_filters, fft_filters: how many times as long as other arrays transformed filters take to be written,
            whose points lie far apart.
    """
    flops = {"direct": direct, "depthwise": direct / 2, "product": product, "spectral": spectral,
             "sparse": 0.55 * direct, "transform": transform, "fft": fft,
             "fft depthwise": min(fft, 2)}    # which NumPy makes
    nbytes = {"l2": l2, "dram": dram, "panels": direct / 2}
    for level in ("l2", "dram"):
        nbytes[f"winograd filters, {level}"] = nbytes[level] / winograd_filters
        nbytes[f"fft filters, {level}"] = nbytes[level] / fft_filters
    flops, nbytes = ({key: rate * 1e3 for key, rate in rates.items()} for rates in (flops, nbytes))
    return Machine(Rates(flops, nbytes, 20.0, 0.0), auto, ("winograd",) if auto else ())


# By the lanes of a vector: AVX-512, AVX and AVX2, others. One core of a Zen 5 (the first two) under two threads, and
# one of a Sapphire Rapids, fitted to benchmarks/results/intel_xeon_2core/algorithms.jsonl.
MACHINES = {"numpy": _machine(40, 60, 40, 2, 1, 20, 10, auto=()), "cpu16": _machine(200, 190, 190, 60, 10, 60, 12),
            "cpu8": _machine(95, 90, 90, 35, 10, 50, 12), "cpu4": _machine(35, 33, 33, 12, 2.5, 30, 12),
            "cpu16_intel": _machine(110, 97, 88, 25, 13, 130, 12, 2.9, 4.2),
            "cpu8_intel": _machine(70, 74, 65, 45, 10, 18, 7.5, 3.5, 3)}


class ByWay(Candidate):
    """An algorithm with its tile.

    Args:
        mismatch: why the algorithm cannot compute the convolution, "" if it can.
        unwanted: why what was asked for does not take it though it can, "" if it does.
    """

    def __init__(self, way: Way, pass_name: str, machine: Machine, promise: float, limit: int, mismatch: str = "",
                 unwanted: str = "") -> None:
        self.way, self.pass_name, self.machine, self.promise, self.limit = way, pass_name, machine, promise, limit
        self.name, self.algorithm, self.mismatch, self.unwanted = str(way), way.name, mismatch, unwanted

    def rejection(self, desc: ConvDesc) -> str | None:
        if self.mismatch:
            return f"does not serve {self.mismatch}"
        return limits(self.cost(desc), self.promise, self.limit) or self.unwanted or None

    def cost(self, desc: ConvDesc) -> Cost:
        return cost_of(self.way, self.pass_name, desc)

    def stays_out(self, desc: ConvDesc, direct: Candidate) -> str | None:
        refused = self.rejection(desc)  # says more than its size
        return refused or too_small(self.way, self.pass_name, desc, self.machine.least_channels,
                                    self.machine.least_tiles) or None


def _candidates(pass_name: str, desc: ConvDesc, machine: Machine, promise: float, limit: int, request: Request,
                name: str) -> Iterator[ByWay]:
    """Yields an algorithm with each of its tiles; with none if it cannot compute the convolution."""
    why = mismatch(name, desc, machine.grouped)
    unwanted = name == request.name == "sparse" and pass_name == "dgrad" and not request.strict
    for way in (Way(name),) if why else ways(name, desc):
        yield ByWay(way, pass_name, machine, promise, limit, why,
                    "is not taken for the gradient of y, which is dense behind a norm" if unwanted else "")


@lru_cache(maxsize=256)     # the calls of the algorithms are kept elsewhere
def choose(pass_name: str, desc: ConvDesc, request: Request, machine_key: str, limit: int) -> Choice:
    """Returns how a pass is computed, `choice.taken.way`: a pure function of its arguments.

    Args:
        machine_key: in MACHINES.
        limit: bytes of workspace; an algorithm that needs more does not serve.
    Raises:
        ConfigError: a strict request cannot be served; the message says why, and what to write instead.
    """
    machine, promise = MACHINES[machine_key], PRECISIONS[request.precision].promise
    candidates: Callable[[str], Iterator[ByWay]] = partial(_candidates, pass_name, desc, machine, promise, limit,
                                                           request)
    choice = choose_from(Offer(desc, machine.rates, promise, candidates, machine.auto), request)
    if choice.taken is None:
        refuse(pass_name, desc, request, choice.options[0].reason or "")
    return choice


def text_of(choice: Choice) -> str:
    """Returns a line for each way that was weighed."""
    return explain(choice.options, choice.taken, width=NAME_WIDTH, times=True)
