"""python -m train whose ranks are taken for stopped, or for hanging, after a few seconds; rank HANGS hangs in a step."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from alpha import dist
from alpha.dist import watch
from alpha.training import Trainer
from train.__main__ import process

watch.SILENT_S = watch.PATIENCE_S = 4.0     # which rank 0 tells the server
STEP = 12
make_step = Trainer.step


def step(self: Trainer, *batch: Any) -> Any:
    if self.progress.step == STEP and os.environ.get("HANGS") == str(dist.world().rank):
        time.sleep(600)
    return make_step(self, *batch)


if __name__ == "__main__":
    Trainer.step = step     # type: ignore[method-assign]
    sys.exit(process())
