"""DataParallel: each rank computes the gradients of its part of a batch; their mean comes to all ranks.

Gradients travel in buckets, in the order in which backward completes them, while backward goes on. Buckets start in one
order on all ranks, so ranks may use different parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import finalize

from alpha import ops
from alpha.core.device import ITEMSIZE
from alpha.core.errors import ConfigError, message, shown
from alpha.core.graph import no_grad, ready
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Positive
from alpha.core.tensor import Tensor, tensor
from alpha.dist.communicator import Collective, Communicator
from alpha.dist.joining import world
from alpha.nn.module import Module

MIB = 1 << 20
WIRES = (None, "float16", "bfloat16")


@dataclass
class Bucket:
    """Parameters whose gradients travel together: of one dtype.

    Args:
        members: their numbers.
        left: how many of their gradients are not complete yet.
        sent: the collective, once it has begun.
    """

    members: list[int]
    left: int = 0
    sent: Collective | None = field(default=None, repr=False)


class DataParallel(Module):
    """A module whose gradients are, after `backward`, the mean over the ranks of `comm`.

    Parameters and buffers become rank 0's when it is made. The mean is taken of `.grad` as it is then, so
    gradients that were accumulated under `no_sync` take part. A parameter without a gradient on one rank counts as 0
    there; without one on all ranks it stays without. Hooks of parameters see the mean.
    Args:
        module: the same on all ranks; it computes as before, and shares its parameters.
        comm: default the communicator of `init`.
        bucket_mib: size of a bucket in MiB.
        wire: None: gradients travel in their dtype; "float16" or "bfloat16": float32 gradients travel in 16 bits,
            rounded before they are added. "bfloat16" needs a GPU.
    Shape: the module's.
    Raises:
        ConfigError: the modules of the ranks have other names, shapes or dtypes of parameters, or a setting is wrong.
    """

    _reducer: Reducer

    @checked
    def __init__(self, module: Module, comm: Communicator | None = None, *, bucket_mib: Positive = 25.0,
                 wire: str | None = None) -> None:
        comm = comm if comm is not None else world()
        device = next((p.device for p in module.parameters()), "cpu")
        if wire not in WIRES or (wire == "bfloat16" and device == "cpu"):
            raise ConfigError(message("DataParallel", f"wire is {shown(wire)} for a model on {device}",
                                      'pass None or "float16", or on a GPU "bfloat16"'))
        self.module = module
        reducer = Reducer(module, comm, bucket_mib, wire)
        object.__setattr__(self, "_reducer", reducer)
        finalize(self, reducer.close)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @property
    def comm(self) -> Communicator:
        """The ranks that gradients are averaged over."""
        return self._reducer.comm

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For a block: backward leaves the gradients of this rank alone, which the next backward outside sends."""
        reducer = self._reducer
        before, reducer.syncs = reducer.syncs, False
        try:
            yield
        finally:
            reducer.syncs = before

    @checked
    def weigh(self, rows: Count, total: Count) -> None:
        """Says that this rank's losses are from now on means over `rows` of the `total` samples of a batch.

        Gradients are weighted so that they become the gradients of the mean over the whole batch. Without it all ranks count
        alike.
        """
        self._reducer.share = rows / total

    def detach(self) -> Module:
        """Ends the averaging, and returns the module."""
        self._reducer.close()
        return self.module

    def extra_repr(self) -> str:
        reducer = self._reducer
        return f"{reducer.comm.size} ranks, buckets of {reducer.bucket_nbytes / MIB:g} MiB" + (
            f", wire={reducer.wire}" if reducer.wire else "")


