"""What is checked on several ranks at once: `mpirun -n 2 python -m tests.dist.checks results.json`.

Every function check_* runs on all ranks; rank 0 writes which failed, and why.  Expected values are computed by NumPy, or
by one process on the whole batch.
"""

from __future__ import annotations

import json
import sys
import traceback
import zlib

import numpy as np
import pytest

import alpha
from alpha import dist, nn, ops, optim
from alpha.dist import Communicator
from alpha.errors import ArgumentError, ConfigError, DTypeError, GraphError, ShapeError
from alpha.core.tensor import Tensor

rng = np.random.default_rng


def of_rank(rank: int, n: int, dtype: str) -> np.ndarray:
    a = rng(rank).normal(size=n) * 3
    return a.astype(dtype)


def check_sums_are_in_the_order_of_the_ranks(comm: Communicator) -> None:
    for dtype in ("float32", "float64", "int64", "float16"):
        for n in (1, 7, 10_001):
            rows = [of_rank(r, n, dtype) for r in range(comm.size)]
            x = alpha.tensor(rows[comm.rank])
            wide = "float32" if dtype == "float16" else dtype
            total = rows[0].astype(wide)
            for row in rows[1:]:
                total = total + row.astype(wide)
            assert comm.all_reduce(x).numpy().tobytes() == total.astype(dtype).tobytes(), (dtype, n)
            assert x.numpy().tobytes() == rows[comm.rank].tobytes()      # x stays as it is
            assert np.array_equal(comm.all_reduce(x, "max").numpy(), np.max(rows, 0))
            assert np.array_equal(comm.all_reduce(x, "min").numpy(), np.min(rows, 0))
            if dtype == "float64":
                assert np.allclose(comm.all_reduce(x, "prod").numpy(), np.prod(rows, 0), rtol=1e-12)
                assert np.allclose(comm.all_reduce(x, "mean").numpy(), np.mean(rows, 0), rtol=1e-12)


def check_moves(comm: Communicator) -> None:
    rows = [of_rank(r, 4 * comm.size, "float32").reshape(-1, 2) for r in range(comm.size)]
    x = alpha.tensor(rows[comm.rank])
    assert np.array_equal(comm.all_gather(x).numpy(), np.stack(rows))
    for root in range(comm.size):
        assert np.array_equal(comm.broadcast(x, root).numpy(), rows[root])
    mine = np.sum(np.stack(rows), 0, dtype=np.float32)[2 * comm.rank:2 * comm.rank + 2]
    assert np.allclose(comm.reduce_scatter(x).numpy(), mine, rtol=1e-6, atol=1e-6)
    assert np.allclose(comm.reduce_scatter(x, "mean").numpy(), mine / comm.size, rtol=1e-6, atol=1e-6)
    flags = alpha.tensor([comm.rank == 0, True])
    assert comm.all_gather(flags).tolist() == [[r == 0, True] for r in range(comm.size)]
    assert comm.gather({"rank": comm.rank, "text": "x" * comm.rank}) == [
        {"rank": r, "text": "x" * r} for r in range(comm.size)]
    comm.barrier()
    parts = comm.gather(comm.part(13))
    assert parts[0][0] == 0 and parts[-1][1] == 13 and all(a[1] == b[0] for a, b in zip(parts, parts[1:]))
    assert max(b - a for a, b in parts) - min(b - a for a, b in parts) <= 1


def check_collectives_end_in_any_order_of_waiting(comm: Communicator) -> None:
    sizes = (50_000, 3, 20_000, 9_000)
    begun = [comm.begin_all_reduce(alpha.tensor(of_rank(comm.rank + 10 * k, n, "float64")))
             for k, n in enumerate(sizes)]
    other = comm.another()
    assert other.all_reduce(alpha.tensor([1.0])).tolist() == [float(comm.size)]     # overtakes
    for k in (3, 0, 2, 1):
        expected = np.sum([of_rank(r + 10 * k, sizes[k], "float64") for r in range(comm.size)], 0)
        assert np.allclose(begun[k].wait().numpy(), expected, rtol=1e-12, atol=1e-12)


def check_refusals(comm: Communicator) -> None:
    x = alpha.tensor([1.0, 2.0, 3.0])
    for error, text, call in (
            (ArgumentError, "a Tensor is needed", lambda: comm.all_reduce([1.0])),
            (ArgumentError, 'op is "avg"', lambda: comm.all_reduce(x, "avg")),
            (DTypeError, "there is no mean of int64", lambda: comm.all_reduce(alpha.tensor([1]), "mean")),
            (DTypeError, "there is no sum of bool", lambda: comm.all_reduce(alpha.tensor([True]))),
            (ArgumentError, f"root is {comm.size}", lambda: comm.broadcast(x, comm.size)),
            (ShapeError, f"multiple of the {comm.size} ranks", lambda: comm.reduce_scatter(alpha.zeros((5,)))),
            (ConfigError, "rank 1 has precision 'p1', rank 0 has 'p0'",
             lambda: comm.agree("train", {"precision": f"p{min(comm.rank, 1)}"}, "use one"))):
        with pytest.raises(error, match=".") as caught:
            call()
        assert text in str(caught.value), str(caught.value)
        assert "\nhelp: " in str(caught.value)


