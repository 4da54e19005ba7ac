"""Calls of compiled kernels one after the other, made by one call: between two of them there is no Python.

A step of a plan is a function without arguments. Where it is a kernel of KERNELS with its arguments bound, it becomes
numbers that alpha/cpu/kernels/steps.cpp reads; a run of such steps is one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

Array = np.ndarray
Step = Callable[[], Any]
KERNELS = ("conv_run", "winograd_run", "winograd_pool", "sparse_run", "linear_sparse", "bn_apply", "max_pool_fwd",
           "max_pool_relu", "avg_pool_fwd")     # by number, as in steps.cpp
WIDTH = 12      # numbers of a step, as in steps.cpp


def joined(steps: Sequence[Step], library: Any, keep: Callable[[Array], ctypes.c_void_p]) -> list[Step]:
    """Returns steps that do the same, runs of kernels as one.

    Args:
        steps: hold what their arguments point to, and must stay.
        keep: returns the address of an array that is held from now on.
    """
    if library is None:
        return list(steps)
    numbers = {id(getattr(library, name)): k for k, name in enumerate(KERNELS)}
    found: list[Step] = []
    for known, run in groupby(steps, lambda step: isinstance(step, partial) and id(step.func) in numbers):
        part: list[Any] = list(run)
        found += [_one(part, numbers, library, keep)] if known and len(part) > 1 else part
    return found


def _one(steps: Sequence[Any], numbers: dict[int, int], library: Any, keep: Callable[[Array], ctypes.c_void_p]) -> Step:
    """Returns one step for several kernels."""
    words = np.zeros((len(steps), WIDTH), np.int64)
    for row, step in zip(words, steps):
        row[0] = numbers[id(step.func)]
        row[1:1 + len(step.args)] = [_word(a) for a in step.args]
    return partial(library.run_steps, keep(words), len(steps))


def _word(argument: Any) -> int:
    """Returns a number as it is, and of a pointer where it stands: what it points to may change."""
    if argument is None:
        return 0
    return ctypes.addressof(argument) if isinstance(argument, ctypes.c_void_p) else int(argument)