class Reducer:
    """Listens to backward passes (alpha.core.ready), and averages the gradients of a module's parameters."""

    def __init__(self, module: Module, comm: Communicator, bucket_mib: float, wire: str | None) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.comm = comm.another()      # buckets are not to hold up other collectives
        self.params = [p for _, p in named]
        self.index = {id(p): k for k, p in enumerate(self.params)}
        self.bucket_nbytes, self.wire, self.syncs = max(1, round(bucket_mib * MIB)), wire, True
        self.share = 1 / comm.size
        if comm.size == 1:
            return
        comm.agree("DataParallel", {
            "parameters": {name: f"{p.dtype} {tuple(p.shape)}" for name, p in named},
            "buffers": {name: f"{b.dtype} {tuple(b.shape)}" for name, b in module.named_buffers()},
            "bucket_mib": bucket_mib, "wire": wire}, "make the same model on all ranks")
        with no_grad():
            for t in (*module.parameters(), *module.buffers()):
                t.copy_(comm.broadcast(t))
        self.order: list[int] | None = []   # in which gradients are complete; None once buckets follow it
        self.buckets = self._cut(list(range(len(self.params)))[::-1])
        self._reset()
        for p in self.params:
            ready.listeners[id(p)] = (p, self)

    def close(self) -> None:
        """Listens no more."""
        for p in self.params:
            if ready.listeners.get(id(p), (None, None))[1] is self:
                del ready.listeners[id(p)]

    def _cut(self, order: Iterable[int]) -> list[Bucket]:
        """Returns buckets of parameters in this order, each of one dtype."""
        buckets: list[Bucket] = []
        room, last = 0, ""
        for k in order:
            p = self.params[k]
            nbytes = p.numel() * ITEMSIZE[self._wire_of(p)]
            if not buckets or p.dtype != last or nbytes > room:
                buckets.append(Bucket([]))
                room, last = self.bucket_nbytes, p.dtype
            buckets[-1].members.append(k)
            room -= nbytes
        return buckets

    def _wire_of(self, p: Tensor) -> str:
        return self.wire if self.wire and p.dtype == "float32" else p.dtype

    def _reset(self) -> None:
        self.grads: list[Tensor | None] = [None] * len(self.params)
        self.there = [False] * len(self.params)
        self.next = 0       # bucket to be sent
        for bucket in self.buckets:
            bucket.left, bucket.sent = len(bucket.members), None

    # ---- a pass ------------------------------------------------------------------------------------------------------

    def begin(self, leaves: Iterable[Tensor]) -> bool:
        """Counts the parameters that the pass does not come to as complete.  (See alpha.core.ready.)"""
        if not self.syncs:
            return False
        used = {id(leaf) for leaf in leaves}
        if not used:
            return False    # the pass is of something else
        self._reset()
        self.bucket_of = {k: bucket for bucket in self.buckets for k in bucket.members}
        for k, p in enumerate(self.params):
            if id(p) not in used:
                self._take(k, p._grad)
        return True

    def arrived(self, leaf: Tensor, g: Tensor | None) -> None:
        """Takes a gradient, and sends the buckets that are complete."""
        had = leaf._grad
        if g is not None and had is not None:
            g = had + g
        k = self.index[id(leaf)]
        if self.order is not None:
            self.order.append(k)
        self._take(k, g if g is not None else had)
        while self.next < len(self.buckets) and not self.buckets[self.next].left:
            self._send(self.buckets[self.next])
        self.comm.poll()

    def _take(self, k: int, g: Tensor | None) -> None:
        if not self.there[k]:
            self.there[k] = True
            self.grads[k] = g
            self.bucket_of[k].left -= 1

    def _send(self, bucket: Bucket) -> None:
        """Begins the sum of a bucket over the ranks; the last one has, too, which gradients there are."""
        self.next += 1
        parts = []
        with no_grad():
            for k in bucket.members:
                p, g = self.params[k], self.grads[k]
                parts.append(ops.zeros((p.numel(),), dtype=p.dtype, device=p.device) if g is None else g.reshape(-1))
            wire = self._wire_of(self.params[bucket.members[0]])
            flat = (ops.concat(parts) * self.share).astype(wire)
            if self.next == len(self.buckets):
                used = tensor([float(g is not None) for g in self.grads], device=flat.device)
                flat = ops.concat([flat, used.astype(wire)])
            bucket.sent = self.comm.begin_all_reduce(flat)

    def finish(self) -> list[tuple[Tensor, Tensor]]:
        """Returns the parameters and their averaged gradients, once all of them are there."""
        while self.next < len(self.buckets):
            self._send(self.buckets[self.next])
        found: dict[int, Tensor] = {}
        used: list[float] = []
        with no_grad():
            for bucket in self.buckets:
                assert bucket.sent is not None
                flat, at = bucket.sent.wait(), 0
                for k in bucket.members:
                    p = self.params[k]
                    found[k] = flat[at:at + p.numel()].clone().astype(p.dtype).reshape(p.shape)
                    at += p.numel()
                bucket.sent = None
            used = flat[at:].astype("float32").tolist()  # type: ignore[assignment]
        self.grads = [None] * len(self.params)
        if self.order is not None:
            self._reorder(self.order)
            self.comm.beacon.starting = False   # kernels are there
        return [(self.params[k], g) for k, g in found.items() if used[k]]

    def _reorder(self, order: list[int]) -> None:
        """Cuts the buckets anew, in the order in which rank 0's gradients were complete in the first pass."""
        seen = self.comm.gather(order)[0]
        rest = [k for k in range(len(self.params))[::-1] if k not in set(seen)]
        self.buckets, self.order = self._cut([*seen, *rest]), None
