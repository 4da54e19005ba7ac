"""How a training step scales over ranks: predicted from one rank, measured on the ranks that there are.

    python -m benchmarks.scaling                    one rank's step, and estimates for 2 to 64 GPUs
    python -m benchmarks.scaling --measure          1, 2, 4, ... ranks: measured beside predicted
    python -m benchmarks.scaling --measure --device cpu --ranks 1 2 4 --networks lenet5 resnet18 --batch 32
    python -m benchmarks.scaling --measure --strong 512 2048        also batches that the ranks share
    python -m benchmarks.scaling --measure --buckets 5 25 100 --wires float16 --no-sync-norm    one change at a time

Ranks are started by mpirun. Weak scaling gives each rank --batch images, strong scaling shares --strong images. Rows
are appended to scaling.jsonl in benchmarks/results/<device>/; --resume leaves out the rows that are there.
PyTorch's DistributedDataParallel runs in the same turn where PyTorch is installed (NCCL on GPUs, gloo on the CPU). The
model and its constants stand in benchmarks/scaling_model.py. On the CPU ranks share the cores, so a rank's step is
predicted from one rank with as many threads as it will have, times the ranks that a core has to serve.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alpha.errors import AlphaError, ConfigError, message
from benchmarks import results
from benchmarks.environment import add_common, environment, settle
from benchmarks.results import Row
from benchmarks.scaling_model import LINKS, NETWORKS, Fabric, Link, Step, cut, efficiency, step_s

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
LIMIT_S = 600
BATCH = {"cuda": 512, "cpu": 32}
USUAL = {"cuda": ["lenet5", "resnet18", "vgg16", "googlenet"], "cpu": ["lenet5", "resnet18"]}
KEY = ("side", "network", "precision", "ranks", "total", "bucket_mib", "wire", "sync_norm", "device")
FABRICS = [*[(f"{n} x {name}", Fabric(link, n)) for name, link in LINKS.items() for n in (2, 4, 8)],
           *[(f"{m} x 8 nvlink, {name} Gbit/s", Fabric(LINKS["nvlink"], 8, m, far)) for name, far in NETWORKS.items()
             for m in (2, 4, 8)]]


class Case(NamedTuple):
    """A case: `batch` images a rank if weak, else in all."""

    network: str
    precision: str
    batch: int
    device: str
    weak: bool = True
    bucket_mib: float = 25.0
    wire: str | None = None
    sync_norm: bool = True
    side: str = "alpha"


def mpirun() -> str:
    """Returns the path of mpirun.  Raises ConfigError where there is none."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise ConfigError(message("scaling", "there is no mpirun", 'pip install ".[dist]" brings MPICH'))
    return found


