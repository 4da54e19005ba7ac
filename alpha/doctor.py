"""The doctor: which parts alpha finds here, and which are missing; and kernels built ahead.

    alpha                                versions, devices, kernels, precision, CUDA, extras, changed settings
    alpha build-kernels                  builds the compiled kernels ahead of their first use
    alpha build-kernels --arch sm_90a    and those for GPUs that are not here
    alpha build-kernels --model resnet18 --precision bf16    those alone that training this network launches
    alpha build-kernels --arch sm_90a --pack FOLDER    and puts them into a file, for machines without nvcc
"""

from __future__ import annotations

import argparse
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha.build import cache_dir, compilers
from alpha.core.config import VARIABLES, config
from alpha.core.device import BACKENDS, get_backend
from alpha.core.errors import AlphaError, ConfigError, true_here
from alpha.core.precision import mode
from alpha.start import STATUSES, Parser, import_companions

EXTRAS = {"scikit-learn": ("data", "handwritten digits"), "torchvision": ("download", "fetching CIFAR"),
          "pillow": ("images", "folders of pictures"),
          "matplotlib": ("plot", "pictures of a run"), "torch": ("bench", "comparisons, reading .pth files")}


def versions() -> Iterator[str]:
    """Yields the versions that run."""
    yield (f"alpha {alpha.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
           f"{platform.system()} {platform.machine()}")


def devices() -> Iterator[str]:
    """Yields for every kind of device whether it works, or why not."""
    for name in BACKENDS:
        try:
            get_backend(name)
            yield f"{name}: works"
        except AlphaError as error:
            yield f"{name}: " + str(error).partition("\n")[0].removeprefix("device: ").removeprefix("cuda: ")


def has_kernels() -> bool:
    """Tells whether the compiled CPU kernels are used, building them if need be."""
    from alpha.cpu import native

    return native.library() is not None


def kernels() -> Iterator[str]:
    """Yields which compiled CPU kernels are used, and where compiled files are kept."""
    if has_kernels():
        threads = f"{config.num_threads} threads" if config.num_threads else "a thread per core"
        yield f"CPU kernels: compiled and tested, {threads}"
    elif config.cpu_kernels:
        yield "CPU kernels: none, NumPy computes; install g++, or name a C++17 compiler with OpenMP in CXX"
    else:
        yield "CPU kernels: off, NumPy computes; ALPHA_CPU_KERNELS=1 turns them on"
    try:
        found = ", ".join(" ".join(command) for command in compilers())
    except ConfigError as error:
        found = "none; " + str(error).replace("\nhelp: ", "; ")
    files = [path for path in cache_dir().glob("*") if path.is_file()]
    yield f"compilers: {found or 'none'}"
    yield f"cache: {cache_dir()}, {len(files)} files, {sum(path.stat().st_size for path in files) / 2 ** 20:.1f} MiB"


def numerics() -> Iterator[str]:
    """Yields the precision mode in force."""
    yield f"precision {mode()}"


def cuda() -> Iterator[str]:
    """Yields the parts that the CUDA backend finds."""
    from alpha.cuda.runtime import doctor

    return doctor.report()


def extras() -> Iterator[str]:
    """Yields the optional packages, and the extra that installs a missing one."""
    for package, (extra, use) in EXTRAS.items():
        try:
            yield f"{package} {metadata.version(package)}: {use}"
        except metadata.PackageNotFoundError:
            yield true_here(f'{package}: not installed ({use}); pip install ".[{extra}]"')


def settings() -> Iterator[str]:
    """Yields the settings that differ from their defaults."""
    for v in VARIABLES:
        value = getattr(config, v.name)
        if value != v.default:
            yield true_here(f"{v.env}={int(value) if isinstance(value, bool) else value}: {v.meaning}")


def main(argv: list[str]) -> int:
    """Runs a command and returns its exit code: 1 where build-kernels leaves NumPy alone, or a CUDA kernel unbuilt."""
    if argv[:1] == ["build-kernels"]:
        return _build(argv[1:])
    parser = Parser(prog="alpha doctor", allow_abbrev=False, epilog=STATUSES,
                    description="What alpha has to work with here, and what is missing.")
    parser.parse_args(argv[1:] if argv[:1] == ["doctor"] else argv)
    for part in (versions, devices, kernels, numerics, cuda, extras, settings):
        for line in part():
            print(true_here(line))
    return 0


def _build(argv: list[str]) -> int:
    parser = Parser(prog="alpha build-kernels", allow_abbrev=False, epilog=STATUSES,
                    description="Compiles the kernels of the CPU, and of a GPU, ahead of their first use.")
    parser.add_argument("--arch", nargs="+", type=architecture, default=[], metavar="sm_90a",
                        help="build CUDA kernels for these architectures instead of that of the GPU here")
    parser.add_argument("--pack", metavar="FOLDER", type=Path, help="also put what was built for an architecture into "
                        "a file there, as make wheel does")
    parser.add_argument("--model", metavar="NAME", help="build the CUDA kernels alone that training this network needs")
    parser.add_argument("--import", dest="imports", metavar="FILE", action="append", default=[],
                        help="a file or module that registers it, as of train")
    parser.add_argument("--precision", help="of that training; the configured one if it is left out")
    parser.add_argument("--batch-size", type=int, help="of that training, whose own default it has")
    args = parser.parse_args(argv)
    given = [name for name, value in (("--import", args.imports), ("--precision", args.precision),
                                      ("--batch-size", args.batch_size)) if value]
    if given and not args.model:
        parser.error(f"{given[0]} is given without --model")
    program = training(args.model, args.precision, args.batch_size, args.imports) if args.model else None
    return build_kernels(args.arch, program, args.pack)


def architecture(text: str) -> str:
    """Returns the name of a GPU architecture.  Raises ArgumentTypeError."""
    if not re.fullmatch(r"sm_[0-9]{2,3}a?", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an architecture such as sm_75, sm_80, sm_89 or sm_90a")
    if int(text[3:].rstrip("a")) < 75:
        raise argparse.ArgumentTypeError(f"{text} is older than sm_75, which the kernels need")
    return text


def training(model: str, precision: str | None, batch_size: int | None, imports: Sequence[str] = ()
             ) -> Callable[[], None]:
    """Returns a function that trains a network for a step, as the training program would.  Raises ConfigError."""
    import_companions("train")    # the user's folder may have a train.py of its own
    from train.config import Config
    from train.loop import step_ahead
    from train.sources import import_all

    import_all(imports)
    size: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    return partial(step_ahead, Config(model=model, device="cuda", precision=precision or config.precision, **size))


def build_kernels(arches: list[str], program: Callable[[], None] | None = None, folder: Path | None = None) -> int:
    """Builds the kernels of both backends, prints the outcome, and returns the exit code.

    Args:
        program: whose CUDA kernels alone are built; None: all are.
        folder: where the kernels of each architecture are packed into a file.
    """
    from alpha.cuda.runtime import doctor

    for line in kernels():
        print(line)
    lines, good = doctor.build_kernels(arches, program, folder)
    print("\n".join(lines))
    return 0 if good and has_kernels() else 1
