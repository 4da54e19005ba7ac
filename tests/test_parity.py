"""Training steps from the same weights, on the same batches, give PyTorch's losses: twenty of LeNet-5."""

import numpy as np
import pytest

import alpha
import models
from alpha import nn, optim
from alpha.checkpoint import from_torch_state_dict

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS, BATCH = {"lenet5": 20, "vgg11": 6, "resnet18": 8}, 16  # until losses have fallen

# The losses fall with these lr, and rounding does not grow: higher ones make the runs chaotic, and then two correct
# programs drift apart.
OPTIMIZERS = {"sgd": ("SGD", dict(momentum=0.9, weight_decay=5e-4)), "adamw": ("AdamW", dict(weight_decay=1e-2))}
LR = {("lenet5", "sgd"): 5e-2, ("vgg11", "sgd"): 1e-5, ("resnet18", "sgd"): 3e-5,
      ("lenet5", "adamw"): 1e-3, ("vgg11", "adamw"): 1e-6, ("resnet18", "adamw"): 2e-6}
RESNET = pytest.mark.same_without_kernels("VGG-11 has all its ops but a sum")
HERE = [("lenet5", "sgd"), ("lenet5", "adamw"), ("vgg11", "adamw"),  # a GPU runs all of them
        pytest.param("resnet18", "sgd", marks=RESNET)]


def batches(steps):
    """Two batches in turn, so that there is something to learn."""
    rng = np.random.default_rng(0)
    made = [(rng.standard_normal((BATCH, 32, 32, 3)).astype(np.float32), rng.integers(0, 10, BATCH)) for _ in range(2)]
    return [made[step % 2] for step in range(steps)]


def torch_losses(model, optimizer, steps):
    losses = []
    for x, labels in batches(steps):
        logits = model(torch.from_numpy(x).permute(0, 3, 1, 2))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def alpha_losses(model, optimizer, steps):
    losses, criterion = [], nn.CrossEntropyLoss()
    for x, labels in batches(steps):
        loss = criterion(model(alpha.tensor(x)), alpha.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name, kind", HERE)
def test_losses_equal_those_of_torch(name, kind):
    from benchmarks.torch_models import TWINS

    torch.manual_seed(0)
    theirs, ours = TWINS[name](), models.create(name)
    from_torch_state_dict(theirs.state_dict(), ours)
    optimizer, settings = OPTIMIZERS[kind]
    settings = dict(settings, lr=LR[name, kind])
    expected = torch_losses(theirs, getattr(torch.optim, optimizer)(theirs.parameters(), **settings), STEPS[name])
    got = alpha_losses(ours, getattr(optim, optimizer)(ours.named_parameters(), **settings), STEPS[name])
    for first, last in zip(expected[:2], expected[-2:]):  # of the same batch each: batches alternate
        assert last < 0.97 * first, "nothing was learned, so nothing was tested"
    limit = 1e-4 if alpha.config.cpu_kernels else 3e-4  # NumPy adds in another order, and Adam makes more of that
    assert got == pytest.approx(expected, rel=limit)