# ---- DataParallel ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Two branches, one of which may be left out, and a parameter that nothing uses."""

    def __init__(self) -> None:
        self.first, self.second, self.last = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)
        self.unused = nn.Parameter(ops.ones((2,)))

    def forward(self, x: Tensor, both: bool = True) -> Tensor:
        h = self.first(x)
        return self.last(ops.tanh(h + self.second(x) if both else h))


def net(seed: int = 1) -> Net:
    alpha.manual_seed(seed)
    made = Net()
    made.double()
    return made


def batch(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return (alpha.tensor(rng(seed).normal(size=(n, 6))), alpha.tensor(rng(seed).integers(0, 3, n)))


def grads_of(model: nn.Module) -> dict[str, np.ndarray | None]:
    return {name: None if p.grad is None else p.grad.numpy() for name, p in model.named_parameters()}


def assert_close(found: dict[str, np.ndarray | None], wanted: dict[str, np.ndarray | None], rtol: float) -> None:
    for name, g in wanted.items():
        mine = found[name]
        assert (mine is None) == (g is None), name
        if g is not None and mine is not None:
            assert np.linalg.norm(mine - g) <= rtol * np.linalg.norm(g) + 1e-15, name


def check_gradients_are_those_of_the_whole_batch(comm: Communicator) -> None:
    for bucket_mib in (1e-4, 25.0):     # a bucket for each parameter, and one for all
        model, whole = net(), net()
        parallel = dist.DataParallel(model, bucket_mib=bucket_mib)
        for step in range(3):           # in the second, buckets follow the order of the first
            x, y = batch(13, step)
            first, last = comm.part(13)
            parallel.weigh(last - first, 13)
            for m in (model, whole):
                m.zero_grad()
            ops.cross_entropy(parallel(x[first:last]), y[first:last]).backward()
            ops.cross_entropy(whole(x), y).backward()
            assert_close(grads_of(model), grads_of(whole), 1e-12)
            assert model.unused.grad is None
        parallel.detach()
        model.zero_grad()
        ops.sum(model(batch(2, comm.rank)[0])).backward()   # of this rank alone
        sums = comm.gather(float(model.first.weight.grad.numpy().sum()))
        assert len(set(sums)) == comm.size


def check_a_branch_that_one_rank_leaves_out_counts_as_zero(comm: Communicator) -> None:
    model = net()
    parallel = dist.DataParallel(model, bucket_mib=1e-4)
    for step in range(2):
        model.zero_grad()
        x, _ = batch(4, step)
        ops.sum(parallel(x, both=comm.rank == 0)).backward()
        rows = []
        for rank in range(comm.size):
            alone = net()
            ops.sum(alone(x, both=rank == 0)).backward()
            rows.append(grads_of(alone))
        wanted = {name: None if all(row[name] is None for row in rows) else
                  sum(np.zeros(p.shape) if row[name] is None else row[name] for row in rows) / comm.size
                  for name, p in model.named_parameters()}
        assert_close(grads_of(model), wanted, 1e-12)


def check_no_sync_accumulates_and_the_next_pass_sends_all(comm: Communicator) -> None:
    model, whole = net(), net()
    parallel = dist.DataParallel(model)
    with parallel.no_sync():
        ops.sum(parallel(batch(4, comm.rank)[0])).backward()
    own = grads_of(model)
    assert len({row for row in comm.gather(float(own["first.weight"].sum()))}) == comm.size    # type: ignore[union-attr]
    ops.sum(parallel(batch(4, 50 + comm.rank)[0])).backward()
    for seed in (*range(comm.size), *range(50, 50 + comm.size)):
        (ops.sum(whole(batch(4, seed)[0])) * (1 / comm.size)).backward()
    assert_close(grads_of(model), grads_of(whole), 1e-12)


def check_parameters_and_buffers_become_those_of_rank_0(comm: Communicator) -> None:
    alpha.manual_seed(comm.rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].running_mean.copy_(ops.full((4,), float(comm.rank)))
    dist.DataParallel(model)
    alpha.manual_seed(0)
    wanted = nn.Linear(4, 4).weight.numpy()
    assert np.array_equal(model[0].weight.numpy(), wanted) and not model[1].running_mean.numpy().any()
    with pytest.raises(ConfigError, match=r"rank 1 has parameters .*\(5, 4\)"):
        dist.DataParallel(nn.Linear(4, 4 + min(comm.rank, 1)))
    with pytest.raises(ConfigError, match='wire is "float8"'):
        dist.DataParallel(nn.Linear(4, 4), wire="float8")


def check_gradients_in_16_bits_are_rounded_once(comm: Communicator) -> None:
    alpha.manual_seed(2)
    model = nn.Linear(300, 40)
    parallel = dist.DataParallel(model, wire="float16")
    xs = [rng(r).normal(size=(2, 300)).astype("float32") for r in range(comm.size)]
    ops.sum(parallel(alpha.tensor(xs[comm.rank]))).backward()
    wanted = sum(((x.sum(0, dtype=np.float32) / np.float32(comm.size)).astype(np.float16)).astype(np.float32)
                 for x in xs).astype(np.float16).astype(np.float32)
    assert np.allclose(model.weight.grad.numpy(), np.broadcast_to(wanted, (40, 300)), rtol=1e-3, atol=1e-6)
    assert model.weight.grad.dtype == "float32"


# ---- SyncBatchNorm ---------------------------------------------------------------------------------------------------


def norm_case(norm: nn.Module, x: np.ndarray, r: np.ndarray, g: np.ndarray, activation: str | None) -> list[np.ndarray]:
    xt, rt = (alpha.tensor(a, requires_grad=True) for a in (x, r))
    y = norm(xt, rt, activation)
    (y * alpha.tensor(g)).sum().backward()
    return [t.numpy() for t in (y, xt.grad, rt.grad)]


def check_sync_batch_norm_is_batch_norm_of_the_whole_batch(comm: Communicator) -> None:
    n = 4 * comm.size       # parts of one size: the loss is then a mean of means
    x, r, g = (rng(5 + k).normal(size=(n, 3, 5, 4)) for k in range(3))
    x = x * 2 + 7
    first, last = comm.part(n)
    for activation in (None, "relu"):
        norms = []
        for kind in (nn.BatchNorm2d, dist.SyncBatchNorm):
            norm = kind(4)
            norm.double()
            norm.weight.copy_(alpha.tensor([1.0, -2.0, 0.5, 3.0], dtype="float64"))
            norms.append(norm)
        whole = norm_case(norms[0], x, r, g, activation)
        mine = norm_case(norms[1], *(a[first:last] for a in (x, r, g)), activation)
        for a, b in zip(mine, whole):
            assert np.allclose(a, b[first:last], rtol=1e-10, atol=1e-10)
        for name in ("running_mean", "running_var"):
            assert np.allclose(getattr(norms[1], name).numpy(), getattr(norms[0], name).numpy(), rtol=1e-12)
        for name in ("weight", "bias"):
            total = comm.all_reduce(getattr(norms[1], name).grad).numpy()
            assert np.allclose(total, getattr(norms[0], name).grad.numpy(), rtol=1e-10, atol=1e-10)
        norms[1].eval(), norms[0].eval()
        assert np.allclose(norms[1](alpha.tensor(x)).numpy(), norms[0](alpha.tensor(x)).numpy(), rtol=1e-10)


def check_sync_batch_norm_refuses(comm: Communicator) -> None:
    norm = dist.SyncBatchNorm(4)
    with pytest.raises(ShapeError, match="4 channels"):
        norm(ops.zeros((2, 3)))
    x = alpha.tensor(rng(1).normal(size=(3, 4)).astype("float32"), requires_grad=True)
    with pytest.raises(GraphError, match="no gradient"):
        alpha.grad(norm(x).sum(), [x], create_graph=True)


def check_conversion_keeps_tensors_and_places(comm: Communicator) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4, momentum=0.3), nn.ReLU()))
    before = dict(model.named_parameters())
    model = dist.convert_sync_batchnorm(model)
    assert isinstance(model[1][0], dist.SyncBatchNorm) and model[1][0].momentum == 0.3
    assert all(p is before[name] for name, p in model.named_parameters()) and len(before) == 4
    assert isinstance(dist.convert_sync_batchnorm(nn.BatchNorm2d(3)), dist.SyncBatchNorm)
    assert "SyncBatchNorm(4" in repr(model)


