"""One convolution by one candidate, bitwise on small integers: what every test of a float32 candidate calls."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
import pytest

from alpha.core.device import get_backend
from alpha.cuda.conv.costs import device
from alpha.cuda.conv.planner import Candidate
from alpha.cuda.conv.split import refusal
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.gradcheck import assert_equal_at
from tests.conv_cases import Case
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import ints


def with_long(cases: Iterable[Case], *names: str) -> list:
    """Returns the cases as parameters of a test; those of these names have the mark long."""
    return [pytest.param(case, marks=pytest.mark.long) if case.name in names else case for case in cases]


def cut_into(tile: Any, split: int) -> Any:
    """Returns a SlabTile as one that cuts its longest sums into so many slices, and serves where that pays."""
    class Cut(type(tile)):
        splits = (split,)

        def rejection(self, desc):
            reason = super().rejection(desc)
            if reason or split == 1:
                return reason
            return refusal(self.sums(desc), split, self.resident * device().sm_count)

    found = copy(tile)
    found.__class__, found.name = Cut, f"{tile.name} split {split}" if split > 1 else tile.name
    return found


def check(case: Case, candidate: Candidate) -> None:
    """Computes a case by a candidate that reads and writes float32, and compares every element with NumPy's.

    Outputs start as NaN, so that an element that nobody writes is seen. fprop runs bare, and with a bias and a relu.

    Raises:
        AssertionError: names the first coordinate that differs.
    """
    get_backend("cuda")     # a program may have made no tensor yet
    {"fprop": _fprop, "dgrad": _dgrad, "wgrad": _wgrad}[candidate.pass_name](case, candidate)


def _fprop(case: Case, candidate: Candidate) -> None:
    x, w, b = ints(*case.x_shape), ints(*case.w_shape, seed=1), ints(case.oc, seed=2)
    sums = conv_fprop_padded(x, w, **case.attrs)
    _compare(case, candidate, "y", case.desc.y_shape, (x, w), sums)
    _compare(case, candidate, "relu(y + b)", case.desc.y_shape, (x, w), np.maximum(sums + b, 0), bias=b)


def _dgrad(case: Case, candidate: Candidate) -> None:
    g, w = ints(*case.desc.y_shape), ints(*case.w_shape, seed=1)
    _compare(case, candidate, "dx", case.x_shape, (g, w), conv_dgrad_padded(g, w, case.hw, **case.attrs))


def _wgrad(case: Case, candidate: Candidate) -> None:
    x, g = ints(*case.x_shape), ints(*case.desc.y_shape, seed=1)
    _compare(case, candidate, "dw", case.w_shape, (x, g), conv_wgrad_padded(x, g, case.f, **case.attrs))


def _compare(case: Case, candidate: Candidate, what: str, shape: tuple[int, ...], inputs: tuple[np.ndarray, ...],
             expected: np.ndarray, bias: np.ndarray | None = None) -> None:
    from alpha.cuda.runtime.memory import download, upload
    out = upload(np.full(shape, np.nan, np.float32))
    epilogue = () if bias is None else (Epilogue.of(upload(bias), "relu"),)
    candidate.prepare(case.desc)(*map(upload, inputs), out, *epilogue)
    assert_equal_at(download(out, "float32"), expected.astype(np.float32),
                    name=f"{what} of {case.name} by {candidate.name}")
