"""The three passes by mma.sync, on tensor cores from sm_80 on, behind the lists of the FMA kernels."""
