"""The figures of a GPU by which kernels are chosen (alpha/cuda/conv/costs), measured in two minutes.

    python -m benchmarks.calibrate [--output DEVICE.json] [--record FILE.jsonl] [--shapes v1 d32] [--tiles 2]
                                   [--precisions fma fp32 bf16] [--rounds 3] [--budget-s 90] [--rows FILE.jsonl]

Times the cheapest few candidates of some layers, each by itself in CUDA graphs, and passes over arrays of several
sizes; then looks for the clock, the launch, the latency and the rates of memory by which their costs come nearest to
their times. Prints the device as it was taken to be and as it was found, and the candidates whose constants are off.

--output writes the device with the constants of its class, in the form of alpha/cuda/conv/costs/h100.json.
ALPHA_CALIBRATION=DEVICE.json has kernels chosen by the figures found. Other kernels add in another order: results may
differ in their last bits from a process that does not name the file. --rows fits rows of an earlier --record
again, without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from alpha.cuda import families  # noqa: F401  registers the candidates
from alpha.cuda.conv import costs, planner
from alpha.cuda.conv.costs import Device, device, time_us
from alpha.plan import Cost, Stage
from benchmarks.results import Row, read, record
from benchmarks.shapes import PASSES, SHAPES, ConvShape

FIELDS = ("clock_ghz", "launch_us", "latency_us", "dram", "l2")  # that are looked for
FIRST_STEP, LAST_STEP = 0.5, 0.005                               # of a factor
STAY = 0.003                     # of the loss, for each e-fold from the start: figures without a row stay
OFF = 0.1                        # of a candidate's time: its constants are told
CALLS, WINDOW_MS, MOST_SETS = 10, 5.0, 8
LENGTHS = (1 << 10, 1 << 18, 1 << 20, 1 << 21, 1 << 25, 1 << 27)  # elements that a pass converts: 6 bytes of each
SMALL = tuple(ConvShape(*row) for row in (
    ("s4", 16, 4, 256, 256, 3, 1, 1), ("s8", 16, 8, 128, 128, 3, 1, 1), ("s16", 16, 16, 64, 64, 1, 0, 1)))
CHOSEN = ("v1", "v3", "d32", "p32", "b128", "in3", "s4", "s8", "s16")  # of the layers


class Timed(NamedTuple):
    """A launch: its name, its cost, and the microseconds that it took."""

    name: str
    cost: Cost
    us: float


# ---- fitting ---------------------------------------------------------------------------------------------------------


def as_clocks(cost: Cost, on: Device) -> Cost:
    """Returns a cost whose microseconds are clocks of the device that it was counted for, so that they scale."""
    return cost._replace(stages=tuple(
        stage._replace(work=stage.work * on.clocks_per_us, unit="clocks") if stage.unit == "us" else stage
        for stage in cost.stages))


def off(rows: Sequence[Timed], on: Device) -> float:
    """Returns by how much estimates miss, the mean of |log(estimate / measured)|."""
    return statistics.fmean(abs(log(time_us(cost, on) / us)) for _, cost, us in rows)


def fit(rows: Sequence[Timed], start: Device) -> Device:
    """Returns the device near `start` by which estimates miss least: a figure at a time, in smaller and smaller steps.

    Args:
        rows: with costs that were counted for `start`.
    """
    rows = [row._replace(cost=as_clocks(row.cost, start)) for row in rows]
    def loss(on: Device) -> float:
        moved = sum(abs(log(getattr(on, field) / getattr(start, field))) for field in FIELDS)
        return off(rows, on) + STAY * moved

    best, least, step = start, loss(start), FIRST_STEP
    while step > LAST_STEP:
        before = least
        for field in FIELDS:
            for factor in (1 + step, 1 / (1 + step)):
                tried = best._replace(**{field: getattr(best, field) * factor})
                found = loss(tried)
                if found < least:
                    best, least = tried, found
        if before - least < 1e-6:
            step /= 2
    return best


def constants_off(rows: Iterable[Timed], found: Device, start: Device) -> dict[str, float]:
    """Returns how many times as long as estimated candidates take that are off by more than OFF, by name."""
    factors: dict[str, list[float]] = {}
    for name, cost, us in rows:
        factors.setdefault(name, []).append(log(us / time_us(as_clocks(cost, start), found)))
    medians = {name: exp(statistics.median(each)) for name, each in factors.items()}
    return {name: factor for name, factor in sorted(medians.items(), key=lambda item: -abs(log(item[1])))
            if abs(log(factor)) > OFF}


def take_for(row: Row) -> None:
    """Takes the device of a recorded row for this process's."""
    from alpha.cuda.runtime.context import context
    from alpha.cuda.runtime.rehearsal import DEVICES
    context.arch, context.name, context.sm_count = row["arch"], row["device"], row["multiprocessors"]
    context.max_shared = DEVICES[context.arch].max_shared


