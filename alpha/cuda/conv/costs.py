"""What a multiprocessor can do per clock, by architecture, and how fast the device's clock and memory are.

Cost models compare kernels that are bound by different units, so they need the ratio of these units on this device.
The products of a clock are NVIDIA's figures, those of mma.sync on Hopper what others have measured of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.cuda.runtime.context import context

# GeForce cards make products with float32 sums at half the rate of those with float16 sums. Cards for workstations and
# servers of the same architecture (A10, A40, L4, L40S) do not: where one of them is better off, the clock says so
# (ALPHA_TUNE=1).
MMA_PER_CLOCK = {"sm_80": 1024, "sm_90a": 1330}  # 16-bit multiply-adds of m16n8k16, float32 sums
GEFORCE_MMA_PER_CLOCK = 256
FMA_PER_CLOCK = {"sm_80": 64}
MOST_FMA_PER_CLOCK = 128
SHARED_BYTES_PER_CLOCK = 128
CACHE_BYTES_PER_CLOCK = 40                       # from the L2 cache, for each multiprocessor: an estimate
LOADED_CLOCK, LOADED_MEMORY = 0.81, 0.75         # what an H100 reaches of the figures that its driver states


class Rates(NamedTuple):
    """Clock in GHz, multiply-adds of a multiprocessor per clock (float32; 16 bits by mma.sync), memory in bytes/us."""

    clock_ghz: float
    fma: int
    mma: int
    bytes_per_us: float


H100 = Rates(1.6, 128, MMA_PER_CLOCK["sm_90a"], 2.5e6)  # under load


def rates() -> Rates:
    """Returns those of the device of this process; before it has one, an H100's."""
    return _rates(context.arch)


@lru_cache(maxsize=8)
def _rates(arch: str) -> Rates:
    if arch in ("", "sm_90a"):
        return H100
    attribute, device = context.driver.device_attribute, context.driver.Device(context.index)
    khz, memory_khz, bits = (device.get_attribute(which) for which in (
        attribute.CLOCK_RATE, attribute.MEMORY_CLOCK_RATE, attribute.GLOBAL_MEMORY_BUS_WIDTH))
    return Rates(khz * 1e-6 * LOADED_CLOCK, FMA_PER_CLOCK.get(arch, MOST_FMA_PER_CLOCK),
                 MMA_PER_CLOCK.get(arch, GEFORCE_MMA_PER_CLOCK),
                 2 * memory_khz * 1e-3 * bits / 8 * LOADED_MEMORY)
