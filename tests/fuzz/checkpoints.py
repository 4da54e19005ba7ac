"""Checkpoints, PyTorch's weight files and saved runs, damaged or forged: a CheckpointError, or just what is there."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

import alpha
from alpha import checkpoint, nn, ops, optim
from alpha.core.config import config as settings
from alpha.errors import CheckpointError
from tests import tiny_run
from tests.forged import split, with_digest, with_header
from train.config import Config
from train.report import epoch_line, write_metrics
from train.stored import load as load_run
from train.trainer import Trainer

try:
    import torch  # here, not in a case, whose memory and time are limited
except ImportError:
    torch = None  # type: ignore[assignment]

WORDS = ["", "a", "weight", "__metadata__", "alpha", "F32", "BF16", "F8_E4M3", "F4", "BOOL", "C64", "I64", "schema",
         "nul \0", "\ud800", "\x1b[2J", "x" * 5000, "0" * 64, "NaN", "progress", "auto", "\U0001f600"]
NUMBERS = [0, 1, -1, 2, 3, 7, 8, 64, 255, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63,
           1 << 64, 10 ** 40, 0.5, -0.0, 1e308, 1e400, -1e400, float("nan"), True, False]
LENGTHS = [0, 1, 7, 64, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


def attempt(rng: Random, folder: Path) -> str:
    """Makes one file, or one state in memory, damages it and loads it; returns what was done."""
    kinds: list[Callable[[Random, Path], str]] = [own, own, run, run, torch_safetensors, states]
    if torch is not None:
        kinds.append(pth)
    kind = rng.choice(kinds)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), settings(num_threads=1):
        warnings.simplefilter("error", RuntimeWarning)
        return f"{kind.__name__}: {kind(rng, folder)}"


# ---- the files -------------------------------------------------------------------------------------------------------


def own(rng: Random, folder: Path) -> str:
    """A checkpoint of a few tensors."""
    path = folder / "own.safetensors"
    names = ["w", "b", "", "odd \0 name", "größe"]
    tensors = {rng.choice(names) + str(k): random_array(rng) for k in range(rng.randrange(4))}
    metadata = {"step": rng.randrange(9), "loss": rng.random(), "rows": [[1, None], {"a": "b"}]}
    checkpoint.save(path, tensors, metadata)
    good = path.read_bytes()
    done = damage(rng, path, metadata_of_own=True)
    try:
        found, told = checkpoint.load(path)
    except CheckpointError as error:
        check_message(error)
        assert path.read_bytes() != good, error
        return f"{done}, refused"
    if path.read_bytes() == good or "digest" not in done:       # no byte may change unnoticed
        assert path.read_bytes() == good and told == metadata and found.keys() == tensors.keys()
    same_as_the_library(path, {name: t.numpy() for name, t in found.items()})
    return f"{done}, loaded"


def torch_safetensors(rng: Random, folder: Path) -> str:
    """Weights as PyTorch writes them, in any of its dtypes."""
    path, net = folder / "torch.safetensors", small_net()
    state = checkpoint.to_torch_state_dict(net)
    path.write_bytes(safetensors.numpy.save(state))
    if rng.random() < 0.3:
        header, data = split(path)
        name = rng.choice(sorted(header))
        header[name]["dtype"] = rng.choice(["BF16", "F8_E4M3", "I16", "U32", "C64", "F4", "BOOL", "I8"])
        path.write_bytes(with_header(json.dumps(header).encode(), data))
    return load_into(path, net, damage(rng, path))


def pth(rng: Random, folder: Path) -> str:
    """Weights of torch.save: a zip file with a pickle in it."""
    assert torch is not None
    path, net = folder / "torch.pth", small_net()
    if rng.random() < 0.5:
        checkpoint.save_torch(path, net)
        done = flip_or_cut(rng, path)
    else:
        state: Any = {name: torch.from_numpy(np.array(a)) for name, a in checkpoint.to_torch_state_dict(net).items()}
        name = rng.choice(sorted(state))
        odd = [None, 5, "x", [1.0], {}, torch.zeros(()), torch.zeros(0), torch.eye(3).to_sparse(), torch.zeros(2, 2, 2),
               torch.empty(2, 3, device="meta"), torch.eye(2).to(torch.float8_e5m2), torch.eye(2).bfloat16(),
               torch.eye(2).to(torch.complex64), torch.full((2, 3), 1e300, dtype=torch.float64)]
        state[rng.choice([name, name, 5, None, "module." + name, "\ud800"])] = rng.choice(odd)
        state = rng.choice([state, {"state_dict": state}, {"net": {"model": state}}, [state], None, {}, 5])
        torch.save(state, path)
        done = "odd contents"
    return load_into(path, net, done)


def load_into(path: Path, net: nn.Module, done: str) -> str:
    before = contents(net)
    try:
        checkpoint.load_torch(path, net)
    except CheckpointError as error:
        check_message(error)
        assert contents(net) == before, "a part was loaded"
        return f"{done}, refused"
    return f"{done}, loaded"


def run(rng: Random, folder: Path) -> str:
    """The last checkpoint of a run, resumed."""
    path = folder / "last.safetensors"
    session, good = finished_run()
    path.write_bytes(good)
    done = damage(rng, path, metadata_of_own=True)
    try:
        loaded = load_run(path)
        session.load_weights(loaded, path)
        session.restore(loaded, path)
    except CheckpointError as error:
        check_message(error)
        assert path.read_bytes() != good, error
        return f"{done}, refused"
    write_metrics(folder, session.progress.history)
    for row in session.progress.history:
        epoch_line(row, session.config.epochs)
    assert session.steps_left >= 0 and session.done in (True, False) and session.schedule(session.progress.step) >= 0
    session.progress.best()
    checkpoint.save(path, dict(loaded[0]), loaded[1])
    load_run(path)
    return f"{done}, resumed"


def states(rng: Random, folder: Path) -> str:
    """What load_state_dict is given, forged in memory."""
    net = small_net()
    thing: Any = rng.choice([net, optim.Adam(net.named_parameters()), optim.ExponentialMovingAverage(net),
                             optim.LossScaler()])
    if isinstance(thing, optim.Adam):
        net(ops.ones((2, 4, 4, 2))).sum().backward()
        thing.step()
    before, state = contents(thing), thing.state_dict()
    forged = {key: dict(value) if isinstance(value, dict) else value for key, value in state.items()}
    for _ in range(rng.randrange(1, 3)):
        forged = forge_state(rng, forged)
    try:
        thing.load_state_dict(forged)
    except CheckpointError as error:
        check_message(error)
        assert contents(thing) == before, "a part was loaded"
        return f"{type(thing).__name__}, refused"
    return f"{type(thing).__name__}, loaded"


def forge_state(rng: Random, state: Any) -> Any:
    if not isinstance(state, dict) or not state or rng.random() < 0.05:
        return junk(rng)
    key = rng.choice(list(state))
    choice = rng.random()
    if key in ("tensors", "scalars") and choice < 0.8:
        return {**state, key: forge_state(rng, state[key])}
    if choice < 0.2:
        return {name: value for name, value in state.items() if name is not key}
    if choice < 0.3:
        return {**state, rng.choice([5, None, "new", b"x", (1, 2)]): state[key]}
    odd = [junk(rng), random_array(rng), alpha.tensor(random_array(rng)), np.array("x"), np.zeros(3, "M8[s]"), object(),
           np.full(np.shape(state[key]), rng.choice([1e300, np.nan, None, 1j, "x", 1 << 40]))]
    return {**state, key: rng.choice(odd)}


@cache
def finished_run() -> tuple[Trainer, bytes]:
    """Returns a session of a few steps with all that one can have, and its checkpoint."""
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        session = Trainer(Config.from_dict({
            "model": "tinynet", "dataset": "tiny", "epochs": 4, "batch_size": 16, "lr": 0.01, "ema": 0.5,
            "device": "cpu", "precision": "fp16", "optimizer": "adam", "val_size": 8.0, "output": folder}),
            tiny_run.CLASSES, 80)
        for _ in range(3):
            loss, _ = session.losses(ops.randn((16, 32, 32, 3)), alpha.tensor(np.arange(16) % 4))
            assert session.scaler is not None and session.ema is not None
            session.scaler.step(session.optimizer)
            session.ema.update()
            session.optimizer.zero_grad()
            session.progress.step += 1
            session.progress.loss_sum += 16 * float(loss.item())
            session.progress.images += 16
        session.progress.close_epoch({
            "epoch": 1, "step": 3, "train_loss": 1.0, "train_accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.25,
            "lr": 0.01, "seconds": 0.1, "images_per_second": 480.0, "peak_memory_mib": 1.0, "loss_scale": 65536.0,
            "skipped_steps": 0}, whole=False)
        session.save("last.safetensors")
        return session, (Path(folder) / "last.safetensors").read_bytes()


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2, flattened=(3, 3, 3)))


def random_array(rng: Random) -> np.ndarray:
    shape = tuple(rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randrange(4)))
    dtype = rng.choice(["float32", "float64", "float16", "int32", "int64", "uint8", "bool"])
    return np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 7).astype(dtype)


# ---- what is done to them --------------------------------------------------------------------------------------------


def damage(rng: Random, path: Path, metadata_of_own: bool = False) -> str:
    """Changes a safetensors file in one way or a few, and puts its digest right or not; says what it did."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        choice = rng.random()
        try:
            if choice < 0.25:
                done.append(flip_or_cut(rng, path))
            elif choice < 0.3:
                data = path.read_bytes()
                length = rng.choice([*LENGTHS, max(0, len(data) - 8), rng.getrandbits(64)])
                path.write_bytes(length.to_bytes(8, "little") + data[8:])
                done.append("length")
            elif choice < 0.65 and metadata_of_own:
                header, data = split(path)
                document = mutated(rng, json.loads(header["__metadata__"]["alpha"]))
                header["__metadata__"]["alpha"] = as_json(rng, document)
                path.write_bytes(with_header(json.dumps(header, separators=(",", ":")).encode(), data))
                done.append("document and digest")
            else:
                header, data = split(path)
                path.write_bytes(with_header(as_json(rng, mutated(rng, header)).encode("utf-8", "surrogatepass"), data))
                done.append("header and digest")
        except (ValueError, TypeError, KeyError, RecursionError, IndexError):
            done.append("too far gone")     # what came before left nothing to change
    if rng.random() < 0.8:
        path.write_bytes(with_digest(path.read_bytes()))
        done.append("digest")
    return "+".join(done)


