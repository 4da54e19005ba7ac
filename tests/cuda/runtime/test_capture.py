"""alpha.capture on the GPU: the bits of the function itself, one launch, and a plain call wherever that is right."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import context
from tests.cuda.process import COUNTS_LIVE
from tests.cuda.test_training import small_resnet, small_vgg

pytestmark = [pytest.mark.cuda, pytest.mark.long]


def batches(count: int, size: int = 4) -> list[tuple[alpha.Tensor, alpha.Tensor]]:
    rng = np.random.default_rng(0)
    return [(alpha.tensor(rng.standard_normal((size, 8, 8, 3)).astype(np.float32), device="cuda"),
             alpha.tensor(rng.integers(0, 10, size), device="cuda")) for _ in range(count)]


class Training:
    """A network, its optimizer, and the function that is captured."""

    def __init__(self, network: Callable[[], nn.Module], captured: bool, scaled: bool = False) -> None:
        alpha.manual_seed(3)
        self.model = network().to("cuda")
        self.optimizer = optim.SGD(self.model.named_parameters(), lr=lambda step: 0.05 / (1 + step), momentum=0.9)
        self.scaler = optim.LossScaler("cuda") if scaled else None
        self.plain_calls = 0
        self.losses = alpha.capture(self._losses, self.model) if captured else self._losses

    def _losses(self, x: alpha.Tensor, y: alpha.Tensor) -> tuple[alpha.Tensor, alpha.Tensor]:
        self.plain_calls += 1
        logits = self.model(x)
        loss = ops.cross_entropy(logits, y)
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return loss.detach(), ops.argmax(logits.detach(), axis=1)

    def step(self, x: alpha.Tensor, y: alpha.Tensor) -> tuple[alpha.Tensor, alpha.Tensor]:
        found = self.losses(x, y)
        if self.scaler:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return found

    def plain(self, x: alpha.Tensor, y: alpha.Tensor) -> float:
        with alpha.no_grad():
            return ops.cross_entropy(self.model(x), y).item()

    def bits(self) -> list[bytes]:
        return [t.numpy().tobytes() for t in (*self.model.state_dict().values(),)]


@pytest.mark.parametrize(("network", "precision"), [(small_vgg, "tf32"), (small_vgg, "bf16"), (small_vgg, "fp16"),
                                                    (small_resnet, "fp32")])
def test_the_bits_are_those_of_the_function_itself(network, precision):
    steps = batches(6)
    found = []
    with alpha.precision(precision):
        for captured in (False, True):
            run = Training(network, captured, scaled=precision == "fp16")
            results = [run.step(x, y) for x, y in steps]
            found.append([*run.bits(), *(r.numpy().tobytes() for pair in results for r in pair)])
            assert run.plain_calls == (3 if captured else 6)  # the third call is the one that is recorded
    assert found[0] == found[1]
    assert len(set(found[1][-12:])) > 6, "the losses differ from step to step"


def test_random_numbers_go_on_and_are_those_of_plain_calls():
    def doubled(x):
        return ops.dropout(x, 0.5) + ops.dropout(x, 0.25)

    def run(function):
        alpha.manual_seed(11)
        with alpha.no_grad():
            found = [function(x).numpy() for _ in range(5)]
        return found, alpha.random.get_state()

    x = alpha.tensor(np.ones((3, 7), np.float32), device="cuda")
    plain, captured = run(doubled), run(alpha.capture(doubled))
    assert plain[1] == captured[1]
    for a, b in zip(plain[0], captured[0]):
        np.testing.assert_array_equal(a, b)
    assert any((a != plain[0][0]).any() for a in plain[0][1:])


def test_a_seed_set_between_replays_counts():
    x = alpha.tensor(np.ones(64, np.float32), device="cuda")
    drop = alpha.capture(lambda x: ops.dropout(x, 0.5))
    found = []
    for seed in (1, 2, 3, 1, 2):
        alpha.manual_seed(seed)
        found.append(drop(x).numpy())
    assert (found[0] == found[3]).all() and (found[1] == found[4]).all() and (found[3] != found[4]).any()


def test_a_replay_is_one_launch_between_two_that_copy(monkeypatch):
    from alpha.cuda.runtime.kernel import Kernel
    run, (batch,) = Training(small_resnet, True), batches(1)
    for _ in range(3):
        run.step(*batch)
    launches, call = [], Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", lambda self, *args: (launches.append(self.entry), call(self, *args)))
    run.losses(*batch)
    assert launches == ["copies", "copies"]


def test_inputs_and_outputs_of_any_number_and_length():
    def several(*xs):
        return tuple(x + 1 for x in xs[::-1])

    sizes = [(4097,), (3, 5), (), (7,), (2, 0), (1,), (16,), (5, 5, 5), (33,), (2,)]
    captured = alpha.capture(several)
    for k in range(5):
        arrays = [np.full(shape, 10 * k + n, np.uint8 if n % 3 == 0 else np.float32) for n, shape in enumerate(sizes)]
        found = captured(*[alpha.tensor(a, device="cuda") for a in arrays])
        for y, a in zip(found, arrays[::-1]):
            np.testing.assert_array_equal(y.numpy(), a + 1)


def test_results_are_new_arrays_and_gradients_stay_where_they_are():
    run, steps = Training(small_resnet, True), batches(5)
    for x, y in steps[:3]:
        run.step(x, y)
    (first, _), w = run.losses(*steps[3]), next(iter(run.model.parameters()))
    value, gradient = first.item(), w.grad
    run.optimizer.zero_grad()
    second, _ = run.losses(*steps[4])
    assert first.item() == value != second.item() and w.grad is gradient


def test_gradients_that_are_there_are_added_to():
    run, ((x, y),) = Training(small_resnet, True), batches(1)
    w = next(iter(run.model.parameters()))
    for _ in range(4):
        run.losses(x, y)
        once = w.grad.numpy()
        run.optimizer.zero_grad()
    assert run.plain_calls == 3
    run.losses(x, y)
    run.losses(x, y)  # not a repetition: the gradients are not None
    assert run.plain_calls == 4
    np.testing.assert_allclose(w.grad.numpy(), 2 * once, rtol=1e-5, atol=1e-6)


def test_a_call_of_other_shapes_leaves_the_recording():
    run, plain, large, (small,) = *(Training(small_resnet, c) for c in (True, False)), batches(9), batches(1, size=2)
    steps = [*large[:4], small, *large[4:6], small, small, *large[6:]]
    found, expected = ([tuple(t.numpy().tobytes() for t in r.step(*step)) for step in steps] for r in (run, plain))
    assert found == expected and run.bits() == plain.bits()
    assert run.plain_calls == 3 + 1 + 2, "the last batch of an epoch is called plainly, and the rest replayed"


def test_other_shapes_in_a_row_give_up_the_recording():
    run, (large,), (small,) = Training(small_resnet, True), batches(1), batches(1, size=2)
    for _ in range(4):
        run.step(*large)
    before = memory.pool.reserved
    assert run.plain_calls == 3 and before
    for _ in range(4):
        run.step(*small)
    assert run.plain_calls == 6 and 0 < memory.pool.reserved <= before
    for _ in range(3):
        run.step(*large)
    assert run.plain_calls == 9 and memory.pool.reserved == before


def test_a_recording_goes_where_a_plain_call_needs_its_memory():
    large, small = (alpha.tensor(np.ones(n, np.float32), device="cuda") for n in (1 << 20, (1 << 20) - 256))
    chain = alpha.capture(lambda x: ((x + 1) * 2 + x).sum())
    assert [chain(large).item() for _ in range(4)] and memory.pool.reserved
    memory.free_cached()
    with alpha.config(cuda_memory_mib=-(-memory.pool.live >> 20) + 1):
        assert chain(small).item() == 5 * small.size and memory.pool.reserved == 0


def test_modes_and_precision_are_part_of_what_is_recorded():
    run, (batch,) = Training(small_vgg, True), batches(1)
    for _ in range(4):
        run.step(*batch)
    run.model.eval()
    expected = run.plain(*batch)
    assert run.step(*batch)[0].item() == expected
    run.model.train()
    with alpha.precision("bf16"):
        for _ in range(3):
            run.step(*batch)
    assert run.plain_calls == 3 + 1 + 3


@COUNTS_LIVE
def test_weights_set_in_place_are_seen_and_weights_elsewhere_end_the_recording():
    net = nn.Linear(3, 2).to("cuda")
    x = alpha.tensor(np.ones((2, 3), np.float32), device="cuda")
    with alpha.no_grad():
        double = alpha.capture(lambda x: net(x) * 2, net)
        for _ in range(4):
            double(x)
        net.weight.copy_(np.full((2, 3), 5, np.float32))
        net.bias.copy_(np.zeros(2, np.float32))
        assert (double(x).numpy() == 30).all()
        net.weight.array = alpha.tensor(np.ones((2, 3), np.float32), device="cuda").array
        assert memory.pool.reserved and (double(x).numpy() == 6).all() and not memory.pool.reserved


CANNOT = [
    ("a tensor is read back to the host", lambda x: x * x.sum().item()),
    ("a tensor is made from host data", lambda x: x + alpha.tensor(np.ones(4, np.float32), device="cuda")),
    ("the function returns 'text'", lambda x: (x + 1, "text")),
    ("random numbers are drawn on the host", lambda x: x + alpha.random.reserve(4)[1]),
]


@pytest.mark.parametrize(("why", "function"), CANNOT, ids=[why for why, _ in CANNOT])
def test_what_cannot_be_recorded_is_called_plainly(why, function):
    x = alpha.tensor(np.arange(4, dtype=np.float32), device="cuda")
    captured = alpha.capture(function)
    alpha.manual_seed(0)
    plain = [np.array(_first(function(x))) for _ in range(5)]
    alpha.manual_seed(0)
    found = [_first(captured(x)) for _ in range(2)]
    with pytest.warns(UserWarning) as caught:
        found.append(_first(captured(x)))
    assert len(caught) == 1 and why in str(caught[0].message) and "op by op" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found += [_first(captured(x)) for _ in range(2)]
    for a, b in zip(plain, found):
        np.testing.assert_array_equal(a, b)
    assert memory.recorder is None and memory.pool.device is memory.pool.main and gc.isenabled()


def _first(result):
    return (result[0] if isinstance(result, tuple) else result).numpy()


def test_a_step_of_an_optimizer_that_is_not_in_the_state_is_refused():
    run, (batch,) = Training(small_resnet, False), batches(1)
    whole = alpha.capture(lambda x, y: run.step(x, y)[0], run.model)
    whole(*batch)
    whole(*batch)
    with pytest.warns(UserWarning, match="changes a parameter.*\nhelp: pass the optimizer"):
        third = whole(*batch).item()
    again = Training(small_resnet, False)
    assert third == [again.step(*batch)[0].item() for _ in range(3)][2]


class Centre(nn.Module):
    """y = x - mean, which follows the means of what it sees."""

    def __init__(self):
        self.mean = ops.zeros((4,))

    def forward(self, x):
        self.mean = self.mean * 0.5 + x * 0.5
        return x - self.mean


def test_a_buffer_that_forward_sets_anew_is_refused():
    x = alpha.tensor(np.arange(4, dtype=np.float32), device="cuda")
    net, plain = Centre().to("cuda"), Centre().to("cuda")
    captured = alpha.capture(lambda x: net(x), net)
    expected = [plain(x).tolist() for _ in range(4)]
    found = [captured(x).tolist() for _ in range(2)]
    with pytest.warns(UserWarning, match="sets a parameter or a buffer of a module anew.*\nhelp: overwrite"):
        found.append(captured(x).tolist())
    found.append(captured(x).tolist())
    assert found == expected and net.mean.tolist() == plain.mean.tolist()


def test_a_layer_or_a_buffer_that_is_replaced_ends_the_recording():
    x = alpha.tensor(np.ones(4, np.float32), device="cuda")
    net = nn.Sequential(nn.Identity()).to("cuda")
    net.shift = alpha.tensor(np.zeros(4, np.float32), device="cuda")
    captured = alpha.capture(lambda x: net(x) * 1.0 + net.shift, net)
    assert [captured(x).tolist() for _ in range(4)] == [[1.0] * 4] * 4
    net.shift = alpha.tensor(np.full(4, 2.0, np.float32), device="cuda")
    assert [captured(x).tolist() for _ in range(4)] == [[3.0] * 4] * 4
    net[0] = nn.Lambda(lambda x: x * 5.0)
    assert captured(x).tolist() == [7.0] * 4


@pytest.mark.parametrize("settings", [dict(check_nan=True), dict(sync=True), dict(capture=False)], ids=str)
def test_settings_that_call_plainly(settings):
    run, (batch,) = Training(small_resnet, True), batches(1)
    with alpha.config(**settings):
        for _ in range(4):
            run.step(*batch)
    assert run.plain_calls == 4


def test_hooks_are_called_every_time():
    run, (batch,), seen = Training(small_resnet, True), batches(1), []
    remove = run.model.register_forward_hook(lambda module, args, output: seen.append(1))
    for _ in range(4):
        run.step(*batch)
    assert len(seen) == 4
    remove()
    w = next(iter(run.model.parameters()))
    w.register_hook(lambda g: seen.append(1))
    for _ in range(4):
        run.step(*batch)
    assert len(seen) == 8


def test_recordings_go_when_memory_runs_out():
    x = alpha.tensor(np.ones(1 << 16, np.float32), device="cuda")
    chain = alpha.capture(lambda x: ((x + 1) * 2 + x).sum())
    for _ in range(3):
        chain(x)
    assert memory.pool.reserved
    with pytest.raises(alpha.errors.OutOfMemoryError):
        memory.empty((1 << 46,), "uint8")
    assert memory.pool.reserved == 0
    assert [chain(x).item() for _ in range(4)] == [5 << 16] * 4 and memory.pool.reserved


def test_the_stream_works_after_a_failed_recording():
    def failing(x):
        if memory.recorder:
            raise ValueError("in the middle")
        return x + 1

    x = alpha.tensor(np.ones(4, np.float32), device="cuda")
    captured = alpha.capture(failing)
    captured(x)
    captured(x)
    with pytest.raises(ValueError, match="in the middle"):
        captured(x)
    assert memory.recorder is None and (x + 1).numpy().tolist() == [2] * 4
    context.synchronize()
