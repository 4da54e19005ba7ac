"""What ends a run whose ranks do not answer: the judgement on their last words, and the end of each."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from alpha.dist import watch
from alpha.dist.watch import BUSY_S, PATIENCE_S, SILENT_S, Beacon, Member, Server, Watch, verdict

pytestmark = pytest.mark.same_without_kernels("ranks are what is tested")

NOW = 1000.0


def member(rank: int, heard: float = NOW, **state: Any) -> Member:
    made = Member(None)     # type: ignore[arg-type]
    made.rank, made.name, made.heard = rank, f"process {100 + rank} on host", heard
    made.state = {"arrived": 5, "waited": 0.0, "doing": "in step 3", "busy": False, **state}
    return made


def test_ranks_that_step_together_are_well() -> None:
    assert verdict([member(0), member(1)], NOW) is None
    assert verdict([member(0, waited=PATIENCE_S - 1), member(1)], NOW) is None
    assert verdict([], NOW) is None


def test_a_silent_rank_is_stopped() -> None:
    why = verdict([member(0), member(1, heard=NOW - SILENT_S - 1)], NOW)
    assert why is not None and why.startswith("rank 1 (process 101 on host) is stopped") and "in step 3" in why


def test_a_rank_that_others_wait_for_hangs_unless_it_is_busy() -> None:
    waiting = member(0, arrived=7, waited=PATIENCE_S + 1)
    why = verdict([waiting, member(1, arrived=6)], NOW)
    assert why is not None and "rank 1 (process 101 on host) hangs: rank 0 has waited" in why and "collective 7" in why
    assert verdict([waiting, member(1, arrived=6, busy=True)], NOW) is None
    waiting.state["waited"] = BUSY_S + 1
    assert verdict([waiting, member(1, arrived=6, busy=True)], NOW) is not None


def test_ranks_that_all_wait_are_told_where() -> None:
    why = verdict([member(k, arrived=5, waited=2 * PATIENCE_S + 1) for k in (0, 1)], NOW)
    assert why is not None and "all ranks wait for each other" in why and "rank 1 in collective 5" in why


def test_the_beacon_tells_what_takes_long() -> None:
    beacon = Beacon()
    assert beacon.line()["busy"]        # until the first step has ended
    beacon.starting = False
    with beacon.long("saving"):
        assert beacon.line() == {"arrived": 0, "waited": 0.0, "doing": "saving", "busy": True}
    assert not beacon.line()["busy"]


@pytest.fixture
def joined() -> Any:
    """A server, and two ranks that note what they are told."""
    server = Server(2)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    told: dict[int, list[str]] = {0: [], 1: []}
    watches = [Watch(k, [("127.0.0.1", 1), ("127.0.0.1", server.port)], Beacon(), told[k].append) for k in (0, 1)]
    yield server, watches, told
    for w in watches:
        w.leave()
    thread.join(10)
    assert not thread.is_alive()


def until(true: Any) -> None:
    end = time.monotonic() + 10
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true()


def test_an_error_of_one_rank_is_told_to_the_others(joined: Any) -> None:
    _, watches, told = joined
    assert watches[1].failed("DataError: no file") is False
    until(lambda: told[0])
    assert told[0][0].startswith("rank 1 (process ") and told[0][0].endswith("failed: DataError: no file")
    assert not told[1]


def test_one_error_of_all_ranks_is_known_as_one(joined: Any) -> None:
    _, watches, told = joined
    found: list[bool] = []
    threads = [threading.Thread(target=lambda w=w: found.append(w.failed("AnomalyError: nan"))) for w in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True] and not told[0] and not told[1]


def test_a_rank_that_leaves_in_good_order_ends_nobody(joined: Any) -> None:
    server, watches, told = joined
    watches[1].leave()
    until(lambda: any(m.gone for m in server.members))
    time.sleep(0.1)
    assert not told[0] and not server.told


def test_a_closed_connection_is_a_death(joined: Any) -> None:
    server, watches, told = joined
    until(lambda: len([m for m in server.members if m.rank >= 0]) == 2)
    watches[1]._leaving = True      # it says no more
    watches[1].connection.shutdown(socket.SHUT_RDWR)
    until(lambda: told[0])
    assert "rank 1 (process " in told[0][0] and "died without a word" in told[0][0] and "it was starting" in told[0][0]


def test_lines_may_come_in_pieces() -> None:
    here, there = socket.socketpair()
    made = Member(there)
    text = json.dumps({"bye": True}).encode() + b"\n"
    here.sendall(text + text[:3])
    assert made.read() == [{"bye": True}]
    here.sendall(text[3:])
    assert made.read() == [{"bye": True}]
    here.close()
    assert made.read() is None


def test_the_server_says_why_and_ranks_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Server(2).tell("rank 3 (process 7 on b) died")
    assert capsys.readouterr().err == ("alpha.dist: rank 3 (process 7 on b) died; all ranks end\n"
                                       "help: continue with --resume auto, on any number of ranks\n")
    ends: list[int] = []
    monkeypatch.setattr(watch.os, "_exit", ends.append)
    watch.end_process(1)("rank 3 (process 7 on b) died")
    assert capsys.readouterr().err == "" and ends == [1]
    watch.end_process(1)("")
    assert "rank 1 has lost the machine of rank 0" in capsys.readouterr().err and ends == [1, 1]


def test_the_server_is_a_process_that_ends_with_its_ranks() -> None:
    port = watch.start_server(1)
    only = Watch(0, [("127.0.0.1", port)], Beacon(), lambda why: None)
    only.leave()
    until(lambda: not answers(port))


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False
