"""profiler: calls that ran, their time, their memory, and the layer that they ran for.

    with alpha.profiler() as p:
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(p)                        # by op and by layer
    print(p.table("kernel"))        # on a GPU
    p.save("trace.json")            # for chrome://tracing or ui.perfetto.dev
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from alpha.core.device import get_backend
from alpha.core.errors import ConfigError, message
from alpha.core.graph import state
from alpha.core.inputs.arguments import checked
from alpha.core.table import settle
from alpha.core.trace import watchers
from alpha.profiler import report
from alpha.profiler.calls import BACKWARD, FORWARD, UPDATE, Call, Launch

WHERE = "profiler"
OF_UPDATES = "alpha.ops.update"


class Profiler:
    """For a block: writes down every call of an op that this thread makes; see `profiler`.

    Attributes:
        calls: calls of ops, in order: alpha.profiler.calls.Call.
        seconds: how long the block took, the device's work included.
        peak: the most bytes that were live after an op or within one.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.seconds, self.peak = 0.0, 0
        self._running: list[Call] = []          # calls of ops that have not returned, outermost first
        self._layers: WeakKeyDictionary[Any, str] = WeakKeyDictionary()     # node -> the layer that made it
        self._paths: dict[int, dict[int, str]] = {}     # root -> module -> path, by their ids
        self._kept: list[Any] = []              # the modules of these ids
        self._going_back: list[str] = []        # layers whose backward is running
        self._marks: list[tuple[Launch, Any, Any]] = []
        self._origins: dict[str, tuple[Any, float]] = {}    # per device: the first mark, and when it was made
        self._thread, self._begin = 0, 0.0

    def __enter__(self) -> Profiler:
        if self._thread:
            raise ConfigError(message(WHERE, "this profiler has been used already", "make a new one for each block: "
                                      "with alpha.profiler() as p: ..."))
        settle()
        self._thread, self._begin = threading.get_ident(), time.perf_counter()
        watchers.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        settle()    # the last layer may wait for a reader
        watchers.remove(self)
        for device in self._origins:
            get_backend(device).synchronize()
        self.seconds = time.perf_counter() - self._begin
        if error is None:
            for launch, begin, end in self._marks:
                origin, since = self._origins[launch.device]
                launch.begin = since + begin.time_since(origin) * 1e-3
                launch.seconds = end.time_since(begin) * 1e-3
        self._marks, self._kept, self._paths, self._origins = [], [], {}, {}
        self._layers.clear()

    # ---- told by ops, the graph and the kernels ----------------------------------------------------------------------

    def around(self, op: Any, args: Sequence[Any], device: str, implementation: Callable[..., Any]
               ) -> Callable[..., Any]:
        """See alpha.core.trace.Watcher."""
        if threading.get_ident() != self._thread:
            return implementation
        backend = get_backend(device)
        if device not in self._origins and (mark := backend.mark()) is not None:
            self._origins[device] = mark, time.perf_counter() - self._begin

        def run(*arrays: Any, **attrs: Any) -> Any:
            before = backend.memory_stats()
            call = Call(op.name, self._phase(op), self._layer(), device, _shapes(args),
                        time.perf_counter() - self._begin)
            self.calls.append(call)
            self._running.append(call)
            try:
                return implementation(*arrays, **attrs)
            finally:
                call.seconds = time.perf_counter() - self._begin - call.begin
                after = backend.memory_stats()
                call.live, call.added = after["live"], after["live"] - before["live"]
                self.peak = max(self.peak, after["live"], after["peak"] if after["peak"] > before["peak"] else 0)
                self._running.pop()
                if self._running:
                    self._running[-1].within += call.seconds
        return run

    def recorded(self, node: Any) -> None:
        """See alpha.core.trace.Watcher."""
        if threading.get_ident() == self._thread:
            self._layers[node] = self._layer()

    @contextmanager
    def backward(self, node: Any) -> Iterator[None]:
        """See alpha.core.trace.Watcher."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._going_back.append(self._layers.get(node, ""))
        try:
            yield
        finally:
            self._going_back.pop()

    def launched(self, kernel: str, begin: Any, end: Any) -> None:
        """See alpha.core.trace.Watcher."""
        if self._running and threading.get_ident() == self._thread:
            call = self._running[-1]
            call.launches.append(Launch(kernel, call.device))
            self._marks.append((call.launches[-1], begin, end))

    def _phase(self, op: Any) -> str:
        return BACKWARD if self._going_back else UPDATE if op.__module__ == OF_UPDATES else FORWARD

    def _layer(self) -> str:
        """Returns the path of the layer for which something runs: "layer1.0.conv1"; "" outside of layers."""
        if self._going_back:
            return self._going_back[-1]
        if not state.layers:
            return ""
        root, leaf = state.layers[0], state.layers[-1]
        paths = self._paths.get(id(root), {})
        if id(leaf) not in paths:
            self._kept += [root, leaf]
            paths = self._paths[id(root)] = {id(m): name or type(root).__name__ for name, m in root.named_modules()}
            paths.setdefault(id(leaf), type(leaf).__name__)
        return paths[id(leaf)]

    # ---- results ----------------------------------------------------------------------------------------------------

    @property
    def on_device(self) -> bool:
        """Whether a GPU was at work: times are its kernels' then, else the host's."""
        return any(call.launches for call in self.calls)

    @checked
    def table(self, by: str = "op", limit: int = 20) -> str:
        """Returns a table of times and memory.

        Args:
            by: "op" or "kernel", longest first, or "layer", in the order of the first calls.
            limit: of ops and kernels, the rows that are shown; the rest is summed up.
        Raises:
            ConfigError: there is no such table, or `limit` is no count.
        """
        return report.table(self, by, limit)

    @checked
    def save(self, path: str | Path) -> None:
        """Writes a trace that chrome://tracing and ui.perfetto.dev show: layers, ops, kernels, memory.

        Raises ConfigError if it cannot be written.
        """
        report.write_trace(self, path)

    def __str__(self) -> str:
        return f"{self.table('op')}\n\n{self.table('layer')}"

    def __repr__(self) -> str:
        return f"<profiler: {len(self.calls)} calls of ops, {self.seconds * 1e3:.1f} ms>"


@checked
def profiler() -> Profiler:
    """Returns a profiler: `with alpha.profiler() as p:` writes down the calls in the block, forward and backward.

    On the CPU times are of the implementations of ops, on a GPU of kernels, between two events each, which add about
    two microseconds to short ones. Ops of backward passes count for the layers whose forward pass they belong to. A
    function of alpha.capture is called op by op in the block. Work that an op leaves for later on a GPU counts for the
    op that has it done.
    Returns:
        a Profiler: print it, or see its `table`, `save` and `calls`.
    """
    return Profiler()


vars(profiler)["profile"] = profiler    # as people write it: alpha.profiler.profile()


def _shapes(args: Sequence[Any]) -> str:
    """Returns the shapes of the tensors among arguments: "32x8x8x3, 16x3x3x3"."""
    return ", ".join("x".join(map(str, a.shape)) or "()" if hasattr(a, "shape") else f"{len(a)} tensors"
                     for a in args if hasattr(a, "shape") or isinstance(a, list))
