"""Which rank a process is, from the variables of launchers; the start of MPI where no MPI launcher is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import ModuleType

import pytest


from alpha.dist import joining, launch, pmi
from alpha.errors import ConfigError
from tests.dist import launch as mpirun

pytestmark = pytest.mark.same_without_kernels("ranks are what is tested")


@pytest.mark.parametrize("variables, place", [
    ({}, launch.Place()),
    ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, launch.Place(1, 4, 1, "mpirun")),
    ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
     launch.Place(5, 8, 1, "mpirun")),
    # srun with an MPI plugin, and mpirun inside of a job: MPI's variables count
    ({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"},
     launch.Place(3, 4, 1, "mpirun")),
    ({"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
     launch.Place(2, 3, 0, "torchrun", "10.0.0.1", 29501)),
    ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[03-07,12]",
      "SLURM_JOB_ID": "70001", "SLURM_STEP_ID": "2"}, launch.Place(1, 2, 0, "srun", "gpu03", 29400 + (70001 * 16 + 2) % 10000)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, launch.Place()),       # a batch script, which no srun has started
])
def test_the_place_is_read_from_the_launcher(variables: dict[str, str], place: launch.Place) -> None:
    assert launch.find(variables) == place


@pytest.mark.parametrize("nodes, first", [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[07,9]", "n07"), ("", "")])
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert launch.first_host(nodes) == first


@pytest.mark.parametrize("variables, text", [
    ({"PMI_RANK": "x", "PMI_SIZE": "4"}, "PMI_RANK is 'x', a number is needed"),
    ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4, WORLD_SIZE is 4")])
def test_variables_that_make_no_sense_are_refused(variables: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launch.find(variables)
    assert text in str(caught.value) and "\nhelp: " in str(caught.value)


def test_one_process_needs_no_mpi() -> None:
    code = ("import sys; from alpha import dist, tensor; comm = dist.init(); x = comm.all_reduce(tensor([2.0]), 'mean')\n"
            "assert (comm.size, comm.engine, x.tolist()) == (1, 'none', [2.0]) and dist.init() is comm\n"
            "assert comm.all_gather(x).shape == (1, 1) and comm.part(5) == (0, 5) and comm.gather(3) == [3]\n"
            "comm.barrier(); comm.finish(); assert 'mpi4py' not in sys.modules; print(comm)")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "SLURM_"))}
    ended = subprocess.run([sys.executable, "-c", code], cwd=mpirun.ROOT, env=clean, capture_output=True, text=True)
    assert ended.stdout == "<rank 0 of 1, none on cpu>\n", ended.stderr


def test_a_missing_mpi4py_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"mpirun started 2 ranks, and mpi4py is not installed"):
        joining._started_mpi(launch.Place(0, 2, 0, "mpirun"))


def test_an_mpi_library_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLibrary(ModuleType):
        rc = ModuleType("rc")

        def __getattr__(self, name: str) -> object:
            if name == "MPI":
                raise RuntimeError("cannot load MPI library\nlibmpi.so: no such file")
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "mpi4py", NoLibrary("mpi4py"))
    with pytest.raises(ConfigError, match="mpi4py finds no MPI library: cannot load MPI library\nhelp: "):
        joining._started_mpi(launch.Place(0, 2, 0, "mpirun"))


def test_rank_0_that_is_not_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmi.join, "__defaults__", (0.0,))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=f"rank 1 cannot reach rank 0 at 127.0.0.1, port {port}"):
        joining._started_mpi(launch.Place(1, 2, 1, "torchrun", "127.0.0.1", port))


@pytest.mark.skipif(bool(mpirun.MISSING), reason=mpirun.WHY)
@pytest.mark.parametrize("name, names", [("torchrun", launch.OF_TORCHRUN), ("srun", launch.OF_SLURM)])
def test_ranks_meet_without_an_mpi_launcher(name: str, names: tuple[str, ...]) -> None:
    code = ("from alpha import dist, tensor; comm = dist.init(); total = comm.all_reduce(tensor([comm.rank + 1.0]))\n"
            "print(comm.launcher, comm.rank, comm.local_rank, total.tolist()); comm.finish()")
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    variables = [mpirun.environment(**dict(zip(names, (str(k), "2", str(k)))), MASTER_ADDR="127.0.0.1",
                                    MASTER_PORT=str(port - 1)) for k in range(2)]
    ranks = [subprocess.Popen([sys.executable, "-c", code], cwd=mpirun.ROOT, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE, env=env) for env in variables]
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [out for out, _ in ends] == [f"{name} {k} {k} [3.0]\n" for k in range(2)], ends


def test_the_map_of_nodes_names_blocks_of_ranks() -> None:
    assert pmi._mapping([(0, "a"), (1, "a"), (2, "b")]) == "(vector,(0,1,2),(1,1,1))"
    assert pmi._mapping([(1, "b"), (0, "a"), (2, "a")]) == "(vector,(0,1,1),(1,1,1),(0,1,1))"
