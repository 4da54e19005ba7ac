"""Activations on the GPU: see activation.cu."""

from __future__ import annotations

from alpha.cuda.ops.pointwise import elementwise
from alpha.cuda.ops.pointwise.equations import MAPPED

for _op in MAPPED:
    elementwise(_op, "activation.cu", " ".join(_op.equation.args), **dict.fromkeys(_op.equation.attrs, "f32"))
