"""Base calls of data, training, files and reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import checkpoint, data, nn, ops, optim, training
from alpha.errors import AlphaError
from tests.silence.ops import Call
from tests.silence.runs import tuned

IMAGES = np.random.default_rng(5).integers(0, 256, (10, 8, 8, 3)).astype(np.uint8)
LABELS = np.arange(10) % 3


def batches(loader: Any) -> Any:
    return [batch for _ in range(2) for batch in loader]


def loader(**fixed: Any) -> Call:
    """Returns a call of DataLoader: the batches of two epochs."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        made = f((IMAGES, LABELS), **{"batch_size": 4, **fixed, **given})
        try:
            return [batches(made), made._images is None]
        finally:
            made.close()
    return call


def small() -> nn.Module:
    alpha.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 3))


def fitted(f: Callable[..., Any], **given: Any) -> Any:
    """fit of a small model: what it becomes, and the rows without their times."""
    model = small()
    history = f(model, (IMAGES, LABELS), **{"batch_size": 4, **given})
    return model, [{k: v for k, v in row.items() if "sec" not in k and "time" not in k} for row in history]


def kept(f: Callable[..., Any], **given: Any) -> Any:
    """The epoch that fit keeps as its best one."""
    f(small(), (IMAGES, LABELS), batch_size=4, epochs=3, lr=0.5, progress=False, **{"output": "run", **given})
    found = Path("run/best.safetensors")
    if not found.exists():
        return sorted(map(str, Path().rglob("*")))
    return checkpoint.load(found)[1]["use"]["metrics"]["epoch"]


def trained(f: Callable[..., Any], **given: Any) -> Any:
    """Trainer over two epochs of three batches."""
    model = small()
    scaler = given.pop("scaler", None)
    ema = given.pop("ema", None)
    steps = -(-3 // given.get("accumulate", 1))
    run = f(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=2, steps_per_epoch=steps,
            **given, **({"ema": optim.ExponentialMovingAverage(model, ema)} if ema else {}),
            **({"scaler": optim.LossScaler()} if scaler else {}))
    made = data.DataLoader((IMAGES, LABELS), 4)
    rows = run.run(lambda epoch, step: made.batches(epoch, step), lambda: run.evaluate(made))
    return model, [{k: v for k, v in row.items() if "sec" not in k} for row in rows], run.scaler is None


def a_run() -> Any:
    model = small()
    return training.Trainer(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=2,
                            steps_per_epoch=3)


class Told(training.Callback):
    """Prints what it is told."""

    def on_step(self, run: Any, loss: Any) -> None:
        print("step")


def exported(f: Callable[..., Any], **given: Any) -> Any:
    """A convolution as a file."""
    alpha.manual_seed(2)
    f(nn.Sequential(nn.Conv2d(3, 4, 3)), alpha.tensor(IMAGES[:1].astype(np.float32)), "a.onnx", **given)
    return Path("a.onnx")


def imported(f: Callable[..., Any], **given: Any) -> Any:
    """The model of a file, on images that either order of the axes can have."""
    from alpha import onnx
    alpha.manual_seed(2)
    onnx.export(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1)), ops.rand((1, 3, 3, 3)), "a.onnx")
    return f("a.onnx", **given)(ops.rand((1, 3, 3, 3)))


def from_torch(f: Callable[..., Any], **given: Any) -> Any:
    """A state that lacks a parameter."""
    model = nn.Linear(2, 3)
    try:
        return f({"weight": np.ones((3, 2), np.float32)}, model, **given), model
    except AlphaError as error:
        return str(error)


def converted(f: Callable[..., Any], **given: Any) -> Any:
    """A model of PyTorch, on images that either order of the axes can have, and the file of its code."""
    import torch
    torch.manual_seed(2)
    net = f(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1)), torch.ones(2, 3, 3, 3), **given)
    return net(alpha.tensor(IMAGES[:2, :3, :3].astype(np.float32))), Path("net.py").exists()


def sent(f: Callable[..., Any], **given: Any) -> Any:
    """A layer as a model of PyTorch; an example of other features is refused."""
    alpha.manual_seed(2)
    return type(f(nn.Sequential(nn.Linear(3, 2)), **given)).__name__


def load_torch(f: Callable[..., Any], **given: Any) -> Any:
    model = nn.Linear(2, 3)
    checkpoint.save_torch("a.pth", nn.Linear(2, 3, bias=False))
    try:
        return f("a.pth", model, **given), model
    except AlphaError as error:
        return str(error)


def saved(f: Callable[..., Any], **given: Any) -> Any:
    f("a.safetensors", {"a": ops.ones((2,))}, **given)
    return Path("a.safetensors")


def levels(f: Callable[..., Any], **given: Any) -> Any:
    """CoConv's levels, whose names the setting chooses."""
    model = nn.CoConv2d(4, 8)
    if f is checkpoint.save_torch:
        f("a.pth", model, **given)
        return Path("a.pth")
    return {name: np.asarray(value) for name, value in f(model, **given).items()}