def trained(comm: Communicator, precision: str, slices: dist.Slices | None = None) -> tuple[list[float], int]:
    """Returns the losses of four steps of a net with batch norm and dropout, and a checksum of its parameters."""
    alpha.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
                          nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 6 * 6, 5))
    if precision == "float64":
        model.double()
    model = dist.convert_sync_batchnorm(model)
    params = list(model.parameters())
    optimizer = optim.SGD(params, lr=0.05, momentum=0.9)
    scaler = optim.LossScaler(initial=1024.0) if precision == "fp16" else None
    average = optim.ExponentialMovingAverage(model, 0.9)
    parallel = None if slices else dist.DataParallel(model, bucket_mib=0.002)
    losses, n = [], 19
    dtype = "float64" if precision == "float64" else "float32"
    for step in range(4):
        x = alpha.tensor(rng(step).normal(size=(n, 8, 8, 3)).astype(dtype))
        y = alpha.tensor(rng(step).integers(0, 5, n))
        optimizer.zero_grad()
        if slices:
            found = slices.run(lambda a, b: _part(model, params, x, y, a, b), n)
            shares = [b / n - a / n for a, b in (slices.bounds(n, comm.rank * slices.local + k)
                                                 for k in range(slices.local))]
            for k, p in enumerate(params):
                p.grad = slices.tree_sum([g[k] * s for (g, _), s in zip(found, shares)])
            losses.append(slices.tree_sum([loss * s for (_, loss), s in zip(found, shares)]).item())
        else:
            a, b = comm.part(n)
            parallel.weigh(b - a, n)    # type: ignore[union-attr]
            with alpha.precision("fp32" if precision == "float64" else precision), alpha.random.part(a, b, n):
                loss = ops.cross_entropy(model(x[a:b]), y[a:b])
                (scaler.scale(loss) if scaler else loss).backward()
            losses.append(comm.all_reduce(loss.detach() * ((b - a) / n)).item())
        if scaler:
            scaler.step(optimizer, max_norm=0.5)
        else:
            optim.clip_grad_norm(params, 0.5)
            optimizer.step()
        average.update()
    tensors = [*params, *model.buffers(), *average.state_dict().values()]
    return losses, zlib.crc32(b"".join(t.numpy().tobytes() for t in tensors))


