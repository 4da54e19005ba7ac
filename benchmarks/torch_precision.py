"""alpha's precisions in PyTorch."""

from __future__ import annotations

from typing import Any

AUTOCAST = {"bf16": "bfloat16", "fp16": "float16"}  # dtype in which autocast lets layers compute


def allow_tf32(torch: Any, precision: str) -> None:
    """Lets matrix products and convolutions round float32 to TF32, but for fp32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"


def autocast(torch: Any, device: str, precision: str) -> Any:
    """Returns the context in which a network is to be called; in fp32 and tf32 it changes nothing."""
    dtype = AUTOCAST.get(precision)
    return torch.autocast(device, getattr(torch, dtype or "bfloat16"), enabled=dtype is not None)
