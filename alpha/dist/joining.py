"""The start: which ranks there are, their GPU, and the communicator of all of them."""

from __future__ import annotations

import os
import socket
from typing import Any

from alpha.core.config import config
from alpha.core.device import device_type, get_backend
from alpha.core.errors import ConfigError, DeviceError, message, warn
from alpha.dist import launch, pmi
from alpha.dist.communicator import Communicator
from alpha.dist.requests import Queue
from alpha.dist.watch import Beacon, Watch, end_process, start_server

_world: Communicator | None = None

INSTALL = 'pip install ".[dist]" brings mpi4py and MPICH'


def world() -> Communicator:
    """Returns the communicator that `init` has made; one of this process alone before."""
    return _world if _world is not None else _alone


def init(device: str = "cpu") -> Communicator:
    """Joins this process to those that were started with it, and returns their communicator.

    mpirun, srun and torchrun say in variables which rank a process is; without any of them there is one rank, and
    nothing of MPI is loaded. A second call returns the first one's result. Where several ranks share a machine,
    `alpha.config.num_threads` becomes a rank's share of its cores, unless ALPHA_NUM_THREADS is set.
    Args:
        device: "cpu", or "cuda": the GPU of the rank's number on its machine, by turns where there are fewer GPUs.
    Returns:
        the Communicator of all ranks.
    Raises:
        ConfigError: mpi4py or its MPI library is missing, is another one than the launcher's, or the ranks cannot
            reach each other.
        DeviceError: there is no GPU.
    """
    global _world, _alone
    if _world is not None:
        return _world
    place = launch.find()
    kind = device_type(device)
    if place.size == 1:
        get_backend(device)
        _alone = _world = Communicator(launch.Place(launcher=place.launcher), None, kind)
        return _world
    mpi = _started_mpi(place)
    comm = mpi.COMM_WORLD
    if (comm.rank, comm.size) != (place.rank, place.size):
        raise ConfigError(message("alpha.dist", f"the launcher started rank {place.rank} of {place.size}, MPI knows rank "
                                  f"{comm.rank} of {comm.size}", "use the mpirun of the MPI library that mpi4py loads: "
                                  "python -m mpi4py --mpi-lib-version tells which"))
    beacon = Beacon()
    queue = Queue(comm)
    watch = _watched(queue, beacon)
    made = Communicator(place, queue, kind, None, beacon, watch, comm)
    _share_cores(made)
    if kind == "cuda":
        _bind(made)
    _world = made
    return made


_alone = Communicator(launch.Place(), None)


def _started_mpi(place: launch.Place) -> Any:
    """Returns mpi4py.MPI, initialised.  Raises ConfigError."""
    if not place.has_mpi:
        try:
            os.environ.update(pmi.join(place.rank, place.size, place.address, place.port))
        except OSError as error:
            raise ConfigError(message("alpha.dist", f"rank {place.rank} cannot reach rank 0 at {place.address}, port "
                                      f"{place.port}: {error}", "open that port, or set MASTER_ADDR and MASTER_PORT to "
                                      "an address and a port that are reached")) from error
    try:
        import mpi4py
        mpi4py.rc.thread_level, mpi4py.rc.finalize = "serialized", False    # a rank that fails must not wait for others
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(message("alpha.dist", f"{place.launcher} started {place.size} ranks, and mpi4py is not "
                                  "installed", INSTALL)) from error
    except RuntimeError as error:   # no MPI library
        raise ConfigError(message("alpha.dist", f"mpi4py finds no MPI library: {str(error).partition(chr(10))[0]}",
                                  INSTALL)) from error
    return MPI


def _watched(queue: Queue, beacon: Beacon) -> Watch:
    """Returns this rank's connection to rank 0.  Raises ConfigError, on all ranks, if one of them has none."""
    port_of_mine = start_server(queue.size) if queue.rank == 0 else 0
    host, port = queue.gather_bytes(f"{socket.gethostname()} {port_of_mine}".encode())[0].decode().split()
    near = host == socket.gethostname()
    watch, problem = None, b""
    try:
        watch = Watch(queue.rank, [("127.0.0.1", int(port))] if near else [(host, int(port))], beacon,
                      end_process(queue.rank))
    except OSError as error:
        problem = f"rank {queue.rank} on {socket.gethostname()} cannot reach rank 0 at {host}, port {port}: " \
                  f"{error}".encode()
    problems = [text.decode() for text in queue.gather_bytes(problem) if text]
    if problems or watch is None:
        raise ConfigError(message("alpha.dist", problems[0], "let the machines reach each other by name and by TCP"))
    return watch


def _share_cores(comm: Communicator) -> None:
    """Gives a rank its share of the cores of its machine."""
    hosts = comm.gather(socket.gethostname())
    here = hosts.count(hosts[comm.rank])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if here > 1 and "ALPHA_NUM_THREADS" not in os.environ and not config.num_threads:
        config.num_threads = max(1, cores // here)


def _bind(comm: Communicator) -> None:
    """Binds the rank's GPU, and makes NCCL's communicator where that can be; a warning says why it cannot."""
    from alpha.dist import gpu
    count = gpu.device_count()
    if count == 0:
        raise DeviceError(message("alpha.dist", f"rank {comm.rank} sees no GPU", 'start it with device="cpu"'))
    get_backend(f"cuda:{comm.local_rank % count}")
    places = comm.gather(f"{socket.gethostname()} {gpu.bus_id()}")
    shared = len(set(places)) < len(places) and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1"
    found, why = (None, "ranks share a GPU") if shared else gpu.load()
    reasons = [text for text in comm.gather(why) if text]
    if not reasons:
        comm._nccl = gpu.connected(found, comm)
    elif comm.rank == 0:
        warn(f"alpha.dist: tensors of GPUs travel through host memory and MPI, which is slower: {reasons[0]}; help: "
             "install NCCL (libnccl.so.2), and start one rank per GPU")
