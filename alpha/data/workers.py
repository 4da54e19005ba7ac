"""Who fetches the items of batches: the caller, threads, or processes. Batches come in their order all the same."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alpha.core.errors import AlphaError, DataError, message
from alpha.core.inputs.registry import parameters_of
from alpha.data.items import as_array, as_numbers, fetched, stack

if TYPE_CHECKING:   # importing it takes as long as the rest of alpha.data, and only workers need it
    from concurrent.futures import Executor, Future

Job = tuple[int, np.ndarray]  # an epoch, and the numbers of the items


class Work:
    """The work on a batch: items are read, transformed and stacked.

    Args:
        data: a tuple of arrays, or an object with __getitem__.
        transform: of the first part of an item; a transform that takes `rng` gets a generator for (seed, epoch, item).
    """

    def __init__(self, data: Any, transform: Callable[..., Any] | None, seed: int) -> None:
        self.data, self.transform, self.seed = data, transform, seed
        self.takes_rng = transform is not None and _takes_rng(transform)
        self.seeds_globals = False  # in a process of its own

    def __call__(self, job: Job) -> list[np.ndarray]:
        epoch, index = job
        if isinstance(self.data, tuple) and self.transform is None:
            return [as_array(part[index]) for part in self.data]
        items = []
        for k in index.tolist():
            if self.seeds_globals:
                _seed_globals(self.seed, epoch, k)
            parts = tuple([as_array(a[k]) for a in self.data]) if isinstance(self.data, tuple) else fetched(
                "DataLoader", self.data, k)
            items.append((self._transformed(as_numbers("DataLoader", parts[0], 0, k), epoch, k), *parts[1:])
                         if self.transform else parts)
        return stack("DataLoader", items, index)

    def _transformed(self, sample: np.ndarray, epoch: int, k: int) -> np.ndarray:
        key = [self.seed & 0xFFFFFFFFFFFFFFFF, (epoch << 40) + k]
        more = {"rng": np.random.Generator(np.random.Philox(key=key))} if self.takes_rng else {}
        try:
            return as_array(self.transform(sample, **more))  # type: ignore[misc]
        except Exception as error:
            if isinstance(error, AlphaError):
                raise
            raise DataError(message("DataLoader", f"transform failed on item {k}: {type(error).__name__}: {error}",
                                    f"it gets an array of {sample.dtype} {sample.shape}")) from error


def _takes_rng(transform: Callable[..., Any]) -> bool:
    try:
        return "rng" in parameters_of(transform)
    except (TypeError, ValueError):  # a built-in function
        return False


def _seed_globals(seed: int, epoch: int, k: int) -> None:
    """Seeds the generators that data sets of others draw from, as a function of the item."""
    number = hash((seed, epoch, k)) & 0xFFFFFFFF
    random.seed(number)
    np.random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


_work: Work | None = None  # of a worker process


def _begin(work: Work) -> None:
    global _work
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's
    _work = work
    _work.seeds_globals = True


def _end_with_parent() -> None:
    """Lets this process end as soon as the program that started it has ended, by whatever signal.

    A worker waits for jobs on a pipe that it can write to itself, so the end of the program does not end its wait.
    """
    import multiprocessing
    from threading import Thread
    parent = multiprocessing.parent_process()
    assert parent is not None
    watched: list[Any] = [parent.sentinel]
    if hasattr(os, "pidfd_open"):   # a pipe stays open while another child of the program has its other end
        try:
            watched.append(os.pidfd_open(parent.pid))  # type: ignore[arg-type]
        except ProcessLookupError:
            os._exit(1)
        except OSError:     # the kernel is older
            pass
    Thread(target=_exit_after, args=(watched,), daemon=True, name="alpha-data-parent").start()
    if sys.platform == "linux":
        # The thread needs the GIL, which a data set may hold for ever; the kernel does not. PR_SET_PDEATHSIG would be
        # of the fork server, which lives for as long as a worker does.
        import fcntl
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, os.O_ASYNC)


def _exit_after(watched: list[Any]) -> None:
    from multiprocessing.connection import wait
    wait(watched)
    os._exit(1)


def _do(job: Job) -> list[np.ndarray]:
    assert _work is not None
    return _work(job)


class Workers:
    """Does the work of batches ahead of their reader.

    Args:
        count: how many threads or processes; 0: the caller alone, when it asks.
        processes: whether they are processes, for work in Python itself; it and the data are sent to each once.
        prefetch: batches per worker that are made ahead.
    """

    def __init__(self, work: Work, count: int, processes: bool, prefetch: int) -> None:
        self.work, self.count, self.processes, self.ahead = work, count, processes, max(1, count * prefetch)
        self.pool: Executor | None = None

    def results(self, jobs: Sequence[Job]) -> Iterator[list[np.ndarray]]:
        """Yields the result of each job, in their order.  Raises DataError."""
        if not self.count:
            yield from map(self.work, jobs)
            return
        waiting: deque[Future[list[np.ndarray]]] = deque()
        try:
            for job in jobs:
                waiting.append(self._submit(job))
                if len(waiting) > self.ahead:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, job: Job) -> Future[list[np.ndarray]]:
        if self.pool is None:
            self.pool = self._start()
        if not self.processes:
            return self.pool.submit(self.work, job)
        try:
            return self.pool.submit(_do, job)
        except (AttributeError, TypeError, ValueError) as error:
            self.close()
            raise DataError(message("DataLoader", f"the data set cannot be sent to worker processes: {error}",
                                    "write its class and its transform in a file that is imported, or use threads: "
                                    "processes=False")) from error
        except Exception as error:  # of pickling, whose module is not named here; or of a pool that has broken
            if "BrokenProcessPool" in type(error).__name__ or "ickl" in f"{type(error).__name__}{error}":
                self.close()
                raise self._broken(error) from error
            raise

    def _start(self) -> Executor:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        if not self.processes:
            return ThreadPoolExecutor(self.count, "alpha-data")
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        return ProcessPoolExecutor(self.count, multiprocessing.get_context(method), _begin, (self.work,))

    def _result(self, future: Future[list[np.ndarray]]) -> list[np.ndarray]:
        try:
            return future.result()
        except Exception as error:
            if type(error).__name__ != "BrokenProcessPool":
                raise
            self.close()
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> DataError:
        return DataError(message("DataLoader", f"a worker process has ended: {str(error).partition(chr(10))[0]}",
                                 'keep what your program does below `if __name__ == "__main__":`, and classes of data '
                                 "in files that are imported; or use threads: processes=False"))

    def close(self) -> None:
        """Ends the workers."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool = None

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self.close()
