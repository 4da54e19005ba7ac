"""Multiply-adds of a multiprocessor per clock, by class of GPU: NVIDIA's figures.  T4's where a class has several."""

from __future__ import annotations

# GeForce cards make products with float32 sums at half the rate of those with float16 sums. Cards for workstations and
# servers of the same architecture (A10, A40, L4, L40S) do not.
FMA = {"sm_75": 64, "sm_80": 64}    # in float32
MMA = {"sm_75": 512, "sm_80": 1024, "sm_87": 1024, "sm_90a": 1330, "sm_100": 1024, "sm_103": 1024}  # of 16 bits
MOST_FMA, GEFORCE_MMA = 128, 256    # of all other classes

# Classes on which three products of planes are faster than one of float32.
SPLITS_PAY = tuple(arch for arch, mma in MMA.items() if 3 * FMA.get(arch, MOST_FMA) < mma)
