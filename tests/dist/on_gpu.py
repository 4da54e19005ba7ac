"""Runs of two steps on a GPU that ranks share: python -m tests.dist.on_gpu FOLDER [--emulated], alone or by mpirun."""

from __future__ import annotations

import sys

from alpha import dist
from tests.dist.small import settings
from train import ranks, report
from train.loop import Run


def main(folder: str) -> None:
    if "--emulated" in sys.argv:
        from tests.emulator import emulation
        emulation.install()
    report.can_plot = lambda: False
    whole = settings(folder, device="cuda")
    with ranks.joined(whole):
        size = dist.world().size
        for name, changes in (("exact", {"exact_over": 4}), ("plain", {})):
            Run(settings(f"{folder}/{name}-{size}", device="cuda", max_steps=2, batch_size=16, val_size=0,
                         **changes)).run()


if __name__ == "__main__":
    main(sys.argv[1])
