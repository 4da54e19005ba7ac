"""Work in a thread of its own: what waits for files, or computes without Python, beside what the program does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Meanwhile(Generic[T]):
    """A call that has begun; `result()` waits for it.  Its thread does not keep the process alive."""

    def __init__(self, function: Callable[..., T], *args: Any, **options: Any) -> None:
        self._call, self._found, self._error = (function, args, options), list[T](), list[BaseException]()
        self._thread = threading.Thread(target=self._run, name="alpha-meanwhile", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        function, args, options = self._call
        try:
            self._found.append(function(*args, **options))
        except BaseException as error:  # raised where the result is asked for
            self._error.append(error)

    def done(self, within_s: float) -> bool:
        """Tells whether it has ended, waiting for so many seconds at most."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Returns what the function returned, or raises what it raised."""
        self._thread.join()
        if self._error:
            raise self._error.pop()
        return self._found[0]