def flip_or_cut(rng: Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    choice = rng.random()
    if choice < 0.2:
        del data[rng.randrange(len(data) + 1):]
    elif choice < 0.3:
        data += rng.randbytes(rng.randrange(1, 30))
    elif choice < 0.4:
        k = rng.randrange(len(data) + 1)
        data[k:k] = data[:rng.randrange(40)]
    for _ in range(rng.randrange(1, 4) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return "bytes"


def mutated(rng: Random, value: Any) -> Any:
    """Returns a JSON value with one of its nodes changed."""
    places = list(nodes(value))
    holder, key = rng.choice(places) if places else (None, None)
    if holder is None:
        return junk(rng)
    choice = rng.random()
    if choice < 0.2:
        del holder[key]
    elif choice < 0.3 and isinstance(holder, dict):
        holder[rng.choice(WORDS)] = holder[key]
    elif choice < 0.4:
        other, name = rng.choice(places)
        if name in (other if isinstance(other, dict) else range(len(other))):
            holder[key] = json.loads(json.dumps(other[name]))
    elif choice < 0.6 and isinstance(holder[key], (int, float)):
        holder[key] = rng.choice([holder[key] + 1, holder[key] - 1, -holder[key], float(holder[key]), str(holder[key])])
    else:
        holder[key] = junk(rng)
    return value


def nodes(value: Any) -> Any:
    """Yields (container, key) of every value within a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from nodes(item)


def junk(rng: Random) -> Any:
    choice = rng.random()
    if choice < 0.4:
        return rng.choice(NUMBERS)
    if choice < 0.6:
        return rng.choice(WORDS)
    if choice < 0.7:
        return [rng.choice(NUMBERS) for _ in range(rng.choice([0, 1, 2, 33, 100]))]
    made: Any = rng.choice([None, {}, []])
    for _ in range(rng.choice([0, 1, 50, 200]) if choice > 0.85 else 0):
        made = rng.choice([[made], {"a": made}])
    return made


def as_json(rng: Random, value: Any) -> str:
    """Returns JSON of a value, at times with a name twice, with an integer of thousands of digits, or far too deep."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=rng.random() < 0.8)
    choice = rng.random()
    if choice < 0.05 and text.startswith("{") and len(text) > 2:
        return f"{text[:-1]},{text[1:]}"
    if choice < 0.1:
        return text.replace(rng.choice("0123456789"), rng.choice(["9" * 5000, "[" * 3000, "1e999", "-", "NaN"]), 1)
    return text


# ---- what must hold --------------------------------------------------------------------------------------------------


def same_as_the_library(path: Path, found: dict[str, np.ndarray]) -> None:
    """Raises AssertionError unless the library of safetensors reads the same bytes."""
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    assert theirs.keys() == found.keys()
    for name, a in found.items():
        data = bytes(theirs[name]["data"])
        if theirs[name]["dtype"] == "BF16":
            data = np.left_shift(np.frombuffer(data, "<u2"), 16, dtype=np.uint32).tobytes()
        elif theirs[name]["dtype"] == "BOOL":
            data = (np.frombuffer(data, "u1") != 0).tobytes()
        assert list(a.shape) == theirs[name]["shape"] and a.tobytes() == data, name


def contents(thing: Any) -> Any:
    """Returns all of a state as bytes and numbers, to be compared."""
    state = thing.state_dict()
    return {name: t.numpy().tobytes() for name, t in state.get("tensors", state).items()}, str(state.get("scalars"))


def check_message(error: CheckpointError) -> None:
    """Raises AssertionError unless an error is of two parts, and short enough to be read."""
    first, _, fix = str(error).partition("\nhelp: ")
    assert ": " in first and fix, error
    assert len(str(error)) < 20_000, "the message is too long"
