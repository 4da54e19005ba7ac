"""NumPy's functions without its warnings of overflow, 0 / 0 and the like, which give inf and NaN, as on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

import numpy as np

_IN_CONTEXTS = int(np.__version__.partition(".")[0]) >= 2  # NumPy keeps in a context variable what it warns of
_here = threading.local()


def quietly(ufunc: Callable[..., Any], *args: Any, out: Any) -> Any:
    """Returns ufunc(*args, out=out).  np.errstate, which is the other way, takes longer than a small ufunc."""
    try:
        return _here.run(ufunc, *args, out=out)
    except (AttributeError, RuntimeError):  # the first call of a thread, or one in the middle of another
        pass
    if _IN_CONTEXTS and not hasattr(_here, "run"):
        context = Context()
        context.run(np.seterr, all="ignore")
        _here.run = context.run
    with np.errstate(all="ignore"):
        return ufunc(*args, out=out)
