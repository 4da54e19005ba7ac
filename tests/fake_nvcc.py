"""A CUDA toolkit that only pretends: its nvcc writes a line for a cubin, notes its work, and fails at an #error."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; fi
if [ "$1" = --list-gpu-arch ]; then for n in 75 80 86 89 90 100 120; do echo "compute_$n"; done; exit; fi
for word in "$@"; do
  case "$word" in *.cu) source=$word;; esac
done
echo "$source" >> {folder}/compiled
grep -n '#error' "$source" >&2 && exit 2
while [ "$1" != -o ]; do shift; done
sleep {seconds}
echo "cubin of $source" > "$2"
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0) -> Path:
    """Makes it the toolkit of this test and returns the path of its nvcc; <folder>/compiled lists what it compiled."""
    path = folder / "toolkit" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT.format(folder=folder, seconds=seconds))
    path.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(folder / "toolkit"))
    return path
