"""From process start to result: recipes of the training program beside the same recipes written for PyTorch.

    python -m benchmarks.speedrun [--recipes airbench resnet18 vgg16] [--sides alpha torch graph compile] [--rounds N]
                                  [--data-dir data/digits] [--cold] [flags of python -m train, which beat the recipe's]

Each training is a process of its own, the sides in turn. Its figures:

    result    seconds from the start of the process until the test accuracy is printed: imports, data, compilation,
              training, test; the end of the process is in neither side's
    warm-up   the first epoch's time beyond the median of the others: compilation, choice of kernels, capture
    training  the median epoch times the number of epochs
    accuracy  on the test images, over the views that the recipe asks for

Data are CIFAR-10's files in --data-dir, by default the digit archive (benchmarks/digits_archive.py), for which
the recipes are made shorter, without mirroring: ON_DIGITS. --cold gives each process empty caches of compiled kernels.
Results go to benchmarks/results/<device>/speedrun.jsonl.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpha.data.public import cifar
from benchmarks import digits_archive, results
from benchmarks.accuracy import ARCHIVE
from benchmarks.environment import add_common, environment, settle, smi, torch_facts

SIDES = ("alpha", "torch", "graph", "compile")
ON_DIGITS = {
    "airbench": "--epochs 8 --augment crop=2 --tta shift",
    "resnet18": "--epochs 8 --batch-size 512 --lr 0.2 --warmup 1 --augment crop=2",
    "vgg16": "--epochs 8 --batch-size 512 --lr 0.1 --warmup 1 --augment crop=2",
}
CACHES = ("ALPHA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
Row = dict[str, Any]


def alpha_side(flags: Sequence[str], env: dict[str, str]) -> Row:
    """Trains with alpha in a process, and returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "train", *flags, "--output", folder], text=True, env=env,
                                   stdout=subprocess.PIPE)
        result, ready, lines = 0.0, 0.0, process.stdout
        assert lines is not None
        for line in lines:
            now = time.perf_counter() - begin
            ready = ready or (now if " images to train" in line else 0.0)
            result = result or (now if line.startswith("last weights") else 0.0)
        if process.wait():
            raise RuntimeError(f"alpha ended with status {process.returncode}")
        with (Path(folder) / "metrics.csv").open(newline="") as file:
            epochs = [float(row["seconds"]) for row in csv.DictReader(file)]
        found = json.loads((Path(folder) / "summary.json").read_text())
    return {"accuracy": found["test_accuracy"], "ready": ready, "epochs": epochs, "result": result}


def torch_side(flags: Sequence[str], env: dict[str, str], form: str) -> Row:
    """Trains with PyTorch in a process, and returns its figures."""
    begin, result, found = time.perf_counter(), 0.0, ""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.torch_speedrun", "--form", form, *flags], text=True,
                               env=env, stdout=subprocess.PIPE)
    lines = process.stdout
    assert lines is not None
    for line in lines:
        if line.startswith("{"):
            result, found = time.perf_counter() - begin, line
    if process.wait() or not found:
        raise RuntimeError(f"PyTorch ended with status {process.returncode}")
    return {**json.loads(found), "result": result}


def figures(found: Row) -> Row:
    """Returns the figures of a training."""
    epochs = found["epochs"]
    usual = statistics.median(epochs[1:] or epochs)
    return {**found, "warm_up": epochs[0] - usual, "training": usual * len(epochs)}


def table(rows: Sequence[Row]) -> list[str]:
    """Returns the medians of each recipe and side, and how many times as long the others take as alpha."""
    lines = ["| recipe | side | caches | rounds | result, s | warm-up, s | training, s | accuracy |", "|" + "---|" * 8]
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["recipe"], row["side"], row["cold"]), []).append(row)
    for (name, side, cold), found in groups.items():
        middle = {key: statistics.median(r[key] for r in found) for key in ("result", "warm_up", "training",
                                                                            "accuracy")}
        lines.append(f"| {name} | {side} | {'empty' if cold else 'filled'} | {len(found)} | {middle['result']:.2f} | "
                     f"{middle['warm_up']:.2f} | {middle['training']:.3f} | {100 * middle['accuracy']:.2f} % |")
    return lines


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--recipes", nargs="+", default=list(ON_DIGITS), choices=list(ON_DIGITS))
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, default=ARCHIVE)
    parser.add_argument("--cold", action="store_true", help="the first round has empty caches")
    add_common(parser)
    args, flags = parser.parse_known_args(argv)
    settle(args)
    return args, flags


def main(argv: Sequence[str] | None = None) -> int:
    args, flags = parsed(argv)
    facts = {**environment(f"python -m benchmarks.speedrun {' '.join(sys.argv[1:] if argv is None else argv)}",
                           on_gpu=args.device == "cuda"), **torch_facts(), **smi("name", "driver_version")}
    own = args.data_dir == ARCHIVE
    if own and cifar.find("cifar10", ARCHIVE) is None:
        digits_archive.write(ARCHIVE, cifar.FORMS["cifar10"][0])
    rows = []
    for name in args.recipes:
        line = ["--config", name, "--data-dir", str(args.data_dir), *(ON_DIGITS[name].split() if own else []), *flags]
        with tempfile.TemporaryDirectory() as folder:
            caches = {key: str(Path(folder) / key) for key in CACHES} if args.cold else {}
            for k in range(args.rounds):
                for side in args.sides:
                    env = {**os.environ, **caches}
                    seeded = [*line, "--device", args.device, "--seed", str(k)]
                    try:
                        found = (alpha_side(seeded, env) if side == "alpha" else
                                 torch_side(seeded, env, side))
                    except (RuntimeError, OSError, ValueError) as error:
                        print(f"{name}, {side}: {error}", flush=True)
                        continue
                    row = {"recipe": name, "side": side, "seed": k, "cold": args.cold and k == 0, "flags": line,
                           **figures(found)}
                    rows.append(row)
                    results.record(args.output / "speedrun.jsonl", facts, row)
                    print(f"{name} {side} {k}: result {row['result']:.2f} s, ready {row['ready']:.2f}, epochs "
                          f"{[round(s, 3) for s in row['epochs']]}, accuracy {100 * row['accuracy']:.2f} %", flush=True)
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
