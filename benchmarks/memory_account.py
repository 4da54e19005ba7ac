"""The memory of one training step by purpose.

alpha's side, op by op, follows the pool: a hook sees every block that is handed out, so that the curve of live bytes
has no gap, and at the highest point the purpose of each block is known:

    weights           parameters and buffers
    batches           inputs and labels
    optimizer_state   momentum
    gradients         of parameters, as far as they are there
    activations       results that the graph still keeps for the rest of the backward pass
    workspace         all else: gradients of activations, outputs being made, operands written out for tensor cores

On the CPU, arrays below 32 KiB are NumPy's own: they are counted where they are weights, gradients, state or
activations, and workspace of that size is not seen. So are temporaries of any size where NumPy does the work
(ALPHA_CPU_KERNELS=0).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alpha.recompute.recipe import count

if TYPE_CHECKING:
    from benchmarks.sides import AlphaSide, TorchSide

PHASES = ("forward", "backward", "update")


class Holding(NamedTuple):
    """A piece of memory."""

    address: int
    nbytes: int
    pooled: bool


def holdings(data: Any) -> list[Holding]:
    """Returns where the elements of an array are, in how large a block, and whether the pool counts it.

    Of an array that waits to be written and has no memory yet: the same of all that it will be computed from.
    """
    if not isinstance(data, np.ndarray):
        block = data.block  # its ptr would have an array written that waits for that
        if block is data.derived:
            return [h for x in block.reads for h in holdings(x)]
        return [Holding(int(block), data.nbytes, True)]
    base = data
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    block = getattr(base, "block", None)
    address = data.__array_interface__["data"][0]
    return [Holding(address, data.nbytes, False) if block is None else Holding(block.start, block.nbytes, True)]


def _of_all(tensors: Iterable[Any]) -> list[Holding]:
    return [h for t in tensors for h in holdings(t.array)]


def total(found: Iterable[Holding], pooled_only: bool = False) -> int:
    """Returns the bytes of holdings, each block once."""
    return sum({h.address: h.nbytes for h in found if h.pooled or not pooled_only}.values())


def nodes_below(loss: Any) -> list[Any]:
    """Returns every node of the graph that a loss was made by."""
    seen: dict[int, Any] = {}
    waiting = [loss._node[0]]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            edges = [e for edge in node.edges for e in (edge if isinstance(edge, list) else [edge])]
            waiting += [edge[0] for edge in edges if isinstance(edge, tuple)]
    return list(seen.values())


def saved(nodes: Iterable[Any]) -> Iterator[Holding]:
    """Yields the tensors that nodes keep for the backward pass."""
    for node in nodes:
        for value in node.saved or ():
            for item in value if isinstance(value, list) else [value]:
                data = getattr(item, "array", item)
                if hasattr(data, "nbytes") and not isinstance(data, memoryview):
                    yield from holdings(data)


class Trace:
    """Follows a pool through a step.

    Attributes:
        live: bytes in use after every allocation.
        phase_starts: number of allocations before each phase.
    """

    def __init__(self, pool: Any, fixed: set[int]) -> None:
        self.pool, self.fixed = pool, fixed
        self.live: list[int] = []
        self.phase_starts: list[int] = []
        self.last: dict[int, int] = {}  # address -> number of the allocation that took it last
        self.nodes: list[Any] = []
        self.held: list[Holding] = []   # of saved tensors, at the peak
        self.peak, self.peak_at = -1, 0

    def __call__(self, address: int, nbytes: int) -> None:
        live = self.pool.live
        self.last[address] = len(self.live)
        if live > self.peak:
            self.peak, self.peak_at = live, len(self.live)
            self.held = [h for h in saved(self.nodes) if h.address not in self.fixed]
        self.live.append(live)

    def there_at_peak(self, found: Iterable[Holding]) -> list[Holding]:
        """Returns the holdings, of those that are there now, that were there at the peak already."""
        return [h for h in found if not h.pooled or self.last.get(h.address, 0) <= self.peak_at]

    def begin_phase(self) -> None:
        self.phase_starts.append(len(self.live))


def traced_step(side: AlphaSide, trace: Trace) -> tuple[list[Holding], list[Holding]]:
    """Makes one update under a trace, and returns the tensors saved by the forward pass, and the gradients."""
    if side.device == "cpu":
        from alpha.cpu import memory
    else:
        from alpha.cuda.runtime import memory  # type: ignore[no-redef]
    before = memory.on_allocate

    def both(address: int, nbytes: int) -> None:
        if before:
            before(address, nbytes)
        trace(address, nbytes)

    memory.on_allocate = both
    try:
        with side.mode():
            trace.begin_phase()
            loss = side.loss(*side.next_batch())
            trace.nodes = nodes_below(loss)
            activations = [h for h in saved(trace.nodes) if h.address not in trace.fixed]
            trace.held = trace.there_at_peak(activations)  # should it stay the peak
            trace.begin_phase()
            side.backward(loss)
            gradients = _of_all(p.grad for p in side.net.parameters() if p.grad is not None)
            trace.begin_phase()
            side.advance()
    finally:
        memory.on_allocate = before
    return activations, gradients


def of_alpha(side: AlphaSide) -> dict[str, Any]:
    """Makes one update and returns bytes by purpose, for the whole step and at its peak, and the curve of live bytes.

    `made_again` has alpha.recompute.recipe.Count of the step: bytes planned and made again, how often, in how many ms.

    The side must have made an update before: the optimizer's state is there then.
    """
    weights = _of_all((*side.net.parameters(), *(b for _, b in side.net.named_buffers())))
    side.optimizer.zero_grad()
    side.update.close()  # a recording holds memory of its own; here the step runs op by op
    gc.collect()
    batches = _of_all(t for batch in side.batches for t in batch)
    state = _of_all(side.optimizer.state_dict()["tensors"].values())
    standing = {"weights": weights, "batches": batches, "optimizer_state": state}
    trace = Trace(_pool(side.device), {h.address for group in standing.values() for h in group})
    before = vars(count).copy()
    activations, gradients = traced_step(side, trace)
    there = trace.there_at_peak(gradients) if _phase(trace) != "forward" else []
    at_peak = {**standing, "gradients": there, "activations": trace.held}
    side.optimizer.zero_grad()
    known = sum(total(group, pooled_only=True) for group in at_peak.values())
    outside = sum(total(group) for group in at_peak.values()) - known
    unpooled = sum(total(group) - total(group, pooled_only=True) for group in standing.values())
    return {**{name: total(group) for name, group in standing.items()}, "gradients": total(gradients),
            "activations": total(activations), "peak": trace.peak + outside,
            "at_peak": {**{name: total(group) for name, group in at_peak.items()}, "workspace": trace.peak - known},
            "made_again": {name: value - before[name] for name, value in vars(count).items()},
            "peak_phase": _phase(trace), "peak_at": trace.peak_at, "phase_starts": trace.phase_starts,
            "live": [n + unpooled for n in trace.live]}


def _pool(device: str) -> Any:
    if device == "cpu":
        from alpha.cpu.memory import pool
        return pool
    from alpha.cuda.runtime import memory
    return memory.pool


def _phase(trace: Trace) -> str:
    """Returns the phase in which the peak was."""
    return PHASES[max(k for k, start in enumerate(trace.phase_starts) if start <= trace.peak_at)]


def of_torch(side: TorchSide) -> dict[str, Any]:
    """Makes one update of PyTorch and returns bytes by purpose; `peak` is None on the CPU, where it is not counted.

    Activations are the storages that autograd packs in the forward pass, weights and inputs not counted.
    """
    torch, net = side.torch, side.net

    def storages(tensors: Iterable[Any]) -> dict[int, int]:
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}

    weights = storages((*net.parameters(), *net.buffers()))
    batches = storages(t for batch in side.batches for t in batch)
    state = storages(s["momentum_buffer"] for s in side.optimizer.state.values())
    packed: dict[int, int] = {}

    def pack(t: Any) -> Any:
        packed.update(storages([t]))
        return t
    side.optimizer.zero_grad(set_to_none=True)
    side.reset_peak()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = side.loss(*side.batches[side.steps % len(side.batches)])
    side.backward(loss)
    gradients = storages(p.grad for p in net.parameters() if p.grad is not None)
    side.advance()
    side.steps += 1
    activations = sum(n for address, n in packed.items() if address not in weights and address not in batches)
    return {"weights": sum(weights.values()), "batches": sum(batches.values()), "optimizer_state": sum(state.values()),
            "gradients": sum(gradients.values()), "activations": activations, "peak": side.memory()[0]}
