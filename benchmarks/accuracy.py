"""Test accuracy of alpha beside PyTorch: the same recipe trained to the end in both, over several seeds.

    python -m benchmarks.accuracy [--recipes digits archive cifar10] [--models lenet5 vgg16 resnet18 googlenet]
                                  [--precision fp32 tf32 bf16 fp16] [--seeds N] [--device cpu|cuda] [--output FOLDER]
                                  [flags of python -m train, which beat the recipe's]

Both start from the same weights and see the same batches, order and augmentation; see benchmarks/torch_recipe.py.

    digits    scikit-learn's 1,797 handwritten digits
    archive   50,000 + 10,000 colour images made of them, in CIFAR-10's own files (benchmarks/digits_archive.py)
    cifar10   CIFAR-10 itself, where --data-dir or ./data has it

`--algorithm winograd` is such a flag: an algorithm of convolutions in alpha, whose rows stand apart from auto's.
Results go to benchmarks/results/<device>/accuracy.jsonl; --resume leaves out the seeds that are there already.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from alpha.data.public import cifar
from alpha.data.public.fetch import DOWNLOAD_DIR
from alpha.errors import AlphaError, ConfigError, message
from benchmarks import checks, digits_archive, plots, results
from benchmarks.environment import add_common, environment, settle, smi, torch_facts
from benchmarks.results import Row
from benchmarks.torch_models import TWINS
from benchmarks.torch_recipe import alpha_run, check, torch_run
from train.config import PRECISIONS, Config, parse
from train.trainer import resolve_device

POINTS, ERRORS = 0.5, 2.0  # of accuracy, by which the means may differ; or this many standard errors of the difference
SIDES = ("alpha", "torch")
SEEDS = {"digits": 12, "archive": 3, "cifar10": 3}  # one of the 360 test images of digits is 0.28 points
ARCHIVE = Path("data/digits")
RESNET = "--model resnet18 --dataset cifar10 --batch-size 256 --lr 0.1 --warmup 1 --val-size 1000"
DEEP = "0.05 --warmup 1"  # without an epoch to warm up, VGG-11 stays at chance on digits, in PyTorch too
RATES = {"lenet5": "0.02", "vgg11": DEEP, "vgg16": DEEP, "googlenet": DEEP}  # for networks instead of the recipe's own
RECIPES = {  # by device: a training of seconds on a GPU takes a CPU hours
    "digits": {"cpu": "--model lenet5 --dataset digits", "cuda": "--model lenet5 --dataset digits"},
    "archive": {"cpu": "--model lenet5 --dataset cifar10 --batch-size 128 --epochs 3 --augment crop=2 --val-size 1000",
                "cuda": f"{RESNET} --epochs 5 --augment crop=2"},
    "cifar10": {"cpu": "--model lenet5 --dataset cifar10 --batch-size 128 --epochs 10 --val-size 1000",
                "cuda": f"{RESNET} --epochs 30"},
}


def recipe(name: str, device: str, data_dir: Path | None, model: str | None = None) -> list[str]:
    """Returns the flags of a recipe; makes its data where that is not there.  Raises ConfigError without CIFAR-10.

    Args:
        model: network to train instead of the recipe's own.
    """
    flags = [*RECIPES[name][device].split(), "--device", device]
    if model and model not in flags:
        flags += ["--model", model, *(f"--lr {RATES[model]}".split() if model in RATES else [])]
    if name == "archive":
        if cifar.find("cifar10", ARCHIVE) is None:
            print(f"making {ARCHIVE}", flush=True)
            digits_archive.write(ARCHIVE, cifar.FORMS["cifar10"][0])
        return [*flags, "--data-dir", str(ARCHIVE)]
    if name == "cifar10":
        place = data_dir or DOWNLOAD_DIR
        if cifar.find("cifar10", place) is None:
            raise ConfigError(message("accuracy", f"{place} does not hold CIFAR-10", "point --data-dir at its archive, "
                                      "or leave the recipe out: --recipes digits archive"))
        return [*flags, "--data-dir", str(place)]
    return flags


def present(data_dir: Path | None) -> list[str]:
    """Returns the recipes whose data are there or can be made."""
    return [name for name in RECIPES if name != "cifar10" or cifar.find("cifar10", data_dir or DOWNLOAD_DIR)]


def train_both(config: Config) -> Row:
    """Trains with both, and returns the results of each."""
    config = resolve_device(config)
    check(config)
    found = {"alpha": alpha_run(config), "torch": torch_run(config)}
    return {**found, "difference_points": 100 * (found["alpha"]["accuracy"] - found["torch"]["accuracy"])}


def summary(rows: Sequence[Row]) -> list[str]:
    """Returns the table: mean and standard deviation over the seeds, side by side.

    Few test images and seeds make means that differ by chance: two standard errors of the difference are allowed too.
    """
    lines = ["| recipe | network | precision | seeds | alpha, test accuracy | PyTorch | means apart | "
             "s per epoch, alpha / PyTorch | |", "|" + "---|" * 9]
    for key, seeds in results.trainings(rows).items():
        cells, means, variances, seconds = [], [], [], []
        for side in SIDES:
            values = [100 * row[side]["accuracy"] for row in seeds]
            means.append(statistics.mean(values))
            variances.append(statistics.variance(values) if len(values) > 1 else 0.0)
            cells.append(f"{means[-1]:.2f} +- {variances[-1] ** 0.5:.2f} %")
            seconds.append(statistics.median(s for row in seeds for s in row[side]["epoch_seconds"]))
        points, allowed = abs(means[0] - means[1]), max(POINTS, ERRORS * (sum(variances) / len(seeds)) ** 0.5)
        lines.append(f"| {' | '.join(key)} | {len(seeds)} | {cells[0]} | {cells[1]} | {points:.2f} points | "
                     f"{seconds[0]:.2f} / {seconds[1]:.2f} | {'ok' if points <= allowed else 'MISSED'}, "
                     f"{allowed:.2f} are allowed |")
    return lines


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), help="default: all whose data are there")
    parser.add_argument("--models", nargs="+", choices=list(TWINS), help="default: each recipe's own")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=PRECISIONS)
    parser.add_argument("--seeds", type=int, help="how many, from 0 (default: " + ", ".join(
        f"{name} {n}" for name, n in SEEDS.items()) + ")")
    parser.add_argument("--data-dir", type=Path, help="where CIFAR-10 is")
    add_common(parser)
    args, flags = parser.parse_known_args(argv)
    settle(args)
    args.recipes = args.recipes or present(args.data_dir)
    return args, flags


def main(argv: Sequence[str] | None = None) -> int:
    args, flags = parsed(argv)
    given: Sequence[Any] = sys.argv[1:] if argv is None else argv
    command = f"python -m benchmarks.accuracy {' '.join(given)}".strip()
    facts = {**environment(command, on_gpu=args.device == "cuda"), **torch_facts(),
             **(smi("name", "driver_version") if args.device == "cuda" else {})}
    for side in SIDES:  # which are names of results here
        facts[f"{side}_version"] = facts.pop(side)
    file = args.output / "accuracy.jsonl"
    try:
        checks.precision_of_device(args.precision, args.device, "accuracy")
        there = results.trainings(results.read(file)) if args.resume else {}
        for name, model, precision in product(args.recipes, args.models or [None], args.precision):
            own = [*recipe(name, args.device, args.data_dir, model), "--precision", precision, *flags]
            as_parsed = parse(own).to_dict()
            key = name, as_parsed["model"], results.how_of(as_parsed)
            for seed in range(SEEDS[name] if args.seeds is None else args.seeds):
                if seed in [row["seed"] for row in there.get(key, [])]:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    config = parse([*own, "--seed", str(seed), "--output", folder])
                    row = {"recipe": name, "seed": seed, "config": config.to_dict(), **train_both(config)}
                results.record(file, facts, row)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    print("\n".join(summary(results.read(file))))
    plots.draw(args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
