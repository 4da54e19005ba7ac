"""Training steps of alpha beside PyTorch on this machine: time, memory and losses, in every way PyTorch can be run.

    python -m benchmarks.compare [--models lenet5 vgg16 resnet18 googlenet] [--batch-sizes 128 512]
                                 [--precision fp32 fp32-tf32 tf32 bf16 fp16] [--device cpu|cuda]
                                 [--configurations torch_nchw ...]

One fresh process per library and configuration. Both have the same network, the same initial weights and the same
batches; before anything is timed their parameter counts must be equal and their first losses agree. Then alpha and one
configuration of PyTorch work in turn, so that a slow spell of the machine meets both alike. A ratio is the median over
the rounds of (PyTorch's time) / (alpha's time). fp32-tf32 is alpha's float32 beside PyTorch's TF32. Results go to
benchmarks/results/<device>/compare.jsonl, and pictures of them beside it; --resume leaves out rows that are there.

One line compares a network or layer of your own, in this process:

    from benchmarks.compare import compare
    compare(alpha_model, torch_model, (32, 32, 3))
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alpha.errors import AlphaError, ConfigError, message
from benchmarks import checks, compare_tables, plots, results
from benchmarks.configurations import CONFIGURATIONS, PRECISIONS, Configuration, settled, usual
from benchmarks.environment import SMI, add_clock, add_common, check_clock, environment, settle, smi, torch_facts
from benchmarks.process import LIMIT_S, Worker
from benchmarks.results import Row
from benchmarks.sides import AlphaSide, Batch, TorchSide, image_batches
from benchmarks.step_worker import Runner

MODELS = ("lenet5", "vgg16", "resnet18", "googlenet")
CPU_MODELS = ("lenet5:128", "vgg16:32", "resnet18:32", "googlenet:32")
BATCH_SIZES = (128, 512)
WARM_UP_STEPS = {"cpu": 1, "cuda": 5}
STEPS_PER_VISIT = {"cpu": 1, "cuda": 3}  # at least
WARM_MS = {"cpu": 150.0, "cuda": 0.0}  # of a visit, before the steps that count; a step at least


class Case(NamedTuple):
    """The case that both libraries are given."""

    model: str
    batch: int
    precision: str
    device: str


class Effort(NamedTuple):
    """How long is measured."""

    rounds: int = 5
    visit_ms: float = 400.0
    compile_s: float = LIMIT_S  # after which torch.compile is given up
    clock: str = "wall"         # or "cpu": the time of a side's process alone


# ---- two sides -------------------------------------------------------------------------------------------------------


def used_mib() -> float | None:
    """Returns the MiB in use on the GPU by all processes; None where nvidia-smi cannot tell."""
    return next((float(text.split()[0]) for text in smi("memory.used").values()), None)


def begin(runner: Runner | Worker, case: Case, **start: Any) -> Row:
    """Starts a side, warms it up, and returns its first losses, its memory and the time of a step."""
    on_gpu = case.device != "cpu" and isinstance(runner, Worker)
    before = used_mib() if on_gpu else None
    found = runner.ask(start=start) if start else runner.first_updates()
    warm_up = WARM_UP_STEPS[case.device]
    runner.ask(steps=warm_up)
    found["ms"] = runner.ask(steps=warm_up)["ms"]
    after = used_mib() if on_gpu else None
    found |= runner.ask(memory=True)
    if case.device != "cpu" or not isinstance(runner, Worker):
        found["process_mib"] = None if before is None or after is None else after - before
    return found


def in_turn(case: Case, effort: Effort, sides: Mapping[str, Runner | Worker], ms: Mapping[str, float]
            ) -> dict[str, list[float]]:
    """Returns the milliseconds of a step per round, the sides taking turns; the first round only warms up.

    A visit begins with steps that do not count: they find the caches full of the other side's arrays, memory given back
    and threads asleep. The steps that follow are as fast as where a side works alone, which `in_a_loop` shows.

    Args:
        ms: about how long a step takes.
    """
    least = STEPS_PER_VISIT[case.device]
    steps = {name: max(least, round(effort.visit_ms / ms[name])) for name in sides}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for k in range(effort.rounds + 1):
        for name, side in sides.items():
            side.ask(steps=max(1, round(WARM_MS[case.device] / ms[name])))
            if k:
                times[name].append(side.ask(steps=steps[name])["ms"])
    return times


def in_a_loop(case: Case, effort: Effort, sides: Mapping[str, Runner | Worker], ms: Mapping[str, float]
              ) -> dict[str, float]:
    """Returns the milliseconds of a step of each side in visits that follow one another, the other side at rest."""
    least = STEPS_PER_VISIT[case.device]
    found = {}
    for name, side in sides.items():
        steps = max(least, round(effort.visit_ms / ms[name]))
        found[name] = statistics.median([side.ask(steps=steps)["ms"] for _ in range(effort.rounds + 1)][1:])
    return found


def pair(case: Case, configuration: Configuration, started: Mapping[str, Row], times: Mapping[str, list[float]]) -> Row:
    """Returns the result of alpha and one configuration of PyTorch."""
    ratios = sorted(theirs / ours for ours, theirs in zip(times["alpha"], times["torch"]))
    ms = {name: statistics.median(values) for name, values in times.items()}
    return {"kind": "step", **case._asdict(), "configuration": configuration.name, "layout": configuration.layout,
            "ratio": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1], "ms": ms,
            "ms_rounds": dict(times), "images_per_s": {name: case.batch * 1e3 / t for name, t in ms.items()},
            **{key: {name: row[key] for name, row in started.items()}
               for key in ("peak_mib", "steady_mib", "reserved_mib", "process_mib", "losses")},
            "parameters": started["alpha"]["parameters"]}


def check(ours: Row, theirs: Row, precision: str) -> None:
    """Refuses two sides that are not the same network."""
    checks.same_parameters(ours["parameters"], theirs["parameters"])
    checks.same_values(ours["losses"], theirs["losses"], precision)


# ---- shipped networks, a process for each side -----------------------------------------------------------------------


def network(case: Case, names: Sequence[str], effort: Effort, eager_ms: dict[str, float], deadline: float,
            loops: bool = False, float64: bool = False) -> Iterator[Row]:
    """Yields a row for each configuration, and one for the memory of each side that tells; failures are rows too.

    Args:
        eager_ms: times of the eager configurations so far; times measured here are added.
        deadline: as time.monotonic(); no configuration is begun after it.
        loops: whether rows have each side's time in a loop, too: it shows the cost of the turns.
        float64: whether rows have the first loss by PyTorch in float64, too.
    """
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = {**case._asdict(), "weights": str(Path(folder) / "weights.npz"), "clock": effort.clock}
        try:
            in_time(deadline)
            ours = workers["alpha"] = Worker("alpha")
            workers["next"] = Worker("torch")  # imports PyTorch meanwhile
            begun = begin(ours, case, **spec)
            exact = {"loss_float64": in_float64(spec)} if float64 else {}
            yield account(case, "alpha", ours)
            for number, name in enumerate(names, 1):
                in_time(deadline)
                found = settled(name, case.precision, eager_ms, case.device)
                try:
                    theirs = workers["torch"] = workers.pop("next")
                    theirs.limit_s = effort.compile_s if found.kind == "compile" else LIMIT_S
                    started = {"alpha": begun, "torch": begin(theirs, case, **spec, layout=found.layout,
                                                              kind=found.kind)}
                    check(begun, started["torch"], case.precision)
                    times = in_turn(case, effort, {"alpha": ours, "torch": theirs},
                                    {side: row["ms"] for side, row in started.items()})
                    row = {**pair(case, found, started, times), **exact, **clocks(case)}
                    if loops:
                        row["loop_ms"] = in_a_loop(case, effort, {"alpha": ours, "torch": theirs}, row["ms"])
                    if found.kind == "eager":
                        eager_ms[name] = row["ms"]["torch"]
                        yield account(case, name, theirs)
                    yield row
                except (AlphaError, RuntimeError, OSError) as error:  # the other configurations are of use without it
                    yield failed(case, error, name)
                finally:
                    if number < len(names):
                        workers["next"] = Worker("torch")
                    workers.pop("torch").close()
        except (AlphaError, RuntimeError, OSError) as error:
            yield failed(case, error)
        finally:
            for worker in workers.values():
                worker.close()


def in_float64(spec: Row) -> float:
    """Returns the first loss by PyTorch in float64, computed in a process that then ends: it counts for no memory."""
    worker = Worker("torch")
    try:
        return float(worker.ask(float64=spec)["loss"])
    finally:
        worker.close()


def in_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("left out: the time is up (--budget-s)")


def account(case: Case, configuration: str, worker: Worker) -> Row:
    """Returns the content of memory in a step of one side."""
    return {"kind": "memory", **case._asdict(), "configuration": configuration, **worker.ask(account=True)}


def clocks(case: Case) -> Row:
    """Returns clocks and power of a GPU that was at work a moment ago."""
    return {"after": smi("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")} if case.device == "cuda" else {}


def failed(case: Case, error: Exception, configuration: str = "all") -> Row:
    traceback.print_exc()
    return {"kind": "step", **case._asdict(), "configuration": configuration, "failed": (str(error) or repr(error))}


# ---- a network of your own -------------------------------------------------------------------------------------------


def compare(alpha_model: Any, torch_model: Any, input_shape: tuple[int, ...], *, batch_size: int = 32,
            precision: str = "fp32", device: str = "cpu", configurations: Sequence[str] = ("torch_nchw", "torch_nhwc"),
            rounds: int = 5, visit_ms: float = 400.0) -> list[Row]:
    """Compares training steps of your own network or layer in both libraries, prints a table and returns its rows.

    PyTorch's gets alpha's weights, by name or else in order, and both see the same random batches. An output of two
    axes goes into cross-entropy with random labels; the mean of the squares is the loss of any other. A Linear behind
    a flattened map needs `flattened=(H, W, C)`, so that its weights can be turned to PyTorch's order. Both libraries
    work in this process, in turn; on the CPU the memory of each is therefore not known beyond alpha's own count.

    Args:
        alpha_model, torch_model: the same network as alpha.nn.Module and torch.nn.Module; both are left as they were.
        input_shape: shape of one sample in alpha's layout, e.g. (32, 32, 3) for NHWC images.
        configurations: names of benchmarks/configurations.py.
    Raises:
        UnfairError: the two have different parameters, or values that differ by more than the precision allows.
        ConfigError: there is no such configuration or precision on the device.
    """
    case = Case(type(alpha_model).__name__, batch_size, precision, device)
    check_names(configurations, [precision], device)
    checks.same_parameters(alpha_model.num_parameters(), sum(p.numel() for p in torch_model.parameters()))
    kept = {k: t.numpy() for k, t in alpha_model.state_dict().items()}
    modes = [(m, m.training) for m in alpha_model.modules()]
    home = next((p.device for p in alpha_model.parameters()), "cpu")
    twin = with_weights_of(alpha_model, copy.deepcopy(torch_model))
    batches, rows = batches_for(alpha_model, input_shape, batch_size), []
    ours = Runner(side=AlphaSide(alpha_model, batches, device, precision))
    try:
        begun, eager_ms = begin(ours, case), {}
        for name in configurations:
            found = settled(name, precision, eager_ms, device)
            theirs = Runner(side=TorchSide(copy.deepcopy(twin), batches, device, precision, found.layout, found.kind))
            started = {"alpha": begun, "torch": begin(theirs, case)}
            check(begun, started["torch"], precision)
            times = in_turn(case, Effort(rounds, visit_ms), {"alpha": ours, "torch": theirs},
                            {side: row["ms"] for side, row in started.items()})
            rows.append(pair(case, found, started, times))
            if found.kind == "eager":
                eager_ms[name] = rows[-1]["ms"]["torch"]
    finally:
        alpha_model.to(home).load_state_dict(kept)
        for m, training in modes:
            m.training = training
        alpha_model.zero_grad()
    print("\n".join(compare_tables.steps(rows)))
    return rows


def batches_for(alpha_model: Any, input_shape: tuple[int, ...], batch_size: int) -> list[Batch]:
    """Returns batches for a network, with labels for as many classes as it tells apart."""
    import alpha
    from alpha.nn.module import evaluating
    device = next((p.device for p in alpha_model.parameters()), "cpu")
    with evaluating(alpha_model), alpha.no_grad():
        y = alpha_model(alpha.zeros((1, *input_shape), device=device))
    return image_batches(batch_size, input_shape, y.shape[1] if y.ndim == 2 else 1)


def with_weights_of(alpha_model: Any, torch_model: Any) -> Any:
    """Gives PyTorch's network alpha's weights, by name or else in order, and returns it."""
    import torch

    from alpha.checkpoint import to_torch_state_dict
    state = to_torch_state_dict(alpha_model)
    own = {k: t for k, t in torch_model.state_dict().items() if not k.endswith("num_batches_tracked")}
    values = [state[k] for k in own] if own.keys() <= state.keys() else [
        a for k, a in state.items() if not k.endswith("num_batches_tracked")]
    shapes = [tuple(a.shape) for a in values], [tuple(t.shape) for t in own.values()]
    if shapes[0] != shapes[1]:
        differing = next(((k, a, b) for k, a, b in zip(own, *shapes) if a != b), None)
        what = (f"{differing[0]} has shape {differing[2]}, alpha's weights give {differing[1]} there" if differing else
                f"alpha's has {len(shapes[0])} weights and buffers, PyTorch's {len(shapes[1])}")
        checks.refuse(f"the networks' weights do not fit: {what}",
                      "give the layers the same names, or define them in the same order")
    with torch.no_grad():
        for t, a in zip(own.values(), values):
            t.copy_(torch.from_numpy(np.array(a)))
    return torch_model


# ---- command line ----------------------------------------------------------------------------------------------------


def check_names(configurations: Sequence[str], precisions: Sequence[str], device: str) -> None:
    """Raises ConfigError for a configuration, or a precision, that a device does not have."""
    for name in configurations:
        if name not in usual(device):
            raise ConfigError(message("compare", f"there is no configuration {name!r} on {device}",
                                      f"use some of {', '.join(usual(device))}"))
    checks.precision_of_device(precisions, device, "compare")
    if device == "cuda" and len(configurations):
        import torch
        if not torch.cuda.is_available():
            raise ConfigError(message("compare", "PyTorch finds no GPU, it could not be compared there",
                                      "install a PyTorch with CUDA, or use --device cpu"))


def cases(args: argparse.Namespace) -> list[Case]:
    """Returns the cases to measure, from "name" or "name:batch" and the batch sizes."""
    found = []
    for precision in args.precision:
        for item in args.models:
            name, _, batch = item.partition(":")
            found += [Case(name, n, precision, args.device) for n in ([int(batch)] if batch else args.batch_sizes)]
    return found


def rows_of(case: Case, rows: Iterable[Row], settings: str) -> list[Row]:
    """Returns the rows of a case's steps that did not fail."""
    return [row for row in rows if row["kind"] == "step" and "failed" not in row and row["settings"] == settings
            and all(row[key] == value for key, value in case._asdict().items())]


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", metavar="NAME[:BATCH]")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=list(BATCH_SIZES))
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=PRECISIONS)
    parser.add_argument("--configurations", nargs="+", choices=list(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=Effort().rounds)
    parser.add_argument("--visit-ms", type=float, default=Effort().visit_ms, help="time per visit of a process")
    add_clock(parser)
    parser.add_argument("--loops", action="store_true", help="time each side in a loop too: what turns cost it")
    add_common(parser, "configuration")
    args = parser.parse_args(argv)
    check_clock(parser, args)
    settle(args)
    args.models = args.models or list(CPU_MODELS if args.device == "cpu" else MODELS)
    args.configurations = args.configurations or usual(args.device)
    return args


def facts_of(args: argparse.Namespace, argv: Sequence[str] | None, module: str = "compare") -> Row:
    """Returns the facts beside every figure."""
    on_gpu = args.device == "cuda"
    return {**environment(f"python -m benchmarks.{module} {' '.join(sys.argv[1:] if argv is None else argv)}".strip(),
                          *(["pycuda"] if on_gpu else []), on_gpu=on_gpu), **torch_facts(),
            **(smi("name", *SMI) if on_gpu else {}), "busy_allowed": args.busy, "rounds": args.rounds,
            "visit_ms": args.visit_ms, "cudnn_benchmark": True, "clock": getattr(args, "clock", "wall")}


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    try:
        check_names(args.configurations, args.precision, args.device)
        if args.device == "cuda" and not args.busy:
            checks.quiet_gpu()
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    facts, file = facts_of(args, argv), args.output / "compare.jsonl"
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    deadline, missing = time.monotonic() + args.budget_s, 0
    for case in cases(args):
        there = rows_of(case, results.read(file), facts["settings"])
        eager_ms = {row["configuration"]: row["ms"]["torch"] for row in there
                    if CONFIGURATIONS[row["configuration"]].kind == "eager"} if args.resume else {}
        wanted = [name for name in args.configurations
                  if not args.resume or name not in [row["configuration"] for row in there]]
        for row in network(case, wanted, Effort(args.rounds, args.visit_ms, clock=args.clock), eager_ms,
                           deadline, args.loops) if wanted else ():
            results.record(file, facts, row)
            missing += "failed" in row
            if row["kind"] == "step":
                print(compare_tables.line(row), *compare_tables.turns(row), sep="\n", flush=True)
    print("\n" + "\n".join(compare_tables.report(results.read(file))))
    plots.draw(args.output)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
