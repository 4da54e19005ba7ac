"""The tests of alpha."""

import os

# Threads of NumPy and PyTorch wait for one another, the longer the busier the cores are, and there are other processes
# beside this one. What alpha's own kernels start is not this variable's to say.
os.environ.setdefault("OMP_NUM_THREADS", "1")
