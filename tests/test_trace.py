"""Who is billed for the time that is printed: the op that asked for the work, also where another has it done."""

from __future__ import annotations

import re
import time

import pytest

from alpha import config, ops
from alpha.core.trace import Trace, late, running, timed

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
SHORT, LONG = 0.01, 0.05  # seconds


def times(text: str) -> list[tuple[str, float, str]]:
    """Returns what each line says: who is billed, milliseconds, and the rest."""
    return [(who, float(ms), rest) for who, ms, rest in re.findall(r"^alpha: (.*?) (\d+\.\d{3}) ms(.*)$", text, re.M)]


def test_work_for_another_is_billed_to_that(capsys):
    norm, conv, waits = Trace("norm(2x3) cuda"), Trace("conv(2x3) cuda"), []

    def synchronize() -> None:
        waits.append(running.get())

    with timed(conv, synchronize):
        time.sleep(SHORT)
        with late(norm, synchronize):
            time.sleep(LONG)
    (first, first_ms, later), (second, second_ms, rest) = times(capsys.readouterr().err)
    assert (first, later, second, rest) == (norm.text, " later, for conv", conv.text, "")
    assert first_ms >= 1e3 * LONG and 1e3 * SHORT <= second_ms < 1e3 * LONG
    assert waits == [conv, norm, conv], "what was launched before is not the norm's"
    assert running.get() is None


def test_what_an_op_does_itself_and_what_nobody_traced_has_no_line(capsys):
    conv = Trace("conv() cuda")
    with timed(conv, lambda: None):
        for trace in (conv, None):
            with late(trace, lambda: None):
                pass
    assert len(times(capsys.readouterr().err)) == 1
    with late(conv, lambda: None):
        pass
    assert [rest for *_, rest in times(capsys.readouterr().err)] == [" later, for a reader"]


def test_ops_are_timed(capsys):
    with config(debug=2):
        ops.add(ops.ones((2, 3)), 1.0)
    told = [line[0] for line in times(capsys.readouterr().err)]
    assert told[-1] == "add(2x3) cpu"
