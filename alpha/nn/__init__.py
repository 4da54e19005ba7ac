"""Layers: parameters, and calls of ops.  Activations are NHWC, filters OHWI, linear weights (out, in)."""

import sys

from alpha.interop import twins
from alpha.nn import functional, init, utils
from alpha.nn.parameter import Parameter
from alpha.nn.summary import Summary, summary

# names: layers, written by python -m tools.names
from alpha.nn.activation import (
    CELU, ELU, GELU, GLU, SELU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, LogSoftmax, Mish,
    PReLU, ReLU, ReLU6, SiLU, Sigmoid, Softmax, Softmax2d, Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink,
    Threshold,
)
from alpha.nn.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from alpha.nn.blocks import ArcFace, DropPath, SqueezeExcite
from alpha.nn.coconv import CoConv2d
from alpha.nn.container import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from alpha.nn.conv import Conv2d, ConvTranspose2d
from alpha.nn.distance import (
    CosineEmbeddingLoss, CosineSimilarity, GaussianNLLLoss, HingeEmbeddingLoss, MarginRankingLoss, MultiMarginLoss,
    PairwiseDistance, PoissonNLLLoss, SoftMarginLoss, TripletMarginLoss,
)
from alpha.nn.dropout import Dropout, Dropout1d, Dropout2d, Dropout3d
from alpha.nn.function import Lambda
from alpha.nn.image import (
    ChannelShuffle, CircularPad2d, ConstantPad2d, Embedding, Fold, LocalResponseNorm, PixelShuffle, PixelUnshuffle,
    ReflectionPad2d, ReplicationPad2d, Unfold, Upsample, ZeroPad2d,
)
from alpha.nn.linear import Flatten, Identity, Linear, Unflatten
from alpha.nn.lines import AdaptiveAvgPool1d, AdaptiveMaxPool1d, AvgPool1d, Conv1d, ConvTranspose1d, MaxPool1d
from alpha.nn.loss import (
    BCELoss, BCEWithLogitsLoss, CTCLoss, CrossEntropyLoss, DiceLoss, FocalLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss,
    NLLLoss, SmoothL1Loss,
)
from alpha.nn.module import Module
from alpha.nn.norm import (
    BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, LayerNorm,
    LayerNorm2d, RMSNorm,
)
from alpha.nn.pool import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, MaxPool2d, MaxUnpool2d
from alpha.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell
from alpha.nn.recurrent.layers import GRU, LSTM, RNN
from alpha.nn.volumes.conv import Conv3d, ConvTranspose3d
from alpha.nn.volumes.pool import AdaptiveAvgPool3d, AdaptiveMaxPool3d, AvgPool3d, MaxPool3d

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "GRU", "LSTM", "RNN", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "ArcFace", "AvgPool1d",
    "AvgPool2d", "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CTCLoss",
    "ChannelShuffle", "CircularPad2d", "CoConv2d", "ConstantPad2d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "CosineEmbeddingLoss", "CosineSimilarity", "CrossEntropyLoss", "DiceLoss",
    "DropPath", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Embedding", "Flatten", "FocalLoss", "Fold",
    "GRUCell", "GaussianNLLLoss", "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
    "HingeEmbeddingLoss", "HuberLoss", "Identity", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "KLDivLoss",
    "L1Loss", "LSTMCell", "Lambda", "LayerNorm", "LayerNorm2d", "LeakyReLU", "Linear", "LocalResponseNorm",
    "LogSigmoid", "LogSoftmax", "MSELoss", "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool2d",
    "Mish", "Module", "ModuleDict", "ModuleList", "MultiMarginLoss", "MultiheadAttention", "NLLLoss", "PReLU",
    "PairwiseDistance", "ParameterDict", "ParameterList", "PixelShuffle", "PixelUnshuffle", "PoissonNLLLoss", "RMSNorm",
    "RNNCell", "ReLU", "ReLU6", "ReflectionPad2d", "ReplicationPad2d", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss",
    "SoftMarginLoss", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "SqueezeExcite", "Tanh",
    "Tanhshrink", "Threshold", "TransformerEncoder", "TransformerEncoderLayer", "TripletMarginLoss", "Unflatten",
    "Unfold", "Upsample", "ZeroPad2d",
]
# end of names
__all__ += ["Parameter", "Summary", "functional", "init", "summary", "utils"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.nn", name, twins.NN, sys.modules[__name__])
