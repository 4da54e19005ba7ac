"""A rank that has died or hangs ends the others: each rank tells a server that it lives, and which collective it waits for.

Rank 0 starts the server, this file, as a process of its own: a launcher that sees a rank die kills the ranks at once,
and the server then still says which one it was. A thread of each rank sends a line every BEAT_S over TCP: the
collectives that the rank has come to, and since when it waits in one. From these the server sees

    a closed connection     the rank has died
    no line for SILENT_S    its process is stopped, or its machine is gone
    a rank that others have waited for, for longer than PATIENCE_S, and that is not in a block `busy`: it hangs
    a line with an error    the rank has failed, and says why

and tells all. A rank that is told, or has lost the server, ends its process at once: its main thread may be inside of
MPI or of a driver, where no exception would reach it. Files are replaced as a whole, so the last checkpoint stays
intact. This file imports nothing of alpha, so that the server starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

BEAT_S = 0.5
SILENT_S = 12.0
PATIENCE_S = 20.0
BUSY_S = 1800.0     # a rank in a block `busy` may be waited for so long
GRACE_S = 0.3       # in which the first of several errors is found
JOIN_S = 120.0      # in which ranks join a run
HELP = "help: continue with --resume auto, on any number of ranks\n"
FAILED = 1          # status of the processes that are ended


class Beacon:
    """The state that a rank tells of itself; the main thread writes, the thread of the beats reads.

    Attributes:
        arrived: collectives that the rank has come to.
        since: when it began to wait for the present one, time.monotonic(); 0 while it computes.
        doing: its work, in words.
        busy: of how many blocks of `long` work it is inside: reading data, compiling kernels, saving.
        starting: until its first step has ended.
    """

    def __init__(self) -> None:
        self.arrived, self.since, self.doing, self.busy, self.starting = 0, 0.0, "starting", 0, True

    def line(self) -> dict[str, Any]:
        waited = time.monotonic() - self.since if self.since else 0.0
        return {"arrived": self.arrived, "waited": waited, "doing": self.doing,
                "busy": self.starting or self.busy > 0}

    @contextlib.contextmanager
    def long(self, doing: str) -> Iterator[None]:
        """For a block of work that may take longer than others are to wait for a step."""
        before, self.doing = self.doing, doing
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.doing = before


class Member:
    """A rank, as the server knows it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.rest = connection, b""
        self.rank, self.name = -1, ""
        self.heard = time.monotonic()
        self.state: dict[str, Any] = {}
        self.gone = self.closed = False     # it has said good-bye, or died; its connection has ended
        self.failure: str | None = None

    def read(self) -> list[dict[str, Any]] | None:
        """Returns the lines that have come; None at the end of the connection."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def verdict(members: list[Member], now: float) -> str | None:
    """Returns which rank has gone silent or hangs, with its last state; None as long as all is well."""
    living = [m for m in members if not m.gone and m.rank >= 0]
    for m in living:
        if now - m.heard > SILENT_S:
            return (f"rank {m.rank} ({m.name}) is stopped: nothing was heard of it for {now - m.heard:.0f} s; "
                    f"it was {m.state.get('doing', 'starting')}")
    for waiting in living:
        waited = waiting.state.get("waited", 0.0)
        for m in living if waited > PATIENCE_S else ():
            late = not m.state.get("waited") or m.state["arrived"] < waiting.state["arrived"]
            if m is not waiting and late and waited > (BUSY_S if m.state.get("busy", True) else PATIENCE_S):
                return (f"rank {m.rank} ({m.name}) hangs: rank {waiting.rank} has waited for it for {waited:.0f} s in "
                        f"collective {waiting.state['arrived']}, rank {m.rank} has come to "
                        f"{m.state.get('arrived', 0)}; it was {m.state.get('doing', 'starting')}")
    if living and all(m.state.get("waited", 0.0) > 2 * PATIENCE_S for m in living):
        places = ", ".join(f"rank {m.rank} in collective {m.state['arrived']}" for m in living)
        return f"all ranks wait for each other: {places}"
    return None


class Server:
    """Listens to all ranks, and tells them, and stderr, why the run ends."""

    def __init__(self, size: int) -> None:
        self.listener = socket.create_server(("", 0), backlog=size)
        self.port = self.listener.getsockname()[1]
        self.members: list[Member] = []
        self.told, self.size, self.first_failure = "", size, 0.0
        self.since = time.monotonic()

    def run(self) -> None:
        """Serves until all ranks have left, or the end is told."""
        selector = selectors.DefaultSelector()
        selector.register(self.listener, selectors.EVENT_READ)
        while not self.told and not self._over():
            dead: list[Member] = []
            for key, _ in selector.select(GRACE_S / 4 if self.first_failure else BEAT_S):
                if key.fileobj is self.listener:
                    member = Member(self.listener.accept()[0])
                    self.members.append(member)
                    selector.register(member.connection, selectors.EVENT_READ, member)
                elif self._hear(key.data, selector):
                    dead.append(key.data)
            if dead:
                names = " and ".join(f"rank {m.rank} ({m.name})" for m in dead)
                states = ", ".join(f"it was {m.state.get('doing', 'starting')}" for m in dead)
                self.tell(f"{names} died without a word (killed, out of memory, or a crash); {states}")
            failed = [m for m in self.members if m.failure is not None]
            if failed and len(failed) == self.size and len({m.failure for m in failed}) == 1:
                self.tell(f"all ranks failed: {failed[0].failure}", together=True)
            elif failed and time.monotonic() - self.first_failure > GRACE_S:
                self.tell(f"rank {failed[0].rank} ({failed[0].name}) failed: {failed[0].failure}")
            elif not failed and (why := verdict(self.members, time.monotonic())):
                self.tell(why)

    def _over(self) -> bool:
        """Whether all ranks have left; after JOIN_S, whether all have that ever came."""
        known = [m for m in self.members if m.rank >= 0]
        return all(m.closed for m in known) and (
            len(known) == self.size or time.monotonic() - self.since > JOIN_S)

    def _hear(self, member: Member, selector: selectors.BaseSelector) -> bool:
        """Takes the lines of a rank, and returns whether it has died."""
        lines = member.read()
        for line in lines or ():
            if "hello" in line:
                member.rank, member.name = line["hello"], line["name"]
            elif "failed" in line:
                member.failure = line["failed"]
                self.first_failure = self.first_failure or time.monotonic()
            elif "bye" in line:
                member.gone = True
            else:
                member.state = line
        if lines is not None:
            return False
        selector.unregister(member.connection)
        died = not member.gone and member.failure is None and member.rank >= 0
        member.gone = member.closed = True
        return died

    def tell(self, why: str, together: bool = False) -> None:
        """Sends all ranks the reason; the first one counts.  together: all of them have failed for it."""
        if self.told:
            return
        self.told = why
        if not together:    # else each rank has the error itself
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"alpha.dist: {why}; all ranks end\n{HELP}")
                sys.stderr.flush()
        for member in self.members:
            with contextlib.suppress(OSError):
                member.connection.sendall(json.dumps({"end": why, "together": together}).encode() + b"\n")


class Watch:
    """A rank's connection to the server, and the thread that keeps it.

    Args:
        rank: number of this rank.
        addresses: where the server may be reached, tried in this order.
        beacon: the state to tell.
        end: called with the reason when the run is to end.
    """

    def __init__(self, rank: int, addresses: list[tuple[str, int]], beacon: Beacon,
                 end: Callable[[str], None]) -> None:
        self.rank, self.beacon, self._end = rank, beacon, end
        self._lock = threading.Lock()
        self._acknowledged, self._leaving, self._together = threading.Event(), False, False
        self.connection = _connected(addresses)
        self._send({"hello": rank, "name": f"process {os.getpid()} on {socket.gethostname()}"})
        self._send(beacon.line())
        threading.Thread(target=self._listen, name="alpha-dist-listen", daemon=True).start()
        threading.Thread(target=self._beat, name="alpha-dist-beat", daemon=True).start()

    def _send(self, line: dict[str, Any]) -> None:
        with self._lock:
            self.connection.sendall(json.dumps(line).encode() + b"\n")

    def _beat(self) -> None:
        while not self._leaving:
            with contextlib.suppress(OSError):      # the listener notices
                self._send(self.beacon.line())
            time.sleep(BEAT_S)

    def _listen(self) -> None:
        rest = b""
        while True:
            try:
                data = self.connection.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                if not self._leaving:
                    self._end("")
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in map(json.loads, lines):
                self._together = line["together"]
                self._acknowledged.set()
                if not self._leaving:
                    self._end(line["end"])

    def failed(self, text: str) -> bool:
        """Tells all ranks that this one has failed, and returns when the server has told them.

        Returns whether all ranks have failed for the same reason.
        """
        self._leaving = True
        with contextlib.suppress(OSError):
            self._send({"failed": text})
            self._acknowledged.wait(2.0)
        return self._together

    def leave(self) -> None:
        """Ends the connection in good order."""
        self._leaving = True
        with contextlib.suppress(OSError):
            self._send({"bye": True})
            self.connection.shutdown(socket.SHUT_RDWR)      # the listener is in recv, and holds it open


def _connected(addresses: list[tuple[str, int]]) -> socket.socket:
    """Returns a connection to the first address that answers.  Raises OSError if none does."""
    error: OSError = OSError("no address")
    for address in addresses:
        try:
            connection = socket.create_connection(address, timeout=5.0)
            connection.settimeout(None)
            return connection
        except OSError as problem:
            error = problem
    raise error


def end_process(rank: int) -> Callable[[str], None]:
    """Returns a function that ends this process, once the server has said why; where the server is lost, this rank says so."""
    def end(why: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            if not why:
                sys.stderr.write(f"alpha.dist: rank {rank} has lost the machine of rank 0, and ends\n{HELP}")
            sys.stderr.flush()
        os._exit(FAILED)
    return end


def start_server(size: int) -> int:
    """Starts the server of so many ranks as a process of its own, and returns its port."""
    numbers = [str(number) for number in (size, SILENT_S, PATIENCE_S)]
    server = subprocess.Popen([sys.executable, "-I", __file__, *numbers], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, start_new_session=True)
    assert server.stdout is not None
    with server.stdout as said:
        return int(said.readline())


def main(size: int, silent_s: float, patience_s: float) -> None:
    """Serves; signals to all processes of a job are for the ranks, which tell how they end."""
    global SILENT_S, PATIENCE_S
    SILENT_S, PATIENCE_S = silent_s, patience_s
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    server = Server(size)
    print(server.port, flush=True)
    os.close(1)
    server.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
