"""What kernels cost: the device, the constants of its class, and the time that follows for a candidate's cost.

A candidate counts what it does (alpha.plan.Cost, a tuple of stages, one after the other), and `time_us` turns that into
time, by the rates of a device: units "fma" and "mma" count FLOP, "clocks" those of the busiest multiprocessor, and "us"
microseconds; levels are "dram" and "l2".

All that was ever measured of a device stands in the JSON files beside this one, a file for each class: the device, and
the constants of its kernels (records.py has their fields and units). No other file has a microsecond in it. They are
read when this module is; a module that declares tiles says by `check` which records it needs, so that a missing or an
unknown tile is an error on every machine. KNOWN has the devices that were measured. Any other is computed from what its
driver says and from its class, so that the same GPU chooses the same kernels, and gets the same bits, wherever it is.
`python -m benchmarks.calibrate` measures one; ALPHA_CALIBRATION names the file that it writes, in the same form. What
it finds may change choices, and bits with them.

Kernels were timed on Hopper alone. Other classes take its constants, and their own rates: NVIDIA's figures, and what
others have measured of mma.sync on Hopper. Where a card is better off, the clock says so (ALPHA_TUNE=1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from alpha import plan
from alpha.core.config import config
from alpha.core.errors import ConfigError, message
from alpha.cuda.conv.costs import records
from alpha.cuda.conv.costs.records import Constants, Key, Tiles
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.rates import FMA, GEFORCE_MMA, MMA, MOST_FMA
from alpha.plan import Cost, Rates

RESERVED = 1024  # bytes of shared memory that a block takes beside its own
HOME = Path(__file__).parent


# ---- the device ------------------------------------------------------------------------------------------------------
class Device(NamedTuple):
    """A GPU under load."""

    arch: str          # its class, "sm_90a"
    sm_count: int      # multiprocessors
    clock_ghz: float   # of them
    fma: float         # multiply-adds of a multiprocessor per clock, in float32
    mma: float         # of 16 bits by mma.sync, with float32 sums
    launch_us: float   # of a kernel behind another
    latency_us: float  # of a step that waits for the one before: a pipeline that fills, a table that is read
    dram: float        # bytes per microsecond
    l2: float          # likewise
    costs: str = "h100"     # where the constants of its class are, in TABLES

    @property
    def table(self) -> Constants:
        """The constants of its class."""
        return TABLES[self.costs]

    @property
    def slower(self) -> float:
        """How many times as long a clock is as where the table was measured."""
        return self.table.clock_ghz / self.clock_ghz

    @property
    def clocks_per_us(self) -> float:
        return self.clock_ghz * 1e3

    @property
    def rates(self) -> Rates:
        """Its rates, by which a cost is turned into time."""
        return _rates(self)

    def rate(self, unit: str) -> float:
        """Returns the work of a unit per microsecond."""
        return self.rates.work[unit]


@lru_cache(maxsize=16)
def _rates(on: Device) -> Rates:
    fma, mma = (2 * each * on.sm_count * on.clocks_per_us for each in (on.fma, on.mma))     # a multiply-add is 2 FLOP
    return Rates({"fma": fma, "mma": mma, "clocks": on.clocks_per_us, "us": 1.0}, {"dram": on.dram, "l2": on.l2},
                 on.launch_us, on.latency_us)


# ---- files -----------------------------------------------------------------------------------------------------------
TABLES: dict[str, Constants] = {}               # by the name of a file
_needed: dict[str, dict[Key, str]] = {}         # of each table of tiles, by its place: keys, and the tiles' names


def load(text: str, name: str) -> tuple[dict[str, Any], Constants]:
    """Returns what a file of costs says of its device, and its constants.

    Raises:
        ValueError: a field or a tile is missing or unknown; the message names it.
    """
    content = json.loads(text)
    constants = records.read(Constants, content["constants"], "constants")
    for place in _needed:
        _compare(place, constants, name)
    return content["device"], constants


def text_of(on: Device, **facts: Any) -> str:
    """Returns the text of a file of costs, for a device and the constants of its class: a tile a line."""
    device = {name: value for name, value in on._asdict().items() if name != "costs"}
    text = json.dumps({**facts, "device": device, "constants": records.plain(on.table)}, indent=1)
    return re.sub(r"\{[^{}\[\]]*\}", lambda found: re.sub(r"\s+", " ", found[0]).replace("{ ", "{").replace(" }", "}"),
                  text) + "\n"


def check(place: str, tiles: Iterable[tuple[Key, str]]) -> None:
    """Says which tiles a table of constants has to have, and compares the tables that are there.

    Args:
        place: of the table, such as "wgmma.tiles".
        tiles: keys and names of all tiles that are declared.
    Raises:
        ValueError: a tile has no constants, or constants have no tile; the message names it.
    """
    _needed[place] = dict(tiles)
    for name, constants in TABLES.items():
        _compare(place, constants, name)


def _compare(place: str, constants: Constants, name: str) -> None:
    there: Tiles[Any] = attrgetter(place)(constants)
    needed = _needed[place]
    missing, unknown = [tile for key, tile in needed.items() if key not in there], [*(there.keys() - needed.keys())]
    if missing:
        raise ValueError(f"{name}: constants.{place} has no record of the tile {missing[0]}: add what it takes, from "
                         "python -m benchmarks.calibrate or by estimate")
    if unknown:
        raise ValueError(f"{name}: constants.{place} has a record of a tile that is not declared: {unknown[0]}: take "
                         "it out, or declare the tile")


# ---- devices ---------------------------------------------------------------------------------------------------------
LOADED_CLOCK, LOADED_MEMORY = 0.81, 0.75  # what an H100 reaches of the figures that its driver states
L2_BYTES_PER_CLOCK = 8e6 / 132 / 1600     # of a multiprocessor
LAUNCH_US, LATENCY_US = 1.0, 0.5
_h100, TABLES["h100"] = load((HOME / "h100.json").read_text(), "h100.json")
H100 = Device(**_h100)
KNOWN = {"H100": H100, "H200": H100}  # by a word of the name; steps on an H200: benchmarks/results/h200/pruning.jsonl


def device() -> Device:
    """Returns the device of this process; before it has one, an H100.  Raises ConfigError."""
    return _device(context.arch, context.name, context.sm_count, config.calibration)


@lru_cache(maxsize=16)
def _device(arch: str, name: str, sm_count: int, calibration: str) -> Device:
    if calibration:
        return read(Path(calibration), arch)
    for word, known in KNOWN.items():
        if word in name and (arch, sm_count) == known[:2]:
            return known
    if not context.driver:
        return H100._replace(sm_count=sm_count or H100.sm_count)
    khz, memory_khz, bits = context.rates()
    clock_ghz = khz * 1e-6 * LOADED_CLOCK
    return Device(arch, sm_count, clock_ghz, FMA.get(arch, MOST_FMA), MMA.get(arch, GEFORCE_MMA), LAUNCH_US, LATENCY_US,
                  2 * memory_khz * 1e-3 * bits / 8 * LOADED_MEMORY, L2_BYTES_PER_CLOCK * sm_count * clock_ghz * 1e3)


def read(path: Path, arch: str) -> Device:
    """Returns the device that `benchmarks.calibrate` has written to a file.  Raises ConfigError."""
    try:
        values, constants = load(path.read_text(), path.name)
        found = Device(**{**values, "costs": str(path)})
        if found.arch == arch and all(isinstance(value, (int, float)) and value > 0 for value in found[1:9]):
            TABLES[str(path)] = constants
            return found
        what = f"it is of a {found.arch}, this device is a {arch}" if found.arch != arch else f"{found} has no rates"
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{type(error).__name__}: {error}"
    raise ConfigError(message("ALPHA_CALIBRATION", f"{str(path)!r} does not serve: {what}",
                              "unset it, or write the file anew: python -m benchmarks.calibrate --output FILE"))


def time_us(cost: Cost, on: Device | None = None) -> float:
    """Returns the time of a cost on a device, in microseconds; on that of this process, if none is given."""
    return plan.time_us(cost, (on or device()).rates)
