"""What --profile and --tensorboard add to a run: callbacks, which are closed at its end."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alpha.training import Callback, Profile, TensorBoard
from train.config import Config
from train.report import ARTIFACTS, writes


@contextmanager
def watching(config: Config, output: Path) -> Iterator[list[Callback]]:
    """For a run: yields the callbacks that its settings ask for; TensorBoard gets the pictures of its end too.

    Raises ConfigError where the library of TensorBoard is not installed.
    """
    profile = Profile(output, config.profile) if config.profile and writes() else None
    board = None
    if config.tensorboard and writes():
        board = TensorBoard(output / "tensorboard" / datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    found = [c for c in (profile, board) if c is not None]
    try:
        yield list(found)
        pictures = [output / name for name in ARTIFACTS if name.endswith(".png")]
        for picture in pictures if board else ():
            if picture.exists() and board:
                board.picture(picture.stem, picture.read_bytes(), 0)
    finally:
        for callback in found:
            callback.close()
