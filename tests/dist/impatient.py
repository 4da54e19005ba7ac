"""python -m train whose ranks are taken for stopped, or for hanging, after a few seconds.

In a step rank HANGS hangs, and rank FAILS raises an error.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from alpha import dist
from alpha.dist import watch
from alpha.errors import DataError
from alpha.training import Trainer
from train.__main__ import process

watch.SILENT_S = watch.PATIENCE_S = 4.0     # which rank 0 tells the server
STEP = 12
make_step = Trainer.step


def step(self: Trainer, *batch: Any) -> Any:
    if self.progress.step == STEP and os.environ.get("HANGS") == str(dist.world().rank):
        time.sleep(600)
    if self.progress.step == STEP and os.environ.get("FAILS") == str(dist.world().rank):
        raise DataError("images: the file is gone\nhelp: bring it back")
    return make_step(self, *batch)


if __name__ == "__main__":
    Trainer.step = step     # type: ignore[method-assign]
    sys.exit(process())
