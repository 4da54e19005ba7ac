"""Optimizers, schedules, gradient clipping, loss scaling, and weight averaging."""

import sys

from alpha.methods import twins
from alpha.optim import schedule
from alpha.optim.adam import Adam, Adamax, AdaMod, AdamW, RAdam
from alpha.optim.clip import clip_grad_norm, clip_grad_value
from alpha.optim.ema import ExponentialMovingAverage
from alpha.optim.optimizer import Optimizer
from alpha.optim.rmsprop import RMSprop
from alpha.optim.scaler import LossScaler
from alpha.optim.sgd import SGD

__all__ = [
    "SGD", "AdaMod", "Adam", "AdamW", "Adamax", "ExponentialMovingAverage", "LossScaler", "Optimizer", "RAdam",
    "RMSprop", "clip_grad_norm", "clip_grad_value", "schedule",
]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.optim", name, twins.OPTIM, sys.modules[__name__])
