"""The cost of an algorithm: stages with work, bytes, depth and launches, and the time that a device takes for them.

W, the work, is the time on one processor; D, the depth, that on as many as one likes. On p processors (Brent)

    max(W / p, D) <= T_p <= W / p + D

and a processor waits for memory as well. The model adds up over stages, which follow one another:

    T = sum of  max(work / rate of its unit, nbytes / bandwidth of its level) + seen * the lesser of both
                + launches * launch + depth * latency

Times are in microseconds, here and in every other file that plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import NamedTuple


class Stage(NamedTuple):
    """One step of an algorithm: work that is done at the same time as bytes are moved.

    Attributes:
        work: FLOP, a multiply-add being 2, or the count of another unit.
        unit: which rate of a device counts, such as "fma", "product" or "clocks"; "us" counts microseconds.
        nbytes: bytes that the stage reads and writes.
        level: the memory that they are moved from and to, such as "l2" or "dram".
        depth: steps of its longest chain of dependent operations.
        launches: kernels started, or regions entered.
        seen: share of the lesser of work and bytes that is not hidden behind the greater.
        name: for people.
    """

    work: float = 0.0
    unit: str = "us"
    nbytes: float = 0.0
    level: str = "dram"
    depth: float = 0
    launches: float = 0
    seen: float = 0.0
    name: str = ""


class Cost(NamedTuple):
    """The cost of one way to compute a pass.

    Attributes:
        stages: one after the other.
        error: relative, in the Frobenius norm, against exact arithmetic: a bound over kinds of data, not a mean; 0
            where it is at most a direct sum's.
        workspace: bytes of memory beside operands and result.
    """

    stages: tuple[Stage, ...]
    error: float = 0.0
    workspace: float = 0.0

    @property
    def work(self) -> float:
        return sum(stage.work for stage in self.stages)

    @property
    def depth(self) -> float:
        return sum(stage.depth for stage in self.stages)

    @property
    def nbytes(self) -> float:
        return sum(stage.nbytes for stage in self.stages)

    @property
    def launches(self) -> float:
        return sum(stage.launches for stage in self.stages)

    def times(self, factor: float) -> Cost:
        """Returns the cost of stages that take so many times as long."""
        return self._replace(stages=tuple(stage._replace(
            work=factor * stage.work, nbytes=factor * stage.nbytes, depth=factor * stage.depth,
            launches=factor * stage.launches) for stage in self.stages))


class Rates(NamedTuple):
    """The work and the bytes of a device, or of a class of machines, in a microsecond.

    Attributes:
        work: by unit of a stage.
        nbytes: bytes, by level.
        launch_us, latency_us: microseconds to start a stage, and for a step of a chain.
    """

    work: Mapping[str, float]
    nbytes: Mapping[str, float]
    launch_us: float
    latency_us: float


def time_us(cost: Cost, rates: Rates) -> float:
    """Returns the time that the model expects, in microseconds."""
    total = 0.0
    for work, unit, nbytes, level, depth, launches, seen, _ in cost.stages:
        both = work / rates.work[unit], nbytes / rates.nbytes[level]
        total += launches * rates.launch_us + depth * rates.latency_us + max(both) + seen * min(both)
    return total


def tree(terms: float) -> int:
    """Returns the depth of a sum of so many terms."""
    return ceil(log2(terms)) if terms > 1 else 0
