"""PyTorch's side of benchmarks.speedrun: a recipe of train/recipes from process start to result, written for PyTorch.

The images stay on the GPU; crops, mirroring and the order are made there, the network runs channels_last under
autocast, the update is one fused kernel. --form graph replays a CUDA graph of a whole step, --form compile one of the
network that torch.compile made. It prints one line of JSON: accuracy and seconds.
"""

import time

BEGIN = time.perf_counter()     # imports are part of it

import argparse  # noqa: E402
import json  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from alpha.data import load  # noqa: E402
from benchmarks.torch_models import TWINS  # noqa: E402
from benchmarks.torch_precision import allow_tf32, autocast  # noqa: E402
from models.airbench import whitening  # noqa: E402
from train.config import parse  # noqa: E402
from train.trainer import make_schedule  # noqa: E402

LOOKED_AT = 5000
EAGER_STEPS = 3   # before the graph is captured
FORMS = ("torch", "graph", "compile")


class Data:
    """Images on the device, normalised, channels last."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, data, device: str) -> None:
        mean, std = (torch.from_numpy(a).to(device).view(1, 3, 1, 1) for a in (data.mean, data.std))
        x = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 255
        self.images = ((x - mean) / std).contiguous(memory_format=torch.channels_last)
        self.black = -mean / std
        self.labels = torch.from_numpy(labels).to(device)


def epoch_of(data: Data, augment: str, epoch: int, sides: torch.Tensor) -> torch.Tensor:
    """Returns the images of an epoch, cropped and mirrored at random."""
    x, names = data.images, dict(item.partition("=")[::2] for item in augment.split(",") if augment != "none")
    if "crop" in names:
        x = cropped(x - data.black, int(names["crop"] or 4)) + data.black
    if "altflip" in names or "flip" in names:
        turned = sides ^ bool(epoch % 2) if "altflip" in names else torch.rand(len(x), device=x.device) < 0.5
        x = torch.where(turned.view(-1, 1, 1, 1), x.flip(-1), x)
    return x


def cropped(x: torch.Tensor, r: int) -> torch.Tensor:
    """Returns images moved by up to r pixels either way, zeros coming in: one gather, and the CPU waits for nothing."""
    wide, (h, w) = F.pad(x, (r,) * 4).permute(0, 2, 3, 1), x.shape[2:]
    move = torch.randint(0, 2 * r + 1, (2, len(x), 1), device=x.device)
    rows, columns = (start + torch.arange(n, device=x.device) for start, n in zip(move, (h, w)))
    image = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    return wide[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def views(x: torch.Tensor, tta: str) -> list[torch.Tensor]:
    found, (h, w) = [x], x.shape[2:]
    if "shift" in tta:
        wide = F.pad(x, (1,) * 4, mode="reflect")
        found += [wide[:, :, :h, :w], wide[:, :, 2:, 2:]]
    return [*found, *[v.flip(-1) for v in found]] if "mirror" in tta else found


class Training:
    """The steps of a training; `replayed` is a CUDA graph of a whole one: forward, backward, update and average."""

    def __init__(self, net: torch.nn.Module, run, config, device: str) -> None:
        self.net, self.run, self.config, self.device = net, run, config, device
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.lr = torch.tensor(0.0, device=device)
        self.optimizer = torch.optim.SGD(self.parameters, lr=self.lr, momentum=config.momentum,
                                         weight_decay=config.weight_decay, fused=device == "cuda")
        self.averages = [p.detach().clone() for p in self.parameters]
        self.steps, self.graph = 0, None

    def step(self, x: torch.Tensor, y: torch.Tensor, run=None) -> None:
        with autocast(torch, self.device, self.config.precision):
            outputs = (run or self.net)(x)
        F.cross_entropy(outputs.float(), y, label_smoothing=self.config.label_smoothing).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.config.ema:
            torch._foreach_lerp_(self.averages, [p.detach() for p in self.parameters], 1 - self.config.ema)

    def replayed(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if self.steps < EAGER_STEPS:  # real steps too: they compile, choose kernels and make the momenta
            self.beside(x, y)
        elif self.graph is None:
            self.x, self.y, self.graph = x.clone(memory_format=torch.preserve_format), y.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step(self.x, self.y, self.run)
        if self.graph is not None:
            self.x.copy_(x)
            self.y.copy_(y)
            self.graph.replay()
        self.steps += 1

    def beside(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Takes a step on a stream of its own, as one has to before a graph is captured."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step(x, y, self.run)
        torch.cuda.current_stream().wait_stream(stream)


def trained(config, form: str, synchronize) -> dict:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(config.seed)
    torch.backends.cudnn.benchmark = True
    allow_tf32(torch, config.precision)
    source = load(config.dataset, config.data_dir, seed=config.seed)
    train, test = (Data(*pair, source, device) for pair in ((source.train_images, source.train_labels),
                                                            (source.test_images, source.test_labels)))
    net = TWINS[config.model]().to(device, memory_format=torch.channels_last)
    if config.model == "airbench94":
        weight = whitening(train.images[:LOOKED_AT].permute(0, 2, 3, 1).cpu().numpy(), 2).transpose(0, 3, 1, 2)
        with torch.no_grad():
            net[0].weight.copy_(torch.from_numpy(np.concatenate([weight, -weight])))
        net[0].weight.requires_grad_(False)
    training = Training(net, torch.compile(net, dynamic=False) if form == "compile" else net, config, device)
    graphed = device == "cuda" and form != "torch"
    count, size = len(train.labels), config.batch_size
    lr = make_schedule(config, -(-count // size))
    sides, step, seconds = torch.rand(count, device=device) < 0.5, 0, []
    ready = time.perf_counter() - BEGIN
    for epoch in range(config.epochs):
        begin = time.perf_counter()
        net.train()
        images, order = epoch_of(train, config.augment, epoch, sides), torch.randperm(count, device=device)
        for part in order.split(size):
            training.lr.fill_(lr(step))
            x, y = images[part].contiguous(memory_format=torch.channels_last), train.labels[part]
            (training.replayed if graphed and len(part) == size else training.step)(x, y)
            step += 1
        synchronize()
        seconds.append(time.perf_counter() - begin)
    parameters, averages = training.parameters, training.averages
    if config.ema:
        with torch.no_grad():
            torch._foreach_copy_(parameters, averages)
    return {"accuracy": accuracy(net, test, config, device), "ready": ready, "epochs": seconds,
            "result": time.perf_counter() - BEGIN}


def accuracy(net, test: Data, config, device: str) -> float:
    net.eval()
    right = 0
    with torch.no_grad(), autocast(torch, device, config.precision):
        for x, y in zip(test.images.split(config.batch_size), test.labels.split(config.batch_size)):
            right += int((sum(net(v) for v in views(x, config.tta)).argmax(1) == y).sum())
    return right / len(test.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--form", choices=FORMS, default="torch")
    args, flags = parser.parse_known_args()
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    print(json.dumps(trained(parse(flags), args.form, synchronize)), flush=True)


if __name__ == "__main__":
    main()
