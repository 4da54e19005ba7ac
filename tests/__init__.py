"""The tests of alpha."""

import os

# Threads of NumPy and PyTorch wait for one another, the longer the busier the cores are, and there are other processes
# beside this one. What alpha's own kernels start is not this variable's to say.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where PyTorch is imported first, the threads of alpha's kernels wait by its libgomp, which spins for milliseconds
# unless it is told otherwise when it is loaded: the steps of GoogLeNet of test_recompute.py, in two processes on two
# cores, took 14 s instead of 6.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as alpha/cpu/native.py has it
