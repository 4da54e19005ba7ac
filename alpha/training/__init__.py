"""Training: `fit`, its callbacks and metrics, and the names by which the training program finds your parts.

    from alpha.training import fit
    history = fit(model, (images, labels), epochs=5, optimizer="adam")

    @register_model                       # then: alpha train --import my_file.py --model my_net
    def my_net(num_classes): ...
"""

import sys

from alpha.data.sets import register_dataset
from alpha.interop import twins
from alpha.training.callback import Callback
from alpha.training.callbacks import Plateau, Profile, TensorBoard
from alpha.training.classes import ClassFigures, per_class
from alpha.training.fit import fit
from alpha.training.history import History, Progress
from alpha.training.metrics import accuracy, over_epoch
from alpha.training.rate_range import Rates, find_lr
from alpha.training.registries import (
    register_loss,
    register_model,
    register_optimizer,
    register_schedule,
)
from alpha.training.runs import Guess, Run, load_run
from alpha.training.stopping import EarlyStopping
from alpha.training.trainer import Trainer

__all__ = ["Callback", "ClassFigures", "EarlyStopping", "Guess", "History", "Plateau", "Profile", "Progress", "Rates",
           "Run", "TensorBoard", "Trainer", "accuracy", "find_lr", "fit", "load_run", "over_epoch", "per_class",
           "register_dataset", "register_loss", "register_model", "register_optimizer", "register_schedule"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.training", name, twins.TRAINING, sys.modules[__name__])
