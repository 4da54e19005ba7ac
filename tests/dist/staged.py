"""Two ranks on one GPU: tensors travel through host memory and MPI.  `mpirun -n 2 python -m tests.dist.staged`.

With --emulated on the emulated driver, where no GPU is.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

import alpha
from alpha import dist, nn, ops


def main() -> None:
    if "--emulated" in sys.argv:
        from tests.emulator import emulation
        emulation.install()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        comm = dist.init("cuda")
    said = [str(w.message) for w in told if "alpha.dist" in str(w.message)]
    assert len(said) == (comm.rank == 0), said
    assert comm.engine == "mpi through host memory"
    for dtype in ("float32", "float16", "bfloat16", "int32"):
        x = alpha.tensor([1.0 + comm.rank, 2.0], device="cuda").astype(dtype)
        for found, wanted in ((comm.all_reduce(x), [3.0, 4.0]), (comm.broadcast(x, 1), [2.0, 2.0]),
                              (comm.all_gather(x)[0], [1.0, 2.0]), (comm.reduce_scatter(x), [[3.0], [4.0]][comm.rank])):
            assert found.device == "cuda" and found.dtype == dtype and found.tolist() == wanted, (dtype, found)
    a = np.random.default_rng(0).normal(size=(6, 4, 4, 4)).astype("float32")
    y = alpha.tensor(np.array([0, 1, 2, 0, 1, 2]))
    alpha.manual_seed(1)
    whole = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    alpha.manual_seed(1 + comm.rank)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).cuda()
    parallel = dist.DataParallel(dist.convert_sync_batchnorm(model), bucket_mib=1e-3)
    ops.cross_entropy(whole(alpha.tensor(a)), y).backward()
    first, last = comm.part(6)
    x = alpha.tensor(a[first:last], device="cuda")
    ops.cross_entropy(parallel(x), y[first:last].to("cuda")).backward()
    for (name, p), (_, q) in zip(model.named_parameters(), whole.named_parameters()):
        difference = np.linalg.norm(p.grad.numpy() - q.grad.numpy())
        assert p.grad.device == "cuda" and difference <= 1e-4 * np.linalg.norm(q.grad.numpy()) + 1e-6, name
    print(f"rank {comm.rank} ends well", said)
    comm.finish()


if __name__ == "__main__":
    main()