def timed_of(rows: Iterable[Row]) -> list[Timed]:
    """Returns recorded rows, those whose candidates are still there, with costs for the device of this process.

    A row has its layer by name ("shape", as in rows of cuda_conv_modes), or the elements of a pass.
    """
    shapes = {shape.name: shape.desc for shape in layers()}
    by_name = {(p, c.name): c for p in PASSES for c in planner.candidates(p)}
    found = []
    for row in rows:
        candidate = by_name.get((row.get("pass", ""), row["side"]))
        if "elements" in row:
            found.append(Timed(row["side"], conversion(row["elements"], row["l2_bytes"]), row["us"]))
        elif candidate and row["shape"] in shapes and not candidate.rejection(shapes[row["shape"]]):
            found.append(Timed(row["side"], candidate.cost(shapes[row["shape"]]), row["us"]))
    return found


def conversion(elements: int, l2_bytes: int) -> Cost:
    """Returns the cost of a pass that makes bfloat16 of float32."""
    nbytes, one = 6 * elements, device().table.conversion
    level = "l2" if 2 * nbytes < l2_bytes else "dram"
    return Cost((Stage(nbytes=nbytes, level=level, depth=one.depth, launches=one.launches),))


# ---- measuring -------------------------------------------------------------------------------------------------------


def layers() -> tuple[ConvShape, ...]:
    from benchmarks.shapes import NARROW
    return (*SHAPES, *NARROW, *SMALL)


def call_us(call: Any, rounds: int) -> float:
    """Returns the microseconds of a call, the median of windows of a replayed graph; call(k): number k."""
    from alpha.cuda.runtime.context import context
    from alpha.cuda.runtime.recording import Recording
    from benchmarks.cuda_timing import synchronize, window_ms
    from benchmarks.rounds import Side

    def run(_: Any) -> list[Any]:
        for k in range(CALLS):
            call(k)
        return []
    run(None)  # compiles, and makes arrays that are made once
    synchronize()
    recording = Recording(run, [])
    try:
        side = Side(lambda k: recording.replay([]), context.stream)
        count = max(1, min(200, round(WINDOW_MS / max(window_ms(side, 2), 1e-3))))
        return statistics.median(window_ms(side, count) for _ in range(rounds)) * 1e3 / CALLS
    finally:
        recording.close()


def passes(rounds: int) -> Iterator[Row]:
    """Yields the times of passes over arrays: small ones are bound by the launch, others by the L2 cache or memory."""
    from alpha.cuda.ops.pointwise import convert_into, filled
    from alpha.cuda.runtime.memory import empty
    from benchmarks.cuda_timing import l2_bytes
    for elements in LENGTHS:
        x, y = filled((elements,), 1.0, "float32"), empty((elements,), "bfloat16")
        us = call_us(lambda k, x=x, y=y: convert_into(x, y), rounds)
        yield {"side": "convert", "elements": elements, "l2_bytes": l2_bytes(), "us": us}


def cheapest(shape: ConvShape, pass_name: str, precision: str, tiles: int) -> list[planner.Candidate]:
    """Returns the candidates of least cost that read the form in which the precision stores or splits arrays."""
    options = planner.rank(pass_name, shape.desc, precision, every=False)
    stores = planner.PRECISIONS[precision].dtype
    fitting = [o.candidate for o in options if not o.reason]
    return [c for c in fitting if c.reads == stores or c.reads != "float32"][:tiles]


