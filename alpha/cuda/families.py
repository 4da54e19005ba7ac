"""Imports every family of implementations, which binds them to their ops."""
# TEMPORARY while families are being written: imports those that exist
from importlib import import_module
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("*")):
    if _path.stem in ("activation", "augment", "conv", "dropout", "elementwise", "loss", "matmul", "norm", "pool", "reduce",
                      "shape", "softmax", "update"):
        import_module(f"alpha.cuda.{_path.stem}")
