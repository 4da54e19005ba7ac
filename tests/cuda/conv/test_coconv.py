"""Contextual convolution on CUDA: the ops and the gradients in every storage type, a layer in a captured step."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.config import config
from alpha.gradcheck import assert_equal_at
from tests.coconv_cases import CASES, CoCase, oracle
from tests.cuda.agree import Case, agree, floats, ints
from tests.cuda.conv.test_conv_wgmma import fetched, stored
from tests.cuda.process import EMULATED

pytestmark = pytest.mark.cuda

SOME = [case for case in CASES if case.name in {
    "map1", "map5", "map8.stride2", "one_level", "three_levels", "six_levels", "odd_split", "kernel5.stride2",
    "groups2", "groups4.kernel5.stride2", "few_channels", "tail", "depthwise"}]


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("case", SOME, ids=lambda c: c.name)
def test_three_passes_equal_the_oracle_on_integers(case: CoCase, tensor_cores: bool) -> None:
    x, w, g = ints(*case.x_shape), ints(*case.w_shape, seed=1), ints(*case.desc.y_shape, seed=2)
    with config(tensor_cores=tensor_cores):
        tx, tw, tg = (alpha.tensor(a, device="cuda") for a in (x, w, g))
        got = (ops.coconv2d(tx, tw, **case.attrs), ops.coconv2d_dgrad(tg, tw, case.hw, **case.attrs),
               ops.coconv2d_wgrad(tx, tg, case.f, **case.attrs))
        for name, a, b in zip(("y", "dx", "dw"), got, oracle(case, x, w, g)):
            assert_equal_at(a.numpy(), b.astype(np.float32), name=f"{case.name}: {name}")


@pytest.mark.parametrize("case", [c for c in SOME if c.name in {
    "three_levels", "odd_split", "groups2", "map8.stride2"}], ids=lambda c: c.name)
def test_every_storage_type_agrees_with_the_cpu(case: CoCase) -> None:
    x, w, g, b = (floats(*s, seed=k) for k, s in enumerate((case.x_shape, case.w_shape, case.desc.y_shape, (case.oc,))))
    dtypes = ("float32", "bfloat16", "float16")
    agree(Case("coconv2d", x, w, dtypes=dtypes, atol=1e-4, rtol=2e-2, **case.attrs))
    agree(Case("coconv2d_bias_act", x, w, b, dtypes=dtypes, activation="relu", atol=1e-4, rtol=2e-2, **case.attrs))
    agree(Case("coconv2d_dgrad", g, w, hw=case.hw, dtypes=dtypes, atol=0.3, rtol=2e-2, **case.attrs))
    agree(Case("coconv2d_wgrad", x, g, f=case.f, dtypes=dtypes, atol=5e-2, rtol=2e-2, **case.attrs))


def test_captured_steps_have_the_bits_of_eager_ones() -> None:
    def run(captured: bool) -> list[np.ndarray]:
        alpha.manual_seed(0)
        net = nn.Sequential(nn.CoConv2d(8, 16), nn.BatchNorm2d(16), nn.ReLU(), nn.CoConv2d(16, 16, dilations=(1, 2)))
        net.to("cuda")
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        x = alpha.tensor(floats(8, 6, 6, 8), device="cuda")

        def step(x: alpha.Tensor) -> alpha.Tensor:
            y = net(x)
            loss = (y * y).mean()
            loss.backward()
            return loss.detach()
        run_step = alpha.capture(step, net) if captured else step
        for _ in range(5):
            run_step(x)
            optimizer.step()
            optimizer.zero_grad()
        return [p.numpy() for p in net.parameters()]
    for a, b in zip(run(True), run(False)):
        assert np.array_equal(a, b)


# ---- the kernels over levels -----------------------------------------------------------------------------------------


STORES = {"float32": "float32", "float16x2": "float32", "bfloat16": "bfloat16"}
EIGHTS = (
    CoCase("map1", 3, (1, 1), 8, 32, (1, 2, 3, 4)), CoCase("tails", 5, (7, 6), 24, 56, (1, 3, 2), (8, 32, 16)),
    CoCase("stride2", 3, (9, 8), 16, 40, (2, 1), (32, 8), stride=(2, 2)),
    CoCase("kernel5.groups", 2, (6, 6), 32, 64, (1, 2), (16, 48), f=(5, 5), groups=2),
    CoCase("stride3.no_taps", 9, (8, 8), 8, 48, (2, 3, 1), stride=(3, 3), f=(1, 1), channels=(16, 16, 16)),
    CoCase("stride2.kernel5", 3, (10, 10), 8, 32, (1, 2, 3, 4), f=(5, 5), stride=(2, 2)))


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("case", EIGHTS, ids=lambda c: c.name)
def test_every_kernel_is_bitwise_right_on_integers(case: CoCase, pass_name: str) -> None:
    """On the emulated driver one of each kind."""
    from alpha.cuda.conv.coconv.kernels import CANDIDATES
    from alpha.cuda.runtime.memory import download, empty, upload
    x, w, g = ints(*case.x_shape), ints(*case.w_shape, seed=1), ints(*case.desc.y_shape, seed=2)
    expected = dict(zip(("fprop", "dgrad", "wgrad"), oracle(case, x, w, g)))[pass_name]
    tried = set()
    for candidate in CANDIDATES[pass_name]:
        kind = candidate.name.split()[0], candidate.reads
        if candidate.reads not in STORES or candidate.rejection(case.desc) or (EMULATED and kind in tried):
            continue
        tried.add(kind)
        dtype = STORES[candidate.reads]
        arrays = {name: stored(a, dtype) for name, a in (("x", x), ("g", g))}
        weight, out = upload(w), empty(expected.shape, "float32" if pass_name == "wgrad" else dtype)
        launch = candidate.prepare(case.desc)
        if pass_name == "fprop":
            launch(arrays["x"], weight, None, out, False)
        elif pass_name == "dgrad":
            launch(arrays["g"], weight, out)
        else:
            launch(arrays["x"], arrays["g"], out)
        got = download(out, "float32") if out.dtype == "float32" else fetched(out)
        rounded = expected if out.dtype == "float32" else fetched(stored(expected.astype(np.float32), dtype))
        assert_equal_at(got, np.asarray(rounded, np.float32), name=f"{pass_name} of {case.name} by {candidate.name}")
    assert len(tried) >= 2, "a kernel of the FMA units and one of tensor cores"
