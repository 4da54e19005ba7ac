"""How long a data-parallel step takes on n ranks: computed from one rank's step and the rates of a link.

    a bucket's gradients are complete at ready, seconds after the step began    (measured, one rank)
    its sum over the ranks takes the lesser of
        ring(n, b) = 2 (n - 1) latency + 2 (n - 1) / n * b / bandwidth
        tree(n, b) = 2 ceil(log2 n) latency + 2 b / bandwidth                   (a pipelined double binary tree)
    buckets follow each other on one stream, and begin when they are ready
    step(n) = max(end of backward, end of the last bucket) + update + time that communication takes from computing

Over machines a sum has three parts: within each machine to 1 / g of it on each of g GPUs, between machines, and back.
Every constant below has a name and says where it comes from; none is fitted to a result of n ranks.
Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, for the
costs of rings and trees; Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """A connection of ranks.

    Args:
        name: as tables have it.
        bandwidth: bytes a second that a GPU, or a machine for a network, sends while it receives as many.
        latency_s: of a message, launch of its kernel or its step of one included.
        origin: where the figures come from.
    """

    name: str
    bandwidth: float
    latency_s: float
    origin: str


USABLE = 0.8        # share of a link's rate that bulk transfers reach; assumed
NVLINK4 = Link("NVLink 4", 450e9 * USABLE, 3e-6, "900 GB/s both ways, NVIDIA's data sheet of the H100; latency assumed")
PCIE4 = Link("PCIe 4 x16", 31.5e9 * USABLE, 6e-6, "16 GT/s x 16 lanes, 128b/130b; latency assumed")
PCIE5 = Link("PCIe 5 x16", 63e9 * USABLE, 6e-6, "32 GT/s x 16 lanes, 128b/130b; latency assumed")
NET200 = Link("200 Gbit/s", 25e9 * USABLE, 10e-6, "line rate of one adapter a machine; latency assumed")
NET400 = Link("400 Gbit/s", 50e9 * USABLE, 10e-6, "line rate of one adapter a machine; latency assumed")
LINKS = {"nvlink": NVLINK4, "pcie4": PCIE4, "pcie5": PCIE5}
NETWORKS = {"200": NET200, "400": NET400}
SLOWED = 0.06       # share of computing that is lost while NCCL's kernels run beside it: their multiprocessors; assumed
PASSES = 5          # times that a gradient is read or written to be joined, scaled and taken apart


class Step(NamedTuple):
    """A step of one rank, in seconds from its beginning.

    Args:
        backward_s: when backward ends.
        step_s: when the update ends.
        buckets: when each bucket's gradients are complete, and its bytes, in order.
        copy_rate: bytes a second that the device reads or writes.
    """

    backward_s: float
    step_s: float
    buckets: Sequence[tuple[float, int]]
    copy_rate: float


class Fabric(NamedTuple):
    """Ranks and their connections.

    Args:
        near: the link within a machine.
        per_machine: ranks of a machine.
        machines: their number.
        far: the network, shared by the ranks of a machine; None for one machine.
        slowed: share of computing that is lost while ranks communicate.
        overlaps: whether communication goes on beside computing.
    """

    near: Link
    per_machine: int
    machines: int = 1
    far: Link | None = None
    slowed: float = SLOWED
    overlaps: bool = True

    @property
    def ranks(self) -> int:
        return self.per_machine * self.machines


def ring_s(n: int, nbytes: float, link: Link) -> float:
    """Returns the seconds of a sum over n ranks around a ring."""
    return 2 * (n - 1) * link.latency_s + 2 * (n - 1) / n * nbytes / link.bandwidth


def tree_s(n: int, nbytes: float, link: Link) -> float:
    """Returns the seconds of a sum over n ranks up and down a double binary tree."""
    return 2 * math.ceil(math.log2(n)) * link.latency_s + (2 * nbytes / link.bandwidth if n > 1 else 0.0)


def all_reduce_s(nbytes: float, fabric: Fabric) -> float:
    """Returns the seconds of a sum of `nbytes` over all ranks: the faster of ring and tree."""
    def best(n: int, size: float, link: Link) -> float:
        return min(ring_s(n, size, link), tree_s(n, size, link)) if n > 1 else 0.0

    near = best(fabric.per_machine, nbytes, fabric.near)
    if fabric.machines == 1 or fabric.far is None:
        return near
    # Each GPU sums its part over the machines; together they send all bytes through the machine's adapter.
    return near + best(fabric.machines, nbytes, fabric.far)


def step_s(step: Step, fabric: Fabric) -> tuple[float, float]:
    """Returns the seconds of a step on all ranks, and the seconds of communication that nothing hides."""
    if fabric.ranks == 1:
        return step.step_s, 0.0
    end = busy = 0.0
    for ready, nbytes in step.buckets:
        seconds = all_reduce_s(nbytes, fabric)
        busy += seconds
        end = max(end, ready if fabric.overlaps else step.backward_s) + seconds
    packing = PASSES * sum(nbytes for _, nbytes in step.buckets) / step.copy_rate
    hidden = busy - max(0.0, end - step.backward_s)
    lost = fabric.slowed * max(0.0, hidden)
    exposed = max(0.0, end - step.backward_s)
    return step.step_s + exposed + packing + lost, exposed


def efficiency(step: Step, fabric: Fabric) -> float:
    """Returns the weak-scaling efficiency: one rank's step over all ranks', each with as large a batch."""
    return step.step_s / step_s(step, fabric)[0]


def cut(arrivals: Sequence[tuple[float, int]], bucket_nbytes: int) -> list[tuple[float, int]]:
    """Returns buckets of gradients: when the last of each is complete, and its bytes.

    Args:
        arrivals: of each parameter in the order in which backward completes them, when, and bytes.
    """
    buckets: list[tuple[float, int]] = []
    room = 0
    for ready, nbytes in arrivals:
        if not buckets or nbytes > room:
            buckets.append((ready, nbytes))
            room = bucket_nbytes
        else:
            buckets[-1] = (ready, buckets[-1][1] + nbytes)
        room -= nbytes
    return buckets
