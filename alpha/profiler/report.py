"""The tables of a profiler, and its trace for Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpha.core.errors import ConfigError, message, remedy
from alpha.core.inputs.ints import as_int
from alpha.profiler.calls import BACKWARD, FORWARD, PHASES, UPDATE, Call

if TYPE_CHECKING:
    from alpha.profiler import Profiler

MIB = 1 << 20
OUTSIDE = "(outside of layers)"
Line = Sequence[str]


def table(profile: Profiler, by: str, limit: int) -> str:
    """See Profiler.table."""
    made = {"op": _by_op, "layer": _by_layer, "kernel": _by_kernel}.get(by) if isinstance(by, str) else None
    if made is None:
        raise ConfigError(message("profiler", f"there is no table by {by!r:.40}", 'use "op", "layer" or "kernel"'))
    if (rows := as_int(limit)) is None or rows < 1:
        raise ConfigError(message("profiler", f"limit is {limit!r:.40}, a number of rows is needed", "pass 20"))
    head, body, last = made(profile, rows)
    where = "of kernels on the GPU" if profile.on_device else "of ops on the host"
    title = (f"{len(profile.calls)} calls of ops in {profile.seconds * 1e3:.2f} ms, "
             f"{sum(c.spent for c in profile.calls) * 1e3:.2f} ms {where}; peak memory {profile.peak / MIB:.1f} MiB")
    return "\n".join([title, *_aligned(head, body, last)])


def _by_op(profile: Profiler, limit: int) -> tuple[Line, list[Line], Line]:
    groups: dict[str, list[Call]] = {}
    for call in profile.calls:
        groups.setdefault(call.op, []).append(call)
    ordered = sorted(groups.items(), key=lambda item: -sum(c.spent for c in item[1]))
    rest = [c for _, calls in ordered[limit:] for c in calls]
    shown = ordered[:limit] + ([(f"{len(ordered) - limit} more", rest)] if rest else [])
    whole = sum(c.spent for c in profile.calls)
    return (("op", "calls", "ms", "%", "us a call", "host ms", "MiB added"),
            [_of_op(name, calls, whole) for name, calls in shown], _of_op("total", profile.calls, whole))


def _of_op(name: str, calls: Sequence[Call], whole: float) -> Line:
    spent, host = sum(c.spent for c in calls), sum(c.seconds - c.within for c in calls)
    each = spent / max(len(calls), 1)
    return (name, str(len(calls)), f"{spent * 1e3:.3f}", _share(spent, whole), f"{each * 1e6:.1f}",
            f"{host * 1e3:.3f}", f"{sum(max(c.added, 0) for c in calls) / MIB:.2f}")


def _by_layer(profile: Profiler, limit: int) -> tuple[Line, list[Line], Line]:
    groups: dict[str, list[Call]] = {}
    for call in profile.calls:
        groups.setdefault(call.layer if call.phase != UPDATE else "(updates)", []).append(call)
    whole = sum(c.spent for c in profile.calls)
    return (("layer", "forward ms", "backward ms", "ms", "%", "MiB added"),
            [_of_layer(name or OUTSIDE, calls, whole) for name, calls in groups.items()],
            _of_layer("total", profile.calls, whole))


def _of_layer(name: str, calls: Sequence[Call], whole: float) -> Line:
    spent = {phase: sum(c.spent for c in calls if c.phase == phase) for phase in PHASES}
    total = sum(spent.values())
    return (name, f"{spent[FORWARD] * 1e3:.3f}", f"{spent[BACKWARD] * 1e3:.3f}", f"{total * 1e3:.3f}",
            _share(total, whole), f"{sum(max(c.added, 0) for c in calls) / MIB:.2f}")


def _by_kernel(profile: Profiler, limit: int) -> tuple[Line, list[Line], Line]:
    groups: dict[tuple[str, str], list[float]] = {}
    for call in profile.calls:
        for launch in call.launches:
            groups.setdefault((launch.kernel, call.op), []).append(launch.seconds)
    ordered = sorted(groups.items(), key=lambda item: -sum(item[1]))
    rest = [s for _, found in ordered[limit:] for s in found]
    shown = ordered[:limit] + ([((f"{len(ordered) - limit} more", ""), rest)] if rest else [])
    every = [s for found in groups.values() for s in found]

    def line(name: str, op: str, found: Sequence[float]) -> Line:
        return (name, op, str(len(found)), f"{sum(found) * 1e3:.3f}", _share(sum(found), sum(every)),
                f"{sum(found) * 1e6 / max(len(found), 1):.1f}")

    return (("kernel", "of op", "launches", "ms", "%", "us a launch"),
            [line(*names, found) for names, found in shown], line("total", "", every))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0.0"


def _aligned(head: Line, body: Sequence[Line], last: Line) -> Iterator[str]:
    """Yields the lines of a table; texts to the left, numbers to the right."""
    lines = [head, *body, last]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    texts = {k for k, name in enumerate(head) if name in ("op", "layer", "kernel", "of op")}
    rule = "  ".join("-" * w for w in widths)
    for line in (head, None, *body, None, last):
        yield rule if line is None else "  ".join(
            cell.ljust(w) if k in texts else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths))).rstrip()


# ---- the trace ------------------------------------------------------------------------------------------------------

LAYERS, OPS, GPU = 1, 2, 3      # the rows of the picture


def write_trace(profile: Profiler, path: str | Path) -> None:
    """Writes the events as JSON, in the format of chrome://tracing."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}
        for row, name in ((LAYERS, "layers"), (OPS, "ops, host"), (GPU, "kernels, GPU"))]
    for (layer, phase), group in groupby(profile.calls, key=lambda c: (c.layer, c.phase)):
        calls = list(group)
        end = max(c.begin + c.seconds for c in calls)
        events.append(_event(f"{layer or OUTSIDE} {phase}", phase, LAYERS, calls[0].begin, end - calls[0].begin, {}))
    for call in profile.calls:
        facts = {"layer": call.layer or OUTSIDE, "phase": call.phase, "shapes": call.shapes}
        events.append(_event(call.op, call.phase, OPS, call.begin, call.seconds, facts))
        events.append({"ph": "C", "name": "live memory", "pid": 0, "ts": 1e6 * (call.begin + call.seconds),
                       "args": {"MiB": round(call.live / MIB, 3)}})
        events += [_event(k.kernel, call.phase, GPU, k.begin, k.seconds, {"op": call.op, **facts})
                   for k in call.launches]
    try:
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise ConfigError(message("profiler", f"{path} cannot be written: {error.strerror}",
                                  remedy(error.errno, path))) from error


def _event(name: str, phase: str, row: int, begin: float, seconds: float, facts: dict[str, str]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": phase, "pid": 0, "tid": row, "ts": round(1e6 * begin, 3),
            "dur": round(1e6 * seconds, 3), "args": facts}
