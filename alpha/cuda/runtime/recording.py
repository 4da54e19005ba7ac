"""The work of a function on the compute stream, recorded once and launched again as a whole (a CUDA graph).

    recording = Recording(function, [x, y])     # function(arrays) -> arrays; nothing has been computed yet
    loss, classes = recording.replay([x, y])    # one launch, whatever the number of kernels

A recording repeats launches with the addresses and numbers of the time when it was made. Therefore it has memory of its
own (runtime/arena.py), of which nobody else is given any, copies of its inputs there, and a hold on every other array
that it uses. What the host computes in between is not repeated. Random numbers go on, as kernels read seed and counter
from memory; and so do steps of optimizers, whose numbers the caller gives anew to each replay (begin.cu).
"""

from __future__ import annotations

import ctypes
import gc
import struct
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np

from alpha import random
from alpha.core.errors import AlphaError, message
from alpha.cuda.runtime import backlog, libcuda, memory
from alpha.cuda.runtime.arena import Arena, unmap_waiting
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, free_cached

Arrays = Sequence[Array]
Token = frozenset[int]  # nodes of the graph that is recorded: what a call has launched last

RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: memory may be allocated meanwhile
ROOM = 3840  # bytes of the numbers that a replay begins with, of which 16 are seed and counter
MOST = 8     # arrays that a launch copies
ADD, SET = 0, 1  # flags of cuStreamUpdateCaptureDependencies
KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
# CUgraphEdgeData, ports and type: blocks behind are launched when those before return, and wait for what they wrote
PROGRAMMATIC = bytes((1, 0, 1, 0, 0, 0, 0, 0))
_PACK = struct.Struct(f"{3 * MOST}q").pack
_PAIRS = f"block[{24 * MOST}] copies, i32 count"
_BEGIN = Kernel("begin.cu", "begin", f"ptr to, block[{ROOM}] numbers, {_PAIRS}", threads=ROOM // 8)
_COPIES = Kernel("begin.cu", "copies", _PAIRS, threads=ROOM // 8)


class Recorder:
    """What the backend asks and tells while the stream is recorded: alpha.cuda.runtime.memory.recorder."""

    forks = True    # whether branches run side by side

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.own: set[int] = set()        # addresses of the blocks that come from the arena
        self.held: dict[int, Array] = {}  # the other arrays that the recorded work reads or writes
        self.apart: Token = frozenset()   # nodes of kernels that do not wait by themselves
        self.begin: Array | None = None   # seed and counter, from which random numbers start, and numbers of steps
        self.counter = random.get_state()[1]
        self.drawn: dict[int, int] = {}  # numbers that kernels make, by their offset; backward makes them again
        self._used = 16                  # bytes of `begin`
        self._step: tuple[tuple[float, ...], Array] | None = None
        self._forked = False
        self._base: Token = frozenset()         # what was launched before the fork
        self._owners: dict[int, Token] = {}     # blocks that calls since the fork have written -> these calls
        self._touched: set[int] = set()         # blocks of the current call that have no owner yet
        self._settled: set[int] = set()         # blocks from before the fork

    def allocated(self, block: int) -> None:
        """Takes notice of a block of the arena."""
        self.own.add(block)
        self._settled.discard(block)

    def stands_apart(self) -> None:
        """Takes notice of a launch of a kernel that does not begin with `follow` (ptx.cuh)."""
        self.apart |= self._tips()

    def hold(self, values: Sequence[Any]) -> None:
        """Keeps those arguments of a launch alive that nobody else may; it waits for who has written the others."""
        for value in values:
            if isinstance(value, Array) and not self._is_own(value):
                self.held[id(value)] = value
            elif self._forked and isinstance(value, Array):
                self._follow(int(value.block))

    def _is_own(self, x: Array) -> bool:
        return not isinstance(x.block, memory.Lease) and int(x.block) in self.own

    def is_outside(self, x: Array) -> bool:
        """Tells whether an array was there before the function: what waits to be written is the function's."""
        return x.block is not None and not self._is_own(x)

    def forget(self) -> None:
        """Drops what was made of arrays from outside, and kept with them: what is recorded will never make it."""
        for x in self.held.values():
            for name, made in [*(x.derived or {}).items()]:
                parts = made if isinstance(made, tuple) else (made,)
                if any(isinstance(part, Array) and self._is_own(part) for part in parts):
                    del x.derived[name]

    def upload(self, a: np.ndarray, dtype: str | None) -> Array:
        """Returns `a` on the device, now and outside of the arena: the tables of plans, which stay as they are.

        Nothing else runs on the device meanwhile, so the copy need not wait for anybody.
        """
        out = self._outside(a.shape, dtype or a.dtype.name)
        if a.nbytes:
            context.driver.memcpy_htod_async(out.ptr, a, context.copy_stream)
            context.copy_stream.synchronize()
        self.held[id(out)] = out
        return out

    def _outside(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Returns memory for what is there before a replay: in the arena its earlier launches might write there."""
        own, memory.pool.device, memory.recorder = memory.pool.device, memory.pool.main, None
        try:
            return empty(shape, dtype)
        finally:
            memory.pool.device, memory.recorder = own, self

    def random(self, offset: int, n: int) -> tuple[int, Array]:
        """Returns what is added to a counter in memory to get `offset`, and where that counter is; n numbers follow."""
        self.drawn[offset] = -(-n // 4) * 4
        return offset - self.counter, self._begun()

    def _begun(self) -> Array:
        if self.begin is None:
            self.begin = self._outside((ROOM // 8,), "int64")
        return self.begin

    @contextmanager
    def step_numbers(self, numbers: tuple[float, ...], again: Any) -> Iterator[Array]:
        """For a block: updates (ops/update) read what they compute with in the array, which each replay gets anew.

        again: the update as a call of the host, which a GPU has no use for.
        """
        begin, place = self._begun(), self._used
        self._used += -(-4 * len(numbers) // 16) * 16
        if self._used > ROOM:
            raise self.refusal("a step of an optimizer with more groups of parameters than there is room for")
        array = Array(begin.block, begin.ptr + place, (len(numbers),), "float32", len(numbers), 4 * len(numbers))
        self._step = numbers, array
        try:
            yield array
        finally:
            self._step = None
        if not any(x.block is begin.block and x.ptr == array.ptr for x in self.held.values()):
            raise self.refusal("an update that does not read its numbers in memory")

    def kept(self, numbers: tuple[float, ...]) -> Array | None:
        """Returns where an update finds its numbers; None: they stay as they are."""
        if self._step is None:
            return None
        if numbers != self._step[0]:
            raise self.refusal("an update with other numbers than `numbers` of the optimizer returns")
        return self._step[1]

    # ---- calls side by side ------------------------------------------------------------------------------------------

    def fork(self) -> None:
        """Begins a part in which calls, each between `after` and `done`, follow those alone whose results they read.

        A block of the arena that is freed there serves nobody before `join`, as its readers may be running still.
        """
        self._forked, self._base, self._settled = True, self._tips(), set(self.own)
        self.arena.keep(True)

    def after(self, tokens: Iterable[Token]) -> None:
        """Has the next launches wait for calls, and for all before the fork."""
        self._touched = set()
        self._wait_for(self._base.union(*tokens), SET)

    def done(self) -> Token:
        """Returns what waits for the launches since `after`; a form that they have made of an array is theirs."""
        token = self._tips()
        self._owners.update(dict.fromkeys(self._touched, token))
        return token

    def join(self, tokens: Iterable[Token]) -> None:
        """Ends the part: what is launched from now on waits for all of it."""
        self.after(tokens)
        self._forked, self._owners = False, {}
        self.arena.keep(False)

    def _follow(self, block: int) -> None:
        """Has the next launch wait for the call that has written a block since the fork: it may be one whose result
        it does not read, but which has made a form of its input that others read, too."""
        if block in self._owners:
            self._wait_for(self._owners[block], ADD)
        elif block not in self._settled:
            self._touched.add(block)

    def _tips(self) -> Token:
        """Returns the nodes that the next launch waits for."""
        state, count = ctypes.c_int(), ctypes.c_size_t()
        nodes = ctypes.POINTER(ctypes.c_void_p)()
        libcuda.call("cuStreamGetCaptureInfo_v2", context.stream.handle, ctypes.byref(state), None, None,
                     ctypes.byref(nodes), ctypes.byref(count))
        return frozenset(nodes[k] for k in range(count.value))

    def _wait_for(self, token: Token, flags: int) -> None:
        nodes = (ctypes.c_void_p * len(token))(*token)
        libcuda.call("cuStreamUpdateCaptureDependencies", context.stream.handle, nodes, len(token), flags)

    def refusal(self, what: str) -> AlphaError:
        """Returns the error of something that cannot be recorded."""
        return AlphaError(message("capture", f"{what} in the function that is recorded, which later calls would not "
                                  "repeat", "do it outside of the function"))


class Recording:
    """A function's work on the device, and the memory that it uses.

    Args:
        function: gets arrays like `inputs` and returns those of its results.
        inputs: arrays whose elements differ from replay to replay.
        forget: drops what the function has left behind; where its arrays would take less memory in other places, it is
            called again then. None: it is called once.
    Raises:
        AlphaError: it reads elements back, makes arrays from host data, or draws random numbers on the host.
        DeviceError: the driver refuses.
        What the function raises. In each case nothing has been computed, and nothing is recorded.
    """

    _all: WeakSet[Recording] = WeakSet()
    nbytes = 0  # that the pool counts as reserved

    def __init__(self, function: Callable[[list[Array]], list[Array]], inputs: Arrays,
                 forget: Callable[[], None] | None = None) -> None:
        memory.write_waiting()  # nothing that is older may be written in the recording
        context.synchronize()
        gc.collect()
        free_cached()
        if memory.on_exhaustion is None:
            memory.on_exhaustion = close_all
            context.at_exit.append(close_all)
        self._stream, self._graph = ctypes.c_void_p(context.stream.handle), ctypes.c_void_p()
        recorder = self._record(function, inputs, Arena())
        if forget and (plan := self._arena.plan()):
            self.close()
            recorder.forget()
            forget()
            gc.collect()
            self._record(function, inputs, Arena(plan))
        self.nbytes = self._arena.managed_bytes
        memory.pool.reserved += self.nbytes
        self._all.add(self)

    def _record(self, function: Callable[[list[Array]], list[Array]], inputs: Arrays, arena: Arena) -> Recorder:
        self._arena, recorder, random_state = arena, Recorder(arena), random.get_state()
        try:
            with self._recorded(recorder):
                self.inputs = [empty(x.shape, x.dtype) for x in inputs]
                # elements: planes would be merged by the first replay's copy, and never again
                self.outputs = [y.written() for y in function(self.inputs)]
                memory.write_waiting()  # what waits would be written once, and later replays would not change it
                drawn = random.get_state()[1] - recorder.counter
                if drawn != sum(recorder.drawn.values()):
                    raise recorder.refusal("random numbers are drawn on the host")
        except BaseException:
            recorder.forget()
            self._arena.close()
            raise
        finally:
            unmap_waiting()
            random.set_state(*random_state)
        self._held, self._begin, self._drawn = list(recorder.held.values()), recorder.begin, drawn
        self._numbers = bytearray(ROOM)
        return recorder

    @contextmanager
    def _recorded(self, recorder: Recorder) -> Any:
        """For a block: work on the compute stream is recorded, and memory comes from the recording's pool."""
        pool, collects, graph = memory.pool, gc.isenabled(), ctypes.c_void_p()
        gc.disable()  # finalizers of arrays from elsewhere would record events
        libcuda.call("cuStreamBeginCapture_v2", self._stream, RELAXED)
        pool.device, memory.recorder = self._arena, recorder
        whole = False
        try:
            yield
            whole = True
        finally:
            pool.device, memory.recorder = pool.main, None
            if collects:
                gc.enable()
            status = libcuda.status_of("cuStreamEndCapture", self._stream, ctypes.byref(graph))
            try:
                if whole:
                    libcuda.check("cuStreamEndCapture", status)
                    _overlap(graph, recorder.apart)
                    libcuda.call("cuGraphInstantiateWithFlags", ctypes.byref(self._graph), graph, 0)
            finally:
                if graph:
                    libcuda.call("cuGraphDestroy", graph)

    def replay(self, inputs: Arrays, numbers: Iterable[tuple[Array, tuple[float, ...]]] = ()) -> list[Array]:
        """Launches the recorded work on other inputs of the same shapes and dtypes.

        Args:
            numbers: those of steps, for the arrays that `step_numbers` has given.
        Returns new arrays; what else the function has written, it writes again where it did.
        """
        pairs = [*zip(self.inputs, inputs)]
        if self._begin:
            seed, counter = random.get_state()
            struct.pack_into("QQ", self._numbers, 0, seed, counter)
            for at, values in numbers:
                struct.pack_into(f"{len(values)}f", self._numbers, at.ptr - self._begin.ptr, *values)
            blocks, *table = _table(pairs[:MOST])
            _BEGIN(blocks, self._begin, bytes(self._numbers), *table)
            pairs = pairs[MOST:]
            random.set_state(seed, counter + self._drawn)
        _copy_all(pairs)
        backlog.run()  # what is above may wait there
        libcuda.check("cuGraphLaunch", libcuda.library().cuGraphLaunch(self._graph, self._stream))
        found = [empty(y.shape, y.dtype) for y in self.outputs]
        _copy_all([*zip(found, self.outputs)])
        return found

    @property
    def closed(self) -> bool:
        return not self._graph

    def close(self) -> None:
        """Gives the memory back; arrays that the function has left elsewhere, gradients say, keep theirs."""
        if self._graph:
            context.synchronize()
            libcuda.call("cuGraphExecDestroy", self._graph)
            self._graph = ctypes.c_void_p()
            memory.pool.reserved -= self.nbytes
            self.inputs, self.outputs, self._held, self._begin = [], [], [], None
            self._arena.close()


def _overlap(graph: ctypes.c_void_p, apart: Container[int]) -> None:
    """Has kernels that wait for one kernel alone be launched when its last block returns, before all that it wrote is
    seen by others: each waits for that by itself (`follow` in ptx.cuh).  apart: nodes of kernels that do not."""
    if not hasattr(libcuda.library(), "cuGraphAddDependencies_v2") or context.capability < (9, 0):
        return
    count, kind = ctypes.c_size_t(), ctypes.c_int()
    libcuda.call("cuGraphGetEdges", graph, None, None, ctypes.byref(count))
    if not count.value:     # which the driver takes for no place
        return
    before, behind = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    libcuda.call("cuGraphGetEdges", graph, before, behind, ctypes.byref(count))
    waits, kernels = Counter(behind), set[int]()
    for node in {*before, *behind}:
        libcuda.call("cuGraphNodeGetType", node, ctypes.byref(kind))
        if kind.value == KERNEL_NODE:
            kernels.add(node)
    edges = [(a, b) for a, b in zip(before, behind) if waits[b] == 1 and kernels >= {a, b} and b not in apart]
    ends = [(ctypes.c_void_p * len(edges))(*nodes) for nodes in zip(*edges)] if edges else ()
    if ends:
        libcuda.call("cuGraphRemoveDependencies", graph, *ends, len(edges))
        libcuda.call("cuGraphAddDependencies_v2", graph, *ends, PROGRAMMATIC * len(edges), len(edges))


def _table(pairs: Sequence[tuple[Array, Array]]) -> tuple[int, bytes, int]:
    """Returns the blocks and the arguments of a launch that copies arrays: (target, source)."""
    words, longest = [0] * (3 * MOST), 1
    for k, (to, x) in enumerate(pairs):
        words[3 * k:3 * k + 3] = to.ptr, x.ptr, x.nbytes
        longest = max(longest, x.nbytes)
    return min(-(-longest // (2 * ROOM)), 1024), _PACK(*words), len(pairs)


def _copy_all(pairs: Sequence[tuple[Array, Array]]) -> None:
    for k in range(0, len(pairs), MOST):
        blocks, *table = _table(pairs[k:k + MOST])
        _COPIES(blocks, *table)


def close_all() -> None:
    """Gives up all recordings: for memory that has run out, and at exit."""
    for recording in list(Recording._all):
        recording.close()