def launch_us(shape: ConvShape, candidate: planner.Candidate, rounds: int) -> float:
    """Returns the time of a candidate's launch on arrays that the cache does not keep, its operands there already."""
    from alpha.core.graph import no_grad
    from alpha.cuda.lazy import operand
    from alpha.cuda.ops.pointwise import filled
    from benchmarks.cuda_timing import sets_for
    desc, pass_name, reads = shape.desc, candidate.pass_name, candidate.reads
    stores = reads if pass_name == "wgrad" and reads == "bfloat16" else candidate.writes
    sets = []
    for _ in range(min(MOST_SETS, sets_for(desc.nbytes(4)))):
        x, y = (filled(size, 1.0, stores) for size in (desc.x_shape, desc.y_shape))
        w = filled(desc.w_shape, 1.0, "float32")
        if reads != "float32" and candidate.precisions is None:
            for array in (x, w, y)[:2] if pass_name == "fprop" else (y, w) if pass_name == "dgrad" else (x, y):
                operand(array, reads)
        sets.append((x, w, y))
    launch = candidate.prepare(desc)
    out = filled({"fprop": desc.y_shape, "dgrad": desc.x_shape, "wgrad": desc.w_shape}[pass_name], 0.0,
                 "float32" if pass_name == "wgrad" else candidate.writes)

    def call(k: int) -> None:
        x, w, g = sets[k % len(sets)]
        with no_grad():
            launch(*{"fprop": (x, w, out), "dgrad": (g, w, out), "wgrad": (x, g, out)}[pass_name])
    return call_us(call, rounds)


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Yields a row for each launch, until the time is up: candidates of all layers first, then further ones."""
    begin, seen = time.perf_counter(), set()
    yield from passes(args.rounds)
    chosen = [shape for shape in layers() if shape.name in args.shapes]
    for rank in range(args.tiles):
        for precision in args.precisions:
            for shape in chosen:
                for pass_name in PASSES:
                    found = cheapest(shape, pass_name, precision, args.tiles)
                    if time.perf_counter() - begin > args.budget_s or len(found) <= rank:
                        continue
                    key = shape.name, found[rank].pass_name, found[rank].name
                    if key not in seen:
                        seen.add(key)
                        yield {"shape": shape.name, "pass": pass_name, "precision": precision,
                               "side": found[rank].name, "us": launch_us(shape, found[rank], args.rounds)}


def report(rows: Sequence[Timed]) -> tuple[Device, list[str]]:
    """Returns the device that is found, and the lines to print."""
    start = device()
    found = fit(rows, start)
    lines = [f"{'':12}{'taken':>12}{'found':>12}"]
    lines += [f"{name:12}{getattr(start, name):12.4g}{getattr(found, name):12.4g}" for name in FIELDS]
    now, then = off([row._replace(cost=as_clocks(row.cost, start)) for row in rows], found), off(rows, start)
    lines.append(f"{len(rows)} estimates are off by {exp(now) - 1:.0%} on average, {exp(then) - 1:.0%} as it was taken")
    lines += [f"  {name}: {times:.2f} times its estimate" for name, times in constants_off(rows, found, start).items()]
    return found, [*lines, repr(found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [shape.name for shape in layers()]
    parser.add_argument("--output", type=Path, help="write what is found here, for ALPHA_CALIBRATION")
    parser.add_argument("--record", type=Path, help="append what was measured to this file, a JSON object a line")
    parser.add_argument("--rows", type=Path, help="fit what --record or cuda_conv_modes has written; measure nothing")
    parser.add_argument("--shapes", nargs="+", default=list(CHOSEN), choices=names, metavar="NAME")
    parser.add_argument("--precisions", nargs="+", default=["fma", "fp32", "bf16"], choices=list(planner.PRECISIONS))
    parser.add_argument("--tiles", type=int, default=2, help="candidates of a pass, those of least cost first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=90.0, help="begin no candidate later than this")
    args = parser.parse_args()
    facts: Row = {}
    if args.rows:
        rows = read(args.rows)
        take_for(rows[0])
    else:
        from benchmarks import cuda_timing
        facts, rows = cuda_timing.start(f"python -m benchmarks.calibrate {' '.join(sys.argv[1:])}".strip()), []
        for row in measure(args):
            rows.append(row)
            record(args.record, facts, row)
            print(f"{row.get('shape', ''):5}{row.get('pass', ''):6}{row['side']:45}{row['us']:9.1f} us", flush=True)
    timed = timed_of(rows)
    if not timed:
        sys.exit("benchmarks.calibrate: no row is of a candidate that is there\nhelp: measure anew, without --rows")
    found, lines = report(timed)
    print("\n".join(lines))
    if args.output:
        args.output.write_text(costs.text_of(found, **{**facts, "name": facts.pop("device", None)}))


if __name__ == "__main__":
    main()
