"""Optimizers, schedules, gradient clipping, loss scaling, and weight averaging."""

import sys

from alpha.interop import twins
from alpha.ops.update.rule import Rule
from alpha.optim import schedule
from alpha.optim.adafactor import Adafactor
from alpha.optim.adam import Adam, Adamax, AdaMod, AdamW, RAdam
from alpha.optim.clip import clip_grad_norm, clip_grad_norm_, clip_grad_value, clip_grad_value_
from alpha.optim.composed import LAMB, Composed, Lookahead
from alpha.optim.elementwise import Adadelta, Adagrad, Adan, Lion, NAdam
from alpha.optim.ema import ExponentialMovingAverage
from alpha.optim.lars import LARS
from alpha.optim.muon import Muon, MuonAdamW
from alpha.optim.optimizer import Optimizer
from alpha.optim.plateau import ReduceLROnPlateau
from alpha.optim.rmsprop import RMSprop
from alpha.optim.sam import SAM
from alpha.optim.scaler import LossScaler
from alpha.optim.schedule_free import ScheduleFreeAdamW, ScheduleFreeSGD
from alpha.optim.sgd import SGD

__all__ = [
    "LAMB",
    "LARS",
    "SAM",
    "SGD",
    "AdaMod",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "Composed",
    "ExponentialMovingAverage",
    "Lion",
    "Lookahead",
    "LossScaler",
    "Muon",
    "MuonAdamW",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "ReduceLROnPlateau",
    "Rule",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value",
    "clip_grad_value_",
    "schedule",
]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.optim", name, twins.OPTIM, sys.modules[__name__])
