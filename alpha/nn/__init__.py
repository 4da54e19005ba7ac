"""Layers: parameters, and calls of ops.  Activations are NHWC, filters OHWI, linear weights (out, in)."""

import sys

from alpha.methods import twins
from alpha.nn import init
from alpha.nn.activation import (
    ELU,
    GELU,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from alpha.nn.coconv import CoConv2d
from alpha.nn.container import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from alpha.nn.conv import Conv2d, ConvTranspose2d
from alpha.nn.dropout import Dropout
from alpha.nn.function import Lambda
from alpha.nn.linear import Flatten, Identity, Linear
from alpha.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from alpha.nn.module import Module, Parameter
from alpha.nn.norm import BatchNorm2d, GroupNorm, LayerNorm
from alpha.nn.pool import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, MaxPool2d
from alpha.nn.summary import Summary, summary

__all__ = [
    "ELU", "GELU", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm2d",
    "CoConv2d", "Conv2d", "ConvTranspose2d", "CrossEntropyLoss", "Dropout", "Flatten", "GroupNorm", "Hardswish",
    "Identity", "L1Loss", "Lambda", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "MSELoss", "MaxPool2d", "Module",
    "ModuleDict", "ModuleList", "NLLLoss", "Parameter", "ParameterDict", "ParameterList", "ReLU", "ReLU6", "Sequential",
    "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Summary", "Tanh", "init", "summary",
]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.nn", name, twins.NN, sys.modules[__name__])
