"""What kernels cost: the device, the constants of its class, and how a candidate's estimate follows from both.

A candidate counts what it does (Cost, a tuple of stages, one after the other), and `time_us` turns that into time:

    sum over stages of  max(work / rate of its unit, nbytes / bandwidth of its level) + seen * the lesser of both
                        + launches * launch + depth * latency

All that was ever measured of a device stands in this file: no other has a microsecond in it. KNOWN has the devices that
were measured. Any other is computed from what its driver says and from its class, so that the same GPU chooses the same
kernels, and gets the same bits, wherever it is. `python -m benchmarks.calibrate` measures one; ALPHA_CALIBRATION names
the file that it writes. What it finds may change choices, and bits with them.

Kernels were timed on Hopper alone. Other classes take its constants, and their own rates: NVIDIA's figures, and what
others have measured of mma.sync on Hopper. Where a card is better off, the clock says so (ALPHA_TUNE=1).
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace as Group
from typing import Any, NamedTuple

from alpha.core.config import config
from alpha.core.errors import ConfigError, message
from alpha.cuda.runtime.context import context

RESERVED = 1024  # bytes of shared memory that a block takes beside its own


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

    @property
    def table(self) -> Any:
        """The constants of its class."""
        return HOPPER

    @property
    def slower(self) -> float:
        """How many times as long a clock is as where the table was measured."""
        return self.table.clock_ghz / self.clock_ghz

    @property
    def clocks_per_us(self) -> float:
        return self.clock_ghz * 1e3

    def rate(self, unit: str) -> float:
        """Returns the work of a unit per microsecond: FLOP of "fma" and "mma", "clocks" of the busiest multiprocessor,
        and "us", microseconds themselves."""
        if unit in ("fma", "mma"):
            return 2 * (self.fma if unit == "fma" else self.mma) * self.sm_count * self.clocks_per_us
        return self.clocks_per_us if unit == "clocks" else 1.0


# GeForce cards make products with float32 sums at half the rate of those with float16 sums. Cards for workstations and
# servers of the same architecture (A10, A40, L4, L40S) do not.
FMA = {"sm_75": 64, "sm_80": 64}
MMA = {"sm_75": 512, "sm_80": 1024, "sm_87": 1024, "sm_90a": 1330, "sm_100": 1024, "sm_103": 1024}
MOST_FMA, GEFORCE_MMA = 128, 256
LOADED_CLOCK, LOADED_MEMORY = 0.81, 0.75  # what an H100 reaches of the figures that its driver states
L2_BYTES_PER_CLOCK = 8e6 / 132 / 1600     # of a multiprocessor
LAUNCH_US, LATENCY_US = 1.0, 0.5
H100 = Device("sm_90a", 132, 1.6, MOST_FMA, MMA["sm_90a"], LAUNCH_US, LATENCY_US, 2.5e6, 8e6)
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
        found = Device(**json.loads(path.read_text())["device"])
        if found.arch == arch and all(isinstance(value, (int, float)) and value > 0 for value in found[1:]):
            return found
        what = f"it is of a {found.arch}, this device is a {arch}" if found.arch != arch else f"{found} has no rates"
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{type(error).__name__}: {error}"
    raise ConfigError(message("ALPHA_CALIBRATION", f"{str(path)!r} does not serve: {what}",
                              "unset it, or write the file anew: python -m benchmarks.calibrate --output FILE"))


# ---- costs -----------------------------------------------------------------------------------------------------------
class Stage(NamedTuple):
    """Work that is done at the same time as bytes are moved."""

    work: float = 0.0    # of a unit, see `Device.rate`
    unit: str = "us"
    nbytes: float = 0.0  # of a level, "dram" or "l2"
    level: str = "dram"
    depth: float = 0     # steps that wait for each other
    launches: float = 0  # of kernels
    seen: float = 0.0    # share of the lesser of work and bytes that is not hidden behind the greater


class Cost(NamedTuple):
    """The stages of a launch, and the relative error where it is more than that of a direct sum."""

    stages: tuple[Stage, ...]
    error: float = 0.0

    def times(self, factor: float) -> Cost:
        """Returns what takes so many times as long."""
        return self._replace(stages=tuple(stage._replace(
            work=factor * stage.work, nbytes=factor * stage.nbytes, depth=factor * stage.depth,
            launches=factor * stage.launches) for stage in self.stages))


def time_us(cost: Cost, on: Device | None = None) -> float:
    """Returns the time of a cost on a device, in microseconds; on that of this process, if none is given."""
    on, total = on or device(), 0.0
    for work, unit, nbytes, level, depth, launches, seen in cost.stages:
        both = work / on.rate(unit), nbytes / (on.dram if level == "dram" else on.l2)
        total += launches * on.launch_us + depth * on.latency_us + max(both) + seen * min(both)
    return total


# ---- constants of a class --------------------------------------------------------------------------------------------

WIDE = {"128x128": (0.324, 1.0), "128x64": (0.199, 0.67), "128x256": (0.62, 2.0), "256x128": (0.7, 1.7)}
HOPPER = Group(  # measured on an H100, cool: only ratios matter to a choice. Times are those at
    clock_ghz=1.6,
    conversion=Group(launches=1, depth=2),  # a pass over memory that converts
    ffma=Group(
        launches=1, depth=4,
        tile_clocks=1300,   # of a block, before the first and after the last product
        slice_clocks=1200,  # more, of a block that stores a slice; and once, to notice that all have come
        add_clocks=250,     # to add up a slice
        alone=0.8,          # rate of a block that has its warp schedulers to itself, which does not hide all latency
        # Of the FMA rate while a multiprocessor is full, by tile; and what is left of that where B is K-major.
        tiles={"64x64x16/64": (0.873, 0.905), "64x64x16/128": (0.840, 0.923), "32x64x16/64": (0.794, 0.923),
               "32x32x16/64": (0.727, 0.891), "16x64x16/64": (0.722, 0.770), "64x64x16/64 unaligned": (0.750, 0.910),
               "32x32x16/64 unaligned": (0.620, 0.890)},
        wgrad={"128x128x16/256": 0.89, "128x64x16/128": 0.85, "64x64x16/64": 0.82, "64x64x16/128": 0.80,
               "32x32x16/64": 0.62, "32x32x16/64 unaligned": 0.38},
        unit_us=3.0,        # of a unit of wgrad: start, drain and store
        sum_us=3.0, sum_dram=0.6),  # the kernel that adds slices, and the share of the memory's rate that it reaches
    mma=Group(
        efficiency=0.8,     # of the unit that limits a tile, while a multiprocessor is full: an estimate
        shared_bytes=128,   # of a multiprocessor per clock
        l2=1.056,           # of the L2 cache's rate: an estimate
        behind_wgmma=8.0),  # times the estimate, on devices that have both: wgmma is faster, and measured
    depthwise=Group(
        launches=1, depth=4,
        dram=0.12,          # of the memory's rate, in one pass over the tensors: estimated
        multiplied={"fprop": 3.3, "dgrad": 1.2, "wgrad": 2.2},  # times as long with several filters a channel: 6, 5x5
        efficiency=0.3,     # of the FMA rate: an estimate
        strips={"fma": 0.5, "fprop": 0.9, "dgrad": 0.85, "wgrad": 0.65}),  # fma an estimate; memory's: 3x3, 16 bits
    transformed=Group(
        launches=1, depth=2,
        dram=1.0, fma=0.3,       # of the memory's rate, and of the FMA rate, that Winograd's transforms reach
        fft={16: (0.7, 0.3), 32: (0.5, 0.2), 64: (0.3, 0.1)},  # those of FFT, by the edge of a tile
        chunk_bytes=256 << 20),  # of transformed tiles that are worked on at a time: fewer fill fewer multiprocessors
    stem=Group(
        launches=1, depth=4, dram=0.88,  # of the memory's rate
        seen=0.4,  # of the lesser of products and memory, forward to more than 8 outputs: an estimate
        # By channels of a column, on an H200; of 2 and 4 channels estimates
        few={("fprop", 4): 0.4, ("fprop", 3): 0.37, ("fprop", 2): 0.25, ("fprop", 1): 0.13, ("wgrad", 4): 0.2,
             ("wgrad", 3): 0.31, ("wgrad", 2): 0.24, ("wgrad", 1): 0.15}),
    stem_mma=Group(
        launches={"fprop": 1, "wgrad": 2},
        depth={"fprop": 10, "wgrad": 13},  # tables, fragments of w; sums over blocks
        dram=1.1,                          # of the rate of memory
        # Clocks of a multiprocessor for a position and all columns, and for each chunk of filters, by pass, bytes of an
        # element and products.
        clocks={"fprop": {(4, 3): (2.3, 22.0), (4, 1): (8.9, 11.1), (2, 1): (9.3, 3.8)},
                "wgrad": {(4, 3): (2.3, 22.4), (4, 1): (6.5, 13.7), (2, 1): (2.0, 12.2)}}),
    matmul_batched=Group(   # estimated: shares of the unit's rate, bytes of shared memory a clock, clocks to end a tile
        efficiency=0.6, shared_bytes=100, single=6, tile_clocks=2000, depth=4),
    grouped=Group(          # on an H200
        launches={"maps": 1, "wgrad": 2}, depth={"maps": 24, "wgrad": 36},  # tables, filters in place; sums over blocks
        classes=1.5,  # times as long, where positions of several classes are written
        dram={"maps": 0.7, "wgrad": 0.7},  # of the rate of memory
        # Clocks of a multiprocessor for 16 positions, a piece of 16 x 16 (or 8) channels and a tap, by bytes of an
        # element and products; and for a word of filters that a block brings into place.
        clocks={"maps": {(4, 3): 25.0, (4, 1): 16.5, (2, 1): 12.5},
                "wgrad": {(4, 3): 52.0, (4, 1): 36.0, (2, 1): 11.0}},
        word_clocks=1.2,
        seen=0.2),          # of the lesser of products and memory
    wgmma=Group(
        launches=1, depth=4,
        # Of a block of 64 of k, and of the end of a tile whose results have 16 bits; of pairs a block of outputs alone.
        tiles={"fp32": {"128x128": (0.985, 1.0), "128x64": (0.545, 0.7), "128x96": (0.795, 0.8), "128x32": (0.4, 0.55),
                        "64x32": (0.3, 0.4),
                        "128x64 held 6": (0.545, 0.7)},
               "tf32": {**WIDE, "256x64": (0.49, 1.15), "128 pairs x64": (0.155, 0.84, 0.199),
                        "256x64 held 6": (0.49, 1.15), "64x64": (0.22, 0.5)},
               "16 bits": {**WIDE, "128 pairs x128": (0.305, 1.0, 0.324), "128x192": (0.47, 1.5),
                           "256x64": (0.48, 0.82), "128 pairs x64": (0.178, 0.67, 0.199), "128x256 held 3": (0.62, 2.0),
                           "128x64 held 10": (0.3, 0.67), "256x64 held 6": (0.48, 0.82),
                           "256x96 held 6": (0.58, 1.25), "64x64": (0.22, 0.5)}},
        part=0.3,                     # of a block, however few of its products are made
        sum_us=4.5, sum_l2=0.5,       # the launch that adds slices, and its share of the L2 cache's rate
        cluster_us=1.6,               # more, of a tile whose blocks, a cluster, add up their slices
        seen=0.05, seen_of_few=0.3,   # of what takes less: not all is hidden, least of a product of few tiles
        seen_held=0.14,               # less of that time, in the filters' share of a tile's bytes, where they are held
        idle_seen=0.4,                # of what a multiprocessor waits at the end for others, that hold other filters
        held_bytes_per_us=1e5,        # of filters, of a multiprocessor that waits for them
        product_l2=2,                 # times the rate at which tiles of columns read again what a product reads
        narrow_row_us=0.0019,         # to copy a row of a box where channels do not fill lines of memory, beyond 1x1
        few_us=0.17,                  # more, of a block and plane, take filters where they do not fill one at all
        narrow_group=20,              # over the channels of a group, where they fill no chunk: more, on an H200
        free_boxes=4, box_us=0.012),  # boxes of a block, and what one more takes
    coconv=Group(  # on an H200: clocks to read 64 rows, columns read in one; of tile, item; wgrad: tile, all sums, taps
        depth=6, busy={1: 0.9, 2: 1.0}, a_clocks=22, b_columns=16, end_clocks=500, item_clocks=800, tile_clocks=300,
        slot_clocks=4000, taps=1.25, seen=0.2),  # busy: times as long as products should take, by planes
    wgmma_wgrad=Group(
        launches=1,
        # Times the estimate that tiles take, by planes; of 1x1 filters.
        tiles={1: {"128x1x128": (0.99, 0.93), "128x1x64": (0.9, 0.74), "128x3x64": (1.06, 1.0), "128x3x32": (0.99, 1.0),
                   "64x1x256": (1.02, 0.93), "192x1x128": (0.89, 0.81), "192x1x192": (0.88, 0.94),
                   "192x3x64": (0.92, 1.0), "64x3x64 strip 3": (0.96, 1.0), "128x3x64 strip 2": (1.03, 1.0),
                   "128x1x128 cluster 4": (1.08, 0.89), "128x1x128 cluster 8": (1.06, 0.91),
                   "64x1x128 cluster 8": (1.0, 0.86), "128x1x192 cluster 4": (0.98, 0.99),
                   "192x1x128 cluster 2": (0.91, 0.91), "256x1x128 cluster 2": (0.95, 0.79)},
               2: {"128x1x128": (1.05, 0.93), "128x1x64": (1.15, 0.92), "128x1x96": (0.85, 1.12),
                   "128x3x64": (1.1, 1.0), "128x3x32": (0.9, 1.0), "64x3x64": (0.97, 1.0), "64x3x32": (0.84, 1.0),
                   "128x1x128 cluster 8": (1.17, 0.87), "64x1x128 cluster 8": (1.02, 0.97)}},
        flops_per_us={1: 949e6, 2: 347e6},   # of the device's products, by planes
        shared_bytes_per_flop=127 / 4096,    # that a multiprocessor moves per FLOP of its tensor cores at that clock
        issue_us=0.41,                       # that the producer takes for a block, or each of its boxes of fewer images
        row_us=1.55e-3,                      # that TMA takes for a row of a box, of 128 bytes or fewer
        crossing=0.84,                       # more, where it lies in two lines of memory: of several taps
        streamed={1: 3.2e6, 2: 4.4e6},       # bytes/us of a product's operands that L2 does not keep, by planes
        dram=1.2,                            # of the memory's rate that `device` has
        sum_us=6.5, sum_bytes_per_us=5.9e6,  # the kernel that adds the slots, and their way there and back
        unit_us=1.4, unit_bytes_per_us=20e3,  # of a unit: start and drain; and the store of its sums
        cluster_us=1.6,                      # more, where the blocks of a cluster add up theirs
        part=0.8,                            # of a block, whatever the number of its taps, where a tile has three
        strip={192: 0.97, 128: 0.89, 64: 1.09}))  # of a whole strip in what its pixels should take, by rows of a tile
