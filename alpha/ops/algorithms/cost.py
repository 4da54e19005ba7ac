"""What an algorithm costs: stages with work, bytes, depth and launches, and the time that a device takes for them.

W, the work, is the time on one processor; D, the depth, that on as many as one likes. On p processors (Brent)

    max(W / p, D) <= T_p <= W / p + D

and a processor waits for memory as well. The model adds up over stages, which follow one another:

    T = sum of max(work / rate, nbytes / bandwidth) + launches * launch + depth * latency
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import NamedTuple


class Stage(NamedTuple):
    """One step of an algorithm.

    Attributes:
        name: for people.
        work: FLOP, a multiply-add being 2.
        unit: which rate of a device counts, such as "direct", "product" or "transform".
        nbytes: that it reads and writes.
        level: where from and to, such as "L2" or "DRAM".
        depth: steps of its longest chain of dependent operations, where sums are trees.
        launches: kernels started, or regions entered.
    """

    name: str
    work: float
    unit: str
    nbytes: float
    level: str
    depth: int
    launches: int = 1


class Cost(NamedTuple):
    """What a way to compute a pass takes: its stages, bytes of memory beside operands and result, and its error.

    The error is relative, in the Frobenius norm, against exact arithmetic: a bound over kinds of data, not a mean.
    """

    stages: tuple[Stage, ...]
    workspace: float
    error: float

    @property
    def work(self) -> float:
        return sum(stage.work for stage in self.stages)

    @property
    def depth(self) -> int:
        return sum(stage.depth for stage in self.stages)

    @property
    def nbytes(self) -> float:
        return sum(stage.nbytes for stage in self.stages)

    @property
    def launches(self) -> int:
        return sum(stage.launches for stage in self.stages)


class Rates(NamedTuple):
    """What a device or a class of machines does in a second.

    Attributes:
        flops: FLOP a second for each unit of a stage.
        bandwidth: bytes a second for each level.
        launch, latency: seconds to start a stage, and for a step of a chain.
    """

    flops: Mapping[str, float]
    bandwidth: Mapping[str, float]
    launch: float
    latency: float


def seconds(cost: Cost, rates: Rates) -> float:
    """Returns the time that the model expects."""
    return sum(max(stage.work / rates.flops[stage.unit], stage.nbytes / rates.bandwidth[stage.level])
               + stage.launches * rates.launch + stage.depth * rates.latency for stage in cost.stages)


def tree(terms: float) -> int:
    """Returns the depth of a sum of so many terms."""
    return ceil(log2(terms)) if terms > 1 else 0
