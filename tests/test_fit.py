"""alpha.training.fit: one call from a model and data to a history."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.data import DataLoader, Dataset
from alpha.errors import AnomalyError, ConfigError, NotFoundError
from alpha.training import Callback, accuracy, fit
from tests.op_checks import refused

RNG = np.random.default_rng(0)
LABELS = np.arange(96) % 4
IMAGES = (RNG.integers(0, 100, (96, 8, 8, 3)) + 40 * LABELS[:, None, None, None]).astype(np.uint8)
TRAIN, VAL = (IMAGES[:80], LABELS[:80]), (IMAGES[80:], LABELS[80:])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with config(num_threads=1):
        yield


def net() -> nn.Module:
    alpha.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4))


def test_it_learns_and_says_how(capsys: pytest.CaptureFixture) -> None:
    model = net()
    model.eval()
    history = fit(model, TRAIN, VAL, epochs=3, batch_size=16, optimizer="adam", lr=0.02)
    assert len(history) == 3 and history["epoch"] == [1, 2, 3] and history["step"] == [5, 10, 15]
    assert history["train_loss"][-1] < history["train_loss"][0] and 0.4 < history[-1]["val_accuracy"] <= 1
    assert "train_loss" in repr(history).splitlines()[0] and "loss_scale" not in repr(history)
    assert capsys.readouterr().out.count("val accuracy") == 3 and not model.training
    with refused(NotFoundError, "History: there is no column 'acc'", "train_accuracy"):
        history["acc"]
    assert len(history[1:]) == 2


def test_it_is_the_loop_that_one_would_write() -> None:
    ours, theirs = net(), net()
    history = fit(ours, TRAIN, epochs=2, batch_size=16, lr=0.1, momentum=0.9, schedule="cosine", seed=5, augment="flip",
                  progress=False)
    optimizer = optim.SGD(theirs.named_parameters(), lr=optim.schedule.cosine(0.1, 10), momentum=0.9)
    loader = DataLoader(TRAIN, 16, shuffle=True, seed=5, augment="flip")
    losses = []
    for _ in range(2):
        for x, y in loader:
            loss = ops.cross_entropy(theirs(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters()):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy()), name
    assert history["train_loss"] == pytest.approx([np.mean(losses[:5]), np.mean(losses[5:])], abs=1e-6)
    assert history["lr"][0] == optim.schedule.cosine(0.1, 10)(4)


def test_ones_own_loss_metrics_optimizer_and_schedule() -> None:
    x = RNG.standard_normal((64, 3)).astype(np.float32)
    t = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)

    def error(outputs, targets):
        return (outputs - targets).abs().reshape(outputs.shape[0])

    history = fit(nn.Linear(3, 1), (x, t), (x, t), epochs=30, batch_size=10, progress=False,
                  loss=lambda y, t: ((y - t) ** 2).mean(),
                  metrics={"error": error, "bias": lambda y, t: (y - t).mean()},
                  optimizer=optim.AdamW, lr=0.1, schedule=lambda lr, total_steps: lambda k: lr * (1 - k / total_steps))
    assert history["val_error"][-1] < 0.1 < history["val_error"][0]
    assert history["train_error"][-1] >= 0 and "train_accuracy" not in history[0]
    assert history["train_loss"][-1] == pytest.approx(history["val_loss"][-1], abs=0.01)
    assert history["lr"][-1] == pytest.approx(0.1 / 210)


def test_a_metric_over_batches_of_unequal_size_is_that_of_all_samples() -> None:
    model = net()
    history = fit(model, TRAIN, VAL, epochs=1, batch_size=7, lr=1e-3, progress=False,
                  metrics=[accuracy, lambda outputs, targets: outputs.mean()])
    model.eval()
    with alpha.no_grad():
        outputs = model(alpha.tensor(VAL[0].astype(np.float32) / 255))
    assert history[0]["val_accuracy"] == accuracy(outputs, alpha.tensor(VAL[1]))
    assert history[0]["val_<lambda>"] == pytest.approx(outputs.mean().item(), abs=1e-5)


def test_callbacks_see_every_step_and_epoch_and_may_end_the_run() -> None:
    seen: list = []

    class Watch(Callback):
        def on_start(self, run):
            seen.append("start")

        def on_step(self, run, loss):
            seen.append(round(loss.item(), 3) > 0)
            if run.progress.step == 7:
                run.stop()

        def on_end(self, run):
            seen.append("end")

    history = fit(net(), TRAIN, epochs=4, batch_size=16, progress=False,
                  callbacks=[Watch(), lambda run, row: seen.append(row["step"])])
    assert seen == ["start", *[True] * 5, 5, True, True, 7, "end"] and history["step"] == [5, 7]
    assert len(fit(net(), TRAIN, epochs=4, batch_size=16, progress=False, callbacks=lambda run, row: run.stop())) == 1
    assert fit(net(), TRAIN, epochs=4, batch_size=16, progress=False, max_steps=7)["step"] == [5, 7]


def test_what_gives_batches_is_taken_as_it_is() -> None:
    batches = [(alpha.tensor(IMAGES[k:k + 8].astype(np.float32) / 255), alpha.tensor(LABELS[k:k + 8]))
               for k in (0, 8, 16)]

    class Batches:
        def __len__(self):
            return len(batches)

        def __iter__(self):
            return iter(batches)

    assert fit(net(), Batches(), Batches(), epochs=2, progress=False)["step"] == [3, 6]
    data = Dataset.of("x", TRAIN, VAL)
    assert fit(net(), data, epochs=1, batch_size=16, progress=False)["step"] == [5]
    loader = DataLoader(TRAIN, 20, workers=1)
    assert fit(net(), loader, epochs=2, progress=False)["step"] == [4, 8]


def test_data_may_come_in_the_same_tensors_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU brings what metrics compare to the host later, when the next batches are there already."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 8, 5)).astype(np.float32), rng.integers(0, 3, (6, 8))

    class Batches:
        def __init__(self, refilled: bool) -> None:
            self.tensors = (alpha.zeros((8, 5)), alpha.zeros((8,), dtype="int64")) if refilled else ()

        def __len__(self) -> int:
            return len(x)

        def __iter__(self) -> Iterator[tuple[alpha.Tensor, ...]]:
            for arrays in zip(x, y):
                yield tuple(t.copy_(a) for t, a in zip(self.tensors, arrays)) or tuple(map(alpha.tensor, arrays))

    def measured(refilled: bool) -> list[float]:
        alpha.manual_seed(1)
        return fit(nn.Linear(5, 3), Batches(refilled), lr=0.1, progress=False)["train_accuracy"]

    expected = measured(False)
    monkeypatch.setattr(type(get_backend("cpu")), "fetch", lambda self, arrays: lambda: [a.copy() for a in arrays])
    assert measured(True) == expected


def test_average_clipping_precision_and_an_optimizer_of_ones_own() -> None:
    model = net()
    optimizer = optim.SGD(model.named_parameters(), lr=0.05)
    history = fit(model, TRAIN, VAL, epochs=2, batch_size=16, optimizer=optimizer, clip=0.1, ema=0.5, progress=False)
    assert optimizer.step_count == 10 and history["lr"] == [0.05, 0.05]
    half = fit(net(), TRAIN, epochs=1, batch_size=16, precision="fp16", progress=False)
    assert half[0]["loss_scale"] > 0 and half[0]["skipped_steps"] == 0


def test_what_cannot_be_is_refused() -> None:
    for changes, text in ((dict(optimizer="sdg"), "fit: there is no optimizer 'sdg'; did you mean 'sgd'?"),
                          (dict(schedule="cosin"), "fit: there is no schedule 'cosin'; did you mean 'cosine'?"),
                          (dict(loss="mce"), "fit: there is no loss 'mce'; did you mean 'mse'?"),
                          (dict(beta=3), "fit: there is no setting 'beta'"),
                          (dict(epoch=3), "did you mean 'epochs'?"), (dict(metrics=[3]), "metrics: 'int' is 3"),
                          (dict(callbacks=[3]), "fit: a callback is 3"),
                          (dict(metrics=[lambda y, t: 3.0]), "returned 3.0, a Tensor"),
                          (dict(optimizer=optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), momentum=0.5),
                           "settings go with an optimizer's name, it is SGD")):
        with refused(ConfigError, text):
            fit(net(), TRAIN, batch_size=16, progress=False, **changes)
    with refused(ConfigError, "fit: train_data is 3", "(images, labels)"):
        fit(net(), 3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_not_finite_ends_it() -> None:
    with refused(AnomalyError, "fit: ", "at step ", "in epoch 1", "lower lr, now 1e+20"):
        fit(net(), TRAIN, batch_size=16, lr=1e20, progress=False)


def test_a_train_py_of_the_users_own_is_not_in_the_way(tmp_path) -> None:
    import subprocess
    import sys
    from pathlib import Path
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong train')")
    (tmp_path / "data.py").write_text("raise SystemExit('the wrong data')")
    code = f"import sys; sys.path.append({str(Path(alpha.__file__).parent.parent)!r}); from alpha.training import fit"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_accuracy_of_probabilities_and_of_maps() -> None:
    """Soft labels, as mixup makes them, and labels of each pixel."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((12, 4, 4, 3)).astype(np.float32)
    labels = (images[..., 0] > 0).astype(np.int64)
    net = nn.Conv2d(3, 2, 1)
    history = fit(net, (images, labels), (images, labels), epochs=6, batch_size=5, lr=0.5, progress=False)
    right = (net.eval()(alpha.tensor(images)).numpy().argmax(-1) == labels).mean()
    assert history[-1]["val_accuracy"] == pytest.approx(right, abs=1e-6) and right > 0.7
    x, soft = images[:, 0, 0], np.eye(3, dtype=np.float32)[np.arange(12) % 3] * 0.8 + 0.2 / 3
    line = nn.Linear(3, 3)
    history = fit(line, (x, soft), (x, soft), epochs=1, batch_size=5, progress=False)
    right = (line.eval()(alpha.tensor(x)).numpy().argmax(-1) == np.arange(12) % 3).mean()
    assert history[-1]["val_accuracy"] == pytest.approx(right, abs=1e-6)
    assert accuracy(line(alpha.tensor(x)), alpha.tensor(soft)) == pytest.approx(right, abs=1e-6)


def test_the_class_of_a_callback_is_none() -> None:
    with refused(ConfigError, "fit: a callback is the class Callback", "pass alpha.training.Callback objects"):
        fit(nn.Linear(3, 2), (np.ones((4, 3), np.float32), np.zeros(4, int)), epochs=1, callbacks=[Callback])