def loaded(f: Callable[..., Any], **given: Any) -> Any:
    alpha.save({"a": ops.ones((2,))}, "a.alpha")
    return f("a.alpha", **given)


def made_model(f: Callable[..., Any], **given: Any) -> Any:
    alpha.manual_seed(1)
    return f("lenet5", **given)



def cubed(f: Callable[..., Any], **given: Any) -> Any:
    """gradcheck of a function whose gradient is off by 1e-3: what it says."""
    x = alpha.tensor([1.0, 2.0, 3.0], "float64", requires_grad=True)
    try:
        return f(lambda t: t * t * t + t.detach() * 1e-3, [x], **given)
    except AlphaError as error:
        return str(error)


def folder(f: Callable[..., Any], **given: Any) -> Any:
    """ImageFolder of two pictures."""
    from PIL import Image
    for name in ("a", "b"):
        Path(name).mkdir()
        Image.fromarray(IMAGES[0]).save(f"{name}/0.png")
    return [np.asarray(f(".", **given)[k][0]) for k in range(2)]


def listed(f: Callable[..., Any], **given: Any) -> Any:
    """ImageTable of two pictures, one of them for the test."""
    from PIL import Image
    for place in (Path(), Path("other")):
        place.mkdir(exist_ok=True)
        for k in range(2):
            Image.fromarray(IMAGES[k] // (2 if place.name else 1)).save(place / f"{k}.png")
    Path("table.csv").write_text("path,label,split\n0.png,a,train\n1.png,b,test\n")
    return [np.asarray(image) for image, _ in f("table.csv", **given)]


def arrays(f: Callable[..., Any], **given: Any) -> Any:
    """A data set of files of NumPy."""
    for place, count in (("here", 8), ("there", 6)):
        Path(place).mkdir(exist_ok=True)
        for part in ("train", "test"):
            np.save(f"{place}/{part}_images.npy", IMAGES[:count])
            np.save(f"{place}/{part}_labels.npy", np.arange(count) % 2)
    return np.asarray(f("arrays", **{"data_dir": "here", **given}).train_images)


def without_network(f: Callable[..., Any], **given: Any) -> Any:
    """What is said where no address has a file."""
    from alpha.data.public import idx
    kept = idx.SETS["mnist"]
    idx.SETS["mnist"] = kept._replace(urls=("http://127.0.0.1:9/",))
    try:
        f("mnist", **given)
    except AlphaError as error:
        return str(error)
    finally:
        idx.SETS["mnist"] = kept


def registered(f: Callable[..., Any], **given: Any) -> Any:
    """A data set's default augmentation, or an optimizer's learning rate."""
    from alpha.data.sets import DATASETS
    from alpha.training.registries import OPTIMIZERS
    for table, make in ((DATASETS, lambda: None), (OPTIMIZERS, type("Own", (optim.SGD,), {}))):
        names = set(table)
        try:
            f(**given)(make)
            return [str(table[name][1]) for name in {*table} - names]
        except AlphaError:
            continue
        finally:
            for name in {*table} - names:
                del table[name]


def evaluated(f: Callable[..., Any], **given: Any) -> Any:
    return f(a_run(), list(data.DataLoader((IMAGES, LABELS), 4)), **given)


def masked(f: Callable[..., Any], **given: Any) -> Any:
    """Augment on images with masks of their height and width."""
    masks = (IMAGES[..., 0] % 3).astype(np.int64)
    return list(data.DataLoader((IMAGES, masks), 10, augment=f(crop=2, **{"mask_fill": 9, **given})))


def unpooled(f: Callable[..., Any], **given: Any) -> Any:
    """max_unpool2d of what max_pool2d gives."""
    y, index = nn.functional.max_pool2d(ops.rand((1, 6, 6, 2)), 2, return_indices=True)
    return f(y, index, 2, **given)


def lowered(f: Callable[..., Any], **given: Any) -> Any:
    """The rate after epochs in which one column falls and another stays."""
    plateau, run = f(patience=0, **given), a_run()
    plateau.on_start(run)
    for k in range(4):
        plateau.on_epoch(run, {"val_loss": 1.0 / (k + 1), "train_loss": 1.0, "val_accuracy": 0.5})
    return run.optimizer.param_groups[0]["lr"]


def row_of(f: Callable[..., Any], **given: Any) -> Any:
    model = small()
    run = training.Trainer(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=2,
                           steps_per_epoch=3, ema=optim.ExponentialMovingAverage(model, 0.5))
    return {k: v for k, v in f(run, None, 0, **given).items() if "sec" not in k}


def tensorboard(f: Callable[..., Any], **given: Any) -> Any:
    """How many lines a run writes."""
    training.fit(small(), (IMAGES, LABELS), batch_size=1, epochs=3, progress=False, callbacks=[f("board", **given)])
    return [path.stat().st_size for path in sorted(Path("board").iterdir())]


CALLS: dict[str, list[Call]] = {
    "data.Augment": [lambda f, **given: list(data.DataLoader((IMAGES, LABELS), 10, augment=f(**given))),
                     lambda f, **given: list(data.DataLoader((IMAGES, LABELS), 10, augment=f(flip=True, **given))),
                     masked],
    "F.max_unpool2d": [unpooled], "training.Plateau": [lowered], "Trainer.make_row": [row_of],
    "training.History": [lambda f, **given: f([{"loss": 1.0}], **given).ema is None],
    "data.DataLoader": [loader(), loader(shuffle=True), loader(workers=1), loader(augment="crop=2")],
    "data.random_split": [lambda f, **given: [list(part.indices) for part in f(range(10), [6, 4], **given)]],
    "data.steps_per_epoch": [lambda f, **given: f(10, 4, **given)],
    "DataLoader.batches": [lambda f, **given: list(f(data.DataLoader((IMAGES, LABELS), 4), 0, **given))],
    "training.fit": [fitted, lambda f, **given: fitted(f, optimizer="adam", **given),
                     lambda f, **given: fitted(f, val_data=(IMAGES, LABELS), **given), kept,
                     lambda f, **given: kept(f, metric="train_loss", **given), tuned],
    "training.Trainer": [trained],
    "data.ImageTable": [listed],
    "data.load": [arrays, lambda f, **given: f("synthetic", **given).train_images[:9].copy(), without_network],
    "data.ImageFolder": [folder], "data.register_dataset": [registered], "training.register_optimizer": [registered],
    "training.TensorBoard": [tensorboard], "Trainer.evaluate": [evaluated],
    "Trainer.train_epoch": [lambda f, **given: f(a_run(), data.DataLoader((IMAGES, LABELS), 4).batches(0), **given)],
    "Trainer.run": [lambda f, **given: f(a_run(), lambda epoch, step: data.DataLoader((IMAGES, LABELS), 4).batches(
        epoch, step), lambda: None, **given) and None],
    "alpha.from_torch": [converted], "alpha.to_torch": [sent],
    "onnx.export": [exported], "onnx.load": [imported], "alpha.load": [loaded],
    "checkpoint.from_torch_state_dict": [from_torch], "checkpoint.load_torch": [load_torch],
    "checkpoint.save": [saved], "checkpoint.save_torch": [levels], "checkpoint.to_torch_state_dict": [levels],
    "alpha.summary": [lambda f, **given: str(f(nn.Sequential(nn.Conv2d(3, 4, 3)), (8, 8, 3), **given))],
    "alpha.gradcheck": [cubed],
    "models.create": [made_model],
}

VALUES: dict[str, list[Any]] = {
    "DataLoader.augment": ["flip"], "DataLoader.mean": [0.5, (0.1, 0.2, 0.3)], "DataLoader.std": [0.5],
    "DataLoader.transform": [lambda a: a[::-1].copy()], "DataLoader.resident": [False],
    "fit.val_data": [(IMAGES, LABELS)], "fit.optimizer": ["adam"], "fit.lr": [0.5], "fit.schedule": ["cosine"],
    "fit.warmup_steps": [2], "fit.loss": ["mse"], "fit.metrics": ["accuracy", []], "fit.callbacks": [[Told()]],
    "fit.output": [None, "other"], "fit.metric": ["train_loss"], "fit.mode": ["max"],
    "fit.precision": ["bf16"], "fit.augment": ["flip"], "fit.mean": [0.5], "fit.std": [0.5], "fit.max_steps": [1],
    "fit.clip": [0.01], "fit.ema": [0.5], "Trainer.max_steps": [1], "Trainer.clip": [0.01], "Trainer.ema": [0.5],
    "Trainer.scaler": [True], "Trainer.run.callbacks": [[Told()]], "save.metadata": [{"a": "b"}],
    "save_torch.levels": ["conv_1"], "to_torch_state_dict.levels": ["conv_1"], "summary.zeros": [True],
    "ImageFolder.size": [4], "ImageTable.size": [4], "ImageTable.root": ["other"], "ImageTable.split": ["train"],
    "load.data_dir": ["there"], "load.download": [False], "load.seed": [3], "load.image_size": [16],
    "register_dataset.augment": ["flip"], "register_optimizer.lr": [0.5],
    "TensorBoard.every": [4], "Trainer.evaluate.loss": [ops.mse_loss], "Trainer.train_epoch.callbacks": [[Told()]],
    "summary.batch_size": [3], "create.num_classes": [7], "DataLoader.drop_last": [True], "Augment.crop": [2],
    "Augment.cutout": [3], "Augment.mask_fill": [7],
    "Augment.steps": ["grey=1"], "Augment.boxes": [1], "fit.batch_size": [5], "fit.seed": [3], "fit.drop_last": [True],
    "History.ema": [object()], "make_row.averaged": [{"loss": 0.5}], "Trainer.make_row.averaged": [{"loss": 0.5}],
    "alpha.from_torch.write": ["net.py"], "alpha.to_torch.example": [ops.zeros((2, 2))],
    "Plateau.column": ["train_loss", "val_accuracy"],
}
