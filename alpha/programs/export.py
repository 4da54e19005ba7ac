"""`alpha export RUN out.onnx`: a trained model for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from alpha.programs.arguments import loaded, parser


def main(argv: Sequence[str]) -> int:
    """Writes the file, tells its inputs and outputs, and returns 0.  Raises AlphaError."""
    made = parser("export", "Writes a trained model as an ONNX file; its metadata have the classes, mean and std.")
    made.add_argument("path", metavar="OUT.onnx", help="the file")
    made.add_argument("--normalise", action="store_true", help="let the file take pixels from 0 to 255, and normalise "
                      "them as in training; else it takes normalised ones")
    made.add_argument("--channels-last", action="store_true", help="let the file take (N, H, W, C); else (N, C, H, W)")
    given = made.parse_args(argv)
    run = loaded(given)
    run.export(given.path, normalise=given.normalise, channels_first=not given.channels_last)
    height, width, channels = run.input_shape if len(run.input_shape) == 3 else (0, 0, 0)
    shape = (("N", *run.input_shape) if given.channels_last or not channels else ("N", channels, height, width))
    kind = "pixels from 0 to 255" if given.normalise else "(pixels / 255 - mean) / std" if run.mean.size else "samples"
    print(f"{given.path}: {Path(given.path).stat().st_size:,} bytes; input {', '.join(map(str, shape))}, float32, "
          f"{kind}; {len(run.classes)} classes")
    return 0
