"""python -m train whose ranks are taken for stopped after a few seconds of silence."""

from __future__ import annotations

import sys

from alpha.dist import watch
from train.__main__ import process

watch.SILENT_S = 4.0

if __name__ == "__main__":
    sys.exit(process())
