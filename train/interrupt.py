"""SIGINT (Ctrl-C) and SIGTERM (a scheduler's "end now"), turned into an orderly stop between two steps."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to stop, and everything worth keeping has been saved.

    Attributes:
        signum: SIGINT or SIGTERM; the process is to exit with 128 + signum.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum


class StopRequest:
    """A block in which SIGINT and SIGTERM are noted only; the second signal then acts as if it were not there."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for s, handler in self._before.items():
            signal.signal(s, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self.__exit__()

    def asked(self) -> int:
        """Returns the signal that has come, 0 if none has."""
        return self.signum

    def check(self) -> None:
        """Raises Interrupted if a signal has come."""
        if self.signum:
            raise Interrupted(self.signum)
