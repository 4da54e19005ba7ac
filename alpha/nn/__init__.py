"""Layers: parameters, and calls of ops.  Activations are NHWC, filters OHWI, linear weights (out, in)."""

import sys

from alpha.methods import twins
from alpha.nn import functional, init
from alpha.nn.activation import (
    ELU,
    GELU,
    GLU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
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
from alpha.nn.dropout import Dropout, Dropout1d, Dropout2d
from alpha.nn.function import Lambda
from alpha.nn.image import (
    ChannelShuffle,
    CircularPad2d,
    ConstantPad2d,
    Embedding,
    LocalResponseNorm,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad2d,
    ReplicationPad2d,
    Upsample,
    ZeroPad2d,
)
from alpha.nn.linear import Flatten, Identity, Linear
from alpha.nn.lines import AdaptiveAvgPool1d, AdaptiveMaxPool1d, AvgPool1d, Conv1d, MaxPool1d
from alpha.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from alpha.nn.module import Module, Parameter
from alpha.nn.norm import BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm2d, LayerNorm
from alpha.nn.pool import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, MaxPool2d, MaxUnpool2d
from alpha.nn.summary import Summary, summary

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "ChannelShuffle",
    "CircularPad2d",
    "CoConv2d",
    "ConstantPad2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "InstanceNorm2d",
    "KLDivLoss",
    "L1Loss",
    "Lambda",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxUnpool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReLU",
    "ReLU6",
    "ReflectionPad2d",
    "ReplicationPad2d",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Summary",
    "Tanh",
    "Upsample",
    "ZeroPad2d",
    "functional",
    "init",
    "summary",
]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.nn", name, twins.NN, sys.modules[__name__])
