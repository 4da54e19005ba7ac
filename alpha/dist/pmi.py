"""Start-up of MPI where no MPI launcher is: a server of PMI-1, the protocol by which mpirun tells ranks of each other.

torchrun and `srun --mpi=none` give each process a rank and the address of rank 0, and no MPI. Rank 0 runs this file as
a process of its own; every rank connects to it, and hands the connection to its MPI library as PMI_FD. The MPI library
needs to speak PMI-1, as MPICH and its descendants do. No data of a run goes this way: only the addresses by which the
MPI library then connects its ranks.

This file imports nothing of alpha, so that the server starts at once.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

KVS = "alpha"
ALIVE_S = 60.0      # in which all ranks have to connect


def serve(port: int, size: int) -> None:
    """Answers `size` ranks until all of them have closed their connections.

    Args:
        port: TCP port to listen on.
        size: number of ranks; less than all of them within ALIVE_S ends the server.
    """
    with socket.create_server(("", port), backlog=size) as server:
        server.settimeout(ALIVE_S)
        ranks = [_Rank(server.accept()[0]) for _ in range(size)]
    hosts = [rank.hello() for rank in ranks]
    table = {"PMI_process_mapping": _mapping(hosts)}
    import selectors
    selector = selectors.DefaultSelector()
    for rank in ranks:
        selector.register(rank.connection, selectors.EVENT_READ, rank)
    left, waiting = size, []
    while left:
        for key, _ in selector.select():
            lines = key.data.read()
            if lines is None:
                selector.unregister(key.fileobj)
                left -= 1
            for line in lines or ():
                if line.startswith("cmd=barrier_in"):
                    waiting.append(key.data)
                else:
                    key.data.answer(line, table)
        if len(waiting) == size:
            for rank in waiting:
                rank.send("cmd=barrier_out rc=0")
            waiting = []


class _Rank:
    """The connection of one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.rest = connection, b""

    def hello(self) -> tuple[int, str]:
        """Returns the rank and the host that the first line names."""
        self.connection.settimeout(ALIVE_S)
        line = b""
        while not line.endswith(b"\n"):
            byte = self.connection.recv(1)
            if not byte:
                raise SystemExit("a rank has closed its connection before it said who it is")
            line += byte
        rank, host = line.decode().split()
        self.connection.settimeout(None)
        return int(rank), host

    def read(self) -> list[str] | None:
        """Returns the lines that have come; None at the end of the connection."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [line.decode() for line in lines]

    def send(self, line: str) -> None:
        with contextlib.suppress(OSError):      # a rank that has died is noticed when it is read from
            self.connection.sendall(line.encode() + b"\n")

    def answer(self, line: str, table: dict[str, str]) -> None:
        """Answers a command; `table` has the values that ranks have put so far."""
        words = dict(word.partition("=")[::2] for word in line.split(" ") if "=" in word)
        command, key = words.get("cmd"), words.get("key", "")
        if command == "put":
            table[key] = line.partition(" value=")[2]
        found = table.get(key)
        answers = {
            "init": "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": "maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024",
            "get_appnum": "appnum rc=0 appnum=0",
            "get_my_kvsname": f"my_kvsname rc=0 kvsname={KVS}",
            "get_universe_size": "universe_size rc=0 size=-1",
            "put": "put_result rc=0 msg=success",
            "get": f"get_result rc=0 msg=success value={found}" if found is not None else
                   "get_result rc=-1 msg=unknown_key value=unknown",
            "finalize": "finalize_ack rc=0"}
        if command in answers:
            self.send("cmd=" + answers[command])


def _mapping(hosts: list[tuple[int, str]]) -> str:
    """Returns which node each rank is on, as blocks (first node, number of nodes, ranks on each)."""
    names = [host for _, host in sorted(hosts)]
    nodes = list(dict.fromkeys(names))
    blocks: list[list[int]] = []
    for name in names:
        node = nodes.index(name)
        if blocks and blocks[-1][0] == node:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1])
    return "(vector," + ",".join(f"({node},1,{count})" for node, count in blocks) + ")"


def join(rank: int, size: int, address: str, port: int, patience_s: float = ALIVE_S) -> dict[str, str]:
    """Starts the server on rank 0, connects to it, and returns the variables that the MPI library reads.

    The connection stays open for the time of the process.
    Raises:
        OSError: the server cannot be reached within `patience_s`.
    """
    if rank == 0:
        subprocess.Popen([sys.executable, __file__, str(port), str(size)], stdin=subprocess.DEVNULL,
                         start_new_session=True)
    end = time.monotonic() + patience_s
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=patience_s)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    connection.settimeout(None)
    connection.sendall(f"{rank} {socket.gethostname()}\n".encode())
    return {"PMI_FD": str(connection.detach()), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
