"""Checks that a comparison is fair and right; it is not measured otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from alpha.errors import AlphaError, ConfigError, message
from benchmarks.environment import smi

# Relative difference of the first loss and of the one after an update; rounding grows with every update.
LOSS_BOUNDS = {"fp32": (1e-4, 1e-2), "bf16": (1e-2, 1e-1),
               **dict.fromkeys(("fp32-tf32", "tf32", "fp16"), (2e-3, 3e-2))}
BUSY_PERCENT, BUSY_MIB = 10.0, 2048.0  # of a GPU that other programs use; a bare driver holds less
PATIENCE = 5                           # looks at a GPU, a second apart, before it counts as busy


class UnfairError(AlphaError, RuntimeError):
    """A comparison whose figures would mislead."""


class Idle(Protocol):
    """A side whose device can be asked whether it still works."""

    name: str

    def idle(self) -> bool: ...


def refuse(what: str, fix: str, where: str = "compare", **values: object) -> NoReturn:
    """Raises UnfairError."""
    raise UnfairError(message(where, what, fix, **values))


def precision_of_device(precisions: Iterable[str], device: str, where: str) -> None:
    """Raises ConfigError for a precision that a device does not have in both libraries."""
    if device == "cpu" and set(precisions) != {"fp32"}:
        raise ConfigError(message(where, f"precision {' '.join(precisions)} on the CPU, which computes fp32 alone",
                                  "use --precision fp32, or a GPU: --device cuda"))


def same_parameters(ours: int, theirs: int, library: str = "PyTorch") -> None:
    """Refuses networks whose numbers of parameters differ."""
    if ours != theirs:
        refuse(f"alpha's network has {ours:,} parameters, {library}'s has {theirs:,}",
               "compare the same network: print alpha.summary(model, shape) beside the other one's layers")


def same_values(ours: list[float], theirs: list[float], precision: str, library: str = "PyTorch") -> None:
    """Refuses networks that, from the same weights and on the same batches, do not have the same losses.

    Args:
        ours, theirs: losses before the first update, after it, and so on; the first two are compared.
    """
    for k, (a, b, bound) in enumerate(zip(ours, theirs, LOSS_BOUNDS[precision])):
        if not abs(a - b) <= bound * abs(b):
            refuse(f"after {k} updates alpha's loss is {a:.6g} and {library}'s is {b:.6g}, {precision} allows "
                   f"{bound:g} of it",
                   "compare the same network with the same weights: a layer differs, a Linear behind a map lacks its "
                   "flattened=(H, W, C), or one side computes in a lower precision",
                   alpha=ours[:3], **{library: theirs[:3]})


def synchronised(side: Idle) -> None:
    """Refuses a time that was taken while the device was still working."""
    if not side.idle():
        refuse(f"the clock of {side.name} was stopped while the device was still working, the time is too short",
               "wait for the device before the clock is stopped: its synchronize() returned too early")


def quiet_gpu(look: Callable[..., Mapping[str, str]] = smi, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Refuses a GPU that other programs use.  Must be called before this program uses it."""
    for k in range(PATIENCE):
        seen = look("utilization.gpu", "memory.used")
        percent, mib = (_number(seen.get(name)) for name in ("utilization.gpu", "memory.used"))
        if percent <= BUSY_PERCENT and mib <= BUSY_MIB:
            return
        if k + 1 < PATIENCE:
            sleep(1.0)
    refuse(f"the GPU is busy: {percent:.0f} % in use with {mib:.0f} MiB before anything of ours runs, "
           f"{BUSY_PERCENT:g} % and {BUSY_MIB:g} MiB are allowed",
           "wait for the other program (nvidia-smi names it), choose another GPU by CUDA_VISIBLE_DEVICES, or say "
           "--busy, which the results will tell")


def admit(precisions: Iterable[str], device: str, where: str, busy: bool) -> None:
    """Refuses precisions that the device does not have and, unless `busy` is given, a GPU in use."""
    precision_of_device(precisions, device, where)
    if device == "cuda" and not busy:
        quiet_gpu()


def _number(text: str | None) -> float:
    """Returns the number that a field of nvidia-smi starts with; 0 where it does not know."""
    try:
        return float((text or "0").split()[0])
    except ValueError:
        return 0.0
