"""Facts that a figure depends on: machine, versions, clocks, date, command; and the folder of a machine's figures."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import alpha
from alpha.core.config import VARIABLES, config

RESULTS = Path(__file__).resolve().parent / "results"
SMI = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit",
       "temperature.gpu")
OF_THE_HOST = ("num_threads", "cpu_kernels")  # settings that are nothing to a GPU
TORCH_ISA = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")   # hold PyTorch to an older instruction set of a CPU
DULL = r"\(r\)|\(tm\)|\b(nvidia|geforce|processor|cpu|sxm\d?|pcie|hbm\w*|\d+gb|\d+-core)\b|@.*"


def cpu_name() -> str:
    """Returns the model of the CPU, as the system names it."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in info if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """Returns the commit of the code that runs, with "-dirty" where files differ from it; "" outside of a clone."""
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"], text=True,
                              cwd=Path(alpha.__file__).parent, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def environment(command: str, *packages: str, on_gpu: bool = False) -> dict[str, str]:
    """Returns the facts that go beside every figure, with the versions of the packages named.

    "settings" are alpha's that differ from the defaults, "load" how many programs ran in the minute before. Figures of
    one network with different settings are apart; the CPU backend's on a GPU, "host_settings", keep nothing apart.
    """
    changed = {v.name: f"{v.env}={getattr(config, v.name):{'d' if isinstance(v.default, bool) else ''}}"
               for v in VARIABLES if v.name != "cache_dir" and getattr(config, v.name) != v.default}
    host = " ".join(changed.pop(name) for name in OF_THE_HOST if on_gpu and name in changed)
    settings = {"settings": " ".join(changed.values()), **({"host_settings": host} if host else {})}
    return {"date": datetime.date.today().isoformat(), "commit": commit(),
            "cpu": f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores",
            "python": platform.python_version(), "alpha": alpha.__version__,
            **{package: version(package) for package in ("numpy", *packages)}, "command": command,
            **settings, "load": f"{os.getloadavg()[0]:.1f}"}


def smi(*fields: str) -> dict[str, str]:
    """Returns nvidia-smi's answers for the first GPU that programs see; nothing where it is not there."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    try:
        done = subprocess.run(["nvidia-smi", "-i", first, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(fields, values)) if done.returncode == 0 and len(values) == len(fields) else {}


def torch_facts() -> dict[str, str]:
    """Returns the versions of PyTorch and of the libraries below it."""
    import torch
    held = " ".join(f"{name}={os.environ[name]}" for name in TORCH_ISA if name in os.environ)
    return {"torch": torch.__version__, "torch_cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()), "torch_threads": str(len(os.sched_getaffinity(0))),
            **({"torch_isa": held} if held else {})}


def machine(device: str) -> str:
    """Returns a device as a folder is called: "amd_epyc_2core", "h100"."""
    if device == "cpu":
        return f"{slug(cpu_name())}_{len(os.sched_getaffinity(0))}core"
    return slug(smi("name").get("name", "gpu"))


def add_common(parser: argparse.ArgumentParser, unit: str = "") -> None:
    """Adds the options that comparisons share; those that measure one `unit` after the other have two more."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU, if any")
    parser.add_argument("--output", type=Path, help="folder (default: benchmarks/results/<device>)")
    parser.add_argument("--resume", action="store_true", help="leave out what the folder has already")
    if unit:
        parser.add_argument("--budget-s", type=float, default=float("inf"), help=f"begin no {unit} later than this")
        parser.add_argument("--busy", action="store_true", help="measure on a GPU that others use too")


def add_clock(parser: argparse.ArgumentParser) -> None:
    """Adds the option by which a comparison counts the processor's time; see check_clock."""
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: the processor's time, of one "
                        "thread, on a machine that others use too")


def check_clock(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends a program whose clock would add up the time of several threads: of --threads, else one for each core."""
    threads = getattr(args, "threads", None) or len(os.sched_getaffinity(0))
    if args.clock == "cpu" and threads > 1:
        fix = "use --threads 1" if "threads" in args else "start it by taskset -c 0"
        parser.error(f"--clock cpu adds up the time of all threads, which are {threads} here: {fix}")


def settle(args: argparse.Namespace) -> None:
    """Replaces the defaults of `add_common` by the device and the folder that they stand for."""
    if args.device == "auto":
        args.device = "cuda" if smi("name") else "cpu"
    args.output = args.output or RESULTS / machine(args.device)


def slug(name: str) -> str:
    """Returns the words of a device's name that tell it from others, in lower case, joined by underscores."""
    return "_".join(re.findall(r"[a-z0-9.]+", re.sub(DULL, " ", name.lower()))) or "device"
