"""Which rank this process is: read from the variables that mpirun, srun and torchrun set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from alpha.core.errors import ConfigError, message

PORT = 29400    # where ranks meet that neither MASTER_PORT nor SLURM gives a port


@dataclass(frozen=True)
class Place:
    """Where a process stands among those that were started with it.

    Args:
        rank: number of this process, from 0.
        size: number of processes.
        local_rank: number of this process on its machine.
        launcher: "mpirun", "srun", "torchrun" or "none".
        address, port: where rank 0 is met, for launchers that start no MPI.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    launcher: str = "none"
    address: str = "127.0.0.1"
    port: int = PORT

    @property
    def has_mpi(self) -> bool:
        """Whether the launcher has told the MPI library which rank this is."""
        return self.launcher == "mpirun"


# (rank, size, rank on the machine): the first set of which rank and size are there counts.
OF_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
          ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"))
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
OF_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


def find(environ: Mapping[str, str] = os.environ) -> Place:
    """Returns the place of this process; one process alone where no launcher is.

    MPI's variables come first: mpirun inside of a SLURM job sets both, and only MPI's are of this very start.
    Raises:
        ConfigError: a variable is no number, or the rank is not below the size.
    """
    for names in OF_MPI:
        if names[0] in environ and names[1] in environ:
            return _place(environ, (*names[:2], names[2] if names[2] in environ else "SLURM_LOCALID"), "mpirun")
    if all(name in environ for name in OF_TORCHRUN[:2]):
        # torchrun itself listens at MASTER_PORT
        return _place(environ, OF_TORCHRUN, "torchrun", environ.get("MASTER_ADDR", "127.0.0.1"),
                      _number(environ, "MASTER_PORT", PORT) + 1)
    if all(name in environ for name in OF_SLURM[:2]):
        address = environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", ""))
        job = _number(environ, "SLURM_JOB_ID", 0) * 16 + _number(environ, "SLURM_STEP_ID", 0) % 16
        return _place(environ, OF_SLURM, "srun", address or "127.0.0.1",
                      _number(environ, "MASTER_PORT", PORT + job % 10_000))
    return Place()


def first_host(nodes: str) -> str:
    """Returns the first name of a list of SLURM such as "gpu[03-07,12],login1"."""
    name, bracket, rest = nodes.partition(",")[0].partition("[")
    return name + rest.rstrip("]").partition("-")[0] if bracket else name


def _place(environ: Mapping[str, str], names: tuple[str, str, str], launcher: str, address: str = "127.0.0.1",
           port: int = PORT) -> Place:
    rank, size, local = (_number(environ, name, 0) for name in names)
    if rank >= size:
        raise ConfigError(message("alpha.dist", f"{names[0]} is {rank}, {names[1]} is {size}",
                                  "a rank is below the number of ranks: start all of them with one launcher"))
    return Place(rank, size, local, launcher, address, port)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not text.isdecimal():
        raise ConfigError(message("alpha.dist", f"{name} is {text!r:.40}, a number is needed",
                                  f"leave {name} to the launcher: mpirun, srun or torchrun"))
    return int(text) if text else default
