"""One run per output directory: a lock file that names its holder.

    with OutputLock(Path("runs/mine")):
        ...

The holder keeps `.lock` locked with flock, so the kernel frees it with the process, however that ends, and with the
host. Some file systems have no such locks, or keep them within a host. There the file itself counts, and its beat: the
holder touches it every BEAT seconds. Whoever finds a file that is not locked, and cannot know that its holder is gone,
watches it for WATCH seconds: a beat means that the holder lives, none that it was killed.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from alpha.core.inputs.schema import Integer, Record, Text
from alpha.errors import ConfigError, message

try:
    import fcntl
except ImportError:  # a system without it, such as Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
BEAT, WATCH = 10.0, 35.0    # seconds
LONG_AGO = 3600.0           # a file without a beat for that long needs no watching, by clocks that differ by minutes
PATIENCE = 1.0              # seconds in which a holder that has the lock writes who it is
SETTLE = 0.2                # seconds in which a rival that wrote at the same moment is seen, where there is no flock
HOLDER = Record({"pid": Integer(1), "host": Text(255), "token": Text(40)})


class OutputLock:
    """Keeps other runs out of a directory for the time of a block.

    Args:
        output: the directory; it exists.
    Raises:
        ConfigError: on entering, if another run holds it; the message has its process id and its host.
    """

    def __init__(self, output: Path) -> None:
        self.path = output / NAME
        self._file = -1
        self._stop = threading.Event()
        self._me = {"pid": os.getpid(), "host": socket.gethostname() or "unknown", "token": secrets.token_hex(8)}

    def __enter__(self) -> OutputLock:
        try:
            self._take()
        except OSError as error:
            self._close()
            raise ConfigError(message("output", f"cannot write {self.path}: {error.strerror or error}",
                                      "choose another directory: --output DIR")) from error
        except BaseException:
            self._close()
            raise
        threading.Thread(target=self._beat, name="alpha-lock", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file), os.stat(self.path)):
                os.unlink(self.path)
        self._close()

    def _take(self) -> None:
        while True:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            locked = self._flock()
            if locked is False:
                raise self._refusal(self._read(patient=True))
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), os.stat(self.path)):
                    break
            self._close()       # the holder before removed it in between
        holder = self._read()
        if holder is not None and not (locked and holder["host"] == self._me["host"]) and self._lives(holder):
            raise self._refusal(holder)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(self._me).encode(), 0)
        if not locked:
            time.sleep(SETTLE)
            holder = self._read()
            if holder != self._me:
                raise self._refusal(holder)

    def _flock(self) -> bool | None:
        """Locks the file: True if that is done, False if another process has it, None where there are no locks."""
        if fcntl is None:
            return None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def _read(self, patient: bool = False) -> dict[str, Any] | None:
        """Returns what the file says of its holder; None if it says nothing sound, if need be after PATIENCE."""
        end = time.monotonic() + (PATIENCE if patient else 0.0)
        while True:
            try:
                found = json.loads(os.pread(self._file, 4096, 0))
            except (ValueError, RecursionError):
                found = None
            if HOLDER.problem(found, "") is None:
                return found
            if time.monotonic() >= end:
                return None
            time.sleep(0.02)

    def _lives(self, holder: dict[str, Any]) -> bool:
        """Tells whether the process that wrote the file is still there, as far as can be known."""
        if holder["host"] == self._me["host"]:
            try:
                os.kill(holder["pid"], 0)
            except ProcessLookupError:
                return False
            except (OSError, OverflowError):
                pass  # a process of another user
        seen = os.stat(self.path).st_mtime_ns
        if abs(time.time() - seen / 1e9) > LONG_AGO:
            return False
        print(f"output: waiting up to {WATCH:.0f} s to see whether {_named(holder)} still runs", flush=True)
        end = time.monotonic() + WATCH
        while time.monotonic() < end:
            time.sleep(min(1.0, WATCH / 10))
            file = os.open(self.path, os.O_RDONLY)  # opening it makes a network file system ask its server
            try:
                if os.fstat(file).st_mtime_ns != seen:
                    return True
            finally:
                os.close(file)
        return False

    def _refusal(self, holder: dict[str, Any] | None) -> ConfigError:
        return ConfigError(message("output", f"{self.path.parent} is in use by another run, {_named(holder)}",
                                   "wait until it has ended, or choose another directory: --output DIR"))

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            with suppress(OSError):
                os.utime(self.path)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _named(holder: dict[str, Any] | None) -> str:
    return "whose file does not name it" if holder is None else f"process {holder['pid']} on {holder['host']}"
