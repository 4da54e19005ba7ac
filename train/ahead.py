"""One step of training and one of evaluation on images of no meaning: what a run will launch, before it does."""

from __future__ import annotations

import numpy as np

import alpha
from alpha.data import Augment, Dataset, Images
from train.config import Config
from train.loop import evaluate
from train.session import Session

CLASSES = 10


def steps(config: Config, classes: int = CLASSES) -> None:
    """Makes a step of the run that `config` describes, and evaluates its model on a batch."""
    count = config.batch_size
    images, labels = np.zeros((count, 32, 32, 3), np.uint8), np.zeros(count, np.int64)
    data = Dataset("ahead", tuple(map(str, range(classes))), np.zeros(3, np.float32), np.ones(3, np.float32),
                   images, labels, images, labels)
    with alpha.config(precision=config.precision, conv_algorithm=config.algorithm, recompute=config.recompute):
        session = Session(config, classes, count)
        for x, y in Images(images, labels, data, config.device).batches(count, augment=Augment.parse(config.augment)):
            session.step(x, y)
        with session.averaged():
            evaluate(session.model, images, labels, data, batch_size=count, device=config.device)
