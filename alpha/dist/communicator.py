"""The ranks of a run, and their communication: collectives on tensors, agreement, parts of a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from alpha.core.device import get_backend
from alpha.core.errors import ArgumentError, ConfigError, DTypeError, ShapeError, message, shown
from alpha.core.names import DEVICES, DTYPES
from alpha.core.tensor import Tensor, tensor
from alpha.dist.launch import Place
from alpha.dist.requests import REDUCE, Pending, Queue
from alpha.dist.watch import Beacon, Watch

T = TypeVar("T")
Op = str    # "sum", "mean", "max", "min" or "prod"
OPS = (*REDUCE, "mean")


class Collective:
    """A collective on a tensor that is on its way; `wait()` returns the resulting tensor."""

    def __init__(self, wait: Callable[[], Tensor]) -> None:
        self._wait = wait

    def wait(self) -> Tensor:
        """Returns the result.  On a GPU the compute stream waits, and not the host, where NCCL does the work."""
        return self._wait()


class Communicator:
    """The ranks that were started together.  `alpha.dist.init()` makes it.

    Every rank calls the same collectives in the same order, with tensors of one shape and dtype. No tensor is changed
    in place. Arrays of the CPU travel by MPI; tensors of GPUs by NCCL, and through host memory and MPI where NCCL is
    absent. None of them is recorded in a graph: a collective has no gradient.
    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process on its machine.
        launcher: "mpirun", "srun", "torchrun" or "none".
        device: where the rank computes, "cpu" or "cuda".
        engine: "mpi", "nccl", "mpi through host memory", or "none" for one rank.
    """

    def __init__(self, place: Place, queue: Queue | None, device: str = "cpu", nccl: Any = None,
                 beacon: Beacon | None = None, watch: Watch | None = None, comm: Any = None) -> None:
        self.rank, self.size, self.local_rank, self.launcher = place.rank, place.size, place.local_rank, place.launcher
        self.device, self.beacon = device, beacon or Beacon()
        self._queue, self._nccl, self._watch, self._comm = queue, nccl, watch, comm

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}, {self.engine} on {self.device}>"

    @property
    def engine(self) -> str:
        """The engine that moves tensors of `device`."""
        if self.size == 1:
            return "none"
        return "nccl" if self._nccl else "mpi" if self.device == "cpu" else "mpi through host memory"

    # ---- collectives -------------------------------------------------------------------------------------------------

    def all_reduce(self, x: Tensor, op: Op = "sum") -> Tensor:
        """Returns the sum over the ranks.

        Args:
            x: any shape; float or integer. Float16 is added in float32 and rounded once.
            op: "sum", "mean", "max", "min" or "prod".
        Returns:
            shape and dtype of x, the same bits on all ranks. On the CPU the terms are added in the order of the ranks.
        Raises:
            ArgumentError: x is no tensor, or op is unknown.
            DTypeError: x is bool, or the mean of integers is asked for.
        """
        return self.begin_all_reduce(x, op).wait()

    def begin_all_reduce(self, x: Tensor, op: Op = "sum") -> Collective:
        """Starts `all_reduce`, beside later work; `wait()` of the result returns the tensor.  x stays as it is."""
        self._check("all_reduce", x, op)
        if self.size == 1:
            return Collective(lambda: x.detach().clone())
        mean = op == "mean"
        if self._nccl is not None and x.device == "cuda":
            return Collective(self._nccl.all_reduce(x, op))
        pending = self._started(lambda queue: queue.all_reduce(self._to_host(x), "sum" if mean else op))
        return Collective(lambda: self._from_host(self._wait(pending) / self.size if mean else self._wait(pending), x))

    def reduce_scatter(self, x: Tensor, op: Op = "sum") -> Tensor:
        """Returns this rank's part of `all_reduce(x, op)`: rows rank * k to (rank + 1) * k of size * k.

        Raises ShapeError if the rows of x are no multiple of the ranks; and as all_reduce.
        """
        self._check("reduce_scatter", x, op)
        if not x.ndim or x.shape[0] % self.size:
            raise ShapeError(message("reduce_scatter", f"x has shape {x.shape}, its first axis is to be a multiple of "
                                     f"the {self.size} ranks", "pad x, or use all_reduce"))
        if self.size == 1:
            return x.detach().clone()
        if self._nccl is not None and x.device == "cuda":
            return self._nccl.reduce_scatter(x, op)()  # type: ignore[no-any-return]
        pending = self._started(lambda q: q.reduce_scatter(self._to_host(x), "sum" if op == "mean" else op))
        part = self._wait(pending)
        return self._from_host(part / self.size if op == "mean" else part, x)

    def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """Returns the tensor of rank `root`, for which all ranks pass one of its shape and dtype.

        Raises ArgumentError if x is no tensor, or root is no rank.
        """
        self._check("broadcast", x)
        if not isinstance(root, int) or not 0 <= root < self.size:
            raise ArgumentError(message("broadcast", f"root is {shown(root)}, there are ranks 0 to {self.size - 1}",
                                        "pass one of them"))
        if self.size == 1:
            return x.detach().clone()
        if self._nccl is not None and x.device == "cuda":
            return self._nccl.broadcast(x, root)()  # type: ignore[no-any-return]
        return self._from_host(self._wait(self._started(lambda q: q.broadcast(self._to_host(x), root))), x)

    def all_gather(self, x: Tensor) -> Tensor:
        """Returns the tensors of all ranks, by rank.  x: one shape on all ranks.  Returns: shape (size, *x.shape)."""
        self._check("all_gather", x)
        if self.size == 1:
            return x.detach().clone().reshape((1, *x.shape))
        if self._nccl is not None and x.device == "cuda":
            return self._nccl.all_gather(x)()  # type: ignore[no-any-return]
        return self._from_host(self._wait(self._started(lambda q: q.all_gather(self._to_host(x)))), x)

    def barrier(self) -> None:
        """Returns when all ranks have come here; work on GPUs may still run."""
        self.gather(None)

    # ---- facts -------------------------------------------------------------------------------------------------------

    def gather(self, fact: T) -> list[T]:
        """Returns a fact of each rank, by rank: a value for JSON, as numbers, texts, lists and dicts."""
        if self._queue is None:
            return [fact]
        queue = self._queue
        self._arrive()
        try:
            return [json.loads(text) for text in queue.gather_bytes(json.dumps(fact).encode())]
        finally:
            self.beacon.since = 0.0

    def agree(self, where: str, facts: Mapping[str, Any], fix: str) -> None:
        """Raises ConfigError, on all ranks, if a fact differs from rank 0's: with its name and both values.

        Args:
            where, fix: begin and end of the message.
        """
        rows = self.gather(dict(facts))
        for rank, row in enumerate(rows):
            for name in {**rows[0], **row}:
                if rows[0].get(name) != row.get(name):
                    error = ConfigError(message(where, f"rank {rank} has {name} {row.get(name)!r:.120}, rank 0 has "
                                                f"{rows[0].get(name)!r:.120}", fix))
                    error.everywhere = True     # type: ignore[attr-defined]
                    raise error

    def long(self, doing: str) -> AbstractContextManager[None]:
        """For a block of work that other ranks may wait for longer than for a step: reading data, saving, testing.

        Args:
            doing: the work, in words, for the message of a rank that fails there.
        """
        return self.beacon.long(doing)

    def part(self, rows: int) -> tuple[int, int]:
        """Returns which rows of a batch are this rank's: from the first number to before the second.

        Parts follow each other in the order of the ranks, and differ by at most one row.
        """
        return self.rank * rows // self.size, (self.rank + 1) * rows // self.size

    def another(self) -> Communicator:
        """Returns a communicator of the same ranks whose collectives neither wait for this one's nor hold them
        up.  All ranks call it."""
        if self._queue is None:
            return self
        made = Communicator.__new__(Communicator)
        made.__dict__.update(self.__dict__)
        made._queue = Queue(self._comm, self._queue._check)
        made._nccl = self._nccl and self._nccl.another()
        return made

    def poll(self) -> None:
        """Lets collectives that were begun go on: MPI works while it is called, and not beside."""
        if self._queue is not None:
            self._queue.poll()

    # ---- host arrays -------------------------------------------------------------------------------------------------

    def _check(self, where: str, x: Any, op: Op | None = None) -> None:
        if not isinstance(x, Tensor):
            raise ArgumentError(message(where, f"x is {shown(x)}, a Tensor is needed", "wrap it: alpha.tensor(x)"))
        if op is None:
            return
        if op not in OPS:
            raise ArgumentError(message(where, f"op is {shown(op)}", f"pass one of {', '.join(OPS)}"))
        if x.dtype == "bool" or (op == "mean" and not x.is_floating_point):
            raise DTypeError(message(where, f"there is no {op} of {x.dtype}", 'pass x.astype("float32")'))

    def _arrive(self) -> None:
        self.beacon.arrived += 1
        self.beacon.since = _now()

    def _started(self, begin: Callable[[Queue], Pending]) -> Pending:
        assert self._queue is not None
        return begin(self._queue)

    def _wait(self, pending: Pending) -> np.ndarray:
        self._arrive()
        try:
            return pending.wait()
        finally:
            self.beacon.since = 0.0

    @staticmethod
    def _to_host(x: Tensor) -> np.ndarray:
        x = x.detach()
        if x.device == "cpu":
            return np.ascontiguousarray(x.array)
        found: np.ndarray = get_backend(x.device).fetch([x.array])()[0]     # through pinned memory
        return found

    @staticmethod
    def _from_host(a: np.ndarray, like: Tensor) -> Tensor:
        if like.device == "cpu":
            a = np.ascontiguousarray(a, dtype=like.dtype)
            return Tensor(a, a.shape, DTYPES[a.dtype.name], DEVICES["cpu"])
        made = tensor(a, device=like.device)
        return made if made.dtype == like.dtype else made.astype(like.dtype)    # bfloat16 travels as float32

    # ---- the end -----------------------------------------------------------------------------------------------------

    def failed(self, text: str) -> bool:
        """Tells the other ranks that this one has failed, whereupon they end.

        Returns whether all of them have failed for the same reason, which one message is enough for.
        """
        return self._watch is not None and self._watch.failed(text)

    def finish(self) -> None:
        """Waits for all ranks, and undoes `init`: to be called once, by all of them."""
        if self._comm is None:
            return
        with self.long("ending"):
            self.barrier()
        if self._watch is not None:
            self._watch.leave()
        from mpi4py import MPI
        MPI.Finalize()


def _now() -> float:
    import time
    return time.monotonic()
