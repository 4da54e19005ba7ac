"""`alpha compare FILE.py:Net --input C,H,W`: any PyTorch model in alpha beside PyTorch: agreement, time and memory.

    alpha compare my_models.py:Net --input 3,32,32
    alpha compare my_models.py:Net --input 3,224,224 --batch 64 --precision bf16 --device cuda --compile
    alpha compare resnet18 --batch 8            a shipped network, beside its twin of PyTorch's layers

The model is converted by alpha.from_torch. Each library works in a process of its own, in turn, so that a slow spell of
the machine meets both. Time is the median of training steps: forward, loss, backward, SGD with momentum. Memory is the
highest of a step: of the device, or on a CPU of the process. Reports go to compare_NAME.json and compare_NAME.html.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from alpha.core.errors import ConfigError, DeviceError, message
from alpha.core.precision import MODES
from alpha.programs import compare_report
from alpha.programs.compare_layers import agreement
from alpha.programs.compare_model import WHERE, example_of, made, parsed
from alpha.programs.compare_side import Case, serve
from alpha.start import STATUSES, Parser

VISITS = 5
SHARED = 1e-2       # relative distance of the first losses that is told; in 16 bits rounding is larger than that
LAYER_SAMPLES = 4   # of the example whose layers are compared


class Process:
    """A side in a process of its own."""

    def __init__(self, case: Case, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, case, kind), daemon=True)
        self.process.start()
        other.close()
        self.kind = kind
        self.facts = self._answer()

    def ask(self, name: str, *args: Any) -> Any:
        """Calls a method of the side.  Raises ConfigError with the error of the side."""
        self.connection.send((name, args))
        return self._answer()

    def _answer(self) -> Any:
        try:
            what, value = self.connection.recv()
        except EOFError:
            what, value = "error", f"its process ended with status {self.process.exitcode}"
        if what == "error":
            self.end()
            raise ConfigError(message(WHERE, f"{self.kind} failed: {value}",
                                      "correct the model, or choose another precision, batch or device"))
        return value

    def end(self) -> None:
        """Ends the process."""
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status: 1 where the outputs or the first losses disagree."""
    args = _arguments(argv)
    start = time.strftime("%Y-%m-%d %H:%M:%S")
    target = parsed(args.model)
    model = made(target)
    x, _ = example_of(args.input, args.batch, model)
    rows = agreement(model, x[:LAYER_SAMPLES])
    parameters = sum(p.numel() for p in model.parameters())
    case = Case(target, args.input, args.batch, args.precision, args.device)
    sides = measured(case, ["alpha", "torch eager", *(["torch compile"] if args.compile else [])], args.steps)
    report = {
        "model": str(target), "class": type(model).__name__, "parameters": parameters, "input": list(args.input),
        "batch": args.batch, "precision": args.precision, "device": args.device, "steps": args.steps,
        "device_name": device_name(args.device), "versions": versions(), "time": start,
        "command": "alpha compare " + " ".join(argv),
        "layers": [row._asdict() for row in rows], "sides": sides,
    }
    print(compare_report.table(report))
    name = type(model).__name__ if target.file else target.name
    written = compare_report.write(report, Path(args.out), f"compare_{name}")
    print("written: " + ", ".join(map(str, written)))
    return 0 if agrees(report) else 1


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="alpha compare", allow_abbrev=False, description=__doc__, epilog=STATUSES,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="FILE.py:NAME", help="a class or function in a file, or a shipped network")
    parser.add_argument("--input", type=_shape, default=(3, 32, 32), metavar="C,H,W",
                        help="shape of one sample, as PyTorch has it; default 3,32,32")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step; default 32")
    parser.add_argument("--precision", choices=tuple(MODES), default="fp32", help="of both; default fp32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; default cpu")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each library; default 20")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="of the reports; default here")
    args = parser.parse_args(list(argv))
    for name, least in (("batch", 2), ("steps", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} is {getattr(args, name)}, at least {least} is needed")
    if not Path(args.out).is_dir():
        parser.error(f"--out: there is no folder {args.out}")
    if args.device.partition(":")[0] not in ("cpu", "cuda"):
        parser.error(f"--device is {args.device!r}, cpu or cuda is needed")
    return args


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple([int(part) for part in text.split(",")])
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 3,32,32")
    return sizes


def measured(case: Case, kinds: Sequence[str], steps: int) -> dict[str, dict[str, Any]]:
    """Returns losses, times and memory of each side; the sides take turns."""
    sides: list[Process] = []
    try:
        found: dict[str, dict[str, Any]] = {}
        for kind in kinds:
            side = Process(case, kind)
            sides.append(side)
            found[kind] = {**side.facts, "losses": side.ask("losses"), "times_ms": []}
        done = 0
        while done < steps:
            now = min(max(1, steps // VISITS), steps - done)
            for side in sides:
                found[side.kind]["times_ms"] += side.ask("times", now)
            done += now
        for side in sides:
            found[side.kind]["peak_mib"] = side.ask("peak_mib")
            found[side.kind]["step_ms"] = statistics.median(found[side.kind]["times_ms"])
        return found
    finally:
        for side in sides:
            side.end()


def agrees(report: dict[str, Any]) -> bool:
    """Tells whether outputs are as near to float64 as PyTorch's, and the first losses are shared."""
    output = report["layers"][-1]
    if output["alpha"] is None or output["alpha"] > max(10 * output["torch"], 1e-5):
        return False
    limit = SHARED if report["precision"] in ("fp32", "tf32") else 10 * SHARED
    ours, theirs = (report["sides"][kind]["losses"] for kind in ("alpha", "torch eager"))
    return all(abs(a - b) <= limit * max(abs(b), 1e-6) for a, b in zip(ours, theirs))


def versions() -> dict[str, str]:
    """Returns the versions of all that takes part."""
    found = {"alpha": _version("alpha-cks"), "python": platform.python_version()}
    return {**found, **{name: _version(name) for name in ("torch", "numpy")}}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return sys.modules["alpha"].__version__ if name.startswith("alpha") else "not installed"


def device_name(device: str) -> str:
    """Returns the name of a processor or GPU."""
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise DeviceError(message(WHERE, "PyTorch sees no GPU", "leave --device out, or install PyTorch for CUDA"))
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
                platform.processor() or platform.machine())