def _part(model: nn.Module, params: list[Tensor], x: Tensor, y: Tensor, a: int, b: int) -> tuple[list[Tensor], Tensor]:
    loss = ops.cross_entropy(model(x[a:b].clone()), y[a:b].clone())
    return alpha.grad(loss, params), loss.detach()


def check_ranks_agree_on_weights_averages_and_clipping(comm: Communicator) -> None:
    for precision in ("fp32", "fp16", "float64"):
        losses, checksum = trained(comm, precision)
        assert len(set(comm.gather(checksum))) == 1
        results[precision] = losses
        if comm.size == 2:      # and the same bits in every run
            assert trained(comm, precision) == (losses, checksum)


def check_slices(comm: Communicator) -> None:
    losses, checksum = trained(comm, "fp32", dist.Slices(8))
    assert len(set(comm.gather(checksum))) == 1
    results["slices"] = [losses, checksum]
    with pytest.raises(ConfigError, match="a batch has 5 rows, there are 8 slices"):
        dist.Slices(8).run(lambda a, b: None, 5)
    with pytest.raises(ConfigError, match="6 slices"):
        dist.Slices(6)
    norm = dist.SyncBatchNorm(3)
    with pytest.raises(GraphError, match="some slices have ended"):
        dist.Slices(8).run(lambda a, b: norm(ops.ones((2, 3))) if a // 2 % 2 else None, 16)
    with pytest.raises(ZeroDivisionError):      # of any slice, in the caller's thread
        dist.Slices(8).run(lambda a, b: norm(ops.ones((2, 3))) if a % 4 else 1 / 0, 16)


results: dict[str, object] = {}
TWO_ARE_ENOUGH = (check_refusals, check_no_sync_accumulates_and_the_next_pass_sends_all,
                  check_parameters_and_buffers_become_those_of_rank_0, check_gradients_in_16_bits_are_rounded_once,
                  check_collectives_end_in_any_order_of_waiting, check_sync_batch_norm_refuses,
                  check_conversion_keeps_tensors_and_places)


def names(size: int) -> list[str]:
    """Returns the checks that are made on so many ranks."""
    return [name for name, check in globals().items() if name.startswith("check_")
            and (size == 2 or check not in TWO_ARE_ENOUGH)]


def main(path: str) -> None:
    comm = dist.init()
    outcome: dict[str, str] = {}
    for name in names(comm.size):
        try:
            globals()[name](comm)
            error = ""
        except BaseException:
            error = traceback.format_exc()
        outcome[name] = "\n".join(text for text in comm.gather(error) if text)
    if comm.rank == 0:
        with open(path, "w") as file:
            json.dump({"outcome": outcome, "results": results}, file)
    comm.finish()


if __name__ == "__main__":
    main(sys.argv[1])
