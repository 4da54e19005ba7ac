"""dist: training on several GPUs, machines or groups of cores: every rank computes a part of each batch.

    comm = alpha.dist.init("cuda")                  # under mpirun, srun or torchrun
    model = alpha.dist.DataParallel(alpha.dist.convert_sync_batchnorm(net))
    loss = loss_of(model(x[first:last]), y[first:last])     # first, last = comm.part(len(x))
    loss.backward()                                 # .grad is the mean over all ranks
    optimizer.step()

Needs mpi4py and an MPI library (extra "dist"). docs/how_to/distributed.md has the commands.
"""

import sys

from alpha.dist.communicator import Collective, Communicator
from alpha.dist.data_parallel import DataParallel
from alpha.dist.joining import init, world
from alpha.dist.slices import Slices
from alpha.dist.sync_norm import SyncBatchNorm, convert_sync_batchnorm
from alpha.interop import twins

__all__ = ["Collective", "Communicator", "DataParallel", "Slices", "SyncBatchNorm", "convert_sync_batchnorm", "init",
           "world"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.dist", name, twins.DIST, sys.modules[__name__])