def run(case: Case, ranks: int, seconds: float, threads: int | None = None) -> Row:
    """Returns the row of `ranks` ranks.

    Raises:
        ConfigError: they failed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spec = json.dumps({**case._asdict(), "seconds": seconds, "port": port})
    command = [sys.executable, "-m", "benchmarks.scaling_worker", spec]
    if ranks > 1:
        command = [mpirun(), "-n", str(ranks), *command]
    variables = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
    if threads is not None:
        variables["ALPHA_NUM_THREADS"] = str(threads)
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise ConfigError(message("scaling", f"{case.network} on {ranks} ranks failed: {done.stderr[-1500:]}",
                                  f"run it by itself: {' '.join(command[:-1])} '{spec}'"))
    found: Row = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def step_of(row: Row, bucket_mib: float = 25.0, wire: str | None = None) -> Step:
    """Returns the step that one rank's row describes; gradients may travel in 16 bits."""
    buckets = cut([(ready, nbytes // (2 if wire else 1)) for ready, nbytes in row["arrivals"]],
                  round(bucket_mib * MIB))
    scale = row["step_s"] / row["whole_s"]      # the profiled step stood for the median one
    return Step(row["backward_s"] * scale, row["step_s"], [(ready * scale, nbytes) for ready, nbytes in buckets],
                row["copy_rate"])


def fitted(ranks: int, sums: Sequence[tuple[int, float]]) -> Link:
    """Returns the link on which a ring would take the measured seconds of the smallest and of the largest sum."""
    (small, least), (large, most) = sums[0], sums[-1]
    rate = (large - small) / max(most - least, 1e-9)
    return Link("measured", 2 * (ranks - 1) / ranks * rate, least / (2 * (ranks - 1)), "sums of this run")


def predicted(case: Case, ranks: int, alone: Row, sums: Sequence[tuple[int, float]], cores: int) -> float:
    """Returns the seconds of a step on `ranks` ranks of this machine.

    Args:
        alone: one rank's row, of as many images and threads as a rank has.
        sums: bytes and seconds of sums over these ranks.
    """
    step = step_of(alone, case.bucket_mib, case.wire)
    if case.device == "cpu":
        served = max(1.0, ranks * alone["threads_used"] / cores)    # ranks that a core computes for
        step = Step(step.backward_s * served, step.step_s * served,
                    [(ready * served, nbytes) for ready, nbytes in step.buckets], step.copy_rate)
        # MPI works while it is called, on the core that computes: nothing is hidden
        return step_s(step, Fabric(fitted(ranks, sums), ranks, slowed=0.0, overlaps=False))[0]
    return step_s(step, Fabric(fitted(ranks, sums), ranks))[0]


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """Measures all cases, and yields a row each."""
    cores = len(os.sched_getaffinity(0))
    there = {results.key_of(row, KEY) for row in results.read(args.output / "scaling.jsonl")}
    for case in cases(args):
        for ranks in args.ranks if args.measure else [1]:
            total = case.batch * (ranks if case.weak else 1)
            head = {**case._asdict(), "ranks": ranks, "total": total}
            if args.resume and results.key_of(head, KEY) in there:
                continue
            row = run(case, ranks, args.seconds)
            if case.side == "alpha" and ranks > 1:
                threads = max(1, cores // ranks) if case.device == "cpu" else None
                alone = run(case._replace(batch=row["images"], weak=True), 1, args.seconds, threads)
                alone["threads_used"] = threads or 1
                row["predicted_s"] = predicted(case, ranks, alone, row["links"], cores)
            yield {**head, **row}


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yields the cases that the flags ask for: the main ones, then one change of them at a time."""
    main = [Case(network, precision, args.batch, args.device) for network in args.networks
            for precision in args.precision]
    strong = [case._replace(batch=total, weak=False) for case in main for total in args.strong]
    changed = [main[0]._replace(bucket_mib=size) for size in args.buckets if size != 25.0]
    changed += [main[0]._replace(wire=wire) for wire in args.wires]
    changed += [main[0]._replace(sync_norm=False)] if args.no_sync_norm else []
    for case in [*main, *(strong if args.measure else []), *(changed if args.measure else [])]:
        yield case
        if args.measure and args.peer and case in (*main, *strong):
            yield case._replace(side="torch")


def prediction_table(found: Sequence[Row]) -> list[str]:
    """Returns the efficiency that each fabric would have, a column for each network."""
    alone = [row for row in found if row["side"] == "alpha" and row["ranks"] == 1 and "arrivals" in row]
    lines = ["| predicted efficiency | " + " | ".join(f"{r['network']} {r['precision']}, {r['total']} images a rank"
                                                      for r in alone) + " |", "|---" * (len(alone) + 1) + "|"]
    for name, fabric in FABRICS:
        cells = [f"{100 * efficiency(step_of(row), fabric):.1f} %" for row in alone]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def measured_table(found: Sequence[Row]) -> list[str]:
    """Returns images a second of each row, its efficiency, and the prediction."""
    lines = ["| network | ranks | images | images/s | efficiency | predicted ms | measured ms | not hidden ms "
             "| PyTorch DDP images/s |", "|---|---|---|---|---|---|---|---|---|"]
    first = {(r["network"], r["precision"], r["side"]): r["total"] / r["step_s"] for r in found if r["ranks"] == 1
             and r["weak"]}
    peers = {(r["network"], r["precision"], r["ranks"], r["total"]): r["total"] / r["step_s"] for r in found
             if r["side"] == "torch"}
    for row in found:
        if row["side"] != "alpha":
            continue
        rate, key = row["total"] / row["step_s"], (row["network"], row["precision"])
        alone, peer = first.get((*key, "alpha")), peers.get((*key, row["ranks"], row["total"]))
        kind = "".join(f", {name} {row[name]}" for name in ("bucket_mib", "wire", "sync_norm")
                       if row[name] != Case._field_defaults[name])
        share = f"{100 * rate / alone / row['ranks']:.0f} %" if alone and row["device"] == "cuda" else (
            f"{100 * rate / alone:.0f} % of one rank's rate" if alone else "")
        cells = [f"{row['network']} {row['precision']}{kind}", row["ranks"], row["total"], f"{rate:.0f}", share,
                 f"{1e3 * row['predicted_s']:.1f}" if "predicted_s" in row else "", f"{1e3 * row['step_s']:.1f}",
                 f"{1e3 * max(0.0, row['step_s'] - row['silent_s']):.1f}", "" if peer is None else f"{peer:.0f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="start several ranks, too")
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--precision", nargs="+")
    parser.add_argument("--batch", type=int, help="images a rank")
    parser.add_argument("--ranks", type=int, nargs="+", help="default: 1, 2, 4, ... up to the GPUs; on the CPU 1 2 4")
    parser.add_argument("--strong", type=int, nargs="+", default=[], help="images that all ranks share")
    parser.add_argument("--buckets", type=float, nargs="+", default=[], help="MiB, for the first network")
    parser.add_argument("--wires", nargs="+", default=[], choices=["float16", "bfloat16"])
    parser.add_argument("--no-sync-norm", action="store_true", help="also statistics of each rank by itself")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measured steps")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=importlib.util.find_spec("torch")
                        is not None, help="measure PyTorch's DistributedDataParallel, too")
    add_common(parser)
    args = parser.parse_args(argv)
    settle(args)
    args.networks = args.networks or USUAL[args.device]
    args.precision = args.precision or (["fp32"] if args.device == "cpu" else ["fp32", "tf32", "bf16"])
    args.batch = args.batch or BATCH[args.device]
    args.ranks = args.ranks or ranks_of(args.device)
    return args


def ranks_of(device: str) -> list[int]:
    """Returns 1, 2, 4, ... and the number of GPUs; 1, 2 and 4 on the CPU."""
    if device == "cpu":
        return [1, 2, 4]
    from alpha.dist.gpu import device_count
    count = device_count()
    return sorted({1, count, *[1 << k for k in range(10) if 1 << k <= count]})


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, appends rows, and prints both tables."""
    args = arguments(argv)
    path = args.output / "scaling.jsonl"
    facts: dict[str, Any] = dict(environment("python -m benchmarks.scaling " + " ".join(argv or sys.argv[1:])))
    try:
        for row in rows(args):
            results.record(path, facts, row)
            print(f"{row['side']} {row['network']} {row['precision']}, {row['ranks']} ranks: "
                  f"{1e3 * row['step_s']:.1f} ms", flush=True)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    found = results.latest(results.read(path), KEY)
    print("\n" + "\n".join(prediction_table(found)))
    if args.measure:
        print("\n" + "\n".join(measured_table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
