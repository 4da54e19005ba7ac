"""onnx: models as ONNX files, for other programs to run, and back.  Needs the package onnx (extra "onnx").

    alpha.onnx.export(model, alpha.zeros((1, 32, 32, 3)), "net.onnx")
    net = alpha.onnx.load("net.onnx")       # a Module, whose weights can be trained further
"""

import sys

from alpha.interop import twins
from alpha.onnx.exporter import export
from alpha.onnx.loader import OnnxModel, load

__all__ = ["OnnxModel", "export", "load"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.onnx", name, twins.ONNX, sys.modules[__name__])
