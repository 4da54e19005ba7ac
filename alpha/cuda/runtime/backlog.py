"""Work for the compute stream that waits until its kernels are compiled.

A launch whose module nvcc has still to make waits here, and so does, in order, whatever is given to the stream after
it. The host goes on meanwhile and learns what the next launches need, whose modules are compiled beside the first. So
all modules of a network's first step are compiled in parallel, though nobody has listed them.

Whoever needs a result has the backlog worked off first: a copy to the host, a synchronization, a recording. Memory that
is freed meanwhile may be given away again, as on a stream that runs behind the host; it is not given back to the
device. Where another library shares memory, nothing waits any more: it has an order of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]

MOST = 4096  # launches that wait

waiting: deque[Work] = deque()  # asked before each launch: nothing is in it, but for a process's first steps
open = True                     # whether work may wait
_lock = threading.RLock()


def add(work: Work) -> None:
    """Has work done after all that waits."""
    with _lock:
        waiting.append(work)
        if len(waiting) >= MOST:
            run()


def run() -> None:
    """Does all work that waits, in order.

    Raises:
        CompileError: a kernel does not compile; DeviceError: a launch fails. The work behind it is dropped.
    """
    if not waiting:
        return
    with _lock:
        while waiting:
            try:
                waiting[0]()  # stays in its place until it is done, so that others line up behind it
            except BaseException:
                waiting.clear()
                raise
            waiting.popleft()


def close() -> None:
    """Does all work that waits, and lets none wait from now on."""
    global open
    run()
    open = False
