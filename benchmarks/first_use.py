"""From the start of a process to the end of its first training step: with kernels to compile, and with kernels there.

    python -m benchmarks.first_use                                lenet5, resnet18; an empty cache, then a full one
    python -m benchmarks.first_use --networks resnet18 --cores 2  on two cores
    python -m benchmarks.first_use --output runs/first_use.jsonl  also as rows of results

Each figure is of a process of its own, `python -m train` up to its first step, with a folder of its own as the cache.
"begins" is when the step begins, "ends" when its loss has come back to the host, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from alpha.errors import CompileError, message
from benchmarks.environment import environment, machine, smi
from benchmarks.results import Row, record

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 240

# Runs the program; the first step says when it begins and ends, and ends the process.
PROGRAM = """
import json, os, sys, time
from alpha.training import Trainer
step = Trainer.step
def first(self, x, y):
    begins = time.time()
    step(self, x, y)[0].item()
    since, compiled = float(os.environ["FIRST_USE_FROM"]), 0
    if self.device != "cpu":
        from alpha.cuda.runtime import toolchain
        compiled = len(toolchain._modules)
    print(json.dumps({"begins": begins - since, "ends": time.time() - since, "modules": compiled}), flush=True)
    os._exit(0)
Trainer.step = first
from train.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def first_step(network: str, precision: str, batch: int, device: str, cache: Path, cores: int | None = None) -> Row:
    """Returns the seconds until the first step begins and ends, and how many modules it loaded.

    Args:
        cache: folder of compiled kernels.
        cores: how many cores the process may use; None: those that this one may.
    Raises:
        CompileError: the process failed.
    """
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-c", PROGRAM, "--model", network, "--dataset", "digits", "--precision", precision,
                   "--batch-size", str(batch), "--device", device, "--output", output]
        variables = {**os.environ, "ALPHA_CACHE_DIR": str(cache), "FIRST_USE_FROM": str(time.time())}
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LIMIT_S,
                              preexec_fn=lambda: os.sched_setaffinity(0, allowed))
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise CompileError(message("first_use", f"the first step of {network} failed: {done.stderr[-2000:]}",
                                   "run python -m train with the same flags", precision=precision, batch=batch))
    found: Row = json.loads(lines[-1])
    return {name: round(value, 2) for name, value in found.items()}


def main(argv: list[str] | None = None) -> None:
    """Measures, prints a table and appends rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=["lenet5", "resnet18"])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cores", type=int, help="how many the processes may use")
    parser.add_argument("--again", type=int, default=3, help="runs with the kernels there")
    parser.add_argument("--output", type=Path, help="file of results that rows are appended to")
    args = parser.parse_args(argv)
    facts = {"machine": machine(args.device), **environment("python -m benchmarks.first_use", on_gpu=True),
             **smi("driver_version")}
    print("seconds            cache   begins    ends  modules")
    for network in args.networks:
        for precision in args.precision:
            with tempfile.TemporaryDirectory() as cache:
                for k in range(1 + args.again):
                    found = first_step(network, precision, args.batch, args.device, Path(cache), args.cores)
                    row = {"network": network, "precision": precision, "batch": args.batch, "cores": args.cores,
                           "cache": "full" if k else "empty", **found}
                    print(f"{network:10} {precision:6}  {row['cache']:5} {found['begins']:8.2f} {found['ends']:7.2f} "
                          f"{found['modules']:8}", flush=True)
                    record(args.output, facts, row)


if __name__ == "__main__":
    main()
